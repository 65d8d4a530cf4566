"""Connect to one MCP server: start it when it is first needed, and again on the next call after it died.

The SDK's context managers must be entered and left by the same task, so a task of our own (`_hold`) keeps them open while
the server is in use. A call that was running when the server died is reported as such and never repeated automatically,
because it may have done its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from quarterdeck.config import McpServer
from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.files import IMAGE_LIMIT
from quarterdeck.engine.tools.output import Limits, shorten
from quarterdeck.engine.tools.threads import run_in_thread
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Image
from quarterdeck.process.child import Child, Stream, finish_uncancelled
from quarterdeck.process.identity import NONCE_VARIABLE

#: JSON-RPC error codes that concern the request and not the connection.
_REQUEST_ERRORS = frozenset({-32600, -32601, -32602, -32603})
_CONNECTION_CLOSED = -32000
#: A server may split its list of tools into pages. This many are read.
_PAGE_LIMIT = 100
#: How many characters of the server's standard error to remember for error messages.
_STDERR_CHARS = 300

#: A longer line of output ends the connection: no message is that long.
_LINE_LIMIT = 64 << 20
#: Pause reading when this many messages wait for the SDK.
_PENDING_LIMIT = 1_000
#: How long a server may take to exit after its input was closed, and after SIGTERM. The MCP specification asks for
#: this order; the times are those of the SDK.
_EXIT_S, _TERMINATE_S = 2.0, 2.0

_RESULT_LIMITS = Limits(head=30_000, tail=30_000)
_MOST_IMAGES = 20
#: Image types that all providers accept.
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class McpNotInstalled(QuarterdeckError):
    """MCP servers are configured, but the MCP SDK isn't installed."""

    code = "mcp_not_installed"

    def __init__(self) -> None:
        super().__init__(
            "MCP servers are configured, but the MCP SDK isn't installed", "Run pip install 'quarterdeck[mcp]'."
        )


class ServerFailed(QuarterdeckError):
    """An MCP server can't be started, died, or doesn't answer."""

    code = "mcp_server_failed"

    def __init__(self, name: str, problem: str, hint: str = "Check the server's own log.") -> None:
        super().__init__(f"the MCP server {name} {problem}", hint)


async def import_sdk() -> None:
    """Import the MCP SDK in a thread, because importing it takes long enough to delay other tasks.

    Raises:
        McpNotInstalled: the SDK isn't installed.
    """
    try:
        await run_in_thread(importlib.import_module, "mcp")
    except ImportError as error:
        raise McpNotInstalled from error


# ------------------------------------------------------------------------------------------------- the connection


