"""Read `config.toml` and merge it with the environment and command-line options.

    port = 4986
    allow_host = ["deck.example"]
    running_limit = 4

    [profile.review]
    agent = "claude"
    mode = "plan"
    preamble = "Review the code. Don't change any file."

Later sources win: defaults, `config.toml`, `QUARTERDECK_*` variables, command-line options. Each key is declared once, in
one of the structs below, with its type, default, range and help. To add a setting, add a field to `ServerSettings` (the
server process) or `Settings` (the deck); the file, the variable and `qd status --config` follow from it.

`read_config` gives the server and the command line the merged result with the source of every value. The tables of the
built-in agent (`[builtin]`, `[tools]`, `[mcp.NAME]`, `[plugin]`, `[provider.NAME]`, `[price.NAME]`) are decoded one by one
from `config_file`, because the agent's process must start even if a setting of the server is invalid.

An invalid value is an `InvalidSetting` that names the file and line. An unknown key is an error in the tables of the
built-in agent, where it may be a misspelt safety limit. Elsewhere it is a warning, so that the file of a newer release
still works.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import home
from quarterdeck.kernel.routing import STEERING_LIMIT

if TYPE_CHECKING:
    from quarterdeck.events import TokenUsage

S = TypeVar("S", bound=Struct)

#: Prefix of the environment variables that set a value.
PREFIX = "QUARTERDECK_"
#: Older name of the idle timeout, in minutes (seed 002).
IDLE_TIMEOUT = "AGENT_SESSION_IDLE_TIMEOUT"
#: Variables with the prefix that aren't settings: the home folder, and what our processes pass to each other.
_INTERNAL_VARIABLES = frozenset({"QUARTERDECK_HOME", "QUARTERDECK_NONCE", "QUARTERDECK_LIFELINE"})
_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})
_TOKENS_PER_PRICE = 1_000_000

Mode: TypeAlias = Literal["plan", "ask", "edits", "auto", "bypass"]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
#: Relative paths are refused because the server can be started from any folder.
Folder: TypeAlias = Annotated[str, Meta(pattern="^[/~]")]


class InvalidSetting(QuarterdeckError):
    """A setting can't be used. The message names the file and line, the variable or the option it comes from."""

    code = "invalid_setting"


class InvalidMcpServer(QuarterdeckError):
    """The description of an MCP server can't be used."""

    code = "invalid_mcp_server"

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"mcp.{name}: {problem}", "Give either command (and args, env, cwd) or url (and headers).")


# --- Settings of the server and the deck: top-level keys


def _help(text: str) -> Meta:
    return Meta(description=text)


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Settings of the server process."""

    host: Annotated[str, Meta(min_length=1), _help("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), _help("Port to listen on. 0 picks a free port.")] = 4986
    allow_host: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...], _help("More names that clients may use in the Host header.")
    ] = ()
    tls_cert: Annotated[str, _help("PEM file with the certificate and its chain. Needs tls_key.")] = ""
    tls_key: Annotated[str, _help("PEM file with the certificate's key, without a password.")] = ""
    expose: Annotated[bool, _help("Allow a host that other machines can reach.")] = False
    environment: Annotated[
        Literal["login", "server"], _help("Environment of agents: your login shell's, or the server's own.")
    ] = "login"
    otel_endpoint: Annotated[str, _help("Address of an OpenTelemetry collector (OTLP over HTTP). Empty: off.")] = ""
    otel_contents: Annotated[bool, _help("Export texts, arguments and results with the spans.")] = False

    @property
    def is_secure(self) -> bool:
        return bool(self.tls_cert)

    @property
    def is_everywhere(self) -> bool:
        """Whether the server listens on all addresses of this machine."""
        return self.host in _WILDCARD_HOSTS

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # Another name may resolve to any address.


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a deck. Durations are in seconds."""

    running_limit: Annotated[int, Meta(ge=1), _help("How many agent processes may run at once.")] = 8
    start_timeout: Annotated[Seconds, _help("How long an agent may take to start.")] = 30.0
    stop_grace: Annotated[Seconds, _help("How long an agent may take to exit before it is killed.")] = 5.0
    shutdown_within: Annotated[Seconds, _help("How long all agents together may take at shutdown.")] = 10.0
    idle_timeout: Annotated[Seconds, _help("Stop an agent process that is idle for this long.")] = 30 * 60.0
    reaper_every: Annotated[Seconds, _help("How often to look for idle processes.")] = 5 * 60.0
    retention_every: Annotated[Seconds, _help("How often to delete archived sessions that are due.")] = 24 * 60 * 60.0
    background_cap: Annotated[
        Seconds, _help("Ignore background work that lasts longer than this when deciding whether a session is idle.")
    ] = 6 * 60 * 60.0
    pause_after_sleep: Annotated[
        Seconds, _help("How long deadlines and the reaper wait after the machine was suspended.")
    ] = 60.0
    workspace: Annotated[
        tuple[Folder, ...], _help("Folders that sessions may be started in, with all below. Empty: any.")
    ] = ()
    track_changes: Annotated[bool, _help("Take snapshots of repositories, to show what a session changed.")] = True
    steering_limit: Annotated[Count, _help("How many steering messages may wait in a session.")] = STEERING_LIMIT
    tail: Annotated[Count, _help("How many recent events of a session stay in memory for its readers.")] = 200
    text_limit: Annotated[Count, _help("Largest text of a message, in bytes.")] = 4 * 1024 * 1024
    images_limit: Annotated[Count, _help("Largest size of a message's images together, in bytes.")] = 20 * 1024 * 1024
    delivery_retries: Annotated[Count, _help("How often to retry a message that an agent didn't accept.")] = 3
    continue_text: Annotated[str, _help("Message to the agent when a session is resumed without a text.")] = (
        "Continue where you left off."
    )


