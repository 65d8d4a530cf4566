"""What is set, and by whom: defaults < config.toml < QUARTERDECK_* of the environment < options of the command line.

    port = 4986
    allow_host = ["deck.example"]
    running_limit = 4

    [profile.review]
    agent = "claude"
    mode = "plan"
    preamble = "You review; you change nothing."

Every value knows where it comes from. What cannot be used is an error that names the line; a name that nobody knows is a
warning with the nearest one that is known, so that a newer release's file still works here.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from quarterdeck.deck.settings import IDLE_TIMEOUT, InvalidSetting, Settings, settings_from
from quarterdeck.harness.driver import Mode

PREFIX = "QUARTERDECK_"
#: Of the environment, and no settings: where the home is, and what processes tell each other.
_NO_SETTINGS = frozenset({"QUARTERDECK_HOME", "QUARTERDECK_NONCE", "QUARTERDECK_LIFELINE"})
#: Settings that are lists of texts.
_LISTS = frozenset({"allow_host", "workspace"})
#: Tables that are no settings: profiles are read here; the models' keys and prices, the plugins and the tools by the engine,
#: which alone needs them.
_TABLES = ("profile", "provider", "price", "plugin", "tools", "mcp", "builtin")
_WILDCARDS = frozenset({"0.0.0.0", "::"})
#: The agents of the contract; those of the registry come on top.
_AGENTS = ("claude", "codex", "gemini", "opencode", "kilo", "pi", "cline", "builtin", "demo")


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Where the server listens, and by which names it may be called."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 4986
    allow_host: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    #: Others than this machine may reach it. Without this no such host is taken.
    expose: bool = False
    #: What agents are started with that are given none: the login shell's environment, or that of the server.
    environment: Literal["login", "server"] = "login"
    #: Where OpenTelemetry spans go (OTLP over HTTP); '' sends none. Contents are texts, arguments and results.
    otel_endpoint: str = ""
    otel_contents: bool = False

    @property
    def is_secure(self) -> bool:
        return bool(self.tls_cert)

    @property
    def is_everywhere(self) -> bool:
        return self.host in _WILDCARDS

    @property
    def is_local(self) -> bool:
        """Whether nobody but this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name: who knows where it leads


class Profile(Struct, frozen=True, kw_only=True):
    """`qd run @NAME`."""

    agent: str
    model: str = ""
    mode: Mode | None = None
    preamble: str = ""


class Value(NamedTuple):
    """`source` is `default`, `config.toml:LINE`, the name of a variable, or an option."""

    value: Any
    source: str


class Config(Struct, frozen=True):
    """The merged result. `values` has every setting by name."""

    server: ServerSettings
    deck: Settings
    profiles: Mapping[str, Profile]
    values: Mapping[str, Value]
    warnings: tuple[str, ...]


_KINDS: dict[str, Any] = {
    field.name: field.type for kind in (ServerSettings, Settings) for field in msgspec.structs.fields(kind)
}
_PROFILE_KEYS = tuple(Profile.__struct_fields__)


# --- the whole


def read(path: Path, environment: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a home. InvalidSetting."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        text = ""
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSetting(f"{path} cannot be read: {why}", "Mend or remove it.") from None
    return merged(File(path, text), environment, options or {})


def merged(file: File, environment: Mapping[str, str], options: Mapping[str, Any]) -> Config:
    """Pure: the same texts give the same result."""
    warnings = [*file.unknown(), *_unknown_variables(environment)]
    values = {name: Value(default, "default") for name, default in _defaults().items()}
    values |= file.values()
    values |= _of_environment(environment)
    values |= {name: Value(_option(name, value), _flag(name)) for name, value in options.items()}
    values |= {name: file.placed(values[name]) for name in ("tls_cert", "tls_key")}
    server = ServerSettings(**{name: values[name].value for name in ServerSettings.__struct_fields__})
    _check(server, values)
    deck = Settings(**{name: values[name].value for name in Settings.__struct_fields__})
    return Config(server, deck, file.profiles(), values, tuple(warnings))


def _defaults() -> dict[str, Any]:
    return {
        name: value for one in (ServerSettings(), Settings()) for name, value in msgspec.structs.asdict(one).items()
    }


def _check(server: ServerSettings, values: Mapping[str, Value]) -> None:
    """What is wrong only together."""
    if bool(server.tls_cert) != bool(server.tls_key):
        there = "tls_cert" if server.tls_cert else "tls_key"
        raise InvalidSetting(
            f"{there} is set ({values[there].source}) and its other half is not", "Give both, --tls-cert and --tls-key."
        )
    if not (server.is_local or server.expose):
        where = values["host"]
        raise InvalidSetting(
            f"host {where.value} ({where.source}) can be reached from other machines",
            "Add --expose if that is meant, and better with --tls-cert and --tls-key.",
        )


# --- one value


def _converted(kind: Any, value: Any, *, is_text: bool = False) -> Any:
    """ValueError says what is wrong with it."""
    try:
        found = msgspec.convert(value, kind, strict=not is_text)
    except msgspec.ValidationError as error:
        choices = f"; choose one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else ""
        raise ValueError(str(error).partition(" - at `$")[0] + choices) from None
    if isinstance(found, float) and not math.isfinite(found):
        raise ValueError("Expected a number that ends")
    return found


def _option(name: str, value: Any) -> Any:
    try:
        return _converted(_KINDS[name], value)
    except ValueError as error:
        raise InvalidSetting(f"{_flag(name)} {value!r}: {error}", "`qd up --help` says what it takes.") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Collection[str]) -> str:
    """How a warning ends: with what was probably meant."""
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else f"; known are {', '.join(known)}"


