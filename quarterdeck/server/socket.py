"""The WebSocket: many subscriptions and commands over one connection (contract section 2).

A subscription names a session or `*`, and where to begin. It gets events, changes of the view and, if it asks for the
timeline, patches of it: a snapshot first, then the difference between the view that was sent last and the current one. A
client that falls behind gets larger differences and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import Struct

from quarterdeck.deck.deck import Deck
from quarterdeck.deck.session import Session
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, SessionDeleted
from quarterdeck.kernel.patch import WINDOW, Change, summary_changes, timeline_changes, view_changes
from quarterdeck.kernel.summary import summary
from quarterdeck.kernel.timeline import window
from quarterdeck.kernel.view import View
from quarterdeck.log.base import START
from quarterdeck.log.tail import Tail
from quarterdeck.server.access_log import STREAM_STATUS
from quarterdeck.server.errors import BadRequest, ViewOnly
from quarterdeck.server.reader import PAGE, Pages, Reader
from quarterdeck.server.shapes import session_view
from quarterdeck.server.streaming import (
    SharedEncoding,
    TransportLine,
    event_frame,
    include_final_events,
    message_frame,
)
from quarterdeck.server.tokens import Visitor

HEARTBEAT_S = 30.0
ALL = "*"
_SUBSCRIPTION_LIMIT = 1000
_MESSAGE_LIMIT = 32 * 1024 * 1024
#: Commands of one connection that may run at once.
_COMMAND_LIMIT = 64
#: How many sessions a server, and each client of `*`, remembers the last row of.
_ROW_LIMIT = 5000
_ROWS_PER_PAUSE = 50
_CLOSE_TIMEOUT_S = 2.0
_NO_EVENTS: frozenset[str] = frozenset()


# --- Messages of clients


class TimelineWanted(Struct, frozen=True):
    """How many of the last entries a client mirrors."""

    limit: int = WINDOW


class Subscribe(Struct, frozen=True, tag_field="op", tag="subscribe"):
    """`since` is an index of the session, or a cursor for `*`. `types` keeps only these events; [] keeps none."""

    session: str
    since: int | str | None = None
    types: tuple[str, ...] | None = None
    timeline: TimelineWanted | None = None


class Unsubscribe(Struct, frozen=True, tag_field="op", tag="unsubscribe"):
    """End a subscription."""

    session: str


class Command(Struct, frozen=True, tag_field="op", tag="command"):
    """`id` is the client's own key: a command with the same key gets the same answer and runs once."""

    id: str
    session: str
    name: str
    args: dict[str, Any] = {}


Message: TypeAlias = Subscribe | Unsubscribe | Command
_message_decoder = msgspec.json.Decoder(Message)
#: Runs a command: session id, name, arguments, the client's key.
RunCommand: TypeAlias = Callable[[str, str, dict[str, Any], str], Awaitable[Any]]


# --- Frames that connections share


class _SharedChanges:
    """The changes of a session, encoded once for all clients that were sent the same view last.

    Only the last pair of views is remembered: the feed delivers an event to all readers before the next one.
    """

    def __init__(self) -> None:
        self._old: View | None = None
        self._new: View | None = None
        #: By the number of timeline entries that a client mirrors.
        self._frames: dict[int, bytes] = {}

    def frames(self, session_id: str, old: View, new: View, limit: int) -> bytes:
        """Return the frames that take a client from one view to another; b"" if nothing it shows has changed."""
        if old is not self._old or new is not self._new:
            self._old, self._new, self._frames = old, new, {}
        frames = self._frames.get(limit)
        if frames is None:
            frames = self._frames[limit] = _encode_changes(session_id, old, new, limit)
        return frames


def _encode_changes(session_id: str, old: View, new: View, limit: int) -> bytes:
    frames = _changes_frame("view", session_id, view_changes(old, new), new.index)
    if limit:
        frames += _changes_frame("patch", session_id, timeline_changes(old.timeline, new.timeline, limit), new.index)
    return frames


def _changes_frame(op: str, session_id: str, changes: list[Change], index: int) -> bytes:
    if not changes:
        return b""
    return message_frame({"op": op, "session": session_id, "index": index, "changes": changes})


