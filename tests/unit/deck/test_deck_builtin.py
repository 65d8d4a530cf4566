"""Test the built-in agent in a deck: gates decided by rules and users, resume from the log, calls that never run twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import quarterdeck
from quarterdeck import events as ev
from quarterdeck.deck.session_api import SessionHandle
from quarterdeck.kernel.view import View
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Script, ScriptedCall, Step
from tests.support.scripted_model import KEY, serving, variables
from tests.support.servers import eventually

PATIENCE_S = 60


def shell(command: str) -> Step:
    return Step(calls=(ScriptedCall(name="shell", args={"command": command}),))


DONE = Step(text="Done.")
MODEL = Script(
    scenario={
        "answer": (Step(text="Hello."),),
        "make": (shell("mkdir -p made"), shell("mkdir -p made"), DONE),
        "cut": (shell("echo ran >> evidence; sleep 300"), DONE),
        "question": (Step(calls=(ScriptedCall(name="ask_user", args={"question": "Which?"}),)), DONE),
    }
)


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with serving(MODEL) as found:
        yield found


@asynccontextmanager
async def deck_in(folder: Path, model: ScriptedModel) -> AsyncIterator[quarterdeck.Deck]:
    environment = {"PATH": os.environ["PATH"], **variables(model, str(folder))}
    async with quarterdeck.open(folder / "home", environment=environment) as deck:
        yield deck


async def when(session: SessionHandle, holds: Any) -> View:
    async with asyncio.timeout(PATIENCE_S):
        return await session.until(lambda view: holds(view.state))


def rests(state: Any) -> bool:
    return not state.turn.is_open and not state.queue


async def asked(session: SessionHandle) -> str:
    return (await when(session, lambda state: state.gates.open)).state.gates.open[0].id


async def bodies(session: SessionHandle, kind: type[Any]) -> list[Any]:
    return [one.body for one in await session.events(0, 1000) if isinstance(one.body, kind)]


async def create(deck: quarterdeck.Deck, folder: Path, prompt: str, **options: Any) -> SessionHandle:
    return await deck.create("builtin", prompt, cwd=str(folder), model="anthropic:m", **options)


def test_a_turn_its_origin_and_no_key(tmp_path: Path, model: ScriptedModel) -> None:
    async def play() -> None:
        async with deck_in(tmp_path, model) as deck:
            session = await create(deck, tmp_path, "script:answer")
            await when(session, rests)
            events = await session.events(0, 1000)
            origins = {one.type: one.origin for one in events}
            assert (origins["response_complete"], origins["agent_end"]) == ("engine", "engine")
            assert session.view.state.phase.value == "completed"

    asyncio.run(play())
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


async def test_what_is_allowed_for_good_is_not_asked_again(tmp_path: Path, model: ScriptedModel) -> None:
    """Apply the deck's own rules, as for every agent: the gate is opened, and the log names the rule that closed it."""

    async with deck_in(tmp_path, model) as deck:
        session = await create(deck, tmp_path, "script:make")
        gate = await asked(session)
        decided = await session.approve(gate, always="session")
        await when(session, rests)
        resolved = await bodies(session, ev.ApprovalResolved)
        assert [(one.status, one.by, one.rule) for one in resolved] == [
            ("approved", "user", ""),
            ("approved", "rule", decided.rule),
        ]
        assert len(await bodies(session, ev.ToolApprovedAlways)) == 1
        assert (tmp_path / "made").is_dir()


async def test_a_question_is_answered_by_a_message(tmp_path: Path, model: ScriptedModel) -> None:
    async with deck_in(tmp_path, model) as deck:
        session = await create(deck, tmp_path, "script:question")
        await asked(session)
        assert (await session.prompt("the left one")).disposition == "answered"
        await when(session, rests)
        (end,) = [one for one in await bodies(session, ev.ToolExecutionEnd) if one.name == "ask_user"]
        assert "the left one" in str(end.result)


async def test_a_refusal_that_does_not_resume_ends_the_turn_once(tmp_path: Path, model: ScriptedModel) -> None:
    async with deck_in(tmp_path, model) as deck:
        session = await create(deck, tmp_path, "script:make")
        await session.reject(await asked(session), reason="no")
        await when(session, rests)
        assert len(await bodies(session, ev.AgentAbort)) == 1
        assert (session.view.state.phase.value, (tmp_path / "made").exists()) == ("stopped", False)
        await session.prompt("script:answer")
        await when(session, lambda state: state.phase.value == "completed")


async def test_a_process_that_is_killed_in_a_call(tmp_path: Path, model: ScriptedModel) -> None:
    """Kill the process during a call: the session continues with its messages, and the interrupted call ran once."""

    async with deck_in(tmp_path, model) as deck:
        session = await create(deck, tmp_path, "script:cut", mode="bypass")
        await when(session, lambda state: state.turn.calls)
        await asyncio.to_thread(eventually, (tmp_path / "evidence").exists)
        (starting,) = [one for one in await bodies(session, ev.ProcessStarting) if one.pid]
        os.kill(starting.pid, signal.SIGKILL)
        await when(session, lambda state: state.process.value == "none")
        before = len(model.requests)
        await session.prompt("script:answer")
        await when(session, lambda state: state.phase.value == "completed")
        told = model.requests[before].body["messages"]
        assert [one["role"] for one in told] == ["user", "assistant", "user"]
        assert "script:cut" in json.dumps(told[0])
        assert "interrupted" in json.dumps(told[2])
    assert (tmp_path / "evidence").read_text() == "ran\n"


async def test_a_deck_that_is_closed_and_opened_again(tmp_path: Path, model: ScriptedModel) -> None:
    async with deck_in(tmp_path, model) as deck:
        session = await create(deck, tmp_path, "script:answer")
        await when(session, rests)
        name, native = session.id, session.view.state.profile.native_session_id
    before = len(model.requests)
    async with deck_in(tmp_path, model) as deck:
        session = deck.session(name)
        await session.prompt("and now?")
        await when(session, lambda state: rests(state) and state.phase.value == "completed")
        assert session.view.state.profile.native_session_id == native
    roles = [one["role"] for one in model.requests[before].body["messages"]]
    assert roles == ["user", "assistant", "user"]


async def test_a_new_task_is_a_new_conversation(tmp_path: Path, model: ScriptedModel) -> None:
    async with deck_in(tmp_path, model) as deck:
        session = await create(deck, tmp_path, "script:answer")
        await when(session, rests)
        before = len(model.requests)
        await session.prompt("script:answer", new_task=True)
        await when(session, lambda state: rests(state) and len(model.requests) > before)
        assert len(model.requests[before].body["messages"]) == 1


async def test_the_demo_needs_nothing(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "QUARTERDECK_HOME": str(tmp_path / "home")}
    async with quarterdeck.open(tmp_path / "home", environment=environment) as deck:
        session = await deck.create("demo", "approval", cwd=str(tmp_path))
        await session.approve(await asked(session))
        await when(session, rests)
        state = session.view.state
        assert (state.phase.value, state.profile.model, state.error) == ("completed", "demo:tour", None)
