"""The WebSocket: many subscriptions and commands over one connection (contract section 2).

A subscription names a session or `*`, and where to begin. It gets events, changes of the view and, if it asks for the
timeline, patches of it: a snapshot first, then what changed since, always computed between the view that was sent last
and the one that holds now. A client that falls behind is told of more at once and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

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
from quarterdeck.server import access_log, frames
from quarterdeck.server.errors import BadRequest, ViewOnly
from quarterdeck.server.lines import TransportLine
from quarterdeck.server.reader import PAGE, Pages, Reader
from quarterdeck.server.shapes import session_view
from quarterdeck.server.tokens import Visitor

HEARTBEAT_S = 30.0
ALL = "*"
_MOST_SUBSCRIPTIONS = 1000
_MOST_BYTES = 32 * 1024 * 1024
_MOST_COMMANDS = 64
_MOST_CHANGES = 16
_MOST_ROWS = 5000
#: More than a slice of the tail can hold sessions: whoever is told of the same change is so in the same pass.
_MOST_ROW_CHANGES = 1000
_ROWS = 50
_CLOSING_S = 2.0
_NONE: frozenset[str] = frozenset()


class TimelineWanted(Struct, frozen=True):
    """How many of the last entries a client mirrors."""

    limit: int = WINDOW


class Subscribe(Struct, frozen=True, tag_field="op", tag="subscribe"):
    """`since` is an index of the session, or a cursor for `*`. `types` keeps only these events; [] none at all."""

    session: str
    since: int | str | None = None
    types: tuple[str, ...] | None = None
    timeline: TimelineWanted | None = None


class Unsubscribe(Struct, frozen=True, tag_field="op", tag="unsubscribe"):
    """No more of this."""

    session: str


class Command(Struct, frozen=True, tag_field="op", tag="command"):
    """`id` is the client's own key: the same one again is answered again and done once."""

    id: str
    session: str
    name: str
    args: dict[str, Any] = {}


Message: TypeAlias = Subscribe | Unsubscribe | Command
_messages = msgspec.json.Decoder(Message)
Obey: TypeAlias = Callable[[str, str, dict[str, Any], str], Awaitable[Any]]


class Shared:
    """What all connections share: encoded events, and changes between the same two views."""

    def __init__(self, deck: Deck, heartbeat_s: float = HEARTBEAT_S) -> None:
        log = deck.services.log
        self.pages: Pages[int] = Pages(lambda name, at: log.read(name, at, PAGE))
        self.all_pages: Pages[str] = Pages(lambda _, at: log.read_all(at, PAGE))
        self.heartbeat_s = heartbeat_s
        self.events = frames.Joined(frames.event_frame)
        self.sockets: dict[web.WebSocketResponse, Link] = {}
        #: A pass of the loop tells all readers of one session before it comes to the next, so few are enough; they
        #: are few because a view holds its whole conversation.
        self._changes: dict[tuple[int, int, str, int], tuple[View, View, bytes]] = {}
        self._row_changes: dict[tuple[int, int, str, int], tuple[View, View, bytes]] = {}
        self._rows: dict[str, View] = {}
        #: Events handed to connections, as changes of a view too.
        self.delivered = 0
        self._wholes: dict[str, tuple[View, bytes]] = {}
        self._told: tuple[Sequence[Event], tuple[tuple[str, View | None], ...]] = ((), ())

    @property
    def links(self) -> int:
        """How many connections there are."""
        return len(self.sockets)

    async def on_shutdown(self, _: web.Application) -> None:
        await self.close(_CLOSING_S)

    async def close(self, seconds: float) -> None:
        """Every connection is told to come again later, and of nothing after that; who does not answer is cut off."""
        for link in self.sockets.values():
            link.close()
        going = [socket.close(code=WSCloseCode.GOING_AWAY, message=b"shutdown") for socket in self.sockets]
        if going:
            await asyncio.wait([asyncio.ensure_future(one) for one in going], timeout=seconds)

    def rows_of(self, deck: Deck, events: Sequence[Event]) -> tuple[tuple[str, View | None], ...]:
        """The sessions of these events as they are now, None for one that is gone. Made once for all who get them."""
        if self._told[0] is not events:
            names = dict.fromkeys([event.session_id for event in events])
            rows = tuple((name, self._row(name, deck.view(name)) if deck.has(name) else None) for name in names)
            self._told = (events, rows)
            for name, row in rows:
                if row is None:
                    self._rows.pop(name, None)
                    self._wholes.pop(name, None)
        return self._told[1]

    def whole(self, name: str, row: View) -> bytes:
        """The frame that tells a whole summary."""
        kept = self._wholes.get(name)
        if kept is not None and kept[0] is row:
            return kept[1]
        if len(self._wholes) >= _MOST_ROWS:
            self._wholes.clear()
        made = _whole(name, row)
        self._wholes[name] = (row, made)
        return made

    def _row(self, name: str, view: View) -> View:
        """A view without its conversation, the same for all who keep one."""
        kept = self._rows.get(name)
        if kept is not None and kept.state is view.state:
            return kept
        if len(self._rows) >= _MOST_ROWS:
            self._rows.clear()
        kept = self._rows[name] = View(view.index, view.at, view.state)
        return kept

    def changes(self, op: Literal["view", "summary", "patch"], session: str, old: View, new: View, limit: int) -> bytes:
        """The frame that takes a mirror from one view to the other; b'' when nothing changed that it shows."""
        key = (id(old), id(new), op, limit)
        # rows hold no conversations, so more of them can be kept
        cache, most = (self._row_changes, _MOST_ROW_CHANGES) if op == "summary" else (self._changes, _MOST_CHANGES)
        kept = cache.get(key)
        if kept is not None and kept[0] is old and kept[1] is new:
            return kept[2]
        made = self._made(op, session, old, new, limit)
        if len(cache) >= most:
            cache.clear()
        cache[key] = (old, new, made)
        return made

    def _made(self, op: str, session: str, old: View, new: View, limit: int) -> bytes:
        changes: list[Change]
        if op == "patch":
            changes = timeline_changes(old.timeline, new.timeline, limit)
        else:
            changes = view_changes(old, new) if op == "view" else summary_changes(old, new)
        if not changes:
            return b""
        if op == "summary":
            return _row_frame(session, changes, new.index)
        return frames.message_frame({"op": op, "session": session, "index": new.index, "changes": changes})


