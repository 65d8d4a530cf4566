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
from aiohttp import WSMsgType, web
from msgspec import Struct

from quarterdeck.deck.deck import Deck
from quarterdeck.deck.session import Session
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.kernel.patch import WINDOW, Change, summary_changes, timeline_changes, view_changes
from quarterdeck.kernel.timeline import window
from quarterdeck.kernel.view import View
from quarterdeck.log.base import PAGE, START
from quarterdeck.server import frames
from quarterdeck.server.lines import TransportLine
from quarterdeck.server.reader import Reader
from quarterdeck.server.shapes import session_view
from quarterdeck.server.statuses import BadRequest, ViewOnly
from quarterdeck.server.tokens import Visitor

HEARTBEAT_S = 30.0
ALL = "*"
_MOST_SUBSCRIPTIONS = 1000
_MOST_BYTES = 32 * 1024 * 1024


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

    def __init__(self) -> None:
        self.events = frames.Joined(frames.event_frame)
        self._changes: dict[tuple[int, int, str, int], tuple[View, View, bytes]] = {}
        self.links = 0
        #: Events handed to connections, as changes of a view too.
        self.delivered = 0

    def changes(self, op: Literal["view", "summary", "patch"], session: str, old: View, new: View, limit: int) -> bytes:
        """The frame that takes a mirror from one view to the other; b'' when nothing changed that it shows."""
        key = (id(old), id(new), op, limit)
        kept = self._changes.get(key)
        if kept is not None and kept[0] is old and kept[1] is new:
            return kept[2]
        made = self._made(op, session, old, new, limit)
        if len(self._changes) > 256:
            self._changes.clear()
        self._changes[key] = (old, new, made)
        return made

    def _made(self, op: str, session: str, old: View, new: View, limit: int) -> bytes:
        changes: list[Change]
        if op == "patch":
            changes = timeline_changes(old.timeline, new.timeline, limit)
        else:
            changes = view_changes(old, new) if op == "view" else summary_changes(old, new)
        if not changes:
            return b""
        name = "patch" if op == "patch" else "view"
        return frames.message_frame({"op": name, "session": session, "index": new.index, "changes": changes})


class _OfSession:
    """A subscription to one session."""

    def __init__(self, link: Link, wanted: Subscribe, session: Session) -> None:
        self._link = link
        self._types = None if wanted.types is None else frames.with_restating(wanted.types)
        self._limit = wanted.timeline.limit if wanted.timeline is not None else 0
        self._session = session
        self._sent = session.record.durable
        self.reader: Reader[int] | None = None

    async def begin(self, since: int | None) -> None:
        """Snapshot first where one is wanted or nothing else is exact; then everything after it."""
        link, session = self._link, self._session
        session.users += 1
        await session.load()
        tail = await link.deck.feed.tail(session.id)
        view = session.record.durable
        if since is not None and since > view.index:
            link.say({"op": "gap", "session": session.id, "from": since, "to": view.index})
            since = None
        self._snapshot(view)
        position = view.index if since is None else since
        self.reader = Reader(
            tail, position, link.line, lambda at: link.deck.house.log.read(session.id, at, PAGE), self._send
        )
        self.reader.begin()

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
        shared, line = self._link.shared, self._link.line
        shared.delivered += len(events)
        data = b"" if self._types == frozenset() else shared.events.bytes_of(events, self._types)
        new, old = self._session.record.durable, self._sent
        if new is not old:
            data += shared.changes("view", self._session.id, old, new, 0)
            if self._limit:
                data += shared.changes("patch", self._session.id, old, new, self._limit)
            self._sent = new
        if data:
            line.write(data)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self._session.users -= 1
        self._session.house.at_rest()


class _OfAll:
    """A subscription to all sessions: their summaries, and what changes in them."""

    def __init__(self, link: Link, wanted: Subscribe) -> None:
        self._link = link
        self._types = frozenset[str]() if wanted.types is None else frames.with_restating(wanted.types)
        self._sent: dict[str, View] = {}
        self.reader: Reader[str] | None = None

    async def begin(self, since: str | None) -> None:
        link = self._link
        feed = link.deck.feed
        position = feed.all.head
        for name in link.deck.session_ids():
            view = self._sent[name] = link.deck.view(name)
            link.say({"op": "view", "session": name, "index": view.index, "changes": [_whole(name, view)]})
            if link.line.unsent > 1 << 20:
                await link.line.drained()
        self.reader = Reader(
            feed.all, since or position, link.line, lambda at: link.deck.house.log.read_all(at, PAGE), self._send
        )
        self.reader.begin()

    def _send(self, events: Sequence[Event]) -> None:
        shared, deck = self._link.shared, self._link.deck
        shared.delivered += len(events)
        parts = [shared.events.bytes_of(events, self._types)] if self._types else []
        for name in dict.fromkeys(event.session_id for event in events):
            if not deck.has(name):
                self._sent.pop(name, None)
                parts.append(frames.message_frame({"op": "view", "session": name, "changes": [Change("remove", name)]}))
                continue
            new, old = deck.view(name), self._sent.get(name)
            if old is None:
                first = {"op": "view", "session": name, "index": new.index, "changes": [_whole(name, new)]}
                parts.append(frames.message_frame(first))
            elif old is not new:
                parts.append(shared.changes("summary", name, old, new, 0))
            self._sent[name] = new
        data = b"".join(parts)
        if data:
            self._link.line.write(data)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()


def _whole(name: str, view: View) -> Change:
    from quarterdeck.kernel.summary import summary

    return Change("add", name, value=summary(view))


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
            # beside each other: a slow one must not hold up the next
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

    async def _subscribe(self, wanted: Subscribe) -> None:
        if len(self._open) >= _MOST_SUBSCRIPTIONS and wanted.session not in self._open:
            raise BadRequest(f"{_MOST_SUBSCRIPTIONS} subscriptions are open already", "Unsubscribe from some first.")
        if wanted.timeline is not None and not 0 < wanted.timeline.limit <= 10_000:
            raise BadRequest("timeline.limit: out of range", "Ask for 1 to 10,000 entries.")
        self._unsubscribe(wanted.session)
        if wanted.session == ALL:
            of_all = self._open[ALL] = _OfAll(self, wanted)
            await of_all.begin(_cursor(wanted.since))
            return
        session = await self.deck.in_use(wanted.session)
        of_session = self._open[wanted.session] = _OfSession(self, wanted, session)
        await of_session.begin(_index(wanted.since))

    def _unsubscribe(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            found.close()

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
    if since is None or (isinstance(since, str) and (since == START or since.isdecimal()) and len(since) < 40):
        return since
    raise BadRequest("since: not a cursor", "Send the cursor of the last event that you have.")


async def serve(
    request: web.Request, deck: Deck, shared: Shared, visitor: Visitor, obey: Obey
) -> web.WebSocketResponse:
    """Until the client leaves."""
    socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, compress=False, max_msg_size=_MOST_BYTES)
    await socket.prepare(request)
    link = Link(deck, shared, TransportLine(request), visitor, obey)
    shared.links += 1
    try:
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await link.hear(message.data)
    finally:
        shared.links -= 1
        link.close()
    return socket
