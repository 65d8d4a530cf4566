"""Which servers there are: `[mcp.NAME]` of config.toml, or the same as a mapping.

    [mcp.files]
    command = "npx"
    args = ["-y", "some-mcp-server"]
    env = { TOKEN = "${FILES_TOKEN}" }

    [mcp.tickets]
    url = "https://tickets.example/mcp"
    headers = { Authorization = "Bearer ${TICKETS_TOKEN}" }

`${NAME}` in a value of `env` or `headers` is that variable of the environment, so that no secret has to stand in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from quarterdeck.errors import QuarterdeckError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_VARIABLE = re.compile(r"\$\{(\w+)\}")

Seconds = Annotated[float, Meta(gt=0)]


class InvalidMcpServer(QuarterdeckError):
    """An MCP server that is described so that it cannot be used."""

    code = "invalid_mcp_server"

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"mcp.{name}: {what}", "Give either command (and args, env, cwd) or url (and headers).")


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server: a program that is started, or an address."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = {}
    #: After how many seconds a call is given up, and a start.
    timeout: Seconds = 60.0
    start_timeout: Seconds = 30.0
    #: Only these of its tools; all of them when it is empty.
    tools: tuple[str, ...] = ()
    #: A person is to be asked before each call, where anything asks at all.
    needs_approval: bool = False

    @property
    def secrets(self) -> list[str]:
        """What must never be told to anybody."""
        return [value for value in (*self.env.values(), *self.headers.values()) if len(value) > 3]


# --- as they are told


def servers_from(told: Mapping[str, Any]) -> dict[str, McpServer]:
    """The servers that a table describes, with their variables still named. InvalidMcpServer."""
    return {name: _server(name, one) for name, one in told.items()}


def _server(name: str, told: Any) -> McpServer:
    if not _NAME.fullmatch(name):
        raise InvalidMcpServer(name, "a name has letters, digits, _ and - only, and at most 32 of them")
    try:
        server = msgspec.convert(told, McpServer) if not isinstance(told, McpServer) else told
    except msgspec.ValidationError as error:
        raise InvalidMcpServer(name, str(error).replace(" - at `$.", ", at `")) from None
    if bool(server.command) == bool(server.url):
        raise InvalidMcpServer(name, "it needs a command or a url, and not both")
    if (server.headers and server.command) or ((server.args or server.env or server.cwd) and server.url):
        raise InvalidMcpServer(name, "headers belong to a url; args, env and cwd to a command")
    if server.url and not re.match(r"https?://[^/]", server.url):
        raise InvalidMcpServer(name, "its url does not begin with http:// or https://")
    return server


# --- as they are used


def filled(name: str, server: McpServer, environment: Mapping[str, str]) -> McpServer:
    """With the values of its variables. InvalidMcpServer when one is not set."""

    def value(key: str, text: str) -> str:
        for variable in _VARIABLE.findall(text):
            if variable not in environment:
                raise InvalidMcpServer(name, f"{key} names the variable {variable}, which is not set")
        return _VARIABLE.sub(lambda found: environment[found[1]], text)

    return msgspec.structs.replace(
        server,
        env={key: value(key, text) for key, text in server.env.items()},
        headers={key: value(key, text) for key, text in server.headers.items()},
    )
