"""Server-Sent Events: one stream of a session, or of all of them (contract section 2).

The address says where to begin (`since`, or `Last-Event-ID` after a cut), the stream goes on from there, for ever. What
a reader cannot be given exactly it is told of: a `gap`, and a `snapshot` to go on from. `end` says why a stream is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from aiohttp import HttpVersion11, web
from msgspec import Meta, Struct

from quarterdeck.deck.deck import Deck
from quarterdeck.events import Event, SessionDeleted, encode_event
from quarterdeck.kernel.patch import WINDOW
from quarterdeck.kernel.summary import summary
from quarterdeck.kernel.timeline import window
from quarterdeck.kernel.view import View
from quarterdeck.server import access_log, frames
from quarterdeck.server.errors import BadRequest
from quarterdeck.server.lines import TransportLine
from quarterdeck.server.reader import PAGE, Pages, Reader
from quarterdeck.server.route import Index, read_query
from quarterdeck.server.shapes import EventPage, Gap, session_view

BEAT_S = 15.0
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
_json = msgspec.json.Encoder().encode
#: How a browser is told to wait before it comes again.
_FIRST = b"retry: 1000\n\n"
_ROWS = 100

Limit: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
Cursor: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{0,39}$")]
Why: TypeAlias = Literal["deleted", "shutdown"]


class EventsQuery(Struct, frozen=True, kw_only=True):
    """`since` is the index of the last event that the reader has; `types` are names with commas between."""

    since: Index = 0
    types: str = ""
    limit: Limit = 1000


class AllEventsQuery(Struct, frozen=True, kw_only=True):
    """`since` is the cursor of the last event that the reader has; without one, from the beginning."""

    since: Cursor = ""
    types: str = ""
    limit: Limit = 1000


class _Stream:
    """One connection. `reader` is there once it reads."""

    def __init__(self, line: TransportLine) -> None:
        self.line = line
        self.reader: Reader[Any] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, why: Why) -> None:
        """Says so, and lets the request end."""
        if not self.ended.done():
            self.line.write(frames.chunk(frames.block("end", {"reason": why})))
            self.ended.set_result(None)

    def beat(self) -> None:
        """A comment keeps the connection open; the cursor lets a filtered reader move on over what it did not want."""
        if self.line.is_closed:
            if not self.ended.done():
                self.ended.set_result(None)
        elif not self.line.unsent:
            position = "" if self.reader is None else str(self.reader.position)
            cursor = frames.block("cursor", position, position) if position else b""
            self.line.write(frames.chunk(b": \n\n" + cursor))


class Streams:
    """All SSE connections of a server, with one heart for all of them."""

    def __init__(self, deck: Deck, beat_s: float = BEAT_S) -> None:
        self.beat_s = beat_s
        self._deck = deck
        self._of_session = frames.Joined(frames.session_block, frames.chunk)
        self._of_all = frames.Joined(frames.cursor_block, frames.chunk)
        self._open: dict[_Stream, None] = {}
        self._beat: asyncio.TimerHandle | None = None
        self._is_closing = False
        #: Events handed to connections, those too that a connection filters out.
        self.delivered = 0
        log = deck.services.log
        self._pages: Pages[int] = Pages(lambda name, at: log.read(name, at, PAGE))
        self._all_pages: Pages[str] = Pages(lambda _, at: log.read_all(at, PAGE))

    @property
    def count(self) -> int:
        return len(self._open)

    async def close(self, _: web.Application) -> None:
        self.end()

    def end(self) -> None:
        """Every reader is told that it is the end, and those who come later, too."""
        self._is_closing = True
        for stream in self._open:
            stream.end("shutdown")

    # --- one session

    async def session(self, request: web.Request) -> web.StreamResponse:
        """`GET /sessions/ID/events`."""
        query: EventsQuery = read_query(EventsQuery, request.query)
        session_id = request.match_info["id"]
        head = self._deck.view(session_id).index
        types = _types(query.types)
        since = query.since
        last = request.headers.get("Last-Event-ID", "")
        if last.isascii() and last.isdecimal() and len(last) < 17:
            since = int(last)
        if _wants_page(request):
            return await self._page(session_id, since, head, types, query.limit)
        return await self._follow(request, session_id, since, types)

    async def _page(
        self, session_id: str, since: int, head: int, types: frozenset[str] | None, limit: int
    ) -> web.Response:
        if since > head:
            return _answer(EventPage((), head, Gap(since, head)))
        events = await self._deck.services.log.read(session_id, since, limit, types)
        # fewer than asked for: whoever filters need not look at the rest again
        following = events[-1].index if len(events) == limit else max(head, events[-1].index if events else since)
        return _answer(EventPage(_encoded(events), following))

    async def _follow(
        self, request: web.Request, session_id: str, since: int, types: frozenset[str] | None
    ) -> web.StreamResponse:
        deck = self._deck
        tail = await deck.feed.hold(session_id)
        try:
            # before the first word: what is refused later cannot be said any more
            view = await deck.session(session_id).whole_view() if since > deck.view(session_id).index else None
            response, stream = await self._opened(request)
            if view is not None:
                _say_gap(stream.line, session_id, since, view)
                since = view.index

            def send(events: Sequence[Event]) -> None:
                self.delivered += len(events)
                stream.line.write(self._of_session.bytes_of(events, types))
                if type(events[-1].body) is SessionDeleted:
                    stream.end("deleted")

            reader = Reader(tail, since, stream.line, lambda at: self._pages.after(session_id, at), send)
            return await self._run(response, stream, reader)
        finally:
            deck.feed.release(session_id, tail)

    # --- all sessions

    async def all(self, request: web.Request) -> web.StreamResponse:
        """`GET /events`."""
        query: AllEventsQuery = read_query(AllEventsQuery, request.query)
        last = request.headers.get("Last-Event-ID", "")
        since = last if last and last.isascii() and last.isdecimal() and len(last) < 40 else query.since
        types = _types(query.types)
        if _wants_page(request):
            return await self._all_page(since, types, query.limit)
        return await self._follow_all(request, since, types)

    async def _all_page(self, since: str, types: frozenset[str] | None, limit: int) -> web.Response:
        head = self._deck.feed.all.head
        if since > head:
            return _answer(EventPage((), head, Gap(since, head)))
        events = await self._deck.services.log.read_all(since, limit, types)
        following = events[-1].cursor if len(events) == limit else max(head, events[-1].cursor if events else since)
        return _answer(EventPage(_encoded(events), following))

    async def _follow_all(self, request: web.Request, since: str, types: frozenset[str] | None) -> web.StreamResponse:
        deck = self._deck
        response, stream = await self._opened(request)
        if since > deck.feed.all.head:
            since = await self._snapshots(stream.line, since)

        def send(events: Sequence[Event]) -> None:
            self.delivered += len(events)
            stream.line.write(self._of_all.bytes_of(events, types))

        reader = Reader(deck.feed.all, since, stream.line, lambda at: self._all_pages.after("", at), send)
        return await self._run(response, stream, reader)

    async def _snapshots(self, line: TransportLine, since: str) -> str:
        """Every session's summary, some at a time; what changes meanwhile comes as events."""
        deck, head = self._deck, self._deck.feed.all.head
        line.write(frames.chunk(frames.block("gap", {"session": "*", "from": since, "to": head})))
        names = deck.session_ids()
        for start in range(0, max(len(names), 1), _ROWS):
            rows = [summary(deck.view(name)) for name in names[start : start + _ROWS] if deck.has(name)]
            line.write(frames.chunk(frames.block("snapshot", {"session": "*", "sessions": rows, "cursor": head}, head)))
            await asyncio.sleep(0)
            await line.drained()
        return head

    # --- connections

    async def _opened(self, request: web.Request) -> tuple[web.StreamResponse, _Stream]:
        if request.version < HttpVersion11:
            raise BadRequest("a stream needs HTTP/1.1", "Ask with Accept: application/json for pages instead.")
        response = web.StreamResponse(headers=_HEADERS)
        response.force_close()
        await response.prepare(request)
        request[access_log.STARTED] = response.status
        await response.write(_FIRST)  # with the headers, which wait for the first words
        return response, _Stream(TransportLine(request))

    async def _run(self, response: web.StreamResponse, stream: _Stream, reader: Reader[Any]) -> web.StreamResponse:
        self._open[stream] = None
        stream.reader = reader
        self._start_beating()
        reader.begin()
        if self._is_closing:
            stream.end("shutdown")
        try:
            # cancelled by aiohttp when the client leaves
            await stream.ended
        finally:
            reader.close()
            del self._open[stream]
        return response

    def _start_beating(self) -> None:
        if self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(self.beat_s, self._on_beat)

    def _on_beat(self) -> None:
        self._beat = None
        for stream in self._open:
            stream.beat()
        if self._open:
            self._start_beating()


def _say_gap(line: TransportLine, session_id: str, since: int, view: View) -> None:
    """The reader knows more than we have: it was with another log. It is told, and starts over from what there is."""
    gap = frames.block("gap", {"session": session_id, "from": since, "to": view.index})
    shown = {"view": session_view(view), "timeline": window(view.timeline, WINDOW), "index": view.index}
    line.write(frames.chunk(gap + frames.block("snapshot", {"session": session_id, **shown}, str(view.index))))


def _types(text: str) -> frozenset[str] | None:
    return frames.with_restating([one for one in text.split(",") if one]) if text else None


def _wants_page(request: web.Request) -> bool:
    return "application/json" in request.headers.get("Accept", "")


def _encoded(events: Sequence[Event]) -> tuple[msgspec.Raw, ...]:
    return tuple(msgspec.Raw(encode_event(event)) for event in events)


def _answer(page: EventPage) -> web.Response:
    return web.Response(body=_json(page), content_type="application/json")
