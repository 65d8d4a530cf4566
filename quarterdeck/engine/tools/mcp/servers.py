"""All MCP servers of an agent, and their tools."""

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
from quarterdeck.engine.tools.function import failed
from quarterdeck.engine.tools.mcp.connection import Connection, ServerFailed, import_sdk, tool_name
from quarterdeck.errors import QuarterdeckError


class McpServers:
    """`async with McpServers({"files": {"command": …}}) as servers:` gives `servers.tools`, for any number of agents.

    A server that cannot be started, or whose variables are not set, takes nothing from the others: why is in `problems`.
    InvalidMcpServer for one that is described wrongly; McpNotInstalled.
    """

    def __init__(
        self, servers: Mapping[str, McpServer | Mapping[str, Any]], environment: Mapping[str, str] | None = None
    ) -> None:
        self.tools: list[Tool] = []
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
        """Starts all that are not running, and lists what they offer."""
        if self._connections:
            await import_sdk()
        found = await asyncio.gather(*(self._listed(one) for one in self._connections))
        self.tools = [tool for tools in found for tool in tools]
        return self.tools

    async def _listed(self, connection: Connection) -> list[Tool]:
        self.problems.pop(connection.name, None)
        try:
            offered = await connection.tools()
        except ServerFailed as error:
            self.problems[connection.name] = error
            return []
        wanted = connection.server.tools
        return [_tool(connection, one) for one in offered if not wanted or one.name in wanted]

    async def close(self) -> None:
        """Ends them all."""
        await asyncio.gather(*(one.close() for one in self._connections))

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


_VARIABLE = re.compile(r"\$\{(\w+)\}")


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


def _tool(connection: Connection, offered: Any) -> Tool:
    async def run(args: dict[str, Any], context: ToolContext) -> Outcome:
        try:
            return await connection.call(offered.name, args, context)
        except ServerFailed as error:
            return failed(error)

    hints = offered.annotations
    return Tool(
        spec=ToolSpec(tool_name(connection.name, offered.name), offered.description or "", offered.input_schema),
        run=run,
        needs_approval=connection.server.needs_approval,
        writes=not (hints and hints.read_only_hint),
    )
