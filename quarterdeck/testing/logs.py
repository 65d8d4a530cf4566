"""Check that an adapter of the log's port behaves as every log must.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_log(check):
        asyncio.run(check(open_my_log))

`open_my_log` is an async function that opens the same store each time it is called. A second call while the first log is
still open stands for another process. Each check needs a fresh store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, decode_body
from quarterdeck.log.base import (
    NEW,
    START,
    Append,
    CatalogueRow,
    Fence,
    Log,
    LogUnavailable,
    NoSuchSession,
    Receipt,
    StaleFence,
)

OpenLog: TypeAlias = Callable[[], Awaitable[Log]]
Check: TypeAlias = Callable[[OpenLog], Awaitable[None]]

CHECKS: list[Check] = []


def _check(function: Check) -> Check:
    CHECKS.append(function)
    return function


class SampleWriter:
    """Writes one session: numbers its events and remembers its fence."""

    def __init__(self, log: Log, session_id: str = "s1") -> None:
        self.log = log
        self.session_id = session_id
        self.fence: Fence = NEW
        self.index = 0

    def events(self, *bodies: Body) -> tuple[Event, ...]:
        return tuple(
            Event(self.session_id, self.index + number, 1_000 + self.index + number, "engine", body)
            for number, body in enumerate(bodies, 1)
        )

    def unit(self, *bodies: Body, snapshot: bytes | None = None, row: CatalogueRow | None = None) -> Append:
        if self.fence == NEW:
            row = row or sample_row(self.session_id)
            snapshot = snapshot or b"view"
        return Append(
            session_id=self.session_id, events=self.events(*bodies), fence=self.fence, row=row, snapshot=snapshot
        )

    async def write(self, *bodies: Body, snapshot: bytes | None = None, row: CatalogueRow | None = None) -> Receipt:
        receipt = await self.log.append(self.unit(*bodies, snapshot=snapshot, row=row))
        self.fence = receipt.fence
        self.index += len(bodies)
        return receipt


def sample_row(session_id: str, status: str = "active", end_reason: str | None = None) -> CatalogueRow:
    return CatalogueRow(
        session_id=session_id,
        agent="test",
        status=status,
        created_at=1,
        last_active_at=2,
        end_reason=end_reason,
        cwd="/w",
    )


OPENED = ev.SessionOpened(agent="test")


async def refused(kind: type[Exception], attempt: Awaitable[object]) -> None:
    """Check that an attempt raises this error."""
    try:
        await attempt
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def indexes(events: list[Event]) -> list[int]:
    return [event.index for event in events]


@_check
async def appended_events_are_read_back(open_log: OpenLog) -> None:
    log = await open_log()
    writing = SampleWriter(log)
    await writing.write(
        OPENED, ev.Notice(text="ünï\u2028cødé \x00"), ev.PluginEvent(name="p", payload={"a": [1, None]})
    )
    read = await log.read("s1")
    written = SampleWriter(log).events(*(event.body for event in read))
    assert [(event.index, event.at, event.origin, event.body) for event in read] == [
        (event.index, event.at, event.origin, event.body) for event in written
    ]
    await log.close()


@_check
async def events_survive_reopening(open_log: OpenLog) -> None:
    first = await open_log()
    await SampleWriter(first).write(OPENED, ev.Notice(text="kept"))
    before = await first.read("s1")
    await first.close()
    second = await open_log()
    assert await second.read("s1") == before
    stored = await second.session("s1")
    assert (stored.last_index, stored.snapshot, stored.row) == (2, b"view", sample_row("s1"))
    await second.close()


@_check
async def since_and_limit_cut_exactly(open_log: OpenLog) -> None:
    log = await open_log()
    await SampleWriter(log).write(OPENED, *(ev.Notice(text=str(number)) for number in range(9)))
    assert indexes(await log.read("s1", since=4)) == [5, 6, 7, 8, 9, 10]
    assert indexes(await log.read("s1", since=4, limit=2)) == [5, 6]
    assert await log.read("s1", since=10) == []
    assert await log.read("s1", since=999) == []
    await log.close()


@_check
async def types_choose(open_log: OpenLog) -> None:
    log = await open_log()
    writing = SampleWriter(log)
    await writing.write(OPENED, ev.Notice(text="a"), ev.AgentStart(), ev.MessageStart(message_id="m"))
    await writing.write(ev.MessageDelta(message_id="m", delta="x"), ev.Notice(text="b"))
    assert indexes(await log.read("s1", types={"notice"})) == [2, 6]
    assert indexes(await log.read("s1", types={"message_delta", "agent_start"})) == [3, 5]
    assert indexes(await log.read_all(types={"notice"}, limit=1)) == [2]
    await log.close()


@_check
async def an_old_fence_is_refused_and_changes_nothing(open_log: OpenLog) -> None:
    log = await open_log()
    writing = SampleWriter(log)
    first = await writing.write(OPENED)
    await writing.write(ev.Notice(text="second"))
    late = Append(session_id="s1", events=writing.events(ev.Notice(text="late")), fence=first.fence, snapshot=b"late")
    await refused(StaleFence, log.append(late))
    await refused(StaleFence, log.append(SampleWriter(log).unit(OPENED)))
    assert indexes(await log.read("s1")) == [1, 2]
    assert (await log.session("s1")).snapshot == b"view"
    await log.close()


@_check
async def one_refused_append_does_not_affect_others(open_log: OpenLog) -> None:
    log = await open_log()
    good, bad = SampleWriter(log, "good"), SampleWriter(log, "bad")
    await good.write(OPENED)
    bad.fence = "no fence of ours"
    outcomes = await asyncio.gather(good.write(ev.Notice(text="yes")), bad.write(OPENED), return_exceptions=True)
    assert isinstance(outcomes[0], Receipt)
    assert isinstance(outcomes[1], NoSuchSession)
    assert indexes(await log.read("good")) == [1, 2]
    await refused(NoSuchSession, log.read("bad"))
    await log.close()


@_check
async def cursors_order_all_sessions(open_log: OpenLog) -> None:
    log = await open_log()
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    receipts = [await a.write(OPENED), await b.write(OPENED), await a.write(ev.Notice(text="x"), ev.Notice(text="y"))]
    cursors = [event.cursor for receipt in receipts for event in receipt.events]
    assert cursors == sorted(set(cursors))
    everything = await log.read_all()
    assert [event.cursor for event in everything] == cursors
    assert [event.session_id for event in await log.read_all(since=cursors[1])] == ["a", "a"]
    assert await log.last_cursor() == cursors[-1]
    await log.close()


@_check
async def an_empty_log_is_empty(open_log: OpenLog) -> None:
    log = await open_log()
    assert await log.sessions() == []
    assert await log.read_all() == []
    assert await log.last_cursor() == START
    await refused(NoSuchSession, log.read("nobody"))
    await refused(NoSuchSession, log.session("nobody"))
    await log.close()


@_check
async def row_and_snapshot_change_with_their_events(open_log: OpenLog) -> None:
    log = await open_log()
    writing = SampleWriter(log)
    await writing.write(OPENED)
    await writing.write(ev.Notice(text="no change"))
    stored = await log.session("s1")
    assert (stored.last_index, stored.snapshot_index, stored.snapshot) == (2, 1, b"view")
    archived = replace(sample_row("s1", "archived", "cancelled"), last_gate_number=7)
    await writing.write(ev.SessionArchived(), snapshot=b"after", row=archived)
    stored = await log.session("s1")
    assert (stored.last_index, stored.snapshot_index, stored.snapshot, stored.row) == (3, 3, b"after", archived)
    assert [stored.row.session_id for stored in await log.sessions()] == ["s1"]
    await log.close()


@_check
async def deltas_are_read_until_they_are_restated(open_log: OpenLog) -> None:
    log = await open_log()
    writing = SampleWriter(log)
    await writing.write(OPENED, ev.MessageStart(message_id="m"), ev.MessageDelta(message_id="m", delta="he"))
    await writing.write(ev.MessageDelta(message_id="m", delta="llo"), ev.MessageDelta(message_id="n", delta="other"))
    assert indexes(await log.read("s1")) == [1, 2, 3, 4, 5]
    await writing.write(ev.ResponseComplete(message_id="m", blocks=(ev.Block(text="hello"),)))
    remaining = indexes(await log.read("s1"))
    assert {1, 2, 5, 6} <= set(remaining) <= {1, 2, 3, 4, 5, 6}
    assert remaining == sorted(remaining)
    await writing.write(ev.Notice(text="after"))
    assert indexes(await log.read("s1", since=6)) == [7]
    await log.close()


@_check
async def indexes_and_cursors_are_never_reused(open_log: OpenLog) -> None:
    first = await open_log()
    writing = SampleWriter(first)
    await writing.write(OPENED, ev.MessageStart(message_id="m"))
    restated = await writing.write(
        ev.MessageDelta(message_id="m", delta="x"),
        ev.MessageAborted(message_id="m"),
        ev.MessageDelta(message_id="m", delta="y"),
    )
    end = await writing.write(ev.MessageAborted(message_id="m"))
    await first.close()
    second = await open_log()
    again = SampleWriter(second)
    again.fence, again.index = (await second.session("s1")).fence, writing.index
    later = await again.write(ev.Notice(text="later"))
    assert later.events[0].cursor > max(event.cursor for event in (*restated.events, *end.events))
    await second.close()


@_check
async def deltas_after_a_restating_event_are_kept(open_log: OpenLog) -> None:
    """Check that a restating event replaces the deltas before it, and none after it."""
    log = await open_log()
    piece, whole = ev.MessageDelta(message_id="m", delta="x"), ev.MessageAborted(message_id="m")
    writing = SampleWriter(log)
    await writing.write(OPENED, piece, whole, piece)
    assert indexes(await log.read("s1"))[-2:] == [3, 4]
    await writing.write(whole)
    assert {1, 3, 5} <= set(indexes(await log.read("s1"))) <= {1, 2, 3, 4, 5}
    await log.close()


@_check
async def deltas_survive_reopening(open_log: OpenLog) -> None:
    first = await open_log()
    writing = SampleWriter(first)
    await writing.write(OPENED, ev.MessageStart(message_id="m"), ev.MessageDelta(message_id="m", delta="half"))
    await first.close()
    second = await open_log()
    assert [event.type for event in await second.read("s1")] == ["session_opened", "message_start", "message_delta"]
    again = SampleWriter(second)
    again.fence, again.index = (await second.session("s1")).fence, 3
    await again.write(ev.MessageAborted(message_id="m", keep=True, blocks=(ev.Block(text="half"),)))
    assert 4 in indexes(await second.read("s1"))
    await second.close()


@_check
async def unknown_fields_of_a_newer_release_are_kept(open_log: OpenLog) -> None:
    log = await open_log()
    written = b'{"type":"tool_calls","count":2,"hue":"blue"}'
    body, raw = decode_body(written)
    writing = SampleWriter(log)
    await writing.write(OPENED)
    await log.append(
        Append(session_id="s1", events=(Event("s1", 2, 1_002, "rpc", body, raw=raw),), fence=writing.fence)
    )
    read = (await log.read("s1", since=1))[0]
    assert (read.body, read.raw) == (body, written)
    await log.close()


def deletion_event(writing: SampleWriter) -> Event:
    return writing.events(ev.SessionDeleted())[0]


@_check
async def a_deleted_session_is_gone(open_log: OpenLog) -> None:
    log = await open_log()
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    await a.write(OPENED, ev.MessageStart(message_id="m"), ev.MessageDelta(message_id="m", delta="x"))
    last = await b.write(OPENED)
    await refused(StaleFence, log.delete("a", "no fence of ours", deletion_event(a)))
    await refused(NoSuchSession, log.delete("nobody", a.fence, deletion_event(a)))
    late = a.unit(ev.Notice(text="too late"))
    await log.delete("a", a.fence, deletion_event(a))
    await refused(NoSuchSession, log.append(late))
    await refused(NoSuchSession, log.read("a"))
    await refused(NoSuchSession, log.session("a"))
    assert [stored.row.session_id for stored in await log.sessions()] == ["b"]
    assert {event.session_id for event in await log.read_all() if event.type != "session_deleted"} == {"b"}
    assert (await b.write(ev.Notice(text="x"))).events[0].cursor > last.events[0].cursor
    await log.close()


@_check
async def the_deletion_of_a_session_stays_readable(open_log: OpenLog) -> None:
    log = await open_log()
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    seen = (await a.write(OPENED, ev.Notice(text="x"))).events[-1].cursor
    reported: list[Receipt] = []
    receipt = await log.delete("a", a.fence, deletion_event(a), reported.append)
    assert reported == [receipt]
    assert receipt.fence == NEW
    word = receipt.events[0]
    assert (word.session_id, word.index, word.body) == ("a", 3, ev.SessionDeleted())
    assert word.cursor > seen
    assert await log.last_cursor() == word.cursor
    later = (await b.write(OPENED)).events[0]
    assert later.cursor > word.cursor
    await log.close()
    again = await open_log()
    assert await again.read_all(since=seen) == [word, later]
    assert await again.read_all(types={"session_deleted"}) == [word]
    assert await again.read_all(since=word.cursor) == [later]
    assert await again.read_all(limit=1) == [word]
    await again.close()


@_check
async def a_deletion_has_the_last_cursor_after_reopening(open_log: OpenLog) -> None:
    log = await open_log()
    a = SampleWriter(log, "a")
    await a.write(OPENED)
    word = (await log.delete("a", a.fence, deletion_event(a))).events[0]
    await log.close()
    again = await open_log()
    assert await again.last_cursor() == word.cursor
    reborn = await SampleWriter(again, "a").write(OPENED)
    assert reborn.events[0].cursor > word.cursor
    assert [event.type for event in await again.read("a")] == ["session_opened"]
    assert [event.type for event in await again.read_all()] == ["session_deleted", "session_opened"]
    await again.close()


@_check
async def deltas_of_a_deleted_session_are_gone(open_log: OpenLog) -> None:
    """Check that deltas of a deleted session, stored next to those of another one, don't show up in a new session."""
    log = await open_log()
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    growing = ev.MessageDelta(message_id="m", delta="x")
    await a.write(OPENED)
    await b.write(OPENED)
    await asyncio.gather(a.write(growing), b.write(growing))
    await log.delete("b", b.fence, deletion_event(b))
    c = SampleWriter(log, "c")
    await c.write(OPENED)
    assert [event.type for event in await log.read("c")] == ["session_opened"]
    assert indexes(await log.read("a")) == [1, 2]
    assert [event.session_id for event in await log.read_all() if event.body == growing] == ["a"]
    await log.close()


