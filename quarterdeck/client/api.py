"""The HTTP API as methods, written once for both clients.

Everything here is a coroutine over a `Transport`. Nothing here imports asyncio or aiohttp: `Client` and the commands of
`qd` run the same coroutines over a transport that blocks.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from quarterdeck.client.errors import Gap, decode_error, decode_refusal
from quarterdeck.client.sse import EventBlock
from quarterdeck.client.transport import TIMEOUT_S, StreamCut, Transport
from quarterdeck.client.views import AgentInfo, EnvironmentInfo, SessionView
from quarterdeck.deck.git.diff import Diff, Scope
from quarterdeck.deck.session_commands import SessionCommands
from quarterdeck.events import Event, Image, decode_event
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done, Dropped
from quarterdeck.kernel.queue import Waiting
from quarterdeck.kernel.session_list import Page
from quarterdeck.kernel.summary import Summary
from quarterdeck.kernel.timeline import Entry
from quarterdeck.kernel.view import Why

T = TypeVar("T")

#: How long to wait before a stream that was cut is opened again, at first and at most.
_RECONNECT_S = (0.1, 5.0)
#: Blocks of a stream that aren't events.
_CONTROL_BLOCKS = frozenset({"open", "snapshot", "cursor", "end"})


# --------------------------------------------------------------------------------------------- requests and streams


class Api:
    """Send requests over a transport and decode their answers."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def request(
        self,
        method: str,
        path: str,
        result_type: type[T],
        body: Any = None,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
    ) -> T:
        """Send one request and decode the answer.

        Raises:
            Unreachable: there is no server, the connection was lost, or the client is closed.
            TimedOut: no answer came in time.
            QuarterdeckError: the server refused. The class is the one that the server raised, where it is imported.
        """
        data = None if body is None else msgspec.json.encode(body)
        response = await self.transport.request(method, path, data, query or {}, accept)
        # No request of ours is redirected, so anything but a success is an error.
        if not 200 <= response.status < 300:
            raise decode_error(response.status, response.body)
        try:
            return msgspec.json.decode(response.body or b"null", type=result_type)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise decode_refusal(response.status, b"") from None

    def blocks(self, path: str, since: str, types: str = "") -> AsyncGenerator[EventBlock]:
        """Read one stream until its connection ends.

        Raises:
            StreamCut: the connection failed, or the server can't serve the stream now.
            QuarterdeckError: the server refused the stream.
        """
        query = ({"since": since} if since else {}) | ({"types": types} if types else {})
        return self.transport.open_stream(path, query)

    async def follow(self, path: str, since: str, types: Collection[str] | None) -> AsyncGenerator[Event]:
        """Read a stream and reconnect after each cut, starting after the last event that was read.

        Ends when the session is deleted or the client is closed. Only the first connection can fail, so that a
        subscriber learns at once if there is no server; later it waits for the server to come back.

        Raises:
            Unreachable: the first connection failed.
            Gap: the server's log ends before `since`.
        """
        pause_s, was_connected = _RECONNECT_S[0], False
        while not self.transport.is_closed:
            try:
                async with aclosing(self.blocks(path, since, ",".join(types or ()))) as blocks:
                    async for block in blocks:
                        was_connected, pause_s = True, _RECONNECT_S[0]
                        if block.name == "gap":
                            raise Gap(since, msgspec.json.decode(block.data)["to"])
                        since = block.id or since
                        if block.name == "end" and msgspec.json.decode(block.data)["reason"] == "deleted":
                            return
                        if block.name not in _CONTROL_BLOCKS:
                            yield decode_event(block.data)
            except StreamCut as cut:
                if not was_connected and not self.transport.is_closed:
                    raise cut.error from None
            await self.transport.pause(pause_s)
            pause_s = min(2 * pause_s, _RECONNECT_S[1])


# ------------------------------------------------------------------------------------------------------- the server


class _Created(Struct):
    id: str


class _Sessions(Struct):
    sessions: list[Summary]


class _Agents(Struct):
    agents: list[AgentInfo]


class _LoginCode(Struct):
    code: str


