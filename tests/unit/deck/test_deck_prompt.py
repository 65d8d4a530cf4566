"""Test what happens to a message in every state of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.deck.commands import HANDLERS
from quarterdeck.errors import NotAllowed, QueueFull
from quarterdeck.events import Image
from quarterdeck.kernel import commands as cmd
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, busy, gate_of, pid_of, texts_of, types_of, until


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


async def test_idle_without_a_process_it_starts_one(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        assert session.summary.phase == "idle"
        assert session.summary.process == "none"
        receipt = await session.prompt("say hello")
        assert receipt.disposition == "started"
        assert receipt.accepted
        view = await session.settled()
        assert view.state.phase.value == "completed"
        assert view.state.process.value == "up"
        assert await texts_of(session) == ["say hello", "hello"]


async def test_idle_with_a_process_it_goes_to_that_one(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "say one", cwd=str(tmp_path))
        await session.settled()
        first = pid_of(deck, session)
        assert (await session.prompt("say two")).disposition == "started"
        await session.settled()
        assert pid_of(deck, session) == first
        assert await texts_of(session, "assistant") == ["one", "two"]


async def test_a_session_that_starts_takes_more_texts_in_order(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("gated", "say one", cwd=str(tmp_path))
        assert session.summary.phase == "creating"
        assert (await session.prompt("say two")).disposition == "queued"
        assert (await session.prompt("say three")).disposition == "queued"
        (tmp_path / "go").touch()
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["one", "two", "three"]


async def test_busy_and_steerable_it_steers(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "sleep 1; say done", cwd=str(tmp_path))
        await busy(session)
        receipt = await session.prompt("be quick")
        assert receipt.disposition == "steered"
        assert receipt.reason == "Read at the next step"
        view = await session.settled()
        assert view.state.queue == ()
        assert "steering_applied" in await types_of(session)
        assert "be quick" in await texts_of(session)


async def test_busy_with_a_full_steering_queue_it_waits(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "hang", cwd=str(tmp_path))
        await busy(session)
        steered = [(await session.prompt(f"aside {number}")).disposition for number in range(3)]
        assert steered == ["steered"] * 3
        receipt = await session.prompt("say later")
        assert receipt.disposition == "queued"
        assert "full" in receipt.reason
        with pytest.raises(QueueFull) as refused:
            await session.steer("one too many")
        assert refused.value.code == "queue_full"
        assert refused.value.hint


async def test_busy_and_not_steerable_it_waits_for_the_end_of_the_turn(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", "sleep 1; say one", cwd=str(tmp_path))
        await busy(session)
        receipt = await session.prompt("say two")
        assert receipt.disposition == "queued"
        assert receipt.reason == "Read when the turn is over"
        assert [item.receipt for item in session.queue] == ["queued"]
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["one", "two"]


async def test_held_for_an_approval_it_waits(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "ask rm; say one", cwd=str(tmp_path))
        gate = await gate_of(session)
        receipt = await session.prompt("say two")
        assert receipt.disposition == "queued"
        assert "approval" in receipt.reason
        assert session.summary.phase == "waiting_approval"
        assert session.summary.composer.action == "queue"
        await session.approve(gate.id)
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["one", "two"]


async def test_superseding_ends_what_was_asked_and_the_turn(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "ask rm; sleep 30; say one", cwd=str(tmp_path))
        gate = await gate_of(session)
        receipt = await session.prompt("say instead", supersede=True)
        assert receipt.disposition == "queued"
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["instead"]
        closed = [event.body for event in await all_events(session) if event.type == "approval_resolved"]
        assert [(body.gate_id, body.status, body.by) for body in closed] == [(gate.id, "superseded", "user")]
        assert session.summary.phase == "completed"


async def test_superseding_a_question_is_no_answer(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "question which?; say one", cwd=str(tmp_path))
        gate = await gate_of(session)
        receipt = await session.prompt("say instead", supersede=True)
        assert receipt.disposition == "queued"
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        texts = await texts_of(session, "assistant")
        assert texts[-1] == "instead"
        assert not {"you said say instead", "one"} & set(texts)
        closed = [event.body for event in await all_events(session) if event.type == "user_responded"]
        assert [(body.gate_id, body.status, body.response) for body in closed] == [(gate.id, "superseded", None)]


@case("0-039")
async def test_with_a_question_open_it_is_the_answer(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "question which one?", cwd=str(tmp_path))
        gate = await gate_of(session)
        assert session.summary.phase == "waiting_input"
        assert session.summary.composer.action == "answer"
        receipt = await session.prompt("the red one")
        assert receipt.disposition == "answered"
        await session.settled()
        assert await texts_of(session, "assistant") == ["you said the red one"]
        answered = [event.body for event in await all_events(session) if event.type == "user_responded"]
        assert [(body.gate_id, body.response) for body in answered] == [(gate.id, "the red one")]


async def test_images_are_no_answer_and_are_not_lost_as_one(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("able", "question which one?", cwd=str(tmp_path))
        gate = await gate_of(session)
        with pytest.raises(NotAllowed, match="answer is a text"):
            await session.prompt("this one", images=[Image("image/png", "AAAA")])
        assert session.view.state.gates.open == (gate,)


async def test_steering_with_a_question_open_does_not_answer_it(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "question which one?; say end", cwd=str(tmp_path))
        gate = await gate_of(session)
        assert (await session.steer("hurry")).status == "queued"
        assert [one.id for one in session.view.state.gates.open] == [gate.id]
        await session.respond(gate.id, "red")
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["you said red", "end"]


async def _suspended(folder: Path, agent: str, prompt: str | None) -> str:
    """Create a session, close its deck, and return the session's id."""
    async with at_home(folder) as deck:
        session = await deck.create(agent, prompt, cwd=str(folder))
        if prompt is not None:
            await session.settled()
    return session.id


