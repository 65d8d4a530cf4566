"""The models that the built-in agent can speak to, one file each, and how one is had by its name.

model, name = model_of("anthropic:NAME", {"api_key": …})
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from quarterdeck.engine.model import Model
from quarterdeck.engine.providers.credentials import (
    Access,
    Configured,
    InvalidModel,
    InvalidProvider,
    MissingKey,
    NoSuchProvider,
    access,
    configured,
)
from quarterdeck.events import Json

__all__ = ["Configured", "InvalidModel", "InvalidProvider", "MissingKey", "NoSuchProvider", "configured", "model_of"]


def model_of(
    name: str, options: Mapping[str, Json] | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[Model, str]:
    """`provider:model` as a model that can be asked, and the provider's own name for it.

    `options` (the caller's provider_opts) may hold api_key, base_url and headers; all others go into every request as they
    are. InvalidModel, NoSuchProvider, MissingKey, InvalidProvider.
    """
    provider, colon, model = name.partition(":")
    if not colon or not provider:
        raise InvalidModel(f"{name!r} does not say which provider", "Write PROVIDER:MODEL, such as demo:tour.")
    if provider == "demo":
        from quarterdeck.engine.providers.demo import DemoModel

        return DemoModel(options or {}), model or "tour"
    found = access(provider, options or {}, environment)
    if not model:
        raise InvalidModel(f"{name!r} does not say which model", f"Write {provider}:MODEL.")
    return _made(found), model


def _made(found: Access) -> Model:
    """Nothing of a provider is imported before it is used."""
    if found.wire == "anthropic":
        from quarterdeck.engine.providers.anthropic import AnthropicModel

        return AnthropicModel(found)
    if found.wire == "openai":
        from quarterdeck.engine.providers.openai import OpenAIModel

        return OpenAIModel(found)
    if found.wire == "gemini":
        from quarterdeck.engine.providers.gemini import GeminiModel

        return GeminiModel(found)
    from quarterdeck.engine.providers.chat import ChatModel

    return ChatModel(found)
