"""Test followers of a log: live from the tail, or from the log, without missing or repeating an event."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.tail import Feed, Tail
from quarterdeck.testing.logs import OPENED, SampleWriter, deletion_event


class Source:
    """A session that is written and published like the deck does it."""

    def __init__(self, log: MemoryLog, feed: Feed, name: str = "s1") -> None:
        self.writing = SampleWriter(log, name)
        self.feed = feed

    async def say(self, *bodies: ev.Body) -> None:
        receipt = await self.writing.write(*bodies)
        self.feed.publish(receipt.events)

    async def notices(self, count: int) -> None:
        for number in range(count):
            await self.say(ev.Notice(text=str(number)))


@pytest.fixture
async def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
async def feed(log: MemoryLog) -> Feed:
    return Feed(log, 8)


async def taken(feed: Feed, name: str, since: int, count: int) -> list[int]:
    found: list[int] = []
    stream = feed.follow(name, since)
    async for event in stream:
        found.append(event.index)
        if len(found) == count:
            break
    await stream.aclose()
    return found


async def test_history_then_live_without_gap_or_repetition(log: MemoryLog, feed: Feed) -> None:
    source = Source(log, feed)
    await source.say(OPENED)
    await source.notices(50)
    reading = asyncio.ensure_future(taken(feed, "s1", 10, 91))
    await asyncio.sleep(0)
    await source.notices(50)
    assert await reading == list(range(11, 102))


async def test_a_slow_reader_falls_behind_and_catches_up(log: MemoryLog, feed: Feed) -> None:
    source = Source(log, feed)
    await source.say(OPENED)
    found: list[int] = []

    async def slow() -> None:
        async for event in feed.follow("s1"):
            found.append(event.index)
            if event.index % 3 == 0:
                await asyncio.sleep(0.001)
            if event.index == 201:
                return

    reading = asyncio.ensure_future(slow())
    await asyncio.sleep(0)
    for _ in range(20):
        await source.notices(10)
        await asyncio.sleep(0)
    await reading
    assert found == list(range(1, 202))


async def test_a_filter_does_not_lose_its_place(log: MemoryLog, feed: Feed) -> None:
    source = Source(log, feed)
    await source.say(OPENED)
    found: list[int] = []

    async def filtered() -> None:
        async for event in feed.follow("s1", types={"agent_start"}):
            found.append(event.index)
            if len(found) == 3:
                return

    reading = asyncio.ensure_future(filtered())
    for _ in range(3):
        await source.notices(40)
        await source.say(ev.AgentStart())
        await asyncio.sleep(0)
    await reading
    assert found == [42, 83, 124]


async def test_all_sessions_are_one_stream(log: MemoryLog, feed: Feed) -> None:
    sources = [Source(log, feed, name) for name in "abc"]
    for source in sources:
        await source.say(OPENED)
    seen: list[str] = []

    async def everything() -> None:
        async for event in feed.follow_all():
            seen.append(event.cursor)
            if len(seen) == 33:
                return

    reading = asyncio.ensure_future(everything())
    await asyncio.sleep(0)
    for _ in range(10):
        for source in sources:
            await source.say(ev.Notice(text="x"))
    await reading
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("types", [None, {"notice"}])
async def test_a_reader_of_one_session_ends_with_it_and_one_of_all_goes_on(
    types: set[str] | None, log: MemoryLog, feed: Feed
) -> None:
    source, other = Source(log, feed), Source(log, feed, "s2")
    await source.say(OPENED)
    one: list[str] = []
    everything: list[str] = []

    async def of_one() -> None:
        one.extend([event.type async for event in feed.follow("s1", types=types)])

    async def of_all() -> None:
        async for event in feed.follow_all():
            everything.append(event.type)
            if len(everything) == 4:
                return

    reading = [asyncio.ensure_future(of_one()), asyncio.ensure_future(of_all())]
    await asyncio.sleep(0)
    await source.say(ev.Notice(text="x"))
    feed.publish((await log.delete("s1", source.writing.fence, deletion_event(source.writing))).events)
    await other.say(OPENED)
    await asyncio.gather(*reading)
    assert one == (["session_opened", "notice", "session_deleted"] if types is None else ["notice"])
    assert everything == ["session_opened", "notice", "session_deleted", "session_opened"]


async def test_a_feed_over_a_full_log_begins_at_its_end(log: MemoryLog, feed: Feed) -> None:
    source = Source(log, feed)
    await source.say(OPENED)
    await source.notices(30)
    later = await Feed.over(log, 8)
    assert later.all.head == await log.last_cursor()
    found = [event.index async for event in _first(later.follow_all(), 31)]
    assert found == list(range(1, 32))


async def _first(stream: AsyncGenerator[Event], count: int) -> AsyncGenerator[Event]:
    left = count
    async for event in stream:
        yield event
        left -= 1
        if not left:
            return


async def test_a_session_that_nobody_reads_keeps_no_tail(log: MemoryLog, feed: Feed) -> None:
    source = Source(log, feed)
    await source.say(OPENED)
    assert await taken(feed, "s1", 0, 1) == [1]
    assert feed._sessions == {}  # pyright: ignore[reportPrivateUsage]


async def test_sinks_at_one_position_share_one_slice() -> None:
    tail: Tail[int] = Tail(lambda event: event.index, 0)
    slices: list[Sequence[Event]] = []
    for _ in range(3):
        tail.attach(slices.append)
    tail.publish([Event("s", index, 0, "engine", OPENED) for index in (1, 2)])
    tail.publish([Event("s", 3, 0, "engine", OPENED)])
    await asyncio.sleep(0)
    assert [[event.index for event in one] for one in slices] == [[1, 2, 3]] * 3
    assert slices[0] is slices[1] is slices[2]


async def test_a_sink_that_fell_behind_is_told_so_once() -> None:
    tail: Tail[int] = Tail(lambda event: event.index, 0, limit=2)
    got: list[Sequence[Event]] = []
    sink = tail.attach(got.append, position=0)
    tail.publish([Event("s", index, 0, "engine", OPENED) for index in range(1, 10)])
    await asyncio.sleep(0)
    assert sink.is_behind
    assert got == [()]
    tail.publish([Event("s", 10, 0, "engine", OPENED)])
    await asyncio.sleep(0)
    assert got == [()]
    tail.detach(sink)
    assert not tail.is_read


@pytest.mark.parametrize("seed", range(20))
async def test_cut_anywhere_nothing_is_missed(seed: int, log: MemoryLog, feed: Feed) -> None:
    """Compare readers that leave and return at random with one that never leaves (X-027 over the log)."""
    chance = random.Random(seed)

    source = Source(log, feed)
    await source.say(OPENED)
    found: list[int] = []

    async def flighty() -> None:
        while not found or found[-1] < 301:
            stream = feed.follow("s1", found[-1] if found else 0)
            left = chance.randrange(1, 40)
            async for event in stream:
                found.append(event.index)
                left -= 1
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
                if not left or event.index == 301:
                    break
            await stream.aclose()

    reading = asyncio.ensure_future(flighty())
    for _ in range(60):
        await source.notices(5)
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    await reading
    assert found == list(range(1, 302))