async def test_suspended_and_resumable_it_resumes_first(tmp_path: Path) -> None:
    name = await _suspended(tmp_path, "test", "say one")
    async with at_home(tmp_path) as deck:
        session = deck.session(name)
        assert session.summary.lifecycle == "suspended"
        assert session.summary.composer.action == "resume_and_send"
        receipt = await session.prompt("say two")
        assert receipt.disposition == "resumed"
        await session.settled()
        assert session.summary.lifecycle == "active"
        assert await texts_of(session, "assistant") == ["one", "two"]


async def test_suspended_with_resume_off_it_is_refused(tmp_path: Path) -> None:
    name = await _suspended(tmp_path, "test", "say one")
    async with at_home(tmp_path) as deck:
        session = deck.session(name)
        before = session.view.index
        with pytest.raises(NotAllowed, match="resume is off"):
            await session.prompt("say two", resume=False)
        assert session.view.index == before


async def test_suspended_and_not_resumable_it_is_refused(tmp_path: Path) -> None:
    name = await _suspended(tmp_path, "forgetful", "say one")
    async with at_home(tmp_path) as deck:
        session = deck.session(name)
        before = session.view
        with pytest.raises(NotAllowed, match="cannot be resumed; continue in a new one") as refused:
            await session.prompt("say two")
        assert "delete" in refused.value.hint
        assert (session.view.index, session.view.state) == (before.index, before.state)


async def test_paused_stopped_and_failed_sessions_go_on_with_it(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "hang", cwd=str(tmp_path))
        await busy(session)
        await session.abort()
        assert (await session.settled()).state.phase.value == "stopped"
        assert (await session.prompt("say after stop")).disposition == "started"
        assert (await session.settled()).state.phase.value == "completed"
        await session.prompt("error it broke")
        assert (await session.settled()).state.phase.value == "error"
        assert session.summary.composer.action == "retry_with"
        assert (await session.prompt("say after error")).disposition == "started"
        assert (await session.settled()).state.phase.value == "completed"
        assert await texts_of(session, "assistant") == ["after stop", "after error"]