class _Row:
    """A session in the list, with the frames that all subscriptions of `*` share."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        #: The current view, without its conversation.
        self.view = View()
        self._summary_frame = b""
        #: The view that the last change was computed from, and its frame.
        self._last_change: tuple[View, bytes] | None = None

    def update(self, view: View) -> None:
        if self.view.state is not view.state:
            self.view = View(view.index, view.at, view.state)
            self._summary_frame = b""
            self._last_change = None

    def summary_frame(self) -> bytes:
        """Return the frame with the whole summary."""
        if not self._summary_frame:
            self._summary_frame = _summary_frame(self._session_id, self.view)
        return self._summary_frame

    def changes_frame(self, old: View) -> bytes:
        """Return the frame with the changes since `old`; b"" if nothing in the list has changed."""
        if self._last_change is None or self._last_change[0] is not old:
            changes = summary_changes(old, self.view)
            frame = _row_frame(self._session_id, changes, self.view.index) if changes else b""
            self._last_change = (old, frame)
        return self._last_change[1]


def _summary_frame(session_id: str, view: View) -> bytes:
    return _row_frame(session_id, [Change("add", session_id, value=summary(view))], view.index)


def _row_frame(session_id: str, changes: list[Change], index: int) -> bytes:
    """Encode a change of the list. `of` tells it from the view of a session that the client subscribed to as well."""
    return message_frame({"op": "view", "of": ALL, "session": session_id, "index": index, "changes": changes})


class Sockets:
    """All WebSockets of a server, and the frames that they share."""

    def __init__(self, deck: Deck, heartbeat_s: float = HEARTBEAT_S) -> None:
        log = deck.services.log
        self.pages: Pages[int] = Pages(lambda session_id, since: log.read(session_id, since, PAGE))
        self.all_pages: Pages[str] = Pages(lambda _, since: log.read_all(since, PAGE))
        self.heartbeat_s = heartbeat_s
        self.events = SharedEncoding(event_frame)
        self.changes = _SharedChanges()
        self.open: dict[web.WebSocketResponse, SocketConnection] = {}
        #: Events handed to connections, before their filters.
        self.delivered = 0
        self._deck = deck
        self._rows: dict[str, _Row] = {}
        self._last_rows: tuple[Sequence[Event], dict[str, _Row | None]] = ((), {})

    @property
    def count(self) -> int:
        return len(self.open)

    async def on_shutdown(self, _: web.Application) -> None:
        await self.close(_CLOSE_TIMEOUT_S)

    async def close(self, seconds: float) -> None:
        """Ask every client to reconnect later. A client that doesn't answer within `seconds` is disconnected."""
        for connection in self.open.values():
            connection.close()
        closing = [socket.close(code=WSCloseCode.GOING_AWAY, message=b"shutdown") for socket in self.open]
        if closing:
            await asyncio.wait([asyncio.ensure_future(close) for close in closing], timeout=seconds)

    def rows_of(self, events: Sequence[Event]) -> dict[str, _Row | None]:
        """Return the current rows of the sessions of these events, None for a deleted session.

        All subscriptions of `*` are given the same list of events, so the rows are looked up once.
        """
        if self._last_rows[0] is not events:
            session_ids = dict.fromkeys(event.session_id for event in events)
            self._last_rows = (events, {session_id: self._row(session_id) for session_id in session_ids})
        return self._last_rows[1]

    def _row(self, session_id: str) -> _Row | None:
        if not self._deck.has(session_id):
            self._rows.pop(session_id, None)
            return None
        if session_id not in self._rows:
            if len(self._rows) >= _ROW_LIMIT:
                self._rows.clear()
            self._rows[session_id] = _Row(session_id)
        row = self._rows[session_id]
        row.update(self._deck.view(session_id))
        return row


# --- Subscriptions


