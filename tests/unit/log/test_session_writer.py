"""Test the session writer: events are folded at once, and published only when they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import Append, CatalogueRow, LogUnavailable, Receipt, StaleFence
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.rows import catalogue_row, decode_snapshot
from quarterdeck.log.session_writer import SNAPSHOT_EVERY, Durability, SessionWriter
from tests.support.decks import eventually


class Stubborn(MemoryLog):
    """A log that refuses appends while `refusing` is set, and delays them while `gate` is clear."""

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


class Collector:
    """Collects the reports of a writer."""

    def __init__(self, published: list[Event]) -> None:
        self.published = published
        self.rows: list[CatalogueRow] = []
        self.errors: list[QuarterdeckError | None] = []

    def on_durable(self, events: Sequence[Event], row: CatalogueRow | None) -> None:
        self.published.extend(events)
        if row is not None:
            self.rows.append(row)

    def on_log_error(self, error: QuarterdeckError | None) -> None:
        self.errors.append(error)


@pytest.fixture
async def log() -> Stubborn:
    return Stubborn()


@pytest.fixture
def published() -> list[Event]:
    return []


@pytest.fixture
async def writer(log: Stubborn, published: list[Event]) -> SessionWriter:
    return SessionWriter(log, "s1", Collector(published), clock=lambda: 5)


async def test_seen_at_once_and_published_when_durable(
    log: Stubborn, writer: SessionWriter, published: list[Event]
) -> None:
    log.gate.clear()
    writer.write([ev.SessionOpened(agent="test", prompt="x")], "user")
    assert writer.view.state.phase.value == "creating"
    await asyncio.sleep(0)
    assert published == []
    assert writer.durable_view == View()
    log.gate.set()
    await writer.flush()
    assert [event.index for event in published] == [1]
    assert writer.durable_view == writer.view


async def test_what_comes_during_an_append_shares_the_next(
    log: Stubborn, writer: SessionWriter, published: list[Event]
) -> None:
    writer.write([ev.SessionOpened(agent="test")], "user")
    await writer.flush()
    log.gate.clear()
    writer.write([ev.AgentStart(), ev.MessageStart(message_id="m")], "engine")
    await asyncio.sleep(0)
    for _ in range(50):
        writer.write([ev.MessageDelta(message_id="m", delta="x")], "engine")
    log.gate.set()
    await writer.flush()
    assert [len(append.events) for append in log.appends] == [1, 2, 50]
    assert [event.index for event in published] == list(range(1, 54))
    assert fold_all(published) == writer.view


async def test_a_refused_wish_never_was(log: Stubborn, writer: SessionWriter, published: list[Event]) -> None:
    await writer.commit([ev.SessionOpened(agent="test", prompt="x")], "user")
    before = writer.view
    log.refusing = True
    with pytest.raises(LogUnavailable):
        await writer.commit([ev.SessionRenamed(name="other")], "user")
    assert writer.view == before
    assert writer.error is not None
    log.refusing = False
    await writer.commit([ev.SessionRenamed(name="third")], "user")
    assert [(event.index, event.type) for event in published] == [(1, "session_opened"), (2, "session_renamed")]
    assert writer.view.state.profile.name == "third"
    assert writer.error is None


async def test_a_refused_fact_is_kept_and_told_again(
    log: Stubborn, writer: SessionWriter, published: list[Event]
) -> None:
    await writer.commit([ev.SessionOpened(agent="test", prompt="x")], "user")
    log.refusing = True
    writer.write([ev.AgentReady(), ev.AgentStart()], "stream")
    lost = asyncio.ensure_future(writer.commit([ev.SessionRenamed(name="lost")], "user"))
    with pytest.raises(LogUnavailable):
        await lost
    writer.write([ev.SessionSuspended()], "supervisor")
    assert writer.view.state.lifecycle.value == "suspended"
    assert writer.view.state.profile.name == "x"
    with pytest.raises(LogUnavailable):
        await writer.flush()
    log.refusing = False
    await writer.flush()
    assert [event.type for event in published] == [
        "session_opened",
        "agent_ready",
        "agent_start",
        "session_suspended",
        "agent_abort",
    ]
    assert [event.index for event in published] == [1, 2, 3, 4, 5]
    assert fold_all(published) == writer.view == writer.durable_view
    errors = writer._listener.errors
    assert errors[0] is not None
    assert errors[-1] is None


async def test_facts_are_tried_again_by_themselves(
    log: Stubborn, writer: SessionWriter, published: list[Event]
) -> None:
    await writer.commit([ev.SessionOpened(agent="test")], "user")
    log.refusing = True
    writer.write([ev.AgentReady()], "stream")
    with pytest.raises(LogUnavailable):
        await writer.flush()
    log.refusing = False
    while not writer.is_durable:  # noqa: ASYNC110 - the writer retries by itself and signals no event
        await asyncio.sleep(0.01)
    assert [event.type for event in published] == ["session_opened", "agent_ready"]


async def test_the_log_is_well_formed_whatever_is_written(writer: SessionWriter, published: list[Event]) -> None:
    writer.write([ev.SessionOpened(agent="test")], "user")
    writer.write([ev.AgentStart(), ev.MessageDelta(message_id="m", delta="x"), ev.AgentStart()], "stream")
    writer.write([ev.SessionSuspended()], "supervisor")
    await writer.flush()
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


async def test_the_stored_view_and_row_are_the_fold(log: Stubborn, writer: SessionWriter) -> None:
    writer.write([ev.SessionOpened(agent="test", name="one", cwd="/w")], "user")
    writer.write([ev.AgentReady(native_session_id="n1", resumable=True), ev.AgentStart(), ev.AgentEnd()], "rpc")
    await writer.flush()
    stored = await log.session("s1")
    assert decode_snapshot(stored.snapshot) == writer.view.state
    assert stored.row == catalogue_row(writer.view.state)
    assert (stored.row.resume_data, stored.row.supports_resume) == ("n1", True)


async def test_in_an_open_turn_the_row_is_stored_and_the_view_is_not(log: Stubborn, writer: SessionWriter) -> None:
    writer.write([ev.SessionOpened(agent="test"), ev.AgentReady(), ev.AgentStart()], "user")
    await writer.flush()
    writer.write([ev.SessionRenamed(name="two")], "user")
    await writer.flush()
    stored = await log.session("s1")
    assert (stored.row.name, stored.snapshot_index, stored.last_index) == ("two", 3, 4)
    writer.write([ev.AgentEnd()], "user")
    await writer.flush()
    assert (await log.session("s1")).snapshot_index == 5


async def test_in_an_open_turn_the_row_lags_and_with_its_end_it_does_not(log: Stubborn, writer: SessionWriter) -> None:
    times = iter(range(10, 10_000))
    writer._clock = lambda: next(times)
    writer.write([ev.SessionOpened(agent="test"), ev.AgentReady(), ev.AgentStart()], "user")
    await writer.flush()
    began = (await log.session("s1")).row
    ask = ev.ApprovalRequired(gate=ev.GateRequest(gate_id="g7", tool="rm"))
    writer.write([ask], "engine")
    await writer.flush()
    assert (await log.session("s1")).row == began
    assert writer.durable_view.state.last_active_at > began.last_active_at
    for _ in range(SNAPSHOT_EVERY):
        writer.write([ev.StatusUpdate(text="x")], "engine")
        await writer.flush()
    middle = await log.session("s1")
    assert (middle.row.last_gate_number, middle.snapshot_index) == (7, 3 + SNAPSHOT_EVERY)
    writer.write([ev.AgentEnd()], "engine")
    await writer.flush()
    assert (await log.session("s1")).row == catalogue_row(writer.view.state) != middle.row


async def test_a_row_never_forgets_the_last_gate(log: Stubborn, writer: SessionWriter) -> None:
    writer.write([ev.SessionOpened(agent="test")], "user")
    writer.last_gate_number = 9
    writer.write([ev.SessionRenamed(name="two")], "user")
    await writer.flush()
    assert (await log.session("s1")).row == replace(catalogue_row(writer.view.state), last_gate_number=9)


class TestPatience:
    async def test_patient_facts_wait_for_each_other(self, log: Stubborn, writer: SessionWriter) -> None:
        writer.write([ev.SessionOpened(agent="test")], "user")
        await writer.flush()
        writer.write([ev.Notice(text="a")], "hook", Durability.LAZY)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert writer.view.index == 2
        assert len(log.appends) == 1
        writer.write([ev.Notice(text="b")], "hook", Durability.LAZY)
        await eventually(lambda: writer.is_durable)
        assert [len(append.events) for append in log.appends] == [1, 2]

    async def test_who_is_in_a_hurry_takes_them_along(self, log: Stubborn, writer: SessionWriter) -> None:
        writer.write([ev.SessionOpened(agent="test")], "user")
        await writer.flush()
        writer.write([ev.Notice(text="a")], "hook", Durability.LAZY)
        await writer.commit([ev.Notice(text="b")], "user")
        assert [len(append.events) for append in log.appends] == [1, 2]

    async def test_what_comes_during_an_append_waits_on_after_it(
        self, log: Stubborn, writer: SessionWriter, published: list[Event]
    ) -> None:
        log.gate.clear()
        writer.write([ev.SessionOpened(agent="test")], "user")
        await asyncio.sleep(0.01)
        writer.write([ev.Notice(text="a")], "hook", Durability.LAZY)
        log.gate.set()
        while not published:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not writer.is_durable
        writer.write([ev.Notice(text="b")], "hook", Durability.LAZY)
        await eventually(lambda: writer.is_durable)
        assert [len(append.events) for append in log.appends] == [1, 2]


class TestFollowers:
    async def test_they_follow_when_what_was_written_is_durable(self, log: Stubborn, writer: SessionWriter) -> None:
        log.gate.clear()
        seen: list[int] = []
        writer.write([ev.SessionOpened(agent="test")], "user")
        writer.after_durable(lambda: seen.append(writer.durable_view.index))
        await asyncio.sleep(0.01)
        assert seen == []
        log.gate.set()
        await eventually(lambda: seen == [1])

    async def test_a_store_that_refuses_does_not_lose_them(
        self, monkeypatch: pytest.MonkeyPatch, log: Stubborn, writer: SessionWriter
    ) -> None:
        monkeypatch.setattr("quarterdeck.log.session_writer.MAX_RETRY_S", 0.01)
        monkeypatch.setattr("quarterdeck.log.session_writer.RETRY_S", 0.01)

        log.refusing = True
        seen: list[int] = []
        writer.write([ev.SessionOpened(agent="test")], "user")
        writer.after_durable(lambda: seen.append(writer.durable_view.index))
        await eventually(lambda: writer.error is not None)
        writer.write([ev.Notice(text="a")], "stream")
        writer.after_durable(lambda: seen.append(-writer.durable_view.index))
        await asyncio.sleep(0.03)
        assert seen == []
        log.refusing = False
        await eventually(lambda: seen == [2, -2])

    async def test_they_are_let_go_when_the_session_is_somebody_elses(
        self, log: Stubborn, writer: SessionWriter
    ) -> None:
        writer.write([ev.SessionOpened(agent="test")], "user")
        await writer.flush()
        theirs = Event("s1", 2, 5, "user", ev.Notice(text="theirs"))
        await log.append(Append(session_id="s1", events=(theirs,), fence=writer.fence))
        seen: list[int] = []
        writer.write([ev.Notice(text="late")], "stream")
        writer.after_durable(lambda: seen.append(1))
        await eventually(lambda: isinstance(writer.error, StaleFence))
        await asyncio.sleep(0.01)
        assert seen == []

    async def test_with_nothing_to_wait_for_they_follow_at_once(self, log: Stubborn, writer: SessionWriter) -> None:
        seen: list[int] = []
        writer.after_durable(lambda: seen.append(1))
        await eventually(lambda: seen == [1])
        assert log.appends == []


async def test_a_number_that_is_too_large_for_the_small_view_is_kept(log: Stubborn, writer: SessionWriter) -> None:
    gate = ev.GateRequest(gate_id="g1", ref="a", tool="t", args={"n": 10**30})
    writer.write([ev.SessionOpened(agent="test"), ev.AgentReady(), ev.AgentStart()], "user")
    writer.write([ev.ApprovalRequired(gate=gate)], "stream")
    await writer.flush()
    writer.write([ev.SessionSuspended(reason="restart")], "user")
    await writer.flush()
    assert writer.view.state.gates.stale
    assert decode_snapshot((await log.session("s1")).snapshot) == writer.view.state
