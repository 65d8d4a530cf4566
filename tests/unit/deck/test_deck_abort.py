"""Test `abort` in every state of a session."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from quarterdeck.errors import NotAllowed
from tests.support import scripted_agents
from tests.support.decks import (
    all_events,
    at_home,
    busy,
    eventually,
    gate_of,
    is_alive,
    pid_of,
    texts_of,
    types_of,
    until,
)


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


async def test_a_turn_ends_and_the_process_lives_on(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "hang", cwd=str(tmp_path))
        await busy(session)
        pid = pid_of(deck, session)
        assert (await session.abort()).dropped == ()
        view = await session.settled()
        assert view.state.phase.value == "stopped"
        assert not view.timeline.streaming
        assert is_alive(pid)
        assert (await types_of(session)).count("agent_abort") == 1
        await session.prompt("say on")
        await session.settled()
        assert await texts_of(session, "assistant") == ["on"]


@pytest.mark.parametrize("kill_tools", ["killable", "all", "none"])
async def test_the_agent_is_told_which_tools_may_be_killed(tmp_path: Path, kill_tools: str) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "hang", cwd=str(tmp_path))
        await busy(session)
        launch, said = (await deck.load_session(session.id)).connection, []
        say, launch.send = launch.send, lambda lines: said.extend(lines) or say(lines)
        await session.abort(kill_tools=kill_tools)
        await session.settled()
        assert said == [{"op": "interrupt", "kill_tools": kill_tools}]


@pytest.mark.parametrize("end", ["exit 0", "exit 3", "crash"])
async def test_a_turn_that_ends_with_its_process_is_closed_once(tmp_path: Path, end: str) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", f"say one; {end}", cwd=str(tmp_path))
        await until(session, lambda view: view.state.process.value == "none" and view.state.exit)
        types = await types_of(session)
        assert types.count("agent_start") == 1
        assert types.count("agent_abort") + types.count("agent_end") == 1


async def test_the_queue_is_kept_and_read_next(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", "hang", cwd=str(tmp_path))
        await busy(session)
        await session.prompt("say two")
        assert (await session.abort()).dropped == ()
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["two"]


async def test_the_queue_is_given_back_if_that_is_wanted(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", "hang", cwd=str(tmp_path))
        await busy(session)
        await session.prompt("say two")
        await session.prompt("say three")
        assert (await session.abort(clear_queue=True)).dropped == ("say two", "say three")
        view = await session.settled()
        assert view.state.queue == ()
        assert view.state.phase.value == "stopped"


async def test_a_session_that_is_being_created(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("gated", "say one", cwd=str(tmp_path))
        await until(session, lambda view: view.state.process.value == "starting")
        assert (await session.abort()).dropped == ("say one",)
        assert session.summary.phase == "stopped"
        assert session.queue == ()
        (tmp_path / "go").touch()
        await session.prompt("say two")
        await session.settled()
        assert await texts_of(session, "assistant") == ["two"]


async def test_a_session_that_waits_for_a_place(tmp_path: Path) -> None:
    async with at_home(tmp_path, running_limit=1) as deck:
        first = await deck.create("test", "hang", cwd=str(tmp_path))
        await busy(first)
        second = await deck.create("test", "say two", cwd=str(tmp_path))
        await eventually(lambda: deck.waiting() == (second.id,))
        assert (await second.abort()).dropped == ("say two",)
        assert second.summary.phase == "stopped"
        assert deck.waiting() == ()
        await first.abort()
        await first.settled()
        assert "process_starting" not in await types_of(second)
        third = await deck.create("test", "say three", cwd=str(tmp_path))
        await third.settled()
        assert await texts_of(third, "assistant") == ["three"]


async def test_with_gates_open_they_are_answered_as_cancelled_first(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "ask rm; sleep 30; say no", cwd=str(tmp_path))
        gate = await gate_of(session)
        await session.abort()
        view = await session.settled()
        assert view.state.gates.open == ()
        assert view.state.phase.value == "stopped"
        resolved = [event.body for event in await all_events(session) if event.type == "approval_resolved"]
        assert [(body.gate_id, body.status, body.by) for body in resolved] == [(gate.id, "withdrawn", "user")]
        assert await texts_of(session, "assistant") == []


async def test_a_question_is_withdrawn_too(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "question which?; sleep 30", cwd=str(tmp_path))
        await gate_of(session)
        await session.abort()
        view = await session.settled()
        assert view.state.phase.value == "stopped"
        responded = [event.body for event in await all_events(session) if event.type == "user_responded"]
        assert [body.status for body in responded] == ["withdrawn"]


async def test_an_agent_that_ignores_it_is_ended_after_the_grace(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "child 600; deaf", cwd=str(tmp_path))
        # The agent sends a status when it has begun to ignore its input and signals.
        await anext(session.subscribe(types={"status_update"}))
        pid = pid_of(deck, session)
        await session.abort()
        view = await until(session, lambda view: view.state.process.value == "none")
        assert view.state.phase.value == "stopped"
        assert view.state.lifecycle.value == "active"
        assert not is_alive(pid)
        notices = [event.body.text for event in await all_events(session) if event.type == "notice"]
        assert notices == ["The agent didn't stop in time. Ending its process."]
        await session.prompt("say back")
        await session.settled()
        assert await texts_of(session, "assistant") == ["back"]


async def test_a_text_on_its_way_is_stopped_as_soon_as_its_turn_begins(tmp_path: Path) -> None:
    """Delay the interrupt until the turn begins: an agent that is interrupted earlier has nothing to stop."""
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "say one", cwd=str(tmp_path))
        await session.settled()
        pid = pid_of(deck, session)
        os.kill(pid, signal.SIGSTOP)
        await session.prompt("hang")
        await until(session, lambda view: view.state.queue[0].receipt == "sending")
        assert (await session.abort()).dropped == ()
        assert session.summary.phase == "stopped"
        os.kill(pid, signal.SIGCONT)
        await until(session, lambda view: not view.state.queue)
        view = await session.settled()
        assert view.state.phase.value == "stopped"
        assert view.state.queue == ()
        await session.prompt("say two")
        assert (await session.settled()).state.phase.value == "completed"


async def test_when_nothing_runs_it_is_allowed_and_told(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "say one", cwd=str(tmp_path))
        await session.settled()
        assert (await session.abort()).dropped == ()
        assert session.summary.phase == "completed"
        assert (await types_of(session))[-1] == "agent_abort"


async def test_a_suspended_or_archived_session_has_nothing_to_stop(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
    async with at_home(tmp_path) as deck:
        session = deck.session(session.id)
        with pytest.raises(NotAllowed, match="suspended"):
            await session.abort()
        with pytest.raises(NotAllowed):
            await session.archive()


async def test_the_reason_is_told(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("gated", "say one", cwd=str(tmp_path))
        await session.abort(reason="wrong folder")
        aborts = [event.body.reason for event in await all_events(session) if event.type == "agent_abort"]
        assert aborts == ["wrong folder"]
