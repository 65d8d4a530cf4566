"""Readers are cursors. A short tail of what was published last serves the live ones; the log serves all others.

A reader is a sink: a position and a function that takes a slice. Publishing costs one append to the tail and one call
per sink and pass of the loop; sinks at the same position share one slice. Nobody has a queue of their own: a sink that
cannot keep up is simply behind, and once the tail no longer reaches back to it, it reads from the log until it has
caught up. So a reader can be slow, leave and come back, and misses nothing; and it holds up nobody.

Only what is durable may be published.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import Generic, TypeAlias, TypeVar

from quarterdeck.events import Event, SessionDeleted
from quarterdeck.log.base import PAGE, START, Log, LogUnavailable

P = TypeVar("P", int, str)
Deliver: TypeAlias = Callable[[Sequence[Event]], object]

TAIL = 200
#: The floor of a tail that does not know yet how far back it reaches: further than any position.
_NOWHERE = 1 << 62


class Sink(Generic[P]):
    """One reader: everything up to `position` was delivered. `behind` once the tail does not reach back to it."""

    __slots__ = ("behind", "deliver", "position")

    def __init__(self, position: P, deliver: Deliver) -> None:
        self.position = position
        self.deliver = deliver
        self.behind = False


class Tail(Generic[P]):
    """The newest events of one stream: of a session by index, or of all sessions by cursor.

    It holds everything after `floor` and nothing before.
    """

    def __init__(self, place: Callable[[Event], P], head: P, limit: int = TAIL) -> None:
        self.place = place
        self.head = head
        self.floor = head
        self.readers = 0
        self._limit = limit
        self._events: list[Event] = []
        self._sinks: dict[Sink[P], None] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}
        #: What came after which position: readers that wait together stand at the same one.
        self._slice: tuple[P, list[Event]] = (head, [])
        self._scheduled = False
        self._is_over = False

    @property
    def is_read(self) -> bool:
        return bool(self.readers or self._sinks)

    def attach(self, deliver: Deliver, position: P | None = None) -> Sink[P]:
        """A new reader, at the head unless it says where it stands."""
        sink = Sink(self.head if position is None else position, deliver)
        self._sinks[sink] = None
        if sink.position != self.head:
            self._schedule()
        return sink

    def detach(self, sink: Sink[P]) -> None:
        """It leaves; whatever it has not seen is in the log."""
        self._sinks.pop(sink, None)

    def publish(self, events: Sequence[Event]) -> None:
        """These are durable. Delivered once the loop comes round, together with what else is published until then."""
        if not events:
            return
        self._events.extend(events)
        self.head = self.place(events[-1])
        if len(self._events) > 2 * self._limit:
            cut = len(self._events) - self._limit
            self.floor = self.place(self._events[cut - 1])
            del self._events[:cut]
        if self._sinks or self._waiters:
            self._schedule()

    @property
    def is_begun(self) -> bool:
        """Whether it knows how far back it reaches."""
        return self.floor != _NOWHERE

    def begin(self, position: P) -> None:
        """It holds everything after this position; what is new since then has come in already. A tail that knows already
        how far back it reaches knows better: what it could not hold it has let go meanwhile."""
        if self.is_begun:
            return
        self.floor = position
        if not self._events:
            self.head = position

    def end(self) -> None:
        """Nothing more will be published: whoever has read everything and waits is told so."""
        self._is_over = True
        self._schedule()

    async def changed(self) -> None:
        """Returns once something more was published. Each who waits has a future of their own: one can be cancelled."""
        if self._is_over:
            raise LogUnavailable("it is closed", "Open the log again.")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def after(self, position: P) -> Sequence[Event] | None:
        """What came after a position; None when the tail does not reach back to it."""
        if position == self.head:
            return ()
        if position < self.floor:
            return None
        known, events = self._slice
        if known != position or not events or self.place(events[-1]) != self.head:
            events = self._events[bisect_right(self._events, position, key=self.place) :]
            self._slice = (position, events)
        return events

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        head = self.head
        slices: dict[P, Sequence[Event] | None] = {}
        for sink in tuple(self._sinks):
            position = sink.position
            if position == head or sink.behind:
                continue
            if position in slices:
                events = slices[position]
            else:
                events = slices[position] = self.after(position)
            if events is None:
                sink.behind = True
                sink.deliver(())
            else:
                sink.position = head
                sink.deliver(events)


class Feed:
    """The tails of a deck: one for all sessions, one for each session that somebody reads."""

    def __init__(self, log: Log, limit: int = TAIL) -> None:
        self._log = log
        self._limit = limit
        self._sessions: dict[str, Tail[int]] = {}
        self.all: Tail[str] = Tail(_cursor, START, limit)

    @classmethod
    async def over(cls, log: Log, limit: int = TAIL) -> Feed:
        """A feed over a log that holds something already: its newest event is where the tail begins."""
        feed = cls(log, limit)
        feed.all = Tail(_cursor, await log.last_cursor(), limit)
        return feed

    def publish(self, events: Sequence[Event]) -> None:
        """The events of one durable append, with their cursors."""
        self.all.publish(events)
        tail = self._sessions.get(events[0].session_id) if events else None
        if tail is not None:
            tail.publish(events)

    def close(self) -> None:
        """The log is closed: nobody waits for what will never come."""
        for tail in (self.all, *self._sessions.values()):
            tail.end()

    async def follow(
        self, session_id: str, since: int = 0, types: Collection[str] | None = None
    ) -> AsyncGenerator[Event]:
        """Everything of one session after `since`, then whatever comes, until the session is deleted."""
        tail = await self.hold(session_id)
        reading = _Reading(tail, since, lambda at: self._log.read(session_id, at, PAGE), types)
        try:
            while not reading.ended:
                for event in await reading.more():
                    yield event
        finally:
            self.release(session_id, tail)

    async def follow_all(self, since: str = START, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """The same over all sessions."""
        reading = _Reading(self.all, since, lambda at: self._log.read_all(at, PAGE), types)
        while True:
            for event in await reading.more():
                yield event

    async def tail(self, session_id: str) -> Tail[int]:
        """The tail of a session, from its newest durable event on; NoSuchSession."""
        tail = self._sessions.get(session_id)
        if tail is None:
            # it collects from now on, so that nothing is missed that becomes durable while we ask how far the log is
            tail = self._sessions[session_id] = Tail(_index, _NOWHERE, self._limit)
        if tail.is_begun:
            return tail
        # also who comes while another one asks: nobody reads from a tail that does not know where it begins
        tail.readers += 1
        try:
            stored = await self._log.session(session_id)
            tail.begin(stored.last_index)
        finally:
            tail.readers -= 1
            if not tail.is_begun:
                self._let_go(session_id, tail)
        return self._sessions.setdefault(session_id, tail)

    async def hold(self, session_id: str) -> Tail[int]:
        """The tail of a session, which stays until whoever holds it releases it; NoSuchSession."""
        tail = await self.tail(session_id)
        tail.readers += 1
        return tail

    def release(self, session_id: str, tail: Tail[int]) -> None:
        """One reader less."""
        tail.readers -= 1
        self._let_go(session_id, tail)

    def _let_go(self, session_id: str, tail: Tail[int]) -> None:
        """A session that nobody reads keeps no tail."""
        if not tail.is_read and self._sessions.get(session_id) is tail:
            del self._sessions[session_id]


class _Reading(Generic[P]):
    """From the log until the tail reaches back to us, from the tail from then on; from the log again if we fall behind.

    It gives slices: an iterator that hands on each event by itself is at its dearest when it stands on another one.
    """

    def __init__(
        self, tail: Tail[P], since: P, read: Callable[[P], Awaitable[list[Event]]], types: Collection[str] | None
    ) -> None:
        self._tail = tail
        self._since = since
        self._read = read
        self._types = types
        #: The last event that was given is the last one of all.
        self.ended = False

    async def more(self) -> Sequence[Event]:
        """What comes next; maybe nothing of the types that are wanted."""
        tail = self._tail
        events = tail.after(self._since)
        if events is None:
            # an empty answer: what was there are deltas that have been dropped, so the tail is next
            floor = tail.floor
            events = await self._read(self._since)
            if not events:
                self._since = max(self._since, floor)
        elif not events:
            await tail.changed()
        if not events:
            return ()
        self._since = tail.place(events[-1])
        self.ended = isinstance(events[-1].body, SessionDeleted)
        return events if self._types is None else [event for event in events if event.type in self._types]


def _index(event: Event) -> int:
    return event.index


def _cursor(event: Event) -> str:
    return event.cursor
