"""Test how agent processes start: once, within the limit, in time, and each for one session."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from quarterdeck import SessionHandle
from quarterdeck.deck.services import OwnedElsewhere
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import (
    SETTINGS,
    Time,
    all_events,
    at_home,
    busy,
    eventually,
    is_alive,
    pid_of,
    texts_of,
    types_of,
    until,
)


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


async def _pids(session: SessionHandle) -> list[int]:
    """Return the pids of all processes that the session has had."""
    found = [event.body for event in await all_events(session) if event.type == "process_starting"]
    return [body.pid for body in found if body.pid is not None]


def _environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def _started(session: SessionHandle) -> list[int]:
    """Wait for a process, and return the pids of all so far."""
    events = session.subscribe(types={"process_starting"})
    while (await anext(events)).body.pid is None:
        pass
    await events.aclose()
    return await _pids(session)


async def _failed(session: SessionHandle) -> str:
    """Wait until a start fails, and return the error's message."""
    view = await until(session, lambda view: view.state.phase.value == "error" and view.state.process.value == "none")
    assert view.state.lifecycle.value == "active"
    assert view.state.error is not None
    return view.state.error.message


class TestOneAtATime:
    async def test_many_prompts_at_once_start_one_process(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            await asyncio.gather(*(session.prompt(f"say {number}") for number in range(10)))
            await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
            assert len(await _pids(session)) == 1
            assert await texts_of(session, "assistant") == [str(number) for number in range(10)]

    async def test_resume_and_prompt_at_once_start_one_process(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            before = len(await _pids(session))
            await asyncio.gather(session.resume(), session.prompt("say two"))
            await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
            assert len(await _pids(session)) == before + 1
            assert await texts_of(session, "assistant") == ["one", "two"]

    async def test_each_start_has_its_own_environment(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, environment={"PATH": os.environ["PATH"], "WHO": "deck"}) as deck:
            mine = await deck.create("test", "say x", cwd=str(tmp_path), env={"PATH": os.environ["PATH"], "WHO": "me"})
            other = await deck.create("test", "say x", cwd=str(tmp_path))
            for session, who in ((mine, b"WHO=me"), (other, b"WHO=deck")):
                await session.settled()
                assert who in _environ(pid_of(deck, session))
                assert b"WHO" not in b"".join(repr(event).encode() for event in await all_events(session))


class TestTheLimit:
    async def test_the_ninth_waits_visibly_and_comes_in_turn(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            assert deck.settings.running_limit == 8
            first = [await deck.create("test", "hang", cwd=str(tmp_path)) for _ in range(8)]
            for session in first:
                await busy(session)
            late = [await deck.create("test", f"say {number}; hang", cwd=str(tmp_path)) for number in range(2)]
            await eventually(lambda: deck.waiting() == tuple(session.id for session in late))
            for session in late:
                assert session.summary.phase == "creating"
                assert session.summary.process == "none"
                await until(
                    session, lambda view: any("slots are busy" in entry.text for entry in view.timeline.entries)
                )
            await first[3].cancel()
            await busy(late[0])
            assert deck.waiting() == (late[1].id,)
            await first[5].cancel()
            await busy(late[1])
            assert deck.waiting() == ()

    async def test_an_idle_process_makes_room(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, running_limit=2) as deck:
            idle = await deck.create("test", "say one", cwd=str(tmp_path))
            await idle.settled()
            held = await deck.create("test", "ask rm", cwd=str(tmp_path))
            await until(held, lambda view: view.state.gates.open)
            third = await deck.create("test", "say three", cwd=str(tmp_path))
            await third.settled()
            assert idle.summary.process == "none"
            assert idle.summary.lifecycle == "active"
            assert idle.summary.phase == "completed"
            assert held.summary.process == "up"
            assert "notice" not in await types_of(third)
            await idle.prompt("say again")
            await idle.settled()
            assert await texts_of(idle, "assistant") == ["one", "again"]

    async def test_one_that_becomes_idle_makes_room_for_who_waits(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, running_limit=1) as deck:
            first = await deck.create("test", "hang", cwd=str(tmp_path))
            await busy(first)
            second = await deck.create("test", "say two", cwd=str(tmp_path))
            await eventually(lambda: deck.waiting() == (second.id,))
            await first.abort()
            await first.settled()
            await second.settled()
            assert await texts_of(second, "assistant") == ["two"]

    async def test_a_failed_start_gives_its_place_back(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, running_limit=1) as deck:
            for _ in range(3):
                session = await deck.create("early", "say x", cwd=str(tmp_path))
                await _failed(session)
            good = await deck.create("test", "say good", cwd=str(tmp_path))
            await good.settled()
            assert await texts_of(good, "assistant") == ["good"]

    async def test_many_sessions_share_two_places(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, running_limit=2) as deck:
            sessions = [await deck.create("test", f"say {number}", cwd=str(tmp_path)) for number in range(7)]
            for number, session in enumerate(sessions):
                await session.settled()
                assert await texts_of(session, "assistant") == [str(number)]
            assert deck.waiting() == ()


class TestTime:
    @case("U-029")
    async def test_an_agent_that_never_gets_ready(self, tmp_path: Path) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            assert deck.settings.start_timeout == 30
            session = await deck.create("mute", "say one", cwd=str(tmp_path))
            await until(session, lambda view: view.state.process.value == "starting")
            pid = (await _started(session))[-1]
            await time.skip(29)
            await asyncio.sleep(0.05)
            assert session.summary.phase == "creating"
            assert is_alive(pid)
            await time.skip(2)
            assert "no answer within 30 seconds" in await _failed(session)
            await eventually(lambda: not is_alive(pid))
            assert [item.receipt for item in session.queue] == ["failed"]
            assert not session.summary.flags.showSpinner

    @case("U-030")
    async def test_an_agent_that_leaves_before_it_is_ready(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("early", "say one", cwd=str(tmp_path))
            message = await _failed(session)
            assert "code 3" in message
            assert [item.receipt for item in session.queue] == ["failed"]
            assert any("code 3" in text for text in await texts_of(session))

    @case("U-030")
    async def test_an_agent_that_is_killed_before_it_is_ready(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("mute", "say one", cwd=str(tmp_path))
            await until(session, lambda view: view.state.process.value == "starting")
            os.kill((await _started(session))[-1], 9)
            message = await _failed(session)
            assert "before it was ready" in message
            assert "SIGKILL" in message or "-9" in message

    async def test_a_folder_that_is_gone_at_the_start(self, tmp_path: Path) -> None:
        work = tmp_path / "work"
        work.mkdir()
        async with at_home(tmp_path, SETTINGS, running_limit=1) as deck:
            session = await deck.create("test", cwd=str(work))
            shutil.rmtree(work)
            await session.prompt("say one")
            message = await _failed(session)
            assert str(work) in message
            work.mkdir()
            await session.retry()
            await session.settled()
            assert await texts_of(session, "assistant") == ["one"]


class TestOwners:
    async def test_a_conversation_that_another_session_has_open(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            first = await deck.create("twin", "say one", cwd=str(tmp_path))
            await first.settled()
            second = await deck.create("twin", "say two", cwd=str(tmp_path))
            message = await _failed(second)
            assert first.id in message
            assert "twin" in message
            assert await texts_of(second, "assistant") == []
            await first.archive()
            await second.retry()
            await second.settled()
            assert await texts_of(second, "assistant") == ["two"]

    async def test_it_is_refused_by_name_before_anything_starts(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            first = await deck.create("twin", "say one", cwd=str(tmp_path))
            await first.settled()
            await first.prompt("exit 0")
            await until(first, lambda view: view.state.process.value == "none")
            second = await deck.create("twin", "say two", cwd=str(tmp_path))
            await second.settled()
            before = len(await _pids(first))
            await first.prompt("say three")
            assert second.id in await _failed(first)
            assert len(await _pids(first)) == before
            assert OwnedElsewhere("twin", second.id).hint


@case("U-028")
async def test_the_agents_own_name_comes_later_and_the_session_keeps_its_own(tmp_path: Path) -> None:
    """Check that the deck's id never changes. The agent's id is a separate field, so no provisional id is needed."""
    async with at_home(tmp_path) as deck:
        session = await deck.create("gated", "say one", cwd=str(tmp_path))
        name, before = session.id, await types_of(session)
        assert session.view.state.profile.native_session_id == ""
        (tmp_path / "go").touch()
        await session.settled()
        assert session.view.state.profile.native_session_id
        assert session.summary.id == name
        assert [row.id for row in deck.list().sessions] == [name]
        assert (await types_of(session))[: len(before)] == before