# --- the environment


def _of_environment(environment: Mapping[str, str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if IDLE_TIMEOUT in environment:
        found["idle_timeout"] = Value(settings_from(environment).idle_timeout, IDLE_TIMEOUT)
    for name, kind in _KINDS.items():
        variable = PREFIX + name.upper()
        if variable in environment:
            found[name] = Value(_from_text(variable, environment[variable], name, kind), variable)
    return found


def _from_text(variable: str, text: str, name: str, kind: Any) -> Any:
    """A list has commas between."""
    told: Any = tuple(one.strip() for one in text.split(",") if one.strip()) if name in _LISTS else text
    try:
        return _converted(kind, told, is_text=True)
    except ValueError as error:
        raise InvalidSetting(f"{variable} is {text!r}: {error}", "Change or unset it.") from None


def _unknown_variables(environment: Mapping[str, str]) -> Iterable[str]:
    known = {PREFIX + name.upper() for name in _KINDS}
    for name in sorted(environment.keys() - known - _NO_SETTINGS):
        if name.startswith(PREFIX):
            yield f"{name} is not known{nearest(name, sorted(known))}"


# --- the file


class File:
    """config.toml as it is written."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        try:
            self._tables: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            what, _, where = str(error).rpartition(" (at ")
            line = re.match(r"line (\d+)", where)
            number = int(line[1]) if line else len(self._lines)
            raise self._error(number, what or str(error)) from None

    def _error(self, line: int, what: str) -> InvalidSetting:
        return InvalidSetting(f"{self._path}, line {line}: {what}", "Mend the line; nothing was started or changed.")

    def line_of(self, key: str, table: str = "") -> int:
        """Where a key of a table is set. Found by its look: TOML's reader forgets the lines."""
        inside = not table
        for number, line in enumerate(self._lines, 1):
            header = re.match(r"\s*\[([^\[\]]+)\]", line)
            if header:
                inside = re.sub(r"[\s\"']", "", header[1]) == table
                if inside and not key:
                    return number
            elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
                return number
        return next((n for n, line in enumerate(self._lines, 1) if (key or table.rpartition(".")[2]) in line), 1)

    def placed(self, value: Value) -> Value:
        """A file that is named without a folder is beside config.toml: the server is started from anywhere."""
        if not value.value:
            return value
        return Value(str(self._path.parent / Path(value.value).expanduser()), value.source)

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in self._tables.items() if name not in _TABLES}

    def values(self) -> dict[str, Value]:
        """Every setting that is known, of its type."""
        found: dict[str, Value] = {}
        for name, value in self._settings().items():
            if name in _KINDS:
                line = self.line_of(name)
                found[name] = Value(self._read(line, name, _KINDS[name], value), f"{self._path.name}:{line}")
        return found

    def _read(self, line: int, name: str, kind: Any, value: Any) -> Any:
        try:
            return _converted(kind, value)
        except ValueError as error:
            raise self._error(line, f"{name}: {error}") from None

    def profiles(self) -> dict[str, Profile]:
        tables = _table(self._tables.get("profile", {}))
        if tables is None:
            raise self._error(self.line_of("profile"), "profile: Expected tables such as [profile.review]")
        return {name: self._profile(name, table) for name, table in tables.items()}

    def _profile(self, name: str, told: Any) -> Profile:
        where, table = f"profile.{name}", _table(told)
        if table is None:
            raise self._error(self.line_of(name, "profile"), f"{where}: Expected a table")
        known = {key: value for key, value in table.items() if key in _PROFILE_KEYS}
        for key, value in known.items():
            self._read(self.line_of(key, where), f"{where}.{key}", Mode if key == "mode" else str, value)
        if "agent" not in known:
            raise self._error(self.line_of("", where), f"{where}: agent is missing")
        self._check_agent(known["agent"], where)
        return msgspec.convert(known, Profile)

    def _check_agent(self, agent: str, where: str) -> None:
        from quarterdeck.harness.registry import known

        if agent.startswith("acp:") or agent in _AGENTS or agent in (names := known()):
            return
        told = nearest(agent, [*dict.fromkeys((*_AGENTS, *names))])
        raise self._error(self.line_of("agent", where), f"{where}.agent: no agent is called {agent!r}{told}")

    def unknown(self) -> Iterable[str]:
        """Warnings for names that nobody knows."""
        for name in [name for name in self._settings() if name not in _KINDS]:
            yield f"{self._path}, line {self.line_of(name)}: {name} is not known{nearest(name, [*_KINDS, *_TABLES])}"
        for name, told in (_table(self._tables.get("profile")) or {}).items():
            for key in [key for key in _table(told) or {} if key not in _PROFILE_KEYS]:
                line = self.line_of(key, f"profile.{name}")
                yield f"{self._path}, line {line}: profile.{name}.{key} is not known{nearest(key, _PROFILE_KEYS)}"


def _table(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