@_check
async def rare_types_are_found_like_all_others(open_log: OpenLog) -> None:
    log = await open_log()
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    receipt = ev.CommandReceipt(client_id="c")
    await a.write(OPENED, receipt, ev.Notice(text="a"), ev.ProcessStarting(), receipt, ev.Notice(text="b"))
    await b.write(OPENED, receipt)
    assert indexes(await log.read("a", types={"command_receipt"})) == [2, 5]
    assert indexes(await log.read("a", types={"command_receipt", "process_starting"})) == [2, 4, 5]
    assert indexes(await log.read("a", types={"command_receipt", "process_starting"}, since=2, limit=1)) == [4]
    assert indexes(await log.read("a", types={"command_receipt", "notice"})) == [2, 3, 5, 6]
    assert await log.read("a", types=()) == []
    matching = await log.read_all(types={"command_receipt", "process_starting"})
    assert [(event.session_id, event.index) for event in matching] == [("a", 2), ("a", 4), ("a", 5), ("b", 2)]
    assert [event.session_id for event in await log.read_all(types={"command_receipt"}, since=matching[2].cursor)] == [
        "b"
    ]
    await log.close()


@_check
async def an_invalid_append_does_not_affect_others(open_log: OpenLog) -> None:
    log = await open_log()
    good, bad = SampleWriter(log, "good"), SampleWriter(log, "bad")
    no_row = Append(session_id="bad", events=bad.events(OPENED), fence=NEW)
    nothing = Append(session_id="bad", events=(), fence=NEW, row=sample_row("bad"), snapshot=b"view")
    outcomes = await asyncio.gather(log.append(no_row), good.write(OPENED), log.append(nothing), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LogUnavailable, Receipt, LogUnavailable]
    assert indexes(await log.read("good")) == [1]
    await refused(NoSuchSession, log.read("bad"))
    await log.close()


