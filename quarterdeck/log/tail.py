"""Follow a log: live readers are served from a short tail in memory, all others from the log.

Readers don't have queues. A reader is a position in a stream, and a reader that can't keep up falls behind: once the
tail doesn't reach back to its position any more, it reads from the log until it has caught up. So a reader can be slow,
disconnect and come back without missing an event, and it delays no other reader.

There are two ways to read from a `Tail`. A `Sink` is a callback that gets each new slice of events; it costs no task, and
sinks at the same position share one slice. A `Follower` is an asynchronous iterator of slices, which also reads from the
log when it is behind. Publish only durable events.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from operator import attrgetter
from typing import Generic, TypeAlias, TypeVar
from weakref import WeakSet

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, SessionDeleted
from quarterdeck.log.base import PAGE, START, Log, LogUnavailable, NoSuchSession

#: A position in a stream: an index in one session, or a cursor over all sessions.
P = TypeVar("P", int, str)
Deliver: TypeAlias = Callable[[Sequence[Event]], object]

_index_of: Callable[[Event], int] = attrgetter("index")
_cursor_of: Callable[[Event], str] = attrgetter("cursor")

#: How many events a tail keeps at least.
TAIL = 200
#: The floor of a tail that doesn't know yet how far back it reaches: above any index.
_UNKNOWN = 1 << 62


# --- the tail


class Sink(Generic[P]):
    """A callback that gets everything after `position`."""

    __slots__ = ("deliver", "is_behind", "position")

    def __init__(self, position: P, deliver: Deliver) -> None:
        self.position = position
        self.deliver = deliver
        #: Set once the tail doesn't reach back to the position. The sink then gets one empty slice, and nothing after it.
        self.is_behind = False


class Tail(Generic[P]):
    """The newest events of one stream. It holds every event after `floor`, up to `head`."""

    def __init__(self, position_of: Callable[[Event], P], head: P, limit: int = TAIL) -> None:
        self.position_of = position_of
        self.head = head
        self.floor = head
        #: How many readers hold this tail (`Feed.hold`).
        self.readers = 0
        self._limit = limit
        self._events: list[Event] = []
        self._sinks: dict[Sink[P], None] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}
        #: Followers that can't read from a log, so the tail keeps what they haven't read. Weak: an abandoned one is freed.
        self._retaining: WeakSet[Follower[P]] = WeakSet()
        self._is_scheduled = False
        self._is_ended = False
        self._error: QuarterdeckError | None = None

    @property
    def is_read(self) -> bool:
        return bool(self.readers or self._sinks)

    @property
    def is_started(self) -> bool:
        """Whether the tail knows how far back it reaches."""
        return self.floor != _UNKNOWN

    def start(self, position: P) -> None:
        """Set the floor of a tail that has collected every event after `position`.

        A tail that has started already is left alone: it may have dropped events since, so its own floor is right.
        """
        if self.is_started:
            return
        self.floor = position
        if not self._events:
            self.head = position

    def publish(self, events: Sequence[Event]) -> None:
        """Add durable events. Sinks get them in the next pass of the loop, with all others published until then."""
        if not events:
            return
        self._events.extend(events)
        self.head = self.position_of(events[-1])
        # Trim to the limit only at twice the limit, so that events aren't moved for each publish.
        if len(self._events) > 2 * self._limit:
            self._drop(len(self._events) - self._limit)
        self._wake_waiters()
        if self._sinks:
            self._schedule()

    def _drop(self, count: int) -> None:
        unread = [follower.position for follower in self._retaining]
        if unread:
            count = min(count, bisect_right(self._events, min(unread), key=self.position_of))
        if count:
            self.floor = self.position_of(self._events[count - 1])
            del self._events[:count]

    def after(self, position: P) -> Sequence[Event] | None:
        """Return the events after a position, or None if the tail doesn't reach back to it."""
        if position == self.head:
            return ()
        if position < self.floor:
            return None
        return self._events[bisect_right(self._events, position, key=self.position_of) :]

    def end(self, error: QuarterdeckError | None = None) -> None:
        """Publish nothing more. Followers that have read everything stop, or raise `error`."""
        self._is_ended, self._error = True, error
        self._wake_waiters()

    async def wait_for_more(self) -> bool:
        """Wait until more was published, or a follower was released. Return False if the tail has ended.

        Raises:
            QuarterdeckError: the error that the tail ended with.
        """
        if self._is_ended:
            if self._error is not None:
                raise self._error
            return False
        # Each waiter has its own future, because a waiting task can be cancelled.
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
        return True

    def retain_for(self, follower: Follower[P]) -> None:
        """Keep everything that this follower hasn't read yet."""
        self._retaining.add(follower)

    def release(self, follower: Follower[P]) -> None:
        self._retaining.discard(follower)
        # Another task may be waiting for its next slice.
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- sinks

    def attach(self, deliver: Deliver, position: P | None = None) -> Sink[P]:
        """Add a sink at a position, by default at the head."""
        sink = Sink(self.head if position is None else position, deliver)
        self._sinks[sink] = None
        if sink.position != self.head:
            self._schedule()
        return sink

    def detach(self, sink: Sink[P]) -> None:
        """Remove a sink. Whatever it hasn't seen is in the log."""
        self._sinks.pop(sink, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        head = self.head
        slices: dict[P, Sequence[Event] | None] = {}
        # Iterate over a copy: a sink may detach itself, or attach another one, while it is called.
        for sink in tuple(self._sinks):
            if sink.position == head or sink.is_behind:
                continue
            if sink.position not in slices:
                slices[sink.position] = self.after(sink.position)
            events = slices[sink.position]
            if events is None:
                sink.is_behind = True
                sink.deliver(())
            else:
                sink.position = head
                sink.deliver(events)


# --- the follower


class Follower(Generic[P]):
    """Reads one stream from a position: from the tail while it reaches back far enough, else from the log.

    It iterates over slices of events, because handing over each event separately costs an `await` each. Without `read`
    there is no log, and the tail keeps everything that the follower hasn't read.
    """

    def __init__(
        self, tail: Tail[P], position: P, read: Callable[[P], Awaitable[Sequence[Event]]] | None = None
    ) -> None:
        self.position = position
        self._tail = tail
        self._read = read
        self._is_closed = False
        if read is None:
            tail.retain_for(self)

    async def read_available(self) -> Sequence[Event]:
        """Return the next events that were published already, or an empty slice if there are none.

        Raises:
            LogUnavailable: the log can't be read.
        """
        while True:
            events = self._tail.after(self.position)
            if events is None:
                floor = self._tail.floor
                events = await self._read_log()
                if not events:
                    # The log has dropped what was there: restated deltas, or a deleted session. The tail has the rest.
                    self.position = max(self.position, floor)
                    continue
            if events:
                self.position = self._tail.position_of(events[-1])
            return events

    async def _read_log(self) -> Sequence[Event]:
        assert self._read is not None, "the tail keeps everything that this follower hasn't read"
        try:
            return await self._read(self.position)
        except NoSuchSession:
            return ()

    def __aiter__(self) -> Follower[P]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        """Return the next slice, and wait for it if need be.

        Raises:
            QuarterdeckError: the error that the tail ended with, or LogUnavailable if the log can't be read.
        """
        while not self._is_closed:
            events = await self.read_available()
            if events:
                return events
            if not await self._tail.wait_for_more():
                break
        raise StopAsyncIteration

    def close(self) -> None:
        """Stop the iteration, also in a task that waits for the next slice."""
        self._is_closed = True
        self._tail.release(self)


# --- the tails of a deck


class Feed:
    """The tails of a deck: one for all sessions, and one for each session that has readers."""

    def __init__(self, log: Log, limit: int = TAIL) -> None:
        self._log = log
        self._limit = limit
        self._sessions: dict[str, Tail[int]] = {}
        self.all: Tail[str] = Tail(_cursor_of, START, limit)
        #: Called with all published events, for observers that must see them at once and need no cursor.
        self.watchers: list[Callable[[Sequence[Event]], None]] = []

    @classmethod
    async def over(cls, log: Log, limit: int = TAIL) -> Feed:
        """Return a feed for a log that may hold events already. Its tails begin after the newest one."""
        feed = cls(log, limit)
        feed.all = Tail(_cursor_of, await log.last_cursor(), limit)
        return feed

    def publish(self, events: Sequence[Event]) -> None:
        """Publish the events of one durable append, with their cursors."""
        self.all.publish(events)
        tail = self._sessions.get(events[0].session_id) if events else None
        if tail is not None:
            tail.publish(events)
        for watcher in self.watchers:
            watcher(events)

    def close(self) -> None:
        """End all tails, because the log was closed."""
        for tail in (self.all, *self._sessions.values()):
            tail.end(LogUnavailable("it is closed", "Open the log again."))

    async def follow(
        self, session_id: str, since: int = 0, types: Collection[str] | None = None
    ) -> AsyncGenerator[Event]:
        """Yield all events of a session after `since`, then new ones as they are published, until it is deleted.

        Raises:
            NoSuchSession: the log has no session with this id.
            LogUnavailable: the log can't be read, or was closed.
        """
        tail = await self.hold(session_id)
        try:
            async for events in Follower(tail, since, lambda index: self._log.read(session_id, index, PAGE)):
                for event in events:
                    if types is None or event.type in types:
                        yield event
                if isinstance(events[-1].body, SessionDeleted):
                    return
        finally:
            self.release(session_id, tail)

    async def follow_all(self, since: str = START, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """Yield all events of all sessions after a cursor, then new ones as they are published.

        Raises:
            LogUnavailable: the log can't be read, or was closed.
        """
        async for events in Follower(self.all, since, lambda cursor: self._log.read_all(cursor, PAGE)):
            for event in events:
                if types is None or event.type in types:
                    yield event

    async def hold(self, session_id: str) -> Tail[int]:
        """Return the tail of a session. It stays until the caller releases it with `release`.

        Raises:
            NoSuchSession: the log has no session with this id.
        """
        tail = self._sessions.get(session_id)
        if tail is None:
            # Let it collect from now on, so that it misses nothing while the log is asked for the last index.
            tail = self._sessions[session_id] = Tail(_index_of, _UNKNOWN, self._limit)
        tail.readers += 1
        try:
            if not tail.is_started:
                stored = await self._log.session(session_id)
                tail.start(stored.last_index)
        except BaseException:
            self.release(session_id, tail)
            raise
        return tail

    def release(self, session_id: str, tail: Tail[int]) -> None:
        """Release a tail. One that has no readers is dropped."""
        tail.readers -= 1
        if not tail.is_read and self._sessions.get(session_id) is tail:
            del self._sessions[session_id]
