"""Send a stream of events over a connection: live while the client keeps up, from the log while it doesn't.

A live reader is a sink of the tail: no task, no queue. When its connection is full, it leaves the tail, and a task follows
the stream from there, page by page as the connection drains, until it has caught up. Either way the client gets every event
once and in order, and at most one page waits in memory for a slow client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from quarterdeck.events import Event
from quarterdeck.log.tail import Follower, Sink, Tail

P = TypeVar("P", int, str)

#: A connection with more unsent bytes than this gets no more events.
HIGH_WATER = 256 * 1024
#: How many events are read from the log at once. A client that never reads costs this much memory.
PAGE = 256
#: How long a page is kept for other clients at the same position.
_CACHED_S = 0.25


class Line(Protocol):
    """A connection that sends bytes."""

    def write(self, data: bytes) -> None:
        """Send bytes without blocking. Do nothing if the connection is closed."""
        ...

    @property
    def unsent(self) -> int:
        """Return how many bytes wait to be sent."""
        ...

    async def drain(self) -> None:
        """Wait until there is room again.

        Raises:
            ConnectionResetError: the connection is closed.
        """
        ...


class Pages(Generic[P]):
    """Reads pages of the log, one read for all clients that are at the same position at about the same time.

    Only full pages are cached, and only for a moment: after a page that isn't full there may be more events soon.
    """

    def __init__(self, read: Callable[[str, P], Awaitable[list[Event]]]) -> None:
        self._read = read
        self._cached: dict[tuple[str, P], asyncio.Task[list[Event]]] = {}

    async def after(self, session_id: str, position: P) -> list[Event]:
        """Return the page after a position.

        Raises:
            QuarterdeckError: the log can't be read.
        """
        key = (session_id, position)
        task = self._cached.get(key)
        if task is None:
            task = self._cached[key] = asyncio.ensure_future(self._read(session_id, position))
            task.add_done_callback(lambda done: self._expire(key, done))
        # Shield it: other clients wait for the same read.
        return await asyncio.shield(task)

    def _expire(self, key: tuple[str, P], task: asyncio.Task[list[Event]]) -> None:
        is_full = not task.cancelled() and task.exception() is None and len(task.result()) == PAGE
        asyncio.get_running_loop().call_later(_CACHED_S if is_full else 0, self._cached.pop, key, None)


class Reader(Generic[P]):
    """Sends one stream to one connection. The creator holds the tail, and releases it after `close`."""

    def __init__(
        self,
        tail: Tail[P],
        position: P,
        line: Line,
        read: Callable[[P], Awaitable[list[Event]]],
        send: Callable[[Sequence[Event]], None],
    ) -> None:
        """Start after `position`, which must not be beyond the tail's head.

        `read` returns a page of the log after a position. `send` encodes a slice and writes it to the line.
        """
        self._tail = tail
        self._line = line
        self._follower = Follower(tail, position, read)
        self._send = send
        self._sink: Sink[P] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_live(self) -> bool:
        return self._sink is not None

    @property
    def position(self) -> P:
        """The position of the last event that was sent."""
        return self._follower.position

    def begin(self) -> None:
        """Start sending."""
        self._catch_up()

    def close(self) -> None:
        """Stop sending."""
        self._is_closed = True
        self._leave_tail()
        if self._task is not None:
            self._task.cancel()

    def _leave_tail(self) -> None:
        if self._sink is not None:
            self._tail.detach(self._sink)
            self._sink = None

    def _catch_up(self) -> None:
        self._leave_tail()
        self._task = asyncio.get_running_loop().create_task(self._send_until_live())

    async def _send_until_live(self) -> None:
        """Send what the client has missed, then join the tail."""
        follower = self._follower
        try:
            while True:
                await self._wait_for_room()
                before = follower.position
                events = await follower.read_available()
                if not events:
                    break
                if self._line.unsent > HIGH_WATER:
                    # Another stream filled the connection while we read. Read again later instead of keeping the page.
                    follower.position = before
                else:
                    self._send(events)
        except ConnectionResetError:
            return
        self._task = None
        if not self._is_closed:
            self._sink = self._tail.attach(self._deliver, follower.position)

    async def _wait_for_room(self) -> None:
        await self._line.drain()
        while self._line.unsent > HIGH_WATER:
            # A transport can take a pass of the loop to notice that it is full.
            await asyncio.sleep(0)
            await self._line.drain()

    def _deliver(self, events: Sequence[Event]) -> None:
        """Send a slice of the tail, or catch up from the log if the client or the tail is behind."""
        if not events or self._line.unsent > HIGH_WATER:
            self._catch_up()
        else:
            self._follower.position = self._tail.position_of(events[-1])
            self._send(events)
