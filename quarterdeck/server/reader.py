"""A reader of a stream behind a connection: live while it keeps up, from the log while it does not.

A live reader is a sink of the tail: no task, no queue. When its connection does not take what it is sent, it leaves the
tail and a task reads on from where it stands, page by page as the connection drains, until it has caught up. Either way
it gets everything once and in order, and what waits for a slow client is one page at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from quarterdeck.events import Event
from quarterdeck.log.base import NoSuchSession
from quarterdeck.log.tail import Sink, Tail

P = TypeVar("P", int, str)

#: A connection that holds more unsent bytes than this is not given more.
HIGH_WATER = 256 * 1024
#: How many events are read from the log at once: what a client that never reads costs.
PAGE = 256
#: How long a page is kept for others that want it too.
_KEPT_S = 0.25


class Line(Protocol):
    """A connection that takes bytes."""

    def write(self, data: bytes) -> None:
        """Never blocks; nothing happens when the connection is gone."""
        ...

    @property
    def unsent(self) -> int:
        """How many bytes wait in it."""
        ...

    async def drained(self) -> None:
        """Returns when there is room again; ConnectionResetError when it is gone."""
        ...


class Pages(Generic[P]):
    """Pages of the log that several readers want at about the same time: each is read once.

    Whoever falls behind together catches up together. Only a full page is kept, and not for long: there may be more
    after one that is not full.
    """

    def __init__(self, read: Callable[[str, P], Awaitable[list[Event]]]) -> None:
        self._read = read
        self._kept: dict[tuple[str, P], asyncio.Task[list[Event]]] = {}

    async def after(self, name: str, position: P) -> list[Event]:
        """The page of this stream after this position."""
        key = (name, position)
        task = self._kept.get(key)
        if task is None:
            task = self._kept[key] = asyncio.ensure_future(self._read(name, position))
            task.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(task)

    def _done(self, key: tuple[str, P], task: asyncio.Task[list[Event]]) -> None:
        is_full = not task.cancelled() and task.exception() is None and len(task.result()) == PAGE
        asyncio.get_running_loop().call_later(_KEPT_S if is_full else 0, self._kept.pop, key, None)


class Reader(Generic[P]):
    """`read` gives a page of the log after a position; `send` makes bytes of a slice and writes them.

    Whoever makes a reader holds the tail for it, and releases it after `close`.
    """

    def __init__(
        self,
        tail: Tail[P],
        position: P,
        line: Line,
        read: Callable[[P], Awaitable[list[Event]]],
        send: Callable[[Sequence[Event]], None],
    ) -> None:
        self._tail = tail
        self._line = line
        self._read = read
        self._send = send
        self._sink: Sink[P] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.position = position

    @property
    def is_live(self) -> bool:
        return self._sink is not None

    def begin(self) -> None:
        """Reads from its position on, which is not beyond the tail's head."""
        self._catch_up()

    def close(self) -> None:
        """Reads no more."""
        self._is_closed = True
        if self._sink is not None:
            self._tail.detach(self._sink)
            self._sink = None
        if self._task is not None:
            self._task.cancel()

    def _catch_up(self) -> None:
        if self._sink is not None:
            self._tail.detach(self._sink)
            self._sink = None
        self._task = asyncio.get_running_loop().create_task(self._from_log())

    async def _from_log(self) -> None:
        try:
            while (events := await self._next()) is not None:
                # others may have filled the connection while we read: the page is read again when there is room
                if self._line.unsent <= HIGH_WATER:
                    self._give(events)
        except ConnectionResetError:
            return
        self._task = None
        if not self._is_closed:
            self._sink = self._tail.attach(self._deliver, self.position)

    async def _next(self) -> Sequence[Event] | None:
        """The next page, once there is room for it; None when there is nothing more."""
        await self._line.drained()
        while self._line.unsent > HIGH_WATER:
            await asyncio.sleep(0)  # a transport may take its time to notice that it is full
            await self._line.drained()
        while True:
            events = self._tail.after(self.position)
            if events is not None:
                return events or None
            floor = self._tail.floor
            try:
                events = await self._read(self.position)
            except NoSuchSession:
                events = []  # deleted while we caught up: the tail has, or will have, the last word
            if events:
                return events
            # deltas that have been dropped: the tail is next
            self.position = max(self.position, floor)

    def _deliver(self, events: Sequence[Event]) -> None:
        if not events or self._line.unsent > HIGH_WATER:
            self._catch_up()
        else:
            self._give(events)

    def _give(self, events: Sequence[Event]) -> None:
        self.position = self._tail.place(events[-1])
        self._send(events)