class AsyncClient:
    """The API of one server: `async with AsyncClient(url, token) as deck`. Names are those of `quarterdeck.open`."""

    def __init__(
        self, url: str, token: str, *, timeout_s: float = TIMEOUT_S, transport: Transport | None = None
    ) -> None:
        if transport is None:
            from quarterdeck.client.aiohttp_transport import AiohttpTransport

            transport = AiohttpTransport(url.rstrip("/"), token, timeout_s)
        self.transport = transport
        self._api = Api(transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every stream and fail every open request."""
        await self.transport.close()

    async def create(
        self,
        agent: str,
        prompt: str | None = None,
        *,
        cwd: str = ".",
        images: Sequence[Image] = (),
        model: str = "",
        name: str = "",
        mode: str = "",
        env: Mapping[str, str] | None = None,
        record: bool = False,
        arguments: Sequence[str] = (),
        client_id: str = "",
    ) -> RemoteSession:
        """Create a session. With a prompt, its agent starts at once. A relative `cwd` is one of this program's."""
        body = {
            "agent": agent,
            "prompt": prompt,
            "cwd": _absolute(cwd),
            "images": images,
            "model": model,
            "name": name,
            "mode": mode,
            "env": env,
            "record": record,
            "options": {"arguments": arguments},
            "client_id": client_id,
        }
        return RemoteSession(self._api, (await self._api.request("POST", "/sessions", _Created, body)).id)

    def session(self, session_id: str) -> RemoteSession:
        """Return a session by its id. The first request shows whether it exists."""
        return RemoteSession(self._api, session_id)

    async def list(self, *, limit: int = 20, cursor: str = "", **filters: str) -> Page:
        """Return one page of the list, newest first."""
        query = {"limit": str(limit), **({"cursor": cursor} if cursor else {}), **filters}
        return await self._api.request("GET", "/sessions", Page, query=query)

    async def attention(self) -> list[Summary]:
        """Return the sessions that need the user, most urgent first."""
        return (await self._api.request("GET", "/attention", _Sessions)).sessions

    async def agents(self) -> list[AgentInfo]:
        """Return the agents that the server knows."""
        return (await self._api.request("GET", "/agents", _Agents)).agents

    async def environment(self) -> EnvironmentInfo:
        """Return where agents get their environment from."""
        return await self._api.request("GET", "/environment", EnvironmentInfo)

    async def check_health(self) -> None:
        """Check that the server can do its work.

        Raises:
            QuarterdeckError: it can't, and says why.
        """
        await self._api.request("GET", "/healthz", dict[str, Any])

    async def create_login_code(self) -> str:
        """Create a code that logs a browser in once."""
        return (await self._api.request("POST", "/login/code", _LoginCode, {})).code

    def subscribe(self, since: str = "", types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """Yield all events of all sessions after a cursor, then new ones as they come."""
        return self._api.follow("/events", since, types)


def _absolute(folder: str) -> str:
    """Return the path as the server needs it. `~` stays: it means the home of the user who runs the server."""
    return folder if folder.startswith("~") else os.path.abspath(folder)


# ------------------------------------------------------------------------------------------------------ one session


class _Queue(Struct):
    queue: tuple[Waiting, ...]


class _Timeline(Struct):
    entries: tuple[Entry, ...]


class _Events(Struct):
    events: tuple[Raw, ...]


class _Evidence(Struct):
    why: tuple[Why, ...]


class RemoteSession(SessionCommands):
    """One session on a server. A command that is repeated with the same `client_id` is carried out once."""

    def __init__(self, api: Api, session_id: str) -> None:
        self._api = api
        self.id = session_id
        self._path = f"/sessions/{quote(session_id, safe='')}"

    async def show(self) -> SessionView:
        """Return the whole view."""
        return await self._api.request("GET", self._path, SessionView)

    async def queue(self) -> tuple[Waiting, ...]:
        """Return the messages that the agent hasn't read yet."""
        return (await self._api.request("GET", f"{self._path}/queue", _Queue)).queue

    async def timeline(self, limit: int = 200, before: int | None = None) -> list[Entry]:
        """Return the newest entries of the conversation, oldest first."""
        query = {"limit": str(limit)} | ({} if before is None else {"before": str(before)})
        return list((await self._api.request("GET", f"{self._path}/timeline", _Timeline, query=query)).entries)

    async def why(self, at: int | None = None) -> tuple[Why, ...]:
        """Return the evidence for every state, now or as of an event."""
        query = {} if at is None else {"at": str(at)}
        return (await self._api.request("GET", f"{self._path}/why", _Evidence, query=query)).why

    async def changes(self, scope: Scope = "session") -> Diff:
        """Return what changed in the repository since the session or its last turn began."""
        return await self._api.request("GET", f"{self._path}/changes", Diff, query={"scope": scope})

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """Yield all events after an index, then new ones as they come. Reconnects after a cut."""
        return self._api.follow(f"{self._path}/events", str(since), types)

    def blocks(self, since: int = 0) -> AsyncGenerator[EventBlock]:
        """Yield the raw blocks of one connection, without reconnecting.

        Raises:
            StreamCut: the connection failed.
        """
        return self._api.blocks(f"{self._path}/events", str(since))

    async def events(self, since: int = 0, limit: int = 1000, types: Collection[str] | None = None) -> list[Event]:
        """Return events that are in the log now."""
        query = {"since": str(since), "limit": str(limit)} | ({"types": ",".join(types)} if types else {})
        page = await self._api.request("GET", f"{self._path}/events", _Events, query=query)
        return [decode_event(bytes(event)) for event in page.events]

    # --- commands

    async def run(self, command: cmd.Command) -> Any:
        """Run a command and return its result, which is of the command's `result_type`."""
        if isinstance(command, cmd.EditQueued | cmd.Resend | cmd.DropQueued):
            return await self._run_queue_command(command)
        body = {name: getattr(command, name) for name in command.__struct_fields__}
        if isinstance(command, cmd.Rename | cmd.SwitchMode | cmd.Mark):
            # These are fields of a PATCH, where null can mean something. Send only what is set.
            fields = {name: value for name, value in body.items() if value is not None}
            await self._api.request("PATCH", self._path, dict[str, Any], fields)
            return Done()
        return await self._api.request("POST", f"{self._path}/{command.command_name}", command.result_type, body)

    async def _run_queue_command(self, command: cmd.EditQueued | cmd.Resend | cmd.DropQueued) -> Done | Dropped:
        item = quote(command.item_id, safe="")
        path = f"{self._path}/queue/{item}" if item else f"{self._path}/queue"
        if isinstance(command, cmd.DropQueued):
            # Always send a key: aiohttp repeats a DELETE when the connection is lost, and without a key the repetition
            # would find nothing to drop and return no texts.
            key = {"client_id": command.client_id or uuid4().hex}
            return await self._api.request("DELETE", path, Dropped, key)
        body: dict[str, Any] = {"client_id": command.client_id}
        body |= {"text": command.text} if isinstance(command, cmd.EditQueued) else {"resend": True}
        await self._api.request("PATCH", path, dict[str, Any], body)
        return Done()

    async def delete(self) -> None:
        """Delete the session and its log."""
        await self._api.request("DELETE", self._path, type(None))