class Connection:
    """The connection to one server. Call `import_sdk` before using it. Bound to one event loop."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self.server = server
        self._task: asyncio.Task[None] | None = None
        #: Resolves to the SDK's client when the server has started.
        self._ready: asyncio.Future[Any] | None = None
        #: Set when the server has died or the connection is to be closed.
        self._stop = asyncio.Event()
        self._scope: Any = None
        self._stderr = ""

    async def tools(self) -> list[Any]:
        """Return the tools that the server offers, as objects of the SDK.

        Raises:
            ServerFailed: the server can't be started or doesn't answer.
        """
        client = await self._client()
        tools: list[Any] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self.server.start_timeout):
                for _ in range(_PAGE_LIMIT):
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
        except TimeoutError:
            raise self._failure(f"didn't list its tools within {self.server.start_timeout:g} seconds") from None
        except Exception as error:
            raise self._failure(f"couldn't list its tools: {error}") from error
        return tools

    async def call(self, tool: str, args: dict[str, Any], context: ToolContext) -> Outcome:
        """Call a tool of the server.

        Raises:
            ServerFailed: the server can't be started, refused the call, died, or didn't answer in time.
        """
        client = await self._client()
        try:
            async with asyncio.timeout(self.server.timeout):
                result = await client.call_tool(tool, args)
        except TimeoutError:
            raise self._failure(f"didn't answer within {self.server.timeout:g} seconds") from None
        except Exception as error:
            raise await self._handle_call_error(error) from error
        return await run_in_thread(outcome_of, result, context)

    async def close(self) -> None:
        """Stop the server, if it is running."""
        task = self._task
        if task is None or task.done():
            return
        self._stop.set()
        if self._ready is not None and not self._ready.done() and self._scope is not None:
            self._scope.cancel()
        await asyncio.wait([task])

    async def _handle_call_error(self, error: Exception) -> ServerFailed:
        """Turn an exception of the SDK into an error. Close the connection unless only the request was wrong."""
        code = getattr(error, "code", None)
        if code in _REQUEST_ERRORS:
            return self._failure(f"refused the call: {error}", "Change the arguments.")
        await self.close()
        if code == _CONNECTION_CLOSED:
            return self._failure(
                "died during the call, which may or may not have taken effect", "Check what it has done."
            )
        return self._failure(f"failed: {type(error).__name__}: {error}", "The next call reconnects.")

    def _failure(self, problem: str, hint: str = "Check the server's own log.") -> ServerFailed:
        return ServerFailed(self.name, self._without_secrets(problem), hint)

    def _without_secrets(self, text: str) -> str:
        for secret in self.server.secrets:
            text = text.replace(secret, "***")
        return text

    # ----------------------------------------------------------------------------------- starting and stopping

    async def _client(self) -> Any:
        """Return the SDK's client, starting the server if necessary."""
        if self._stop.is_set():
            await self.close()  # The server has just died and its task is still cleaning up.
        if self._task is None or self._task.done():
            self._ready = asyncio.get_running_loop().create_future()
            self._stop = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._hold(self._ready))
        ready = self._ready
        assert ready is not None
        await asyncio.wait([ready], timeout=self.server.start_timeout)
        if not ready.done():
            await self.close()
            raise self._failure(f"didn't start within {self.server.start_timeout:g} seconds{self._last_message()}")
        return ready.result()

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        """Keep one process, or one HTTP session, open until `_stop` is set.

        Cancel this only through `_scope`: the SDK shields its cleanup against anyio's cancellation, but not against
        `Task.cancel`.
        """
        import anyio

        try:
            with anyio.CancelScope() as self._scope:
                async with self._open_client() as client:
                    ready.set_result(client)
                    await self._stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(self._failure(f"can't be started: {_root_cause(error)}{self._last_message()}"))
        finally:
            if not ready.done():
                ready.set_exception(self._failure(f"was stopped while it started{self._last_message()}"))
            ready.exception()  # Retrieve the exception so asyncio doesn't log it when nothing waits for it.

    @contextlib.asynccontextmanager
    async def _open_client(self) -> AsyncGenerator[Any]:
        from mcp import Client

        async with contextlib.AsyncExitStack() as stack:
            if self.server.url:
                from mcp.client.streamable_http import streamable_http_client
                from mcp.shared._httpx_utils import create_mcp_http_client

                http = await stack.enter_async_context(create_mcp_http_client(headers=dict(self.server.headers)))
                transport = self._detect_end(streamable_http_client(self.server.url, http_client=http))
            else:
                transport = self._run_process()
            yield await stack.enter_async_context(Client(transport))

    def _last_message(self) -> str:
        """Return the last line of the server's standard error, as the end of an error message."""
        lines = [line for line in self._stderr.splitlines() if line.strip()]
        return f"; its last message: {self._without_secrets(lines[-1].strip())}" if lines else ""

    # ----------------------------------------------------------------------------------------------- transports
    # A transport is an async context manager of two streams: messages from the server, and messages to it. When the
    # server's stream ends, the connection ends too, and the next call opens a new one.

    @contextlib.asynccontextmanager
    async def _detect_end(self, transport: Any) -> AsyncGenerator[Any]:
        """Pass an HTTP transport through, and set `_stop` when the server's stream ends."""
        import anyio

        async with transport as (incoming, outgoing), anyio.create_task_group() as group:
            sender, receiver = anyio.create_memory_object_stream[Any](0)

            async def forward() -> None:
                async with sender:
                    async for message in incoming:
                        await sender.send(message)
                self._stop.set()

            group.start_soon(forward)
            yield receiver, outgoing
            group.cancel_scope.cancel()

    @contextlib.asynccontextmanager
    async def _run_process(self) -> AsyncGenerator[Any]:
        """Run the server as a child process and exchange one JSON message per line with it."""
        import anyio

        lines = _MessageLines()
        child = self._spawn(lines)
        lines.child = child
        received_sender, received = anyio.create_memory_object_stream[Any](0)
        to_send, to_send_receiver = anyio.create_memory_object_stream[Any](0)

        async def deliver_messages() -> None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async with received_sender:
                    while (line := await lines.next()) is not None:
                        await received_sender.send(_parse_message(line))
            self._stop.set()

        async def write_messages() -> None:
            assert child.input is not None
            async with to_send_receiver:
                async for message in to_send_receiver:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    if not child.input.write(text.encode() + b"\n") or not child.input.is_open:
                        # The server doesn't read any more. End its messages too, so running calls fail at once.
                        lines.end()
                        return

        async with anyio.create_task_group() as group:
            group.start_soon(deliver_messages)
            group.start_soon(write_messages)
            try:
                yield received, to_send
            finally:
                with anyio.CancelScope(shield=True):
                    await finish_uncancelled(_end_server(child))
                group.cancel_scope.cancel()

    def _spawn(self, lines: _MessageLines) -> Child:
        from mcp.client.stdio import get_default_environment

        def handle_output(data: bytes, stream: Stream) -> None:
            if stream == "stdout":
                lines.feed(data)
            else:
                self._stderr = (self._stderr + data.decode("utf-8", "replace"))[-_STDERR_CHARS:]

        # A server gets a few safe variables only. The nonce is added so the deck finds the server if this process is killed.
        environment = get_default_environment() | dict(self.server.env)
        if NONCE_VARIABLE in os.environ:
            environment[NONCE_VARIABLE] = os.environ[NONCE_VARIABLE]
        argv = [self.server.command, *self.server.args]
        return Child.spawn(argv, self.server.cwd or os.getcwd(), environment, handle_output, has_input=True, linger=0)


