"""Server-Sent Events: `GET /sessions/ID/events` and `GET /events` (contract section 2).

The request says where to begin (`since`, or `Last-Event-ID` after a reconnect), and the stream goes on from there without
end. If the log doesn't have that position, the client gets a `gap` and a `snapshot` to go on from. `end` says why a
stream is over.
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
from quarterdeck.server.access_log import STREAM_STATUS
from quarterdeck.server.errors import BadRequest
from quarterdeck.server.reader import PAGE, Pages, Reader
from quarterdeck.server.route import Index, read_query
from quarterdeck.server.shapes import EventPage, Gap, session_view
from quarterdeck.server.streaming import (
    SharedEncoding,
    TransportLine,
    chunk,
    cursor_block,
    include_final_events,
    named_block,
    session_block,
)

HEARTBEAT_S = 15.0
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
_encode_json = msgspec.json.Encoder().encode
#: Milliseconds that a browser waits before it reconnects.
_FIRST_BLOCK = b"retry: 1000\n\n"
_ROWS_PER_BLOCK = 100

Limit: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
Cursor: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{0,39}$")]
EndReason: TypeAlias = Literal["deleted", "shutdown"]


class EventsQuery(Struct, frozen=True, kw_only=True):
    """`since` is the index of the last event that the client has. `types` are names separated by commas."""

    since: Index = 0
    types: str = ""
    limit: Limit = 1000


class AllEventsQuery(Struct, frozen=True, kw_only=True):
    """`since` is the cursor of the last event that the client has. Without one, the stream starts at the beginning."""

    since: Cursor = ""
    types: str = ""
    limit: Limit = 1000


class _Stream:
    """One client's stream."""

    def __init__(self, line: TransportLine) -> None:
        self.line = line
        #: Set when the stream starts to read events.
        self.reader: Reader[Any] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, reason: EndReason) -> None:
        """Send `end` and finish the request."""
        if not self.ended.done():
            self.line.write(chunk(named_block("end", {"reason": reason})))
            self.ended.set_result(None)

    def send_heartbeat(self) -> None:
        """Send a comment, so that proxies don't close the connection, and the position.

        A client with a filter may get no events for hours. With the position it can reconnect after those it skipped.
        """
        if self.line.is_closed:
            if not self.ended.done():
                self.ended.set_result(None)
        elif not self.line.unsent:
            position = "" if self.reader is None else str(self.reader.position)
            cursor = named_block("cursor", position, position) if position else b""
            self.line.write(chunk(b": \n\n" + cursor))


