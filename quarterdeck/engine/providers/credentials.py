"""Find the key and the address of a provider: in the caller's options, then config.toml, then the environment.

    [provider.anthropic]
    api_key = "…"

    [provider.lab]                  # any other name, for a server that speaks one of the formats: model = "lab:NAME"
    kind = "chat"
    base_url = "http://127.0.0.1:8000/v1"

    [price."anthropic:NAME"]        # US dollars for a million tokens; without it the cost is unknown
    input = 3.0
    output = 15.0
    cache_read = 0.3
    cache_write = 3.75

No repr and no error message in this package contains a key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from quarterdeck.config import ConfigFile, ProviderSettings, config_file
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json

#: Options that configure a provider. All others are copied into its requests.
SETUP_OPTIONS = frozenset({"api_key", "base_url", "headers", "pause"})
#: A shorter text isn't treated as a secret: it protects nothing and would be found in every message.
_SECRET_LENGTH = 6


class NoSuchProvider(QuarterdeckError):
    """There is no provider with this name."""

    code = "no_such_provider"


class InvalidModel(QuarterdeckError):
    """The name of a model lacks the provider or the model."""

    code = "invalid_model"


class MissingKey(QuarterdeckError):
    """The provider needs a key and none is set."""

    code = "missing_key"


class InvalidProvider(QuarterdeckError):
    """The settings of a provider can't be used."""

    code = "invalid_provider"


class KnownProvider(NamedTuple):
    """A provider that works without configuration, except for a key."""

    #: The wire format, which is the name of a module in this package.
    wire: str
    base_url: str
    #: Environment variables with the key and with another address. The first one that is set is used.
    key_variables: tuple[str, ...] = ()
    url_variables: tuple[str, ...] = ()
    #: Send the key from the environment only to this provider's own address, not to a configured base_url.
    is_key_shared: bool = False