def settings_from(environment: Mapping[str, str], **options: object) -> Settings:
    """Return the defaults, changed by `AGENT_SESSION_IDLE_TIMEOUT` and then by `options`.

    Raises:
        InvalidSetting: the variable isn't a number of minutes.
    """
    values = dict(options)
    if IDLE_TIMEOUT in environment and "idle_timeout" not in values:
        values["idle_timeout"] = _idle_seconds(environment[IDLE_TIMEOUT])
    return Settings(**values)  # type: ignore[arg-type]


def _idle_seconds(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 < minutes < 1e6:
        raise InvalidSetting(f"{IDLE_TIMEOUT} is {text!r}", "Set the idle time of a process in minutes, such as 30.")
    return minutes * 60


# --- Tables


class RunProfile(Struct, frozen=True, kw_only=True):
    """`[profile.NAME]`: what `qd run @NAME` starts."""

    agent: Annotated[str, _help("Agent to start.")]
    model: Annotated[str, _help("Model to use. Empty: the agent's default.")] = ""
    mode: Annotated[Mode | None, _help("Permission mode.")] = None
    preamble: Annotated[str, _help("Text to put before the prompt.")] = ""


class BuiltinSettings(Struct, frozen=True, kw_only=True):
    """`[builtin]`: the built-in agent."""

    model: Annotated[str, _help("Model for sessions that name none, as provider:NAME.")] = ""
    context_limit: Annotated[
        Annotated[int, Meta(gt=0)] | None, _help("Tokens; the conversation is compacted before it reaches them.")
    ] = None
    max_turns: Annotated[int, Meta(gt=0), _help("Most requests to the model in one turn.")] = 100
    hook_timeout: Annotated[Seconds, _help("How long a plugin's hook may take.")] = 60.0


class ToolSettings(Struct, frozen=True, kw_only=True):
    """`[tools]`: the tools of the built-in agent."""

    sandbox: Annotated[Literal["", "bwrap"], _help("Run shell commands in a sandbox: bwrap.")] = ""
    allowed_paths: Annotated[tuple[Folder, ...], _help("Folders outside the project that tools may use.")] = ()
    installed: Annotated[tuple[str, ...], _help("Tools of other packages, by the names of their entry points.")] = ()

    @property
    def allowed_folders(self) -> tuple[Path, ...]:
        return tuple(Path(path).expanduser() for path in self.allowed_paths)


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp.NAME]`: an MCP server, either a program to start or a URL.

    `${NAME}` in a value of `env` or `headers` stands for that environment variable, so that the file needs no secrets.
    """

    command: Annotated[str, _help("Program to start.")] = ""
    args: Annotated[tuple[str, ...], _help("Its arguments.")] = ()
    env: Annotated[Mapping[str, str], _help("More variables of its environment.")] = {}
    cwd: Annotated[str, _help("Folder to start it in.")] = ""
    url: Annotated[str, _help("Address of a server (streamable HTTP).")] = ""
    headers: Annotated[Mapping[str, str], _help("Headers of every request to it.")] = {}
    timeout: Annotated[Seconds, _help("How long a call may take.")] = 60.0
    start_timeout: Annotated[Seconds, _help("How long its start may take.")] = 30.0
    tools: Annotated[tuple[str, ...], _help("Offer only these of its tools. Empty: all.")] = ()
    needs_approval: Annotated[bool, _help("Ask before each call of its tools.")] = False

    @property
    def secrets(self) -> list[str]:
        """Values that must not appear in any log or message."""
        return [value for value in (*self.env.values(), *self.headers.values()) if len(value) > 3]


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """`[provider.NAME]`: how to reach a provider of models."""

    kind: Annotated[str, _help("Wire format, for a provider that we don't know by name.")] = ""
    api_key: Annotated[str, _help("Key for its API.")] = ""
    base_url: Annotated[str, _help("Address of its API.")] = ""
    headers: Annotated[dict[str, str], _help("Headers of every request to it.")] = {}

    def __repr__(self) -> str:
        """Leave out the key and the headers, which may hold one."""
        return f"ProviderSettings(kind={self.kind!r}, base_url={self.base_url!r})"


class Price(Struct, frozen=True, kw_only=True):
    """`[price."PROVIDER:MODEL"]`: US dollars for a million tokens."""

    input: Annotated[float, _help("US dollars for a million input tokens.")]
    output: Annotated[float, _help("US dollars for a million output tokens.")]
    cache_read: Annotated[float, _help("US dollars for a million tokens read from the cache.")] = 0.0
    cache_write: Annotated[float, _help("US dollars for a million tokens written to the cache.")] = 0.0

    def of(self, usage: TokenUsage) -> float:
        """Return the cost of a request in US dollars."""
        cost = usage.input * self.input + usage.output * self.output
        cost += usage.cache_read * self.cache_read + usage.cache_write * self.cache_write
        return cost / _TOKENS_PER_PRICE


_TABLES = ("profile", "provider", "price", "plugin", "tools", "mcp", "builtin")


# --- The merged result


class Value(NamedTuple):
    """A value and where it was set: `default`, `config.toml:LINE`, a variable's name, or an option."""

    value: Any
    source: str


class Config(Struct, frozen=True):
    """Everything that the server and the command line need of the configuration."""

    server: ServerSettings
    deck: Settings
    profiles: Mapping[str, RunProfile]
    #: Every setting of `server` and `deck` by its name.
    values: Mapping[str, Value]
    warnings: tuple[str, ...]


def read_config(
    path: Path,
    environment: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    *,
    agents: Callable[[], Collection[str]] | None = None,
) -> Config:
    """Read the configuration of a home.

    `agents` returns the names that a profile may use; without it, they aren't checked. It is called only if there are
    profiles, because listing installed agents reads the metadata of every Python package.

    Raises:
        InvalidSetting: the file can't be read, or a value is invalid.
    """
    return merge_config(ConfigFile.read(path), environment, options or {}, agents)


def merge_config(
    file: ConfigFile,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    agents: Callable[[], Collection[str]] | None = None,
) -> Config:
    """Merge defaults, file, environment and options, without I/O.

    Raises:
        InvalidSetting: a value is invalid.
    """
    values = {field.name: Value(field.default, "default") for field in _top_level().values()}
    values |= file.values()
    values |= _environment_values(environment)
    values |= {name: Value(_convert_option(name, value), _flag(name)) for name, value in options.items()}
    # Resolve TLS files relative to config.toml, because the server can be started from any folder.
    values |= {name: _relative_to(file.path.parent, values[name]) for name in ("tls_cert", "tls_key")}
    server = ServerSettings(**{name: values[name].value for name in ServerSettings.__struct_fields__})
    _check_server(server, values)
    deck = Settings(**{name: values[name].value for name in Settings.__struct_fields__})
    profiles = file.profiles(agents)
    warnings = (*file.warnings(), *_unknown_variables(environment))
    return Config(server, deck, profiles, values, warnings)


def _relative_to(folder: Path, value: Value) -> Value:
    return Value(str(folder / Path(value.value).expanduser()), value.source) if value.value else value


def _check_server(server: ServerSettings, values: Mapping[str, Value]) -> None:
    """Check values that are invalid only in combination."""
    if bool(server.tls_cert) != bool(server.tls_key):
        present, missing = ("tls_cert", "tls_key") if server.tls_cert else ("tls_key", "tls_cert")
        raise InvalidSetting(
            f"{present} is set ({values[present].source}) but {missing} isn't", "Set both --tls-cert and --tls-key."
        )
    if not (server.is_local or server.expose):
        host = values["host"]
        raise InvalidSetting(
            f"host {host.value} ({host.source}) can be reached from other machines",
            "Add --expose to allow it, preferably with --tls-cert and --tls-key.",
        )


# --- The file


def config_file(environment: Mapping[str, str]) -> ConfigFile:
    """Return the `config.toml` of the home that `environment` names. It is parsed again only after it changed.

    Raises:
        InvalidSetting: the file can't be read, or isn't valid TOML.
    """
    path = home(environment).config
    try:
        stat = path.stat()
    except OSError:
        return ConfigFile(path, "")
    return _cached_file(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _cached_file(path: Path, _changed_at: int, _size: int) -> ConfigFile:
    return ConfigFile.read(path)


class ConfigFile:
    """A parsed `config.toml` that knows the line of each key.

    The methods for tables raise InvalidSetting for an invalid value. Messages never quote a value from the file, except
    one of a fixed set of choices: it may be a key that was written to the wrong place.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._lines = text.splitlines()
        try:
            self._root: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            problem, _, position = str(error).rpartition(" (at ")
            match = re.match(r"line (\d+)", position)
            line = int(match[1]) if match else len(self._lines)  # "at end of document"
            raise self._error(line, problem or str(error)) from None

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Read a file. A missing file is the same as an empty one."""
        try:
            return cls(path, path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return cls(path, "")
        except OSError as error:
            raise InvalidSetting(
                f"{path} can't be read: {error.strerror}", "Fix its permissions or remove it."
            ) from None
        except UnicodeError:
            raise InvalidSetting(f"{path} can't be read: it isn't UTF-8", "Save it as UTF-8.") from None

    # Top-level keys

    def values(self) -> dict[str, Value]:
        """Return the settings of the server and the deck that the file sets."""
        fields, values = _top_level(), dict[str, Value]()
        for name, value in self._settings().items():
            if name in fields:
                line = self.line_of(name)
                values[name] = Value(self._convert(fields[name], value, line, name), f"{self.path.name}:{line}")
        return values

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each unknown key, and for a table that the built-in agent will refuse."""
        for name in self._settings():
            if name not in _top_level():
                yield self._unknown(name, "", [*_top_level(), *_TABLES])
        for profile, table in (_as_table(self._root.get("profile")) or {}).items():
            for key in _as_table(table) or {}:
                if key not in _fields(RunProfile):
                    yield self._unknown(key, f"profile.{profile}", [*_fields(RunProfile)])
        for decode in (self.builtin, self.tools, self.mcp_servers, self.plugins, self.providers, self.prices):
            try:
                decode()
            except InvalidSetting as error:
                yield f"{error.message} (the built-in agent won't start)"

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in self._root.items() if name not in _TABLES}

    # Tables

    def profiles(self, agents: Callable[[], Collection[str]] | None = None) -> dict[str, RunProfile]:
        """Return the profiles. With `agents`, check that each one names a known agent."""
        profiles = self._named_tables("profile", RunProfile, ignore_unknown=True)
        if agents is not None and profiles:
            known = agents()
            for name, profile in profiles.items():
                if profile.agent not in known and not profile.agent.startswith("acp:"):
                    problem = f"no agent is called {profile.agent!r}{_suggestion(profile.agent, known)}"
                    line = self.line_of("agent", f"profile.{name}")
                    raise self._error(line, f"profile.{name}.agent: {problem}")
        return profiles

    def builtin(self) -> BuiltinSettings:
        return self._table("builtin", BuiltinSettings)

    def tools(self) -> ToolSettings:
        return self._table("tools", ToolSettings)

    def providers(self) -> dict[str, ProviderSettings]:
        return self._named_tables("provider", ProviderSettings)

    def prices(self) -> dict[str, Price]:
        return self._named_tables("price", Price)

    def mcp_servers(self) -> dict[str, McpServer]:
        servers = self._named_tables("mcp", McpServer)
        for name, server in servers.items():
            try:
                check_mcp_server(name, server)
            except InvalidMcpServer as error:
                raise self._error(self.line_of("", f"mcp.{name}"), error.message, error.hint) from None
        return servers

    def plugins(self) -> dict[str, bool | dict[str, Any]]:
        """Return the wanted plugins: true, false, or a table of options that only the plugin itself can check."""
        hint = "Write NAME = true or false under [plugin], and a plugin's options under [plugin.NAME]."
        table = _as_table(self._root.get("plugin", {}))
        if table is None:
            raise self._error(self.line_of("plugin"), "plugin: Expected a table", hint)
        for name, value in table.items():
            if not isinstance(value, bool | dict):
                raise self._error(self.line_of(name, "plugin"), f"plugin.{name}: Expected a boolean or a table", hint)
        return table

    def _named_tables(self, name: str, kind: type[S], *, ignore_unknown: bool = False) -> dict[str, S]:
        tables = _as_table(self._root.get(name, {}))
        if tables is None:
            raise self._error(self.line_of(name), f"{name}: Expected tables such as [{name}.NAME]")
        return {key: self._decode(f"{name}.{key}", kind, table, ignore_unknown) for key, table in tables.items()}

    def _table(self, name: str, kind: type[S]) -> S:
        return self._decode(name, kind, self._root.get(name, {}), False)

    def _decode(self, where: str, kind: type[S], value: Any, ignore_unknown: bool) -> S:
        """Decode a table key by key, so that an error has the line of its key."""
        table = _as_table(value)
        if table is None:
            parent, _, name = where.rpartition(".")
            raise self._error(self.line_of(name, parent), f"{where}: Expected a table")
        fields, values = _fields(kind), dict[str, Any]()
        for key, raw in table.items():
            line = self.line_of(key, where)
            if key in fields:
                values[key] = self._convert(fields[key], raw, line, f"{where}.{key}")
            elif not ignore_unknown:
                raise self._error(line, f"{where}.{key}: unknown key{_suggestion(key, fields)}")
        for field in fields.values():
            if field.required and field.name not in values:
                raise self._error(self.line_of("", where), f"{where}: {field.name} is missing")
        return kind(**values)

    def _convert(self, field: msgspec.structs.FieldInfo, value: Any, line: int, where: str) -> Any:
        try:
            return _convert(field.type, value)
        except ValueError as error:
            raise self._error(line, f"{where}: {error}", f"Fix the line. {help_of(field)}") from None

    # Lines

    def line_of(self, key: str, table: str = "") -> int:
        """Return the line that sets `key` in `table`, or the table's header if `key` is empty.

        tomllib doesn't report lines, so this matches text. It can be wrong for a key inside a multi-line string.
        """
        target, is_inside = _normalize(table), not table
        for number, line in enumerate(self._lines, 1):
            header = re.match(r"\s*\[([^\[\]]+)\]", line)
            if header:
                is_inside = _normalize(header[1]) == target
                if is_inside and not key:
                    return number
            elif is_inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
                return number
        # An inline table, or dotted keys: take the first line that mentions the name.
        name = key or table.rpartition(".")[2]
        return next((number for number, line in enumerate(self._lines, 1) if name in line), 1)

    def _error(self, line: int, problem: str, hint: str = "Fix the line.") -> InvalidSetting:
        return InvalidSetting(f"{self.path}, line {line}: {problem}", hint)

    def _unknown(self, key: str, table: str, known: Collection[str]) -> str:
        name = f"{table}.{key}" if table else key
        return f"{self.path}, line {self.line_of(key, table)}: unknown key {name}{_suggestion(key, known)}"


def _normalize(header: str) -> str:
    return re.sub(r"[\s\"']", "", header)


def _as_table(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


# --- The environment and options


def _environment_values(environment: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    if IDLE_TIMEOUT in environment:
        values["idle_timeout"] = Value(_idle_seconds(environment[IDLE_TIMEOUT]), IDLE_TIMEOUT)
    for name, field in _top_level().items():
        variable = PREFIX + name.upper()
        if variable in environment:
            values[name] = Value(_convert_text(variable, environment[variable], field), variable)
    return values


def _convert_text(variable: str, text: str, field: msgspec.structs.FieldInfo) -> Any:
    """Convert a variable's text. A list is separated by commas."""
    is_list = get_origin(_bare_type(field.type)) is tuple
    value: Any = tuple(part.strip() for part in text.split(",") if part.strip()) if is_list else text
    try:
        return _convert(field.type, value, is_text=True)
    except ValueError as error:
        raise InvalidSetting(f"{variable} is {text!r}: {error}", f"Change or unset it. {help_of(field)}") from None


def _convert_option(name: str, value: Any) -> Any:
    field = _top_level()[name]
    try:
        return _convert(field.type, value)
    except ValueError as error:
        raise InvalidSetting(f"{_flag(name)} {value!r}: {error}", f"Change the option. {help_of(field)}") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    known = {PREFIX + name.upper() for name in _top_level()}
    for name in sorted(environment.keys() - known - _INTERNAL_VARIABLES):
        if name.startswith(PREFIX):
            yield f"unknown variable {name}{_suggestion(name, sorted(known))}"


# --- One value


@cache
def _fields(kind: type[Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(kind)}


@cache
def _top_level() -> dict[str, msgspec.structs.FieldInfo]:
    """Return the settings of the server and the deck by name."""
    return {**_fields(ServerSettings), **_fields(Settings)}


def help_of(field: msgspec.structs.FieldInfo) -> str:
    """Return the help text of a setting."""
    metas = [meta for meta in getattr(field.type, "__metadata__", ()) if isinstance(meta, Meta)]
    return next((meta.description for meta in metas if meta.description), "")


def _bare_type(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _convert(kind: Any, value: Any, *, is_text: bool = False) -> Any:
    """Convert a value to the type of its setting.

    Raises:
        ValueError: the value doesn't fit. The message says why.
    """
    try:
        converted = msgspec.convert(value, kind, strict=not is_text)
    except msgspec.ValidationError as error:
        bare = _bare_type(kind)
        choices = f"; choose one of {', '.join(filter(None, get_args(bare)))}" if get_origin(bare) is Literal else ""
        raise ValueError(str(error).partition(" - at `$")[0] + choices) from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError("Expected a finite number")
    return converted


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest known one, or all of them."""
    known = list(known)
    matches = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {matches[0]}?" if matches else f"; known: {', '.join(known)}"


# --- MCP servers


_MCP_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


def parse_mcp_servers(servers: Mapping[str, McpServer | Mapping[str, Any]]) -> dict[str, McpServer]:
    """Check the MCP servers that a program describes, with `${NAME}` still unexpanded.

    Raises:
        InvalidMcpServer: a description can't be used.
    """
    parsed: dict[str, McpServer] = {}
    for name, server in servers.items():
        if not isinstance(server, McpServer):
            try:
                server = msgspec.convert(server, McpServer)
            except msgspec.ValidationError as error:
                raise InvalidMcpServer(name, str(error).replace(" - at `$.", ", at `")) from None
        check_mcp_server(name, server)
        parsed[name] = server
    return parsed


def check_mcp_server(name: str, server: McpServer) -> None:
    """Check the name of an MCP server, and values that are invalid only in combination.

    Raises:
        InvalidMcpServer: the description can't be used.
    """
    if not _MCP_NAME.fullmatch(name):
        raise InvalidMcpServer(name, "a name has 1 to 32 letters, digits, _ and -")
    if bool(server.command) == bool(server.url):
        raise InvalidMcpServer(name, "give a command or a url, not both")
    if (server.headers and server.command) or ((server.args or server.env or server.cwd) and server.url):
        raise InvalidMcpServer(name, "headers belong to a url; args, env and cwd to a command")
    if server.url and not re.match(r"https?://[^/]", server.url):
        raise InvalidMcpServer(name, "url must begin with http:// or https://")