class _SessionSubscription:
    """A subscription to one session."""

    def __init__(self, connection: SocketConnection, message: Subscribe, session: Session) -> None:
        self._connection = connection
        self._since = _index(message.since)
        self._types = None if message.types is None else include_final_events(message.types)
        self._limit = message.timeline.limit if message.timeline is not None else 0
        self._session = session
        #: The view that the client has.
        self._sent = session.writer.durable_view
        self._tail: Tail[int] | None = None
        self._reader: Reader[int] | None = None
        # Keeps the session in memory until the subscription is closed.
        self._use = ExitStack()
        self._use.enter_context(session.in_use())

    async def start(self) -> None:
        """Send a snapshot, then everything after `since`."""
        connection, session, since = self._connection, self._session, self._since
        if self._limit:
            await session.load()
        self._tail = await connection.deck.feed.hold(session.id)
        view = session.writer.durable_view
        if since is not None and since > view.index:
            connection.send({"op": "gap", "session": session.id, "from": since, "to": view.index})
            since = None
        self._sent = view
        timeline = window(view.timeline, self._limit) if self._limit else None
        snapshot = {"view": session_view(view), "timeline": timeline, "index": view.index}
        connection.send({"op": "snapshot", "session": session.id, **snapshot})
        pages = connection.sockets.pages
        position = view.index if since is None else since
        self._reader = Reader(self._tail, position, connection.line, lambda at: pages.after(session.id, at), self._send)
        self._reader.begin()

    def _send(self, events: Sequence[Event]) -> None:
        sockets, session_id = self._connection.sockets, self._session.id
        sockets.delivered += len(events)
        data = b"" if self._types == _NO_EVENTS else sockets.events.encode(events, self._types)
        new, old = self._session.writer.durable_view, self._sent
        if new is not old:
            data += sockets.changes.frames(session_id, old, new, self._limit)
            self._sent = new
        if type(events[-1].body) is SessionDeleted:
            removal = [Change("remove", session_id)]
            data += message_frame({"op": "view", "session": session_id, "index": events[-1].index, "changes": removal})
            self._connection.end_subscription(session_id, self)
        if data:
            self._connection.line.write(data)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._tail is not None:
            self._connection.deck.feed.release(self._session.id, self._tail)
        self._use.close()


class _ListSubscription:
    """A subscription to `*`: the summaries of all sessions, and their changes.

    It remembers the last row only of sessions that changed since it began. Another session is sent as a whole when it
    changes, so ten thousand idle sessions cost a client nothing.
    """

    def __init__(self, connection: SocketConnection, message: Subscribe) -> None:
        self._connection = connection
        self._since = _cursor(message.since)
        self._types = _NO_EVENTS if message.types is None else include_final_events(message.types)
        self._sent: dict[str, View] = {}
        self._reader: Reader[str] | None = None

    async def start(self) -> None:
        """Send all summaries, then everything after `since`."""
        connection, since = self._connection, self._since
        deck, line = connection.deck, connection.line
        # Take the position first: a session that changes while the summaries are sent is sent again.
        position = deck.feed.all.head
        if since is not None and since > position:
            connection.send({"op": "gap", "session": ALL, "from": since, "to": position})
            since = None
        for number, session_id in enumerate(deck.session_ids(), 1):
            if deck.has(session_id):
                line.write(_summary_frame(session_id, deck.view(session_id)))
            if number % _ROWS_PER_PAUSE == 0:
                await asyncio.sleep(0)
                await line.drain()
        pages = connection.sockets.all_pages
        self._reader = Reader(
            deck.feed.all, position if since is None else since, line, lambda at: pages.after("", at), self._send
        )
        self._reader.begin()

    def _send(self, events: Sequence[Event]) -> None:
        sockets, sent = self._connection.sockets, self._sent
        sockets.delivered += len(events)
        parts = [sockets.events.encode(events, self._types)] if self._types else []
        for session_id, row in sockets.rows_of(events).items():
            old = sent.get(session_id)
            if row is None:
                sent.pop(session_id, None)
                parts.append(_row_frame(session_id, [Change("remove", session_id)], 0))
            elif old is None:
                parts.append(row.summary_frame())
                sent[session_id] = row.view
            elif row.view.index > old.index:  # A client that catches up may already have a newer row.
                parts.append(row.changes_frame(old))
                sent[session_id] = row.view
        if len(sent) > _ROW_LIMIT:
            sent.clear()
        data = b"".join(parts)
        if data:
            self._connection.line.write(data)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


# --- Connections


