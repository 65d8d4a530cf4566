"""Start an agent's MCP servers and offer their tools."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgspec

from quarterdeck.config import InvalidMcpServer, McpServer, parse_mcp_servers
from quarterdeck.engine.model import ToolSpec
from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.engine.tools.function import failed_outcome
from quarterdeck.engine.tools.mcp.connection import Connection, ServerFailed, import_sdk, tool_name
from quarterdeck.errors import QuarterdeckError

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class McpServers:
    """A set of MCP servers, shared by any number of agents.

        async with McpServers({"files": {"command": "npx", "args": ["some-mcp-server"]}}) as servers:
            agent = create_agent(tools=servers.tools)

    A server that can't be started, or whose variables aren't set, doesn't affect the others; `problems` has the reason.

    Raises:
        InvalidMcpServer: a server is described incorrectly.
        McpNotInstalled: the MCP SDK isn't installed (when the servers are started).
    """

    def __init__(
        self, servers: Mapping[str, McpServer | Mapping[str, Any]], environment: Mapping[str, str] | None = None
    ) -> None:
        self.tools: list[Tool] = []
        #: Why servers couldn't be started, by the server's name.
        self.problems: dict[str, QuarterdeckError] = {}
        self._connections: list[Connection] = []
        for name, server in parse_mcp_servers(servers).items():
            try:
                ready = expand_variables(name, server, os.environ if environment is None else environment)
            except InvalidMcpServer as error:
                self.problems[name] = error
            else:
                self._connections.append(Connection(name, ready))

    async def start(self) -> list[Tool]:
        """Start all servers that aren't running, and return the tools of all of them.

        Raises:
            McpNotInstalled: the MCP SDK isn't installed.
        """
        if self._connections:
            await import_sdk()
        tools = await asyncio.gather(*(self._list_tools(connection) for connection in self._connections))
        self.tools = [tool for server_tools in tools for tool in server_tools]
        return self.tools

    async def close(self) -> None:
        """Stop all servers."""
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _list_tools(self, connection: Connection) -> list[Tool]:
        self.problems.pop(connection.name, None)
        try:
            offered = await connection.tools()
        except ServerFailed as error:
            self.problems[connection.name] = error
            return []
        allowed = connection.server.tools
        return [_make_tool(connection, tool) for tool in offered if not allowed or tool.name in allowed]

    async def __aenter__(self) -> McpServers:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def expand_variables(name: str, server: McpServer, environment: Mapping[str, str]) -> McpServer:
    """Replace `${NAME}` in the values of `env` and `headers` with that environment variable.

    Raises:
        InvalidMcpServer: a variable isn't set.
    """

    def expand(key: str, text: str) -> str:
        for variable in _VARIABLE.findall(text):
            if variable not in environment:
                raise InvalidMcpServer(name, f"{key} uses the variable {variable}, which isn't set")
        return _VARIABLE.sub(lambda match: environment[match[1]], text)

    return msgspec.structs.replace(
        server,
        env={key: expand(key, text) for key, text in server.env.items()},
        headers={key: expand(key, text) for key, text in server.headers.items()},
    )


def _make_tool(connection: Connection, offered: Any) -> Tool:
    async def run(args: dict[str, Any], context: ToolContext) -> Outcome:
        try:
            return await connection.call(offered.name, args, context)
        except ServerFailed as error:
            return failed_outcome(error)

    hints = offered.annotations
    return Tool(
        spec=ToolSpec(tool_name(connection.name, offered.name), offered.description or "", offered.input_schema),
        run=run,
        needs_approval=connection.server.needs_approval,
        writes=not (hints and hints.read_only_hint),
    )