class Streams:
    """All SSE streams of a server. One timer sends the heartbeats of all."""

    def __init__(self, deck: Deck, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.heartbeat_s = heartbeat_s
        #: Events handed to streams, before their filters.
        self.delivered = 0
        self._deck = deck
        log = deck.services.log
        self._pages: Pages[int] = Pages(lambda session_id, since: log.read(session_id, since, PAGE))
        self._all_pages: Pages[str] = Pages(lambda _, since: log.read_all(since, PAGE))
        self._session_encoding = SharedEncoding(session_block, chunk)
        self._all_encoding = SharedEncoding(cursor_block, chunk)
        self._open: dict[_Stream, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    @property
    def count(self) -> int:
        return len(self._open)

    async def on_shutdown(self, _: web.Application) -> None:
        self.close()

    def close(self) -> None:
        """End all streams, and those that are opened later."""
        self._is_closing = True
        for stream in self._open:
            stream.end("shutdown")

    # --- One session

    async def session_events(self, request: web.Request) -> web.StreamResponse:
        query: EventsQuery = read_query(EventsQuery, request.query)
        session_id = request.match_info["id"]
        head = self._deck.view(session_id).index
        types = _types(query.types)
        since = query.since
        last = request.headers.get("Last-Event-ID", "")
        if last.isascii() and last.isdecimal() and len(last) < 17:
            since = int(last)
        if _wants_json(request):
            return await self._session_page(session_id, since, head, types, query.limit)
        return await self._follow_session(request, session_id, since, types)

    async def _session_page(
        self, session_id: str, since: int, head: int, types: frozenset[str] | None, limit: int
    ) -> web.Response:
        if since > head:
            return _page_response(EventPage((), head, Gap(since, head)))
        events = await self._deck.services.log.read(session_id, since, limit, types)
        last = events[-1].index if events else since
        # A page that isn't full reaches the head: a client with a filter needn't read the skipped events again.
        following = last if len(events) == limit else max(head, last)
        return _page_response(EventPage(_encode_all(events), following))

    async def _follow_session(
        self, request: web.Request, session_id: str, since: int, types: frozenset[str] | None
    ) -> web.StreamResponse:
        deck = self._deck
        tail = await deck.feed.hold(session_id)
        try:
            # Load the view before the response begins: an error can't be sent after that.
            view = await deck.session(session_id).whole_view() if since > deck.view(session_id).index else None
            response, stream = await self._begin(request)
            if view is not None:
                _send_snapshot(stream.line, session_id, since, view)
                since = view.index

            def send(events: Sequence[Event]) -> None:
                self.delivered += len(events)
                stream.line.write(self._session_encoding.encode(events, types))
                if type(events[-1].body) is SessionDeleted:
                    stream.end("deleted")

            reader = Reader(tail, since, stream.line, lambda at: self._pages.after(session_id, at), send)
            return await self._run(response, stream, reader)
        finally:
            deck.feed.release(session_id, tail)

    # --- All sessions

    async def all_events(self, request: web.Request) -> web.StreamResponse:
        query: AllEventsQuery = read_query(AllEventsQuery, request.query)
        last = request.headers.get("Last-Event-ID", "")
        since = last if last and last.isascii() and last.isdecimal() and len(last) < 40 else query.since
        types = _types(query.types)
        if _wants_json(request):
            return await self._all_page(since, types, query.limit)
        return await self._follow_all(request, since, types)

    async def _all_page(self, since: str, types: frozenset[str] | None, limit: int) -> web.Response:
        head = self._deck.feed.all.head
        if since > head:
            return _page_response(EventPage((), head, Gap(since, head)))
        events = await self._deck.services.log.read_all(since, limit, types)
        last = events[-1].cursor if events else since
        following = last if len(events) == limit else max(head, last)
        return _page_response(EventPage(_encode_all(events), following))

    async def _follow_all(self, request: web.Request, since: str, types: frozenset[str] | None) -> web.StreamResponse:
        deck = self._deck
        response, stream = await self._begin(request)
        if since > deck.feed.all.head:
            since = await self._send_all_snapshots(stream.line, since)

        def send(events: Sequence[Event]) -> None:
            self.delivered += len(events)
            stream.line.write(self._all_encoding.encode(events, types))

        reader = Reader(deck.feed.all, since, stream.line, lambda at: self._all_pages.after("", at), send)
        return await self._run(response, stream, reader)

    async def _send_all_snapshots(self, line: TransportLine, since: str) -> str:
        """Send the summaries of all sessions in several blocks. Changes in the meantime follow as events."""
        deck, head = self._deck, self._deck.feed.all.head
        line.write(chunk(named_block("gap", {"session": "*", "from": since, "to": head})))
        session_ids = deck.session_ids()
        for start in range(0, max(len(session_ids), 1), _ROWS_PER_BLOCK):
            part = session_ids[start : start + _ROWS_PER_BLOCK]
            rows = [summary(deck.view(session_id)) for session_id in part if deck.has(session_id)]
            line.write(chunk(named_block("snapshot", {"session": "*", "sessions": rows, "cursor": head}, head)))
            # Let other requests run, and don't fill the memory for a slow client.
            await asyncio.sleep(0)
            await line.drain()
        return head

    # --- Connections

    async def _begin(self, request: web.Request) -> tuple[web.StreamResponse, _Stream]:
        if request.version < HttpVersion11:
            raise BadRequest("a stream needs HTTP/1.1", "Send Accept: application/json to get pages instead.")
        response = web.StreamResponse(headers=_HEADERS)
        response.force_close()
        await response.prepare(request)
        request[STREAM_STATUS] = response.status
        # Write something: aiohttp holds the headers back until the first write.
        await response.write(_FIRST_BLOCK)
        return response, _Stream(TransportLine(request))

    async def _run(self, response: web.StreamResponse, stream: _Stream, reader: Reader[Any]) -> web.StreamResponse:
        self._open[stream] = None
        stream.reader = reader
        self._start_timer()
        reader.begin()
        if self._is_closing:
            stream.end("shutdown")
        try:
            # aiohttp cancels this task when the client disconnects.
            await stream.ended
        finally:
            reader.close()
            del self._open[stream]
        return response

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.heartbeat_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for stream in self._open:
            stream.send_heartbeat()
        if self._open:
            self._start_timer()


def _send_snapshot(line: TransportLine, session_id: str, since: int, view: View) -> None:
    """Send a gap and a snapshot to a client whose position is beyond our log: it read another log before."""
    gap = named_block("gap", {"session": session_id, "from": since, "to": view.index})
    state = {"view": session_view(view), "timeline": window(view.timeline, WINDOW), "index": view.index}
    line.write(chunk(gap + named_block("snapshot", {"session": session_id, **state}, str(view.index))))


def _types(text: str) -> frozenset[str] | None:
    return include_final_events([name for name in text.split(",") if name]) if text else None


def _wants_json(request: web.Request) -> bool:
    return "application/json" in request.headers.get("Accept", "")


def _encode_all(events: Sequence[Event]) -> tuple[msgspec.Raw, ...]:
    return tuple(msgspec.Raw(encode_event(event)) for event in events)


def _page_response(page: EventPage) -> web.Response:
    return web.Response(body=_encode_json(page), content_type="application/json")
