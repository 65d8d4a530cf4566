"""Create models by name: `model, name = create_model("anthropic:NAME", {"api_key": …})`.

Each wire format has its own module (`anthropic`, `openai`, `chat`, `gemini`); `demo` is a script that needs no network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from quarterdeck.engine.model import Model
from quarterdeck.engine.providers.credentials import (
    Credentials,
    InvalidModel,
    InvalidProvider,
    MissingKey,
    NoSuchProvider,
    ProviderStatus,
    find_credentials,
    list_providers,
)
from quarterdeck.events import Json

__all__ = [
    "InvalidModel",
    "InvalidProvider",
    "MissingKey",
    "NoSuchProvider",
    "ProviderStatus",
    "create_model",
    "list_providers",
]


def create_model(
    name: str, options: Mapping[str, Json] | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[Model, str]:
    """Create a model from a name such as `anthropic:NAME`. Return it with the provider's own name for it.

    Args:
        name: `PROVIDER:MODEL`
        options: api_key, base_url and headers of the provider; all other options are copied into every request
        environment: where to look for keys and for the home folder

    Raises:
        InvalidModel: the name has no provider or no model.
        NoSuchProvider: the provider is neither known nor configured.
        MissingKey: the provider needs a key and none is set.
        InvalidProvider: the provider's settings can't be used.
    """
    provider, colon, model = name.partition(":")
    if not colon or not provider:
        raise InvalidModel(f"{name!r} doesn't say which provider", "Write PROVIDER:MODEL, such as demo:tour.")
    if provider == "demo":
        from quarterdeck.engine.providers.demo import DemoModel

        return DemoModel(options or {}), model or "tour"
    credentials = find_credentials(provider, options or {}, environment)
    if not model:
        raise InvalidModel(f"{name!r} doesn't say which model", f"Write {provider}:MODEL.")
    return _create_http_model(credentials), model


def _create_http_model(credentials: Credentials) -> Model:
    # Import only the format that is used.
    match credentials.wire:
        case "anthropic":
            from quarterdeck.engine.providers.anthropic import AnthropicModel

            return AnthropicModel(credentials)
        case "openai":
            from quarterdeck.engine.providers.openai import OpenAIModel

            return OpenAIModel(credentials)
        case "gemini":
            from quarterdeck.engine.providers.gemini import GeminiModel

            return GeminiModel(credentials)
        case "chat":
            from quarterdeck.engine.providers.chat import ChatModel

            return ChatModel(credentials)
        case wire:
            raise ValueError(f"no module is listed here for the wire format {wire!r}")