async def test_a_paused_session_goes_on_with_it(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "hang", cwd=str(tmp_path))
        await busy(session)
    async with at_home(tmp_path) as deck:
        session = deck.session(session.id)
        assert session.summary.phase == "paused"
        await session.prompt("say again")
        assert (await session.settled()).state.phase.value == "completed"
        assert (await texts_of(session, "assistant"))[-1] == "again"


async def test_an_archived_session_refuses_it(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        await session.archive()
        before = session.view
        with pytest.raises(NotAllowed, match="is archived") as refused:
            await session.prompt("say two")
        assert refused.value.allowed == ("delete",)
        assert (session.view.index, session.view.state) == (before.index, before.state)
        assert not session.summary.composer.enabled


async def test_an_exited_agent_is_started_again_for_it(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "say one", cwd=str(tmp_path))
        await session.settled()
        await session.prompt("exit 0")
        await until(session, lambda view: view.state.process.value == "none")
        assert session.summary.lifecycle == "active"
        assert (await session.prompt("say two")).disposition == "started"
        await session.settled()
        assert await texts_of(session, "assistant") == ["one", "two"]


async def test_a_new_task_starts_over(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "say one", cwd=str(tmp_path))
        await session.settled()
        before = session.view.state.profile.native_session_id
        receipt = await session.prompt("say two", new_task=True)
        assert receipt.disposition == "started"
        view = await session.settled()
        assert view.state.phase.value == "completed"
        assert view.state.profile.native_session_id != before
        assert await texts_of(session, "assistant") == ["one", "two"]


@pytest.mark.parametrize(
    ("agent", "script"),
    [("test", "sleep 0.3; say one"), ("plain", "sleep 0.3; say one"), ("test", "ask rm; say one")],
    ids=["it could be steered", "it cannot", "held"],
)
async def test_a_new_task_that_comes_while_it_works_waits_and_starts_over(
    tmp_path: Path, agent: str, script: str
) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create(agent, script, cwd=str(tmp_path))
        view = await (until(session, lambda view: view.state.gates.open) if "ask" in script else busy(session))
        before = view.state.profile.native_session_id
        assert (await session.prompt("say two", new_task=True)).disposition == "queued"
        for gate in view.state.gates.open:
            await session.approve(gate.id)
        view = await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert view.state.profile.native_session_id not in ("", before)
        assert await texts_of(session, "assistant") == ["one", "two"]


async def test_what_waits_behind_a_new_task_is_in_its_conversation(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", "sleep 0.3; say one", cwd=str(tmp_path))
        await busy(session)
        for text, is_new in (("say two", False), ("say three", True), ("say four", False)):
            await session.prompt(text, new_task=is_new)
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["one", "two", "three", "four"]
        assert (await types_of(session)).count("agent_ready") == 2


async def test_a_new_task_is_no_answer(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "question which?", cwd=str(tmp_path))
        gate = await gate_of(session)
        assert (await session.prompt("say two", new_task=True)).disposition == "queued"
        assert session.view.state.gates.open == (gate,)
        await session.respond(gate.id, "red")
        await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
        assert await texts_of(session, "assistant") == ["you said red", "two"]


@pytest.mark.parametrize("script", ["say one", "hang"], ids=["done", "cut off"])
async def test_a_new_task_of_a_suspended_session_starts_over(tmp_path: Path, script: str) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", script, cwd=str(tmp_path))
        before = (await until(session, lambda view: view.state.profile.native_session_id)).state.profile
        await until(session, lambda view: view.state.turn.is_open or view.state.phase.value == "completed")
    async with at_home(tmp_path) as deck:
        session = deck.session(session.id)
        receipt = await session.prompt("say two", new_task=True)
        assert receipt.disposition == "resumed"
        view = await until(session, lambda view: not view.state.queue and view.state.phase.value == "completed")
        assert view.state.profile.native_session_id not in ("", before.native_session_id)
        assert (await texts_of(session, "assistant"))[-1] == "two"


def test_every_command_has_a_handler() -> None:
    """Check that only create and delete have no handler: the deck itself runs them."""
    assert {*cmd.STATE_COMMANDS, *cmd.OTHER_COMMANDS} - set(HANDLERS) == {cmd.Create, cmd.Delete}