KNOWN_PROVIDERS: dict[str, KnownProvider] = {
    "anthropic": KnownProvider(
        "anthropic", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",)
    ),
    "openai": KnownProvider("openai", "https://api.openai.com/v1", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",)),
    "gemini": KnownProvider(
        "gemini",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("GOOGLE_GEMINI_BASE_URL",),
    ),
    "chat": KnownProvider("chat", "https://api.openai.com/v1", ("OPENAI_API_KEY",), (), is_key_shared=True),
    "openrouter": KnownProvider("chat", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "groq": KnownProvider("chat", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "deepseek": KnownProvider("chat", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    "ollama": KnownProvider("chat", "http://127.0.0.1:11434/v1"),
}


class Credentials:
    """Key, address, headers and prices of one provider. Its repr doesn't show the key."""

    def __init__(
        self,
        name: str,
        known: KnownProvider,
        config: ConfigFile,
        options: Mapping[str, Json],
        environment: Mapping[str, str],
    ) -> None:
        settings = config.providers().get(name, ProviderSettings())
        configured_url = _text_option(options, "base_url") or settings.base_url
        self.name = name
        self.wire = known.wire
        base_url = configured_url or _first_set(environment, known.url_variables) or known.base_url
        self.base_url = base_url.rstrip("/")
        self.key_hint = _key_hint(name, known)
        self.api_key = _text_option(options, "api_key") or settings.api_key
        if not self.api_key and not (configured_url and known.is_key_shared):
            self.api_key = _first_set(environment, known.key_variables)
        self.headers = {**settings.headers, **_header_option(options)}
        self.options = {key: value for key, value in options.items() if key not in SETUP_OPTIONS}
        #: Prices of this provider's models, by model.
        self.prices = {
            model: price
            for full_name, price in config.prices().items()
            for provider, _, model in [full_name.partition(":")]
            if provider == name
        }
        self._check()
        #: Texts that must not appear in errors. A header may contain a key too.
        self.secrets = tuple(text for text in (self.api_key, *self.headers.values()) if len(text) >= _SECRET_LENGTH)

    def _check(self) -> None:
        if not _is_web_address(self.base_url):
            raise InvalidProvider(
                f"{self.name}: base_url isn't a web address", "Use an address that starts with https:// or http://."
            )
        if not _is_printable_ascii(self.api_key):
            raise InvalidProvider(f"{self.name}: the key has invalid characters", "Copy the key again.")
        if not all(map(_is_printable_ascii, (*self.headers, *self.headers.values()))):
            raise InvalidProvider(f"{self.name}: a header has invalid characters", "Copy it again.")

    @property
    def needs_key(self) -> bool:
        """Whether a request without a key would fail. A server at a configured address may work without one."""
        known = KNOWN_PROVIDERS.get(self.name)
        return bool(known and known.key_variables and self.base_url == known.base_url)

    def __repr__(self) -> str:
        return f"Credentials({self.name!r}, {self.base_url!r})"


class ProviderStatus(Struct, frozen=True):
    """A provider that can be used in a model's name."""

    name: str
    wire: str
    base_url: str
    #: Nothing is missing for using it.
    is_ready: bool
    #: What to do if it isn't ready.
    hint: str = ""


def find_credentials(
    name: str, options: Mapping[str, Json], environment: Mapping[str, str] = os.environ, *, require_key: bool = True
) -> Credentials:
    """Return the credentials of a provider.

    Raises:
        NoSuchProvider: the provider is neither known nor configured.
        MissingKey: the provider needs a key and none is set.
        InvalidProvider: the settings can't be used.
        InvalidSetting: config.toml can't be used.
    """
    config = config_file(environment)
    credentials = Credentials(name, _find_provider(name, config), config, options, environment)
    if require_key and credentials.needs_key and not credentials.api_key:
        raise MissingKey(f"no key for {name}", credentials.key_hint)
    return credentials


def list_providers(environment: Mapping[str, str] = os.environ) -> list[ProviderStatus]:
    """List all providers, including those of config.toml. `demo` is always ready."""
    configured = config_file(environment).providers()
    statuses = [ProviderStatus("demo", "demo", "", True)]
    for name in [*KNOWN_PROVIDERS, *(name for name in configured if name not in KNOWN_PROVIDERS)]:
        credentials = find_credentials(name, {}, environment, require_key=False)
        is_ready = bool(credentials.api_key) or not credentials.needs_key
        hint = "" if is_ready else credentials.key_hint
        statuses.append(ProviderStatus(name, credentials.wire, credentials.base_url, is_ready, hint))
    return statuses


def _find_provider(name: str, config: ConfigFile) -> KnownProvider:
    configured = config.providers()
    settings = configured.get(name)
    if name in KNOWN_PROVIDERS and not (settings and settings.kind):
        return KNOWN_PROVIDERS[name]
    if settings is None:
        names = ", ".join(["demo", *KNOWN_PROVIDERS, *configured])
        raise NoSuchProvider(
            f"no provider {name!r}",
            f"Use one of {names}, or add [provider.{name}] with kind and base_url to config.toml.",
        )
    wires = {known.wire for known in KNOWN_PROVIDERS.values()}
    if settings.kind not in wires or not settings.base_url:
        raise InvalidProvider(
            f"[provider.{name}] needs kind and base_url", f"Set kind to one of {', '.join(sorted(wires))}."
        )
    return KnownProvider(settings.kind, settings.base_url)


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_printable_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _key_hint(name: str, known: KnownProvider) -> str:
    setting = f"api_key under [provider.{name}] in config.toml"
    return f"Set {' or '.join(known.key_variables)}, or {setting}." if known.key_variables else f"Set {setting}."


def _first_set(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name].strip() for name in names if environment.get(name, "").strip()), "")


def _text_option(options: Mapping[str, Json], name: str) -> str:
    value = options.get(name, "")
    if not isinstance(value, str):
        raise InvalidProvider(f"{name} must be a string", "Pass it as a string, or leave it out.")
    return value.strip()


def _header_option(options: Mapping[str, Json]) -> dict[str, str]:
    try:
        return msgspec.convert(options.get("headers", {}), dict[str, str])
    except msgspec.ValidationError:
        raise InvalidProvider("headers must be strings by name", "Pass them as {'x-team': 'tools'}.") from None
