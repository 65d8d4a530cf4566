"""Measure delivery to many readers, against calling as many plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count

from bench.figure import Figure
from bench.measure import SMOKE, Effort, Work, ratio
from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.tail import Feed, Tail

READERS = 1_000
_BODY = ev.MessageDelta(message_id="m", delta="and the parser took that for ")


def figures(effort: Effort) -> Iterator[Figure]:
    readers = READERS if effort is not SMOKE else 10
    loop = asyncio.new_event_loop()
    for burst, target in ((64, 1.3), (8, 1.8), (1, 5.1)):
        found = ratio(sinks(loop, readers, burst), callbacks(readers, burst), effort)
        yield Figure("fanout", f"{readers:,} sinks, bursts of {burst}, to plain callbacks", found, target)
    for burst, target in ((64, 4.2), (8, 13.7)):
        with closing(Iterators(loop, readers, burst)) as streams:
            found = ratio(Work(streams.run, readers * burst), callbacks(readers, burst), effort)
        yield Figure("fanout", f"{readers:,} async iterators, bursts of {burst}, to plain callbacks", found, target)
    loop.close()


def _bursts(size: int) -> Iterator[tuple[Event, ...]]:
    """Yield bursts of events."""
    for first in count(0, size):
        yield tuple(
            Event("s", first + number, 1, "stream", _BODY, f"{first + number:020d}") for number in range(1, size + 1)
        )


class Reader:
    """Counts events, the least that a reader can do."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def one(self, event: Event) -> None:
        self.seen += 1

    def many(self, events: Sequence[Event]) -> None:
        for event in events:
            self.one(event)


def callbacks(readers: int, burst: int) -> Work:
    """Pass each event to each reader with one call."""
    takes: list[Callable[[Event], None]] = [Reader().one for _ in range(readers)]
    events = next(_bursts(burst))

    def run() -> None:
        for event in events:
            for take in takes:
                take(event)

    return Work(run, readers * burst)


def sinks(loop: asyncio.AbstractEventLoop, readers: int, burst: int) -> Work:
    """Publish a burst to a tail, which delivers it in the next pass of the loop."""
    tail: Tail[int] = Tail(lambda event: event.index, 0)
    all_readers = [Reader() for _ in range(readers)]
    for reader in all_readers:
        tail.attach(reader.many)
    bursts = _bursts(burst)

    async def publish() -> None:
        tail.publish(next(bursts))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop.run_until_complete(publish())
    assert all(reader.seen == burst for reader in all_readers)
    return Work(lambda: loop.run_until_complete(publish()), readers * burst)


class Iterators:
    """Readers that use `async for`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, readers: int, burst: int) -> None:
        self._loop, self._burst, self._readers = loop, burst, readers
        self._feed, self._bursts = Feed(MemoryLog()), _bursts(burst)
        self._left = 0
        self._all = asyncio.Event()
        self._tasks = [loop.create_task(self._read()) for _ in range(readers)]
        loop.run_until_complete(asyncio.sleep(0))
        self.run()

    async def _read(self) -> None:
        async for _ in self._feed.follow_all():
            self._left -= 1
            if not self._left:
                self._all.set()

    def run(self) -> None:
        self._loop.run_until_complete(self._publish())

    async def _publish(self) -> None:
        self._left = self._readers * self._burst
        self._all.clear()
        self._feed.all.publish(next(self._bursts))
        await self._all.wait()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.wait(self._tasks))