class _OfSession:
    """A subscription to one session."""

    def __init__(self, link: Link, wanted: Subscribe, session: Session) -> None:
        self._link = link
        self._since = _index(wanted.since)
        self._types = None if wanted.types is None else frames.with_restating(wanted.types)
        self._limit = wanted.timeline.limit if wanted.timeline is not None else 0
        self._session = session
        self._sent = session.writer.durable_view
        self._tail: Tail[int] | None = None
        self._reader: Reader[int] | None = None
        session.users += 1

    async def begin(self) -> None:
        """A snapshot first, so that the mirror has a place to begin; then everything after `since`."""
        link, session, since = self._link, self._session, self._since
        if self._limit:
            await session.load()
        self._tail = await link.deck.feed.hold(session.id)
        view = session.writer.durable_view
        if since is not None and since > view.index:
            link.say({"op": "gap", "session": session.id, "from": since, "to": view.index})
            since = None
        self._snapshot(view)
        position = view.index if since is None else since
        self._reader = Reader(
            self._tail, position, link.line, lambda at: link.shared.pages.after(session.id, at), self._send
        )
        self._reader.begin()

    def _snapshot(self, view: View) -> None:
        self._sent = view
        timeline = window(view.timeline, self._limit) if self._limit else None
        self._link.say(
            {
                "op": "snapshot",
                "session": self._session.id,
                "view": session_view(view),
                "timeline": timeline,
                "index": view.index,
            }
        )

    def _send(self, events: Sequence[Event]) -> None:
        shared = self._link.shared
        shared.delivered += len(events)
        data = b"" if self._types == _NONE else shared.events.bytes_of(events, self._types)
        new, old = self._session.writer.durable_view, self._sent
        if new is not old:
            data += shared.changes("view", self._session.id, old, new, 0)
            if self._limit:
                data += shared.changes("patch", self._session.id, old, new, self._limit)
            self._sent = new
        if type(events[-1].body) is SessionDeleted:
            gone = [Change("remove", self._session.id)]
            data += frames.message_frame(
                {"op": "view", "session": self._session.id, "index": events[-1].index, "changes": gone}
            )
            self._link.forget(self._session.id, self)
        if data:
            self._link.line.write(data)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._tail is not None:
            self._link.deck.feed.release(self._session.id, self._tail)
        self._session.users -= 1
        self._session.services.at_rest()


class _OfAll:
    """A subscription to all sessions: their summaries, and what changes in them.

    What was sent is kept only for sessions that changed lately. A session that is not among them is told whole when it
    changes, so ten thousand sessions at rest cost a reader nothing.
    """

    def __init__(self, link: Link, wanted: Subscribe) -> None:
        self._link = link
        self._since = _cursor(wanted.since)
        self._types = _NONE if wanted.types is None else frames.with_restating(wanted.types)
        self._sent: dict[str, View] = {}
        self._reader: Reader[str] | None = None

    async def begin(self) -> None:
        link, since = self._link, self._since
        feed = link.deck.feed
        position = feed.all.head
        if since is not None and since > position:
            link.say({"op": "gap", "session": ALL, "from": since, "to": position})
            since = None
        for place, name in enumerate(link.deck.session_ids()):
            if link.deck.has(name):
                link.line.write(_whole(name, link.deck.view(name)))
            if place % _ROWS == _ROWS - 1:
                await asyncio.sleep(0)
                await link.line.drained()
        self._reader = Reader(
            feed.all,
            position if since is None else since,
            link.line,
            lambda at: link.shared.all_pages.after("", at),
            self._send,
        )
        self._reader.begin()

    def _send(self, events: Sequence[Event]) -> None:
        shared, sent = self._link.shared, self._sent
        shared.delivered += len(events)
        parts = [shared.events.bytes_of(events, self._types)] if self._types else []
        for name, row in shared.rows_of(self._link.deck, events):
            old = sent.get(name)
            if row is None:
                sent.pop(name, None)
                parts.append(_row_frame(name, [Change("remove", name)], 0))
            elif old is None:
                parts.append(shared.whole(name, row))
                sent[name] = row
            elif row.index > old.index:  # a reader that catches up may know more already
                parts.append(shared.changes("summary", name, old, row, 0))
                sent[name] = row
        if len(sent) > _MOST_ROWS:
            sent.clear()
        data = b"".join(parts)
        if data:
            self._link.line.write(data)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _whole(name: str, view: View) -> bytes:
    return _row_frame(name, [Change("add", name, value=summary(view))], view.index)


