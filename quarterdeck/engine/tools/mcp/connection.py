"""One MCP server: started when it is first needed, and again by the next call after it died.

The SDK's contexts have to be entered and left by one task, so a task of our own holds them while the server is in use.
A call that was under way when the server died is told as that and never made again unasked: it may have done its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import secrets
import signal
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TextIO

from quarterdeck.config import McpServer
from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.mcp.result import outcome_of
from quarterdeck.engine.tools.threads import in_thread
from quarterdeck.errors import QuarterdeckError
from quarterdeck.process.tree import MARK, kin_of, signalled

#: Errors of JSON-RPC that say something of the request and nothing of the connection.
_OF_THE_REQUEST = frozenset({-32600, -32601, -32602, -32603})
_CLOSED = -32000
_PAGES = 100
_LAST_WORDS = 300


class McpNotInstalled(QuarterdeckError):
    """The SDK is not there."""

    code = "mcp_not_installed"

    def __init__(self) -> None:
        super().__init__(
            "MCP servers are configured and the MCP SDK is not installed", "pip install 'quarterdeck[mcp]'"
        )


class ServerFailed(QuarterdeckError):
    """A server that cannot be started, died, or does not answer."""

    code = "mcp_server_failed"

    def __init__(self, name: str, what: str, hint: str = "Look at the server's own messages.") -> None:
        super().__init__(f"the MCP server {name} {what}", hint)


async def import_sdk() -> None:
    """In a thread: it is large, and whoever runs beside us should not feel it. McpNotInstalled."""
    try:
        await in_thread(importlib.import_module, "mcp")
    except ImportError as error:
        raise McpNotInstalled from error


class Connection:
    """The SDK has to be imported already. Used by one loop."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self.server = server
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._stop = asyncio.Event()
        self._scope: Any = None
        self._words = ""

    # --- what it is asked

    async def tools(self) -> list[Any]:
        """What it offers, as the SDK says it. ServerFailed."""
        client = await self._client()
        found: list[Any] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self.server.start_timeout):
                for _ in range(_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
        except TimeoutError:
            raise self._failed(f"did not list its tools within {self.server.start_timeout:g} seconds") from None
        except Exception as error:
            raise self._failed(f"could not list its tools: {error}") from error
        return found

    async def call(self, tool: str, args: dict[str, Any], context: ToolContext) -> Outcome:
        """One call. ServerFailed."""
        client = await self._client()
        try:
            async with asyncio.timeout(self.server.timeout):
                result = await client.call_tool(tool, args)
        except TimeoutError:
            raise self._failed(f"did not answer within {self.server.timeout:g} seconds") from None
        except Exception as error:
            raise await self._judged(error) from error
        return await in_thread(outcome_of, result, context)

    async def _judged(self, error: Exception) -> ServerFailed:
        """What failed: the request, or the connection, which then is given up."""
        code = getattr(error, "code", None)
        if code in _OF_THE_REQUEST:
            return self._failed(f"refused the call: {error}", "Change the arguments.")
        await self.close()
        if code == _CLOSED:
            return self._failed(
                "died during the call, which may or may not have done its work", "Look what it has done."
            )
        return self._failed(f"failed: {type(error).__name__}: {error}", "The next call connects anew.")

    def _failed(self, what: str, hint: str = "Look at the server's own messages.") -> ServerFailed:
        return ServerFailed(self.name, self._without_secrets(what), hint)

    def _without_secrets(self, text: str) -> str:
        for secret in self.server.secrets:
            text = text.replace(secret, "***")
        return text

    # --- its life

    async def _client(self) -> Any:
        if self._stop.is_set():
            await self.close()  # it has just died: what it said last is being cleared away
        if self._task is None or self._task.done():
            self._ready = asyncio.get_running_loop().create_future()
            self._stop = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._hold(self._ready))
        ready = self._ready
        assert ready is not None
        await asyncio.wait([ready], timeout=self.server.start_timeout)
        if not ready.done():
            await self.close()
            raise self._failed(f"did not start within {self.server.start_timeout:g} seconds{self._said()}")
        return ready.result()

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        """From the start to the end of one process, or one session. Cancelled only through the SDK's own kind of scope:
        what it does to end a process is shielded against that, and against nothing else."""
        import anyio

        mark = secrets.token_hex(8)
        try:
            with anyio.CancelScope() as self._scope:
                async with self._opened(mark) as client:
                    ready.set_result(client)
                    await self._stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(self._failed(f"cannot be started: {_plain(error)}{self._said()}"))
        finally:
            if not ready.done():
                ready.set_exception(self._failed(f"was stopped while it started{self._said()}"))
            ready.exception()  # looked at, also when nobody waits for it any more
            signalled(kin_of(-1, mark), signal.SIGKILL)

    async def close(self) -> None:
        """Ends it, if it runs."""
        task = self._task
        if task is None or task.done():
            return
        self._stop.set()
        if self._ready is not None and not self._ready.done() and self._scope is not None:
            self._scope.cancel()
        await asyncio.wait([task])

    # --- what the SDK wants

    @contextlib.asynccontextmanager
    async def _opened(self, mark: str) -> AsyncGenerator[Any]:
        from mcp import Client

        async with self._transport(mark) as transport, Client(transport) as client:
            yield client

    @contextlib.asynccontextmanager
    async def _transport(self, mark: str) -> AsyncGenerator[Any]:
        if self.server.url:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            async with create_mcp_http_client(headers=dict(self.server.headers)) as http:
                yield self._watched(streamable_http_client(self.server.url, http_client=http))
            return
        from mcp.client.stdio import StdioServerParameters, stdio_client

        told = StdioServerParameters(
            command=self.server.command,
            args=list(self.server.args),
            env={**_passed_on(), **self.server.env, MARK: mark},
            cwd=self.server.cwd or None,
        )
        with _heard(self._hear) as errors:
            yield self._watched(stdio_client(told, errlog=errors))

    @contextlib.asynccontextmanager
    async def _watched(self, transport: Any) -> AsyncGenerator[Any]:
        """The same streams; when the server's ends, so does the connection, and the next call makes a new one."""
        import anyio

        async with transport as (incoming, outgoing), anyio.create_task_group() as group:
            send, receive = anyio.create_memory_object_stream[Any](0)

            async def pump() -> None:
                async with send:
                    async for message in incoming:
                        await send.send(message)
                self._stop.set()

            group.start_soon(pump)
            yield receive, outgoing
            group.cancel_scope.cancel()

    def _hear(self, text: str) -> None:
        self._words = (self._words + text)[-_LAST_WORDS:]

    def _said(self) -> str:
        """The last line that it wrote to its standard error."""
        lines = [line for line in self._words.splitlines() if line.strip()]
        return f"; it said: {self._without_secrets(lines[-1].strip())}" if lines else ""