@_check
async def every_page_is_a_slice_of_the_whole(open_log: OpenLog) -> None:
    """Write deltas to several sessions, restate some, delete a session, and read pages from every position."""
    log = await open_log()
    sessions = [SampleWriter(log, name) for name in "abcd"]
    await asyncio.gather(*(session.write(OPENED) for session in sessions))
    for turn in range(6):
        for number, session in enumerate(sessions):
            name = f"m{turn // 2}"
            await session.write(ev.MessageDelta(message_id=name, delta="x"), ev.Notice(text=str(turn)))
            if (turn + number) % 3 == 0:
                await session.write(ev.MessageAborted(message_id=name), ev.CommandReceipt(client_id="c"))
        both = (session.write(ev.MessageDelta(message_id="both", delta="y")) for session in sessions)
        await asyncio.gather(*both)
    await log.delete("d", sessions[3].fence, deletion_event(sessions[3]))
    for types in (
        None,
        {"message_delta"},
        {"notice", "message_delta"},
        {"command_receipt"},
        {"session_deleted", "notice"},
    ):
        whole = await log.read("a", limit=1_000, types=types)
        everything = await log.read_all(limit=1_000, types=types)
        for limit in (1, 2, 5, 1_000):
            for since in range(sessions[0].index + 1):
                expected = [event for event in whole if event.index > since][:limit]
                assert await log.read("a", since, limit, types) == expected, (since, limit, types)
            for cursor in (START, *(event.cursor for event in everything)):
                expected = [event for event in everything if event.cursor > cursor][:limit]
                assert await log.read_all(cursor, limit, types) == expected, (cursor, limit, types)
    await log.close()


