"""Server-Sent Events: one stream of a session, or of all of them (contract section 2).

The address says where to begin (`since`, or `Last-Event-ID` after a cut), the stream goes on from there, for ever. What
a reader cannot be given exactly it is told of: a `gap`, and a `snapshot` to go on from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from quarterdeck.deck.deck import Deck
from quarterdeck.events import Event
from quarterdeck.kernel.timeline import window
from quarterdeck.log.base import PAGE
from quarterdeck.server import access, frames
from quarterdeck.server.lines import TransportLine
from quarterdeck.server.reader import Reader
from quarterdeck.server.shapes import session_view

BEAT_S = 15.0
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}


class Streams:
    """All SSE connections of a server, with one heart for all of them."""

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        self._of_session = frames.Joined(frames.session_block, frames.chunk)
        self._of_all = frames.Joined(frames.cursor_block, frames.chunk)
        self._open: dict[TransportLine, Reader[Any]] = {}
        self._beat: asyncio.TimerHandle | None = None
        #: Events handed to connections, those too that a connection filters out.
        self.delivered = 0

    @property
    def count(self) -> int:
        return len(self._open)

    async def session(
        self, request: web.Request, session_id: str, since: int, types: frozenset[str] | None
    ) -> web.StreamResponse:
        """Everything of one session after an index."""
        deck = self._deck
        tail = await deck.feed.tail(session_id)
        response, line = await self._opened(request)
        if since > tail.head:
            since = await self._snapshot(line, session_id, since)

        def send(events: Sequence[Event]) -> None:
            self.delivered += len(events)
            line.write(self._of_session.bytes_of(events, types))

        reader = Reader(tail, since, line, lambda at: deck.house.log.read(session_id, at, PAGE), send)
        return await self._run(request, response, line, reader)

    async def all(self, request: web.Request, since: str, types: frozenset[str] | None) -> web.StreamResponse:
        """Everything of all sessions after a cursor."""
        deck = self._deck
        response, line = await self._opened(request)

        def send(events: Sequence[Event]) -> None:
            self.delivered += len(events)
            line.write(self._of_all.bytes_of(events, types))

        reader = Reader(deck.feed.all, since, line, lambda at: deck.house.log.read_all(at, PAGE), send)
        return await self._run(request, response, line, reader)

    async def _opened(self, request: web.Request) -> tuple[web.StreamResponse, TransportLine]:
        response = web.StreamResponse(headers=_HEADERS)
        response.force_close()
        await response.prepare(request)
        request[access.STARTED] = response.status
        await response.write(b": \n\n")  # with the headers, which wait for the first words
        return response, TransportLine(request)

    async def _snapshot(self, line: TransportLine, session_id: str, since: int) -> int:
        """The reader knows more than we have: it was with another log. It is told, and starts over from what there is."""
        view = await self._deck.session(session_id).whole_view()
        gap = frames.block("gap", {"session": session_id, "from": since, "to": view.index})
        shown = {"view": session_view(view), "timeline": window(view.timeline), "index": view.index}
        line.write(frames.chunk(gap + frames.block("snapshot", {"session": session_id, **shown}, str(view.index))))
        return view.index

    async def _run(
        self, request: web.Request, response: web.StreamResponse, line: TransportLine, reader: Reader[Any]
    ) -> web.StreamResponse:
        self._open[line] = reader
        self._start_beating()
        reader.begin()
        try:
            # cancelled by aiohttp when the client leaves
            await asyncio.get_running_loop().create_future()
        finally:
            reader.close()
            del self._open[line]
        return response

    def _start_beating(self) -> None:
        if self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._on_beat)

    def _on_beat(self) -> None:
        """A comment keeps the connection open; the cursor lets a filtered reader move on over what it did not want."""
        self._beat = None
        for line, reader in self._open.items():
            position = str(reader.position)
            cursor = frames.block("cursor", position, position) if position else b""
            line.write(frames.chunk(b": \n\n" + cursor))
        if self._open:
            self._start_beating()
