"""One session's way into its log: at once for decisions, durable before anybody is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import Append, LogUnavailable, Receipt, StaleFence
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.rows import row_of, unpacked
from quarterdeck.log.session_writer import SNAPSHOT_EVERY, Record
from tests.decks import eventually


class Stubborn(MemoryLog):
    """A log that can be told to refuse, and that waits until it is let go."""

    def __init__(self) -> None:
        super().__init__(keep_deltas=True)
        self.refusing = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.appends: list[Append] = []

    async def append(self, append: Append) -> Receipt:
        await self.gate.wait()
        if self.refusing:
            raise LogUnavailable("the disk is full")
        self.appends.append(append)
        return await super().append(append)


def run(work: Callable[[Stubborn, Record, list[Event]], Awaitable[None]]) -> None:
    async def main() -> None:
        log, published = Stubborn(), list[Event]()

        def publish(events: Sequence[Event]) -> None:
            published.extend(events)

        await work(log, Record(log, publish, "s1", clock=lambda: 5), published)

    asyncio.run(main())


def test_seen_at_once_and_published_when_durable() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        log.gate.clear()
        record.write([ev.SessionOpened(agent="test", prompt="x")], "user")
        assert record.view.state.phase.value == "creating"
        await asyncio.sleep(0)
        assert published == []
        assert record.durable == View()
        log.gate.set()
        await record.settled()
        assert [event.index for event in published] == [1]
        assert record.durable == record.view

    run(work)


def test_what_comes_during_an_append_shares_the_next() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        record.write([ev.SessionOpened(agent="test")], "user")
        await record.settled()
        log.gate.clear()
        record.write([ev.AgentStart(), ev.MessageStart(message_id="m")], "engine")
        await asyncio.sleep(0)
        for _ in range(50):
            record.write([ev.MessageDelta(message_id="m", delta="x")], "engine")
        log.gate.set()
        await record.settled()
        assert [len(append.events) for append in log.appends] == [1, 2, 50]
        assert [event.index for event in published] == list(range(1, 54))
        assert fold_all(published) == record.view

    run(work)


def test_a_refused_wish_never_was() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        await record.commit([ev.SessionOpened(agent="test", prompt="x")], "user")
        before = record.view
        log.refusing = True
        with pytest.raises(LogUnavailable):
            await record.commit([ev.SessionRenamed(name="other")], "user")
        assert record.view == before
        assert record.trouble is not None
        log.refusing = False
        await record.commit([ev.SessionRenamed(name="third")], "user")
        assert [(event.index, event.type) for event in published] == [(1, "session_opened"), (2, "session_renamed")]
        assert record.view.state.profile.name == "third"
        assert record.trouble is None

    run(work)


def test_a_refused_fact_is_kept_and_told_again() -> None:
    troubles: list[QuarterdeckError | None] = []

    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        record._on_trouble = troubles.append  # pyright: ignore[reportPrivateUsage]
        await record.commit([ev.SessionOpened(agent="test", prompt="x")], "user")
        log.refusing = True
        record.write([ev.AgentReady(), ev.AgentStart()], "stream")
        lost = asyncio.ensure_future(record.commit([ev.SessionRenamed(name="lost")], "user"))
        with pytest.raises(LogUnavailable):
            await lost
        record.write([ev.SessionSuspended()], "supervisor")
        assert record.view.state.lifecycle.value == "suspended"
        assert record.view.state.profile.name == "x"
        with pytest.raises(LogUnavailable):
            await record.settled()
        log.refusing = False
        await record.settled()
        assert [event.type for event in published] == [
            "session_opened",
            "agent_ready",
            "agent_start",
            "session_suspended",
            "agent_abort",
        ]
        assert [event.index for event in published] == [1, 2, 3, 4, 5]
        assert fold_all(published) == record.view == record.durable
        assert troubles[0] is not None
        assert troubles[-1] is None

    run(work)


def test_facts_are_tried_again_by_themselves() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        await record.commit([ev.SessionOpened(agent="test")], "user")
        log.refusing = True
        record.write([ev.AgentReady()], "stream")
        with pytest.raises(LogUnavailable):
            await record.settled()
        log.refusing = False
        while not record.is_settled:  # noqa: ASYNC110 - nobody tells: that is the point
            await asyncio.sleep(0.01)
        assert [event.type for event in published] == ["session_opened", "agent_ready"]

    run(work)


def test_the_log_is_well_formed_whatever_is_written() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        record.write([ev.SessionOpened(agent="test")], "user")
        record.write([ev.AgentStart(), ev.MessageDelta(message_id="m", delta="x"), ev.AgentStart()], "stream")
        record.write([ev.SessionSuspended()], "supervisor")
        await record.settled()
        assert [event.type for event in published] == [
            "session_opened",
            "agent_start",
            "message_start",
            "message_delta",
            "agent_abort",
            "agent_start",
            "session_suspended",
            "agent_abort",
        ]

    run(work)


def test_the_stored_view_and_row_are_the_fold() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        record.write([ev.SessionOpened(agent="test", name="one", cwd="/w")], "user")
        record.write([ev.AgentReady(native_session_id="n1", resumable=True), ev.AgentStart(), ev.AgentEnd()], "rpc")
        await record.settled()
        stored = await log.session("s1")
        assert unpacked(stored.view) == record.view.state
        assert stored.row == row_of(record.view.state)
        assert (stored.row.resume_data, stored.row.supports_resume) == ("n1", True)

    run(work)


def test_in_an_open_turn_the_row_is_stored_and_the_view_is_not() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        record.write([ev.SessionOpened(agent="test"), ev.AgentReady(), ev.AgentStart()], "user")
        await record.settled()
        record.write([ev.SessionRenamed(name="two")], "user")
        await record.settled()
        stored = await log.session("s1")
        assert (stored.row.name, stored.view_index, stored.last_index) == ("two", 3, 4)
        record.write([ev.AgentEnd()], "user")
        await record.settled()
        assert (await log.session("s1")).view_index == 5

    run(work)


def test_in_an_open_turn_the_row_lags_and_with_its_end_it_does_not() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        times = iter(range(10, 10_000))
        record._clock = lambda: next(times)
        record.write([ev.SessionOpened(agent="test"), ev.AgentReady(), ev.AgentStart()], "user")
        await record.settled()
        began = (await log.session("s1")).row
        ask = ev.ApprovalRequired(gate=ev.GateRequest(gate_id="g7", tool="rm"))
        record.write([ask], "engine")
        await record.settled()
        assert (await log.session("s1")).row == began
        assert record.durable.state.last_active_at > began.last_active_at
        for _ in range(SNAPSHOT_EVERY):
            record.write([ev.StatusUpdate(text="x")], "engine")
            await record.settled()
        middle = await log.session("s1")
        assert (middle.row.last_gate, middle.view_index) == (7, 3 + SNAPSHOT_EVERY)
        record.write([ev.AgentEnd()], "engine")
        await record.settled()
        assert (await log.session("s1")).row == row_of(record.view.state) != middle.row

    run(work)


def test_a_row_never_forgets_the_last_gate() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        record.write([ev.SessionOpened(agent="test")], "user")
        record.last_gate = 9
        record.write([ev.SessionRenamed(name="two")], "user")
        await record.settled()
        assert (await log.session("s1")).row == replace(row_of(record.view.state), last_gate=9)

    run(work)


class TestPatience:
    def test_patient_facts_wait_for_each_other(self) -> None:
        async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
            record.write([ev.SessionOpened(agent="test")], "user")
            await record.settled()
            record.write([ev.Notice(text="a")], "hook", is_patient=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert record.view.index == 2
            assert len(log.appends) == 1
            record.write([ev.Notice(text="b")], "hook", is_patient=True)
            await eventually(lambda: record.is_settled)
            assert [len(append.events) for append in log.appends] == [1, 2]

        run(work)

    def test_who_is_in_a_hurry_takes_them_along(self) -> None:
        async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
            record.write([ev.SessionOpened(agent="test")], "user")
            await record.settled()
            record.write([ev.Notice(text="a")], "hook", is_patient=True)
            await record.commit([ev.Notice(text="b")], "user")
            assert [len(append.events) for append in log.appends] == [1, 2]

        run(work)

    def test_what_comes_during_an_append_waits_on_after_it(self) -> None:
        async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
            log.gate.clear()
            record.write([ev.SessionOpened(agent="test")], "user")
            await asyncio.sleep(0.01)
            record.write([ev.Notice(text="a")], "hook", is_patient=True)
            log.gate.set()
            while not published:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert not record.is_settled
            record.write([ev.Notice(text="b")], "hook", is_patient=True)
            await eventually(lambda: record.is_settled)
            assert [len(append.events) for append in log.appends] == [1, 2]

        run(work)


class TestFollowers:
    def test_they_follow_when_what_was_written_is_durable(self) -> None:
        async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
            log.gate.clear()
            seen: list[int] = []
            record.write([ev.SessionOpened(agent="test")], "user")
            record.when_kept(lambda: seen.append(record.durable.index))
            await asyncio.sleep(0.01)
            assert seen == []
            log.gate.set()
            await eventually(lambda: seen == [1])

        run(work)

    def test_a_store_that_refuses_does_not_lose_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("quarterdeck.log.session_writer.RETRY_S", (0.01, 0.01))

        async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
            log.refusing = True
            seen: list[int] = []
            record.write([ev.SessionOpened(agent="test")], "user")
            record.when_kept(lambda: seen.append(record.durable.index))
            await eventually(lambda: record.trouble is not None)
            record.write([ev.Notice(text="a")], "stream")
            record.when_kept(lambda: seen.append(-record.durable.index))
            await asyncio.sleep(0.03)
            assert seen == []
            log.refusing = False
            await eventually(lambda: seen == [2, -2])

        run(work)

    def test_they_are_let_go_when_the_session_is_somebody_elses(self) -> None:
        async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
            record.write([ev.SessionOpened(agent="test")], "user")
            await record.settled()
            theirs = Event("s1", 2, 5, "user", ev.Notice(text="theirs"))
            await log.append(Append(session_id="s1", events=(theirs,), fence=record.fence))
            seen: list[int] = []
            record.write([ev.Notice(text="late")], "stream")
            record.when_kept(lambda: seen.append(1))
            await eventually(lambda: isinstance(record.trouble, StaleFence))
            assert record._followers == []
            assert seen == []

        run(work)

    def test_with_nothing_to_wait_for_they_follow_at_once(self) -> None:
        async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
            seen: list[int] = []
            record.when_kept(lambda: seen.append(1))
            await eventually(lambda: seen == [1])
            assert log.appends == []

        run(work)


def test_a_number_that_is_too_large_for_the_small_view_is_kept() -> None:
    async def work(log: Stubborn, record: Record, published: list[Event]) -> None:
        gate = ev.GateRequest(gate_id="g1", ref="a", tool="t", args={"n": 10**30})
        record.write([ev.SessionOpened(agent="test"), ev.AgentReady(), ev.AgentStart()], "user")
        record.write([ev.ApprovalRequired(gate=gate)], "stream")
        await record.settled()
        record.write([ev.SessionSuspended(reason="restart")], "user")
        await record.settled()
        assert record.view.state.gates.stale
        assert unpacked((await log.session("s1")).view) == record.view.state

    run(work)
