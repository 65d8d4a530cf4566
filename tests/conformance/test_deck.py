"""Show the cases of 002, 000 and upstream about running sessions, with a real deck and real agent processes."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import quarterdeck
from quarterdeck import Deck, SessionHandle
from quarterdeck.errors import NotAllowed
from quarterdeck.kernel.session_list import Filter
from tests.conformance.marks import case
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
    until,
)


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


def _arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")


async def _suspended(folder: Path, agent: str, script: str = "say one") -> SessionHandle:
    """Create a session that was used, and that its deck suspended when it closed."""
    async with at_home(folder) as deck:
        session = await deck.create(agent, script, cwd=str(folder))
        await (busy(session) if script == "hang" else session.settled())
    return session


@case("2-003")
async def test_a_new_session_is_active(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        with_prompt = await deck.create("test", "say one", cwd=str(tmp_path))
        without = await deck.create("test", cwd=str(tmp_path))
        assert [session.summary.lifecycle for session in (with_prompt, without)] == ["active", "active"]
        assert {row.status for row in deck.rows()} == {"active"}
        await with_prompt.settled()
        assert with_prompt.summary.lifecycle == "active"


@case("2-028")
async def test_only_a_person_archives(tmp_path: Path) -> None:
    """Only one function writes the event, only two commands call it, and the log names the user as the origin."""
    package = Path(quarterdeck.__file__).parent
    callers = {
        (str(path.relative_to(package)), function.name)
        for path in (package / "deck").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef)
        and any(name in _called(function) for name in ("SessionArchived", "_archive"))
    }
    # An import restates the status that old sessions already had.
    callers.discard(("deck/importing.py", "_bodies_since_opened"))
    assert callers == {("deck/commands/lifecycle.py", name) for name in ("_archive", "cancel", "archive")}
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        await session.archive()
        archived = [event for event in await all_events(session) if event.type == "session_archived"]
        assert [(event.origin, event.body.end_reason) for event in archived] == [("user", "archived")]


def _called(function: ast.AST) -> set[str]:
    """Return the names of all functions that are called in this one."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in calls}


class TestResume:
    @case("2-054")
    async def test_a_suspended_session_becomes_active(self, tmp_path: Path) -> None:
        name = (await _suspended(tmp_path, "test")).id
        async with at_home(tmp_path) as deck:
            session = deck.session(name)
            row = next(row for row in deck.rows() if row.session_id == name)
            assert (row.status, row.supports_resume, bool(row.resume_data)) == ("suspended", True, True)
            answer = await session.resume()
            assert msgspec.to_builtins(answer) == {"sessionId": name, "status": "active"}
            assert session.summary.lifecycle == "active"
            await until(session, lambda view: view.state.process.value == "up")

    @pytest.mark.parametrize(
        ("agent", "why"),
        [
            pytest.param("forgetful", "the agent can't resume this session", marks=case("2-055"), id="2-055"),
            pytest.param("nameless", "nothing is stored", marks=case("2-056"), id="2-056"),
            pytest.param("lying", "lying can't resume", marks=case("2-057"), id="2-057"),
        ],
    )
    async def test_refused_it_stays_suspended(self, tmp_path: Path, agent: str, why: str) -> None:
        name = (await _suspended(tmp_path, agent)).id
        async with at_home(tmp_path) as deck:
            session = deck.session(name)
            before = session.view
            with pytest.raises(NotAllowed, match=why) as refused:
                await session.resume()
            assert refused.value.hint
            with pytest.raises(NotAllowed):
                await session.prompt("say two")
            assert session.summary.lifecycle == "suspended"
            assert (session.view.index, session.view.state) == (before.index, before.state)
            assert session.summary.process == "none"

    @case("X-018")
    async def test_the_button_and_the_route_are_one(self, tmp_path: Path) -> None:
        name = (await _suspended(tmp_path, "test", "hang")).id
        async with at_home(tmp_path) as deck:
            session = deck.session(name)
            native = session.view.state.profile.native_session_id
            before = session.view
            assert (before.state.lifecycle.value, before.state.phase.value) == ("suspended", "paused")
            assert session.summary.flags.showResumeButton
            await session.resume()
            assert session.summary.lifecycle == "active"
            assert (await session.view_at(before.index + 1)).state.phase.value == "streaming"
            await until(session, lambda view: view.state.process.value == "up")
            assert ["--resume", native] == _arguments(pid_of(deck, session))[-3:-1]
            assert session.view.state.profile.native_session_id == native


class TestCancel:
    @case("2-059")
    async def test_it_ends_and_is_stored_as_archived(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "hang", cwd=str(tmp_path))
            await busy(session)
            pid = pid_of(deck, session)
            answer = await session.cancel()
            assert msgspec.to_builtins(answer) == {"sessionId": session.id, "status": "cancelled"}
            assert not is_alive(pid)
            assert (session.summary.lifecycle, session.summary.end_reason) == ("archived", "cancelled")
            assert (session.summary.process, session.summary.run) == ("none", "idle")
        async with at_home(tmp_path) as deck:
            row = next(iter(deck.rows()))
            assert (row.status, row.end_reason) == ("archived", "cancelled")

    @case("2-062")
    async def test_nothing_of_it_is_left(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say hi; child 600; orphan 600; ask rm", cwd=str(tmp_path))
            gate = await gate_of(session)
            started = [event.body for event in await all_events(session) if event.type == "tool_execution_start"]
            pids = [pid_of(deck, session), *(body.args["pid"] for body in started)]
            assert len(pids) == 3
            assert all(is_alive(pid) for pid in pids)
            await session.cancel()
            # Killed processes disappear a moment later.
            await eventually(lambda: not any(is_alive(pid) for pid in pids))
            view = session.view
            assert view.state.gates.open == ()
            assert not view.timeline.streaming
            assert not view.state.turn.is_open
            resolved = [event.body for event in await all_events(session) if event.type == "approval_resolved"]
            assert [(body.gate_id, body.status) for body in resolved] == [(gate.id, "withdrawn")]
            steps = [entry.tool_step for entry in await session.timeline() if entry.tool_step is not None]
            assert all(step.phase not in ("running", "pending") for step in steps)


@case("U-079")
async def test_three_sessions_at_once(tmp_path: Path) -> None:
    words = ("one", "two", "three")
    async with at_home(tmp_path) as deck:
        assert deck.badge().count == 0
        sessions = []
        for number, word in enumerate(words, 1):
            sessions.append(await deck.create("test", f"say {word}", cwd=str(tmp_path)))
            assert deck.badge().count == number
        for session in sessions:
            await session.settled()
        await sessions[1].prompt("hang")
        await busy(sessions[1])
        # Reading one session after another must not change any of them.
        for _ in range(3):
            for session, word in zip(sessions, words):
                assert (await texts_of(session, "assistant")) == [word]
        assert [session.summary.phase for session in sessions] == ["completed", "streaming", "completed"]
        await sessions[0].archive()
        assert deck.badge().count == 2
    async with at_home(tmp_path) as deck:
        assert deck.badge().count == 2
        shown = {row.id: row.lifecycle for row in deck.list(Filter(archived=True)).sessions}
        assert [shown[session.id] for session in sessions] == ["archived", "suspended", "suspended"]
        await _histories(deck, sessions, words)
        await deck.session(sessions[2].id).resume()
        assert deck.badge().count == 2


async def _histories(deck: Deck, sessions: list[SessionHandle], words: tuple[str, ...]) -> None:
    for session, word in zip(sessions, words):
        assert await texts_of(deck.session(session.id), "assistant") == [word]