@_check
async def many_writers_lose_nothing(open_log: OpenLog) -> None:
    log = await open_log()
    sessions = [SampleWriter(log, f"s{number}") for number in range(20)]

    async def work(writing: SampleWriter) -> None:
        await writing.write(OPENED)
        for number in range(20):
            await writing.write(ev.Notice(text=str(number)), ev.MessageDelta(message_id="m", delta="x"))

    await asyncio.gather(*(work(writing) for writing in sessions))
    for writing in sessions:
        assert indexes(await log.read(writing.session_id)) == list(range(1, 42))
    everything = await log.read_all(limit=10_000)
    assert len(everything) == 20 * 41
    await log.close()


@_check
async def cancelling_a_caller_does_not_undo_its_append(open_log: OpenLog) -> None:
    """Check that cancelling a waiting caller cancels neither its own commit nor that of others."""
    log = await open_log()
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    impatient = asyncio.ensure_future(a.write(OPENED))
    patient = asyncio.ensure_future(b.write(OPENED))
    await asyncio.sleep(0)
    impatient.cancel()
    assert isinstance(await patient, Receipt)
    assert indexes(await log.read("b")) == [1]
    await log.close()


@_check
async def a_closed_log_refuses_everything(open_log: OpenLog) -> None:
    log = await open_log()
    writing = SampleWriter(log)
    await writing.write(OPENED)
    await log.close()
    await refused(LogUnavailable, writing.write(ev.Notice(text="late")))
    await refused(LogUnavailable, log.delete("s1", writing.fence, deletion_event(writing)))
    for attempt in (log.read("s1"), log.session("s1"), log.read_all(), log.sessions(), log.last_cursor()):
        await refused(LogUnavailable, attempt)
    await log.close()