def _passed_on() -> dict[str, str]:
    """The SDK gives a server a few variables only. The deck finds by this one what a killed agent left behind."""
    return {name: os.environ[name] for name in ("QUARTERDECK_NONCE",) if name in os.environ}


def _plain(error: BaseException) -> str:
    """What really happened, inside the groups that the SDK's tasks wrap around it."""
    if isinstance(error, BaseExceptionGroup):
        return _plain(error.exceptions[0])  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return str(error) or type(error).__name__


@contextlib.contextmanager
def _heard(hear: Callable[[str], None]) -> Generator[TextIO]:
    """A file to write to, and what is written there is heard; nothing of it is kept, however much it is."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    loop = asyncio.get_running_loop()

    def readable() -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(reader, 65_536)
            if data:
                hear(data.decode("utf-8", "replace"))
            else:
                loop.remove_reader(reader)

    loop.add_reader(reader, readable)
    try:
        with open(writer, "w", encoding="utf-8") as file:
            yield file
        readable()
    finally:
        loop.remove_reader(reader)
        os.close(reader)


def tool_name(server: str, tool: str) -> str:
    """`server__tool`, in the characters and the length that every provider takes."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")
    if len(name) <= 64 and name == f"{server}__{tool}":
        return name
    from hashlib import sha256

    return f"{name[:55]}_{sha256(tool.encode()).hexdigest()[:8]}"