class _MessageLines:
    """Queue the lines of a server's output. Pauses reading while many lines wait."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> None:
        """Process a chunk of output. An empty chunk is the end of the stream."""
        if not data or len(self._unfinished) > _LINE_LIMIT:
            self.end()
            return
        self._unfinished += data
        if b"\n" in data:
            *lines, rest = bytes(self._unfinished).split(b"\n")
            self._unfinished = bytearray(rest)
            for line in lines:
                self._queue.put_nowait(line)
        if self.child is not None and self._queue.qsize() > _PENDING_LIMIT:
            self.child.pause_reading()

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def next(self) -> bytes | None:
        """Return the next line, or None after the last one."""
        line = await self._queue.get()
        if self.child is not None and self._queue.qsize() < _PENDING_LIMIT // 2:
            self.child.resume_reading()
        return line


def _parse_message(line: bytes) -> Any:
    """Parse one line. An error is returned, not raised: the SDK passes it on to the session."""
    import mcp_types
    from mcp.shared.message import SessionMessage

    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _end_server(child: Child) -> None:
    """Close the server's input, which tells it to exit, and end its process tree if it doesn't."""
    assert child.input is not None
    child.input.close()
    if await child.wait_process_exited(_EXIT_S):
        await child.exited
    else:
        await child.end(_TERMINATE_S)


def _root_cause(error: BaseException) -> str:
    """Return the message of the exception inside the groups that the SDK's tasks wrap around it."""
    if isinstance(error, BaseExceptionGroup):
        return _root_cause(error.exceptions[0])  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return str(error) or type(error).__name__


# ------------------------------------------------------------------------------------------------ names and results


def tool_name(server: str, tool: str) -> str:
    """Return `server__tool`, in the characters and the length that every provider accepts."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")
    if len(name) <= 64 and name == f"{server}__{tool}":
        return name
    from hashlib import sha256

    # A name that was changed or cut gets a hash, so two tools can't end up with the same name.
    return f"{name[:55]}_{sha256(tool.encode()).hexdigest()[:8]}"


def outcome_of(result: Any, context: ToolContext) -> Outcome:
    """Convert a result of the SDK: texts, images and resources. A long text is shortened and stored."""
    texts: list[str] = []
    images: list[Image] = []
    for item in result.content:
        text, image = _convert_item(item)
        if image is not None and len(images) < _MOST_IMAGES and len(image.data) * 3 // 4 <= IMAGE_LIMIT:
            images.append(image)
        else:
            texts.append(text)
    if not result.content and result.structured_content is not None:
        texts.append(msgspec.json.encode(result.structured_content).decode())
    shown, path = shorten("\n".join(texts), context, _RESULT_LIMITS)
    return Outcome(shown, ok=not result.is_error, images=tuple(images), path=path)


def _convert_item(item: Any) -> tuple[str, Image | None]:
    """Return a text, and the image if the item is one. The text replaces an image that isn't shown."""
    match item.type:
        case "text":
            return item.text, None
        case "image":
            if item.mime_type not in _IMAGE_TYPES:
                return f"[image of type {item.mime_type}, which can't be shown]", None
            note = f"[image of {len(item.data)} characters, too large or over the limit of {_MOST_IMAGES} images]"
            return note, Image(media_type=item.mime_type, data=item.data)
        case "resource" if getattr(item.resource, "text", None) is not None:
            return item.resource.text, None
        case "resource" | "resource_link":
            resource = getattr(item, "resource", item)
            return f"[resource {resource.uri}]", None
        case kind:
            return f"[{kind}, which can't be shown]", None