def _row_frame(name: str, changes: list[Change], index: int) -> bytes:
    """`of` tells a row of the list from the view of a session that the same client subscribed to as well."""
    return frames.message_frame({"op": "view", "of": ALL, "session": name, "index": index, "changes": changes})


class Link:
    """One connection."""

    def __init__(self, deck: Deck, shared: Shared, line: TransportLine, visitor: Visitor, obey: Obey) -> None:
        self.deck = deck
        self.shared = shared
        self.line = line
        self._visitor = visitor
        self._obey = obey
        self._open: dict[str, _OfSession | _OfAll] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, message: dict[str, Any]) -> None:
        self.line.write(frames.message_frame(message))

    async def hear(self, text: str) -> None:
        """One message of the client. Whatever is wrong with it is answered, and the connection lives on."""
        try:
            message = _messages.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            self._complain(BadRequest(f"not a message: {error}", "Send op subscribe, unsubscribe or command."))
            return
        if isinstance(message, Command):
            # beside each other: a slow one must not hold up the next, and many must not pile up
            if len(self._tasks) >= _MOST_COMMANDS:
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
            self._complain(error, session=message.session)

    def refuse_bytes(self) -> None:
        """A binary message: whoever sent it would wait for an answer."""
        self._complain(BadRequest("not a message: it is binary", "Send JSON in text messages."))

    async def _subscribe(self, wanted: Subscribe) -> None:
        if len(self._open) >= _MOST_SUBSCRIPTIONS and wanted.session not in self._open:
            raise BadRequest(f"{_MOST_SUBSCRIPTIONS} subscriptions are open already", "Unsubscribe from some first.")
        if wanted.timeline is not None and not 0 < wanted.timeline.limit <= 10_000:
            raise BadRequest("timeline.limit: out of range", "Ask for 1 to 10,000 entries.")
        self._unsubscribe(wanted.session)
        made: _OfSession | _OfAll
        if wanted.session == ALL:
            made = _OfAll(self, wanted)
        else:
            made = _OfSession(self, wanted, await self.deck.in_use(wanted.session))
        self._open[wanted.session] = made
        try:
            await made.begin()
        except QuarterdeckError:
            self._unsubscribe(wanted.session)
            raise

    def _unsubscribe(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            found.close()

    def forget(self, name: str, subscription: _OfSession) -> None:
        """It will say nothing more."""
        if self._open.get(name) is subscription:
            self._unsubscribe(name)

    async def _command(self, command: Command) -> None:
        try:
            if self._visitor.role != "operate":
                raise ViewOnly
            answer = await self._obey(command.session, command.name, command.args, command.id)
            self.say({"op": "receipt", "id": command.id, "status": "done", "answer": answer})
        except QuarterdeckError as error:
            self.say({"op": "receipt", "id": command.id, "status": "refused", **error.as_json()})

    def _complain(self, error: QuarterdeckError, **more: Any) -> None:
        self.say({"op": "error", **error.as_json(), **more})

    def close(self) -> None:
        for name in list(self._open):
            self._unsubscribe(name)
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


async def serve(
    request: web.Request, deck: Deck, shared: Shared, visitor: Visitor, obey: Obey
) -> web.WebSocketResponse:
    """Until the client leaves. One that does not read what it asked for is not heard either."""
    socket = web.WebSocketResponse(
        heartbeat=shared.heartbeat_s, timeout=_CLOSING_S, compress=False, max_msg_size=_MOST_BYTES
    )
    await socket.prepare(request)
    request[access_log.STARTED] = socket.status
    link = Link(deck, shared, TransportLine(request), visitor, obey)
    shared.sockets[socket] = link
    try:
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await link.hear(message.data)
            elif message.type is WSMsgType.BINARY:
                link.refuse_bytes()
            await link.line.drained()
    except ConnectionResetError:
        pass
    finally:
        shared.sockets.pop(socket, None)
        link.close()
    return socket
