"""Where a provider is and by which key it is used: options of the caller, then config.toml, then the environment.

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

A key is held by the model that uses it and is shown by nothing here.
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

#: Options that set a provider up; all others go into its requests.
SETUP = frozenset({"api_key", "base_url", "headers", "pause"})
#: What is shorter protects nothing, and would be found in every text.
_SHORTEST_SECRET = 6


class NoSuchProvider(QuarterdeckError):
    """A name that no provider has."""

    code = "no_such_provider"


class InvalidModel(QuarterdeckError):
    """A model's name that cannot be one."""

    code = "invalid_model"


class MissingKey(QuarterdeckError):
    """A service that wants a key, and none is there."""

    code = "missing_key"


class InvalidProvider(QuarterdeckError):
    """A provider's settings that cannot be used."""

    code = "invalid_provider"


class Kind(NamedTuple):
    """What is known of a service before anybody sets anything. `wire` is the format that it speaks."""

    wire: str
    base_url: str
    keys: tuple[str, ...] = ()
    base_urls: tuple[str, ...] = ()
    #: The key in the environment goes to this service only, and not to wherever base_url is set to.
    is_shared: bool = False


KINDS: dict[str, Kind] = {
    "anthropic": Kind("anthropic", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",)),
    "openai": Kind("openai", "https://api.openai.com/v1", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",)),
    "gemini": Kind(
        "gemini",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("GOOGLE_GEMINI_BASE_URL",),
    ),
    "chat": Kind("chat", "https://api.openai.com/v1", ("OPENAI_API_KEY",), (), is_shared=True),
    "openrouter": Kind("chat", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "groq": Kind("chat", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "deepseek": Kind("chat", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    "ollama": Kind("chat", "http://127.0.0.1:11434/v1"),
}


class Access:
    """All that a provider's model has to know. Its looks show no key."""

    __slots__ = ("api_key", "base_url", "headers", "key_hint", "name", "options", "prices", "secrets", "wire")

    def __init__(
        self, name: str, kind: Kind, config: ConfigFile, options: Mapping[str, Json], env: Mapping[str, str]
    ) -> None:
        table = config.providers().get(name, ProviderSettings())
        own = _text(options, "base_url") or table.base_url
        self.name = name
        self.wire = kind.wire
        self.base_url = (own or _first(env, kind.base_urls) or kind.base_url).rstrip("/")
        self.key_hint = _key_hint(name, kind)
        self.api_key = _text(options, "api_key") or table.api_key
        if not self.api_key and not (own and kind.is_shared):
            self.api_key = _first(env, kind.keys)
        self.headers = {**table.headers, **_headers(options)}
        self.options = {key: value for key, value in options.items() if key not in SETUP}
        self.prices = {
            model.partition(":")[2]: one for model, one in config.prices().items() if model.partition(":")[0] == name
        }
        if not _is_address(self.base_url):
            raise InvalidProvider(f"{name}: base_url is no address of the web", "It begins with https:// or http://.")
        if not _is_plain(self.api_key):
            raise InvalidProvider(f"{name}: the key has characters that no key has", "Copy it again.")
        if not all(map(_is_plain, (*self.headers, *self.headers.values()))):
            raise InvalidProvider(f"{name}: a header has characters that no header has", "Copy it again.")
        # a header may be a key as well
        self.secrets = tuple(text for text in (self.api_key, *self.headers.values()) if len(text) >= _SHORTEST_SECRET)

    @property
    def needs_key(self) -> bool:
        """The services do; a server that somebody set up may do without."""
        kind = KINDS.get(self.name)
        return bool(kind and kind.keys and self.base_url == kind.base_url)

    def __repr__(self) -> str:
        return f"Access({self.name!r}, {self.base_url!r})"


class Configured(Struct, frozen=True):
    """A provider that could be named. `is_ready` when nothing is missing for using it."""

    name: str
    wire: str
    base_url: str
    is_ready: bool
    hint: str = ""


def access(
    name: str, options: Mapping[str, Json], environment: Mapping[str, str] = os.environ, *, needs_key: bool = True
) -> Access:
    """NoSuchProvider, MissingKey, InvalidProvider."""
    config = config_file(environment)
    found = Access(name, _kind(name, config), config, options, environment)
    if needs_key and found.needs_key and not found.api_key:
        raise MissingKey(f"there is no key for {name}", found.key_hint)
    return found


def configured(environment: Mapping[str, str] = os.environ) -> list[Configured]:
    """Every provider by name, those of config.toml included; `demo` always works."""
    names = [*KINDS, *(name for name in config_file(environment).providers() if name not in KINDS)]
    out = [Configured("demo", "demo", "", True)]
    for name in names:
        found = access(name, {}, environment, needs_key=False)
        is_ready = bool(found.api_key) or not found.needs_key
        out.append(Configured(name, found.wire, found.base_url, is_ready, "" if is_ready else found.key_hint))
    return out


def _kind(name: str, config: ConfigFile) -> Kind:
    providers = config.providers()
    table = providers.get(name)
    if name in KINDS and not (table and table.kind):
        return KINDS[name]
    wires = {kind.wire for kind in KINDS.values()}
    if table is None:
        names = ", ".join(["demo", *KINDS, *providers])
        raise NoSuchProvider(
            f"no provider is called {name!r}",
            f"There are {names}. Another server gets a name by [provider.NAME] in config.toml, with kind and base_url.",
        )
    if table.kind not in wires or not table.base_url:
        raise InvalidProvider(
            f"[provider.{name}] needs kind and base_url", f"kind is one of {', '.join(sorted(wires))}."
        )
    return Kind(table.kind, table.base_url)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _key_hint(name: str, kind: Kind) -> str:
    here = f"api_key under [provider.{name}] in config.toml"
    return f"Set {' or '.join(kind.keys)}, or {here}." if kind.keys else f"Set {here}."


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name].strip() for name in names if environment.get(name, "").strip()), "")


def _text(options: Mapping[str, Json], name: str) -> str:
    found = options.get(name, "")
    if not isinstance(found, str):
        raise InvalidProvider(f"{name} must be a text", "Give it as a string, or leave it out.")
    return found.strip()


def _headers(options: Mapping[str, Json]) -> dict[str, str]:
    try:
        return msgspec.convert(options.get("headers", {}), dict[str, str])
    except msgspec.ValidationError:
        raise InvalidProvider("headers must be texts by name", "Such as {'x-team': 'tools'}.") from None