class SocketConnection:
    """One client's WebSocket."""

    def __init__(
        self, deck: Deck, sockets: Sockets, line: TransportLine, visitor: Visitor, run_command: RunCommand
    ) -> None:
        self.deck = deck
        self.sockets = sockets
        self.line = line
        self._visitor = visitor
        self._run_command = run_command
        self._subscriptions: dict[str, _SessionSubscription | _ListSubscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, message: dict[str, Any]) -> None:
        self.line.write(message_frame(message))

    async def receive(self, text: str) -> None:
        """Handle one message of the client. An invalid message is answered with an error and the connection stays open."""
        try:
            message = _message_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            self._send_error(BadRequest(f"not a message: {error}", "Send op subscribe, unsubscribe or command."))
            return
        if isinstance(message, Command):
            # Run commands concurrently, so that a slow one doesn't delay the next, but not without limit.
            if len(self._tasks) >= _COMMAND_LIMIT:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.get_running_loop().create_task(self._command(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        try:
            if isinstance(message, Subscribe):
                await self._subscribe(message)
            else:
                self._unsubscribe(message.session)
        except QuarterdeckError as error:
            self._send_error(error, session=message.session)

    def refuse_binary(self) -> None:
        """Answer a binary message with an error, so that its sender doesn't wait for an answer."""
        self._send_error(BadRequest("not a message: it is binary", "Send JSON in text messages."))

    async def _subscribe(self, message: Subscribe) -> None:
        if len(self._subscriptions) >= _SUBSCRIPTION_LIMIT and message.session not in self._subscriptions:
            raise BadRequest(f"{_SUBSCRIPTION_LIMIT} subscriptions are open", "Unsubscribe from some first.")
        if message.timeline is not None and not 0 < message.timeline.limit <= 10_000:
            raise BadRequest("timeline.limit: out of range", "Ask for 1 to 10,000 entries.")
        self._unsubscribe(message.session)
        subscription: _SessionSubscription | _ListSubscription
        if message.session == ALL:
            subscription = _ListSubscription(self, message)
        else:
            subscription = _SessionSubscription(self, message, await self.deck.load_session(message.session))
        self._subscriptions[message.session] = subscription
        try:
            await subscription.start()
        except QuarterdeckError:
            self._unsubscribe(message.session)
            raise

    def _unsubscribe(self, session_id: str) -> None:
        subscription = self._subscriptions.pop(session_id, None)
        if subscription is not None:
            subscription.close()

    def end_subscription(self, session_id: str, subscription: _SessionSubscription) -> None:
        """Remove a subscription whose session was deleted, unless the client has replaced it already."""
        if self._subscriptions.get(session_id) is subscription:
            self._unsubscribe(session_id)

    async def _command(self, command: Command) -> None:
        try:
            if self._visitor.role != "operate":
                raise ViewOnly
            answer = await self._run_command(command.session, command.name, command.args, command.id)
            self.send({"op": "receipt", "id": command.id, "status": "done", "answer": answer})
        except QuarterdeckError as error:
            self.send({"op": "receipt", "id": command.id, "status": "refused", **error.as_json()})

    def _send_error(self, error: QuarterdeckError, **fields: Any) -> None:
        self.send({"op": "error", **error.as_json(), **fields})

    def close(self) -> None:
        for session_id in list(self._subscriptions):
            self._unsubscribe(session_id)
        for task in self._tasks:
            task.cancel()


def _index(since: int | str | None) -> int | None:
    if since is None or (isinstance(since, int) and 0 <= since < 1 << 53):
        return since
    raise BadRequest("since: not an index", "Send the index of the last event that you have.")


def _cursor(since: int | str | None) -> str | None:
    if since is None or (
        isinstance(since, str) and (since == START or (since.isascii() and since.isdecimal())) and len(since) < 40
    ):
        return since
    raise BadRequest("since: not a cursor", "Send the cursor of the last event that you have.")


async def serve_socket(
    request: web.Request, deck: Deck, sockets: Sockets, visitor: Visitor, run_command: RunCommand
) -> web.WebSocketResponse:
    """Handle a WebSocket until the client disconnects.

    Messages are read only while the client takes what it is sent, so that a client can't fill the memory.
    """
    socket = web.WebSocketResponse(
        heartbeat=sockets.heartbeat_s, timeout=_CLOSE_TIMEOUT_S, compress=False, max_msg_size=_MESSAGE_LIMIT
    )
    await socket.prepare(request)
    request[STREAM_STATUS] = socket.status
    connection = SocketConnection(deck, sockets, TransportLine(request), visitor, run_command)
    sockets.open[socket] = connection
    try:
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await connection.receive(message.data)
            elif message.type is WSMsgType.BINARY:
                connection.refuse_binary()
            await connection.line.drain()
    except ConnectionResetError:
        pass
    finally:
        sockets.open.pop(socket, None)
        connection.close()
    return socket
