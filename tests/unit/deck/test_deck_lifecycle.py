"""Test commands for a whole session: retry, resume, cancel, archive, delete, rename, mark and configure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck import Deck, SessionHandle
from quarterdeck.errors import NotAllowed
from quarterdeck.events import Image
from quarterdeck.harness.driver import CannotDo
from quarterdeck.kernel.commands import InvalidCommand
from quarterdeck.kernel.session_list import Filter
from quarterdeck.log.base import NoSuchSession
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
    types_of,
    until,
)


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


class TestRetry:
    async def test_a_failed_turn_is_sent_again(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say try; error it broke", cwd=str(tmp_path))
            assert (await session.settled()).state.phase.value == "error"
            assert session.summary.error is not None
            await session.retry()
            assert session.summary.phase == "streaming"
            assert session.summary.error is None
            assert (await session.settled()).state.phase.value == "error"
            assert await texts_of(session, "assistant") == ["try", "try"]
            assert (await types_of(session)).count("turn_retried") == 1

    async def test_its_images_are_sent_again_too(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            image = Image(media_type="image/png", data="iVBORw0KGgo=")
            session = await deck.create("test", "error it broke", cwd=str(tmp_path), images=[image])
            await session.settled()
            await session.retry()
            await session.settled()
            read = [event.body for event in await all_events(session) if event.type == "prompt_received"]
            assert [body.images for body in read] == [(image,), (image,)]

    async def test_a_text_that_could_not_be_sent_goes_first(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("early", "say one", cwd=str(tmp_path))
            await until(session, lambda view: any(item.receipt == "failed" for item in view.state.queue))
            name = session.queue[0].id
            await session.retry()
            await until(session, lambda view: view.state.queue[0].receipt == "failed")
            assert [item.id for item in session.queue] == [name]

    async def test_when_nothing_failed_there_is_nothing_to_retry(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            before = session.view
            with pytest.raises(NotAllowed, match="nothing failed"):
                await session.retry()
            assert session.view is before


class TestResume:
    async def test_a_stopped_session_goes_on(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "hang", cwd=str(tmp_path))
            await busy(session)
            await session.abort()
            await session.settled()
            answer = await session.resume()
            assert (answer.session_id, answer.status) == (session.id, "active")
            assert session.summary.phase == "streaming"
            await session.settled()
            assert await texts_of(session, "assistant") == [deck.settings.continue_text]
            assert "turn_continued" in await types_of(session)

    async def test_a_busy_one_does_not(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "hang", cwd=str(tmp_path))
            await busy(session)
            before = session.view
            with pytest.raises(NotAllowed, match="nothing is paused, stopped or completed"):
                await session.resume()
            assert session.view is before

    async def test_a_waiting_text_is_what_it_goes_on_with(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "hang", cwd=str(tmp_path))
            await busy(session)
            await session.prompt("say later")
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            assert [item.receipt for item in session.queue] == ["queued"]
            await session.resume()
            await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)
            assert await texts_of(session, "assistant") == ["later"]

    @pytest.mark.parametrize("way", ["resume", "prompt", "all"])
    async def test_one_whose_agent_was_never_ready_is_simply_started(self, tmp_path: Path, way: str) -> None:
        """Start the agent again, which loses nothing: it has no conversation yet, and the message is still queued."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("gated", "say one", cwd=str(tmp_path))
            await until(session, lambda view: view.state.process.value == "starting")
        (tmp_path / "go").touch()
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            assert (session.summary.lifecycle, session.summary.resumable) == ("suspended", True)
            assert [(item.text, item.receipt) for item in session.queue] == [("say one", "queued")]
            if way == "resume":
                await session.resume()
            elif way == "prompt":
                assert (await session.prompt("say two")).disposition == "resumed"
            else:
                assert await deck.resume_interrupted() == [session.id]
            view = await until(session, lambda view: not view.state.queue and view.state.phase.value == "completed")
            assert view.state.profile.native_session_id
            assert await texts_of(session, "assistant") == (["one", "two"] if way == "prompt" else ["one"])

    async def test_one_that_cannot_resume_and_was_ready_is_not_started_again(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("forgetful", "say one", cwd=str(tmp_path))
            await session.settled()
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            assert not session.summary.resumable
            with pytest.raises(NotAllowed, match="can't resume"):
                await session.resume()

    async def test_all_that_were_interrupted_with_one_press(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            done = await deck.create("test", "say done", cwd=str(tmp_path))
            cut = [await deck.create("test", "hang", cwd=str(tmp_path)) for _ in range(2)]
            lost = await deck.create("forgetful", "hang", cwd=str(tmp_path))
            away = await deck.create("test", cwd=str(tmp_path))
            await away.archive()
            await done.settled()
            for session in (*cut, lost):
                await busy(session)
        async with at_home(tmp_path) as deck:
            assert sorted(await deck.resume_interrupted()) == sorted(session.id for session in cut)
            for session in cut:
                view = await until(deck.session(session.id), lambda view: view.state.process.value == "up")
                assert view.state.lifecycle.value == "active"
            assert deck.session(done.id).summary.lifecycle == "suspended"
            assert deck.session(lost.id).summary.lifecycle == "suspended"
            assert deck.session(away.id).summary.lifecycle == "archived"

    async def test_one_that_cannot_be_resumed_does_not_keep_the_others(self, tmp_path: Path) -> None:
        """Skip an agent that reports that it can be resumed but has no id to resume with."""
        async with at_home(tmp_path) as deck:
            broken = await deck.create("nameless", "hang", cwd=str(tmp_path))
            fine = await deck.create("test", "hang", cwd=str(tmp_path))
            await busy(broken)
            await busy(fine)
        async with at_home(tmp_path) as deck:
            assert await deck.resume_interrupted() == [fine.id]
            await until(deck.session(fine.id), lambda view: view.state.process.value == "up")


class TestPutAway:
    async def test_an_archived_session_has_no_process_and_is_not_listed(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            pid = pid_of(deck, session)
            answer = await session.archive()
            assert answer.status == "archived"
            assert not is_alive(pid)
            assert session.summary.lifecycle == "archived"
            assert session.summary.end_reason == "archived"
            assert deck.list().sessions == ()
            assert [row.id for row in deck.list(Filter(archived=True)).sessions] == [session.id]
            assert deck.badge().count == 0
            assert await texts_of(session, "assistant") == ["one"]
            with pytest.raises(NotAllowed):
                await session.archive()
            with pytest.raises(NotAllowed):
                await session.resume()

    async def test_a_session_that_starts_or_waits_can_be_put_away(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, running_limit=1) as deck:
            starts = await deck.create("gated", "say one", cwd=str(tmp_path))
            await until(starts, lambda view: view.state.process.value == "starting")
            waits = await deck.create("gated", "say two", cwd=str(tmp_path))
            await eventually(lambda: deck.waiting() == (waits.id,))
            assert (await waits.archive()).status == "archived"
            assert deck.waiting() == ()
            assert (await starts.cancel()).status == "cancelled"
            for session in (starts, waits):
                assert session.summary.lifecycle == "archived"
                assert session.summary.process == "none"
                assert not session.summary.flags.showSpinner

    async def test_a_queued_text_does_not_bring_it_back(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "hang", cwd=str(tmp_path))
            await busy(session)
            await session.prompt("say later")
            await session.cancel()
            await asyncio.sleep(0.05)
            assert session.summary.process == "none"
            assert (await types_of(session))[-1] == "session_archived"
            # One event is written before the launch and one with the pid.
            assert (await types_of(session)).count("process_starting") == 2

    async def test_two_at_once_are_one(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            answers = await asyncio.gather(session.cancel(), session.archive(), return_exceptions=True)
            assert sum(isinstance(answer, NotAllowed) for answer in answers) == 1
            assert (await types_of(session)).count("session_archived") == 1


class TestDelete:
    @staticmethod
    async def _gone(deck: Deck, session: SessionHandle) -> None:
        await session.delete()
        with pytest.raises(NoSuchSession) as missing:
            _ = session.view
        assert missing.value.code == "no_such_session"
        with pytest.raises(NoSuchSession):
            await session.prompt("say x")
        with pytest.raises(NoSuchSession):
            await session.delete()
        assert session.id not in [row.id for row in deck.list(Filter(archived=True)).sessions]

    @case("2-077")
    async def test_an_archived_session(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            await session.archive()
            await self._gone(deck, session)
        async with at_home(tmp_path) as deck:
            assert deck.list(Filter(archived=True)).sessions == ()

    async def test_a_suspended_session(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
        async with at_home(tmp_path) as deck:
            await self._gone(deck, deck.session(session.id))

    async def test_an_active_session_is_refused(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            pid = pid_of(deck, session)
            before = session.view
            with pytest.raises(NotAllowed, match="delete is not allowed while the session is completed"):
                await session.delete()
            assert session.view is before
            assert is_alive(pid)

    async def test_whoever_comes_meanwhile_finds_it_gone(self, tmp_path: Path) -> None:
        """Run each command before the deletion or raise NoSuchSession. No caller gets a StaleFence."""
        async with at_home(tmp_path) as deck:
            ids = [(await deck.create("test", cwd=str(tmp_path))).id for _ in range(30)]
        async with at_home(tmp_path) as deck:
            for place, session in enumerate(map(deck.session, ids)):
                work = [session.delete(), *(session.rename(f"n{number}") for number in range(6)), session.delete()]
                turned = work[place % 8 :] + work[: place % 8]
                outcomes = await asyncio.gather(*turned, return_exceptions=True)
                kinds = {type(one).__name__ for one in outcomes}
                assert kinds <= {"NoneType", "Done", "NoSuchSession"}, kinds
                assert session.id not in [row.id for row in deck.list().sessions]

    async def test_all_readers_are_told(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            await session.archive()
            await session.delete()
            events = deck.subscribe()
            seen = [await anext(events)]
            while seen[-1].type != "session_deleted":
                seen.append(await anext(events))
            assert seen[-1].session_id == session.id
            await events.aclose()

    async def test_its_recording_goes_with_it(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path), record=True)
            await session.settled()
            trace = tmp_path / "home" / "traces" / f"{session.id}.jsonl"
            assert trace.stat().st_size
            await session.archive()
            await session.delete()
            assert not trace.exists()

    async def test_long_results_of_its_tools_go_with_it(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            results = tmp_path / "home" / "results"
            for name in (session.id, "other"):
                (results / name).mkdir(parents=True)
                (results / name / "c1.txt").write_text("long")
            await session.archive()
            await session.delete()
            assert [one.name for one in results.iterdir()] == ["other"]


class TestMarks:
    async def test_a_name(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            assert session.summary.name == "say one"
            await session.rename("  My work ")
            assert session.summary.name == "My work"
            await session.settled()
            await session.prompt("say two")
            await session.settled()
            assert session.summary.name == "My work"
            for name in ("", "   ", "x" * 101):
                with pytest.raises(InvalidCommand, match="characters"):
                    await session.rename(name)
            assert session.summary.name == "My work"
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            await session.rename("Asleep")
            assert session.summary.name == "Asleep"
            assert deck.list(Filter(q="asleep")).sessions[0].id == session.id

    async def test_pinned_snoozed_read(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            assert session.summary.unread
            assert [row.id for row in deck.attention()] == [session.id]
            await session.mark(pinned=True, snoozed_until=deck.clock.wall() + 60_000)
            assert session.summary.pinned
            assert deck.attention() == []
            await session.mark(snoozed_until=0)
            assert [row.id for row in deck.attention()] == [session.id]
            await session.mark(read_index=session.view.index)
            assert not session.summary.unread
            assert session.summary.pinned
            assert deck.attention() == []
            assert deck.badge().attention == 0

    async def test_what_is_not_there_yet_cannot_have_been_read(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            last = session.view.index
            await session.mark(read_index=1_000_000)
            assert session.view.state.profile.read_index == last
            await session.prompt("say one")
            await session.settled()
            assert session.summary.unread

    async def test_marks_of_a_session_at_rest(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            await session.archive()
            await session.mark(pinned=True)
            assert session.summary.pinned


class TestSettings:
    async def test_another_model_with_a_process(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            await session.switch_model("bigger")
            assert session.summary.model == "bigger"
            events = session.subscribe(types={"model_switched"})
            while (await anext(events)).body.to != "bigger":
                pass
            await events.aclose()

    async def test_another_model_without_one(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            await session.switch_model("bigger")
            assert session.summary.model == "bigger"
            assert session.summary.process == "none"
            await session.prompt("say one")
            await session.settled()
            switched = [event.body.to for event in await all_events(session) if event.type == "model_switched"]
            assert switched[-1] == "bigger"
            assert session.summary.model == "bigger"

    async def test_another_mode(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("able", "say one", cwd=str(tmp_path))
            await session.settled()
            await session.switch_mode("edits")
            assert session.summary.mode == "edits"
            await until(session, lambda view: any("in mode edits" in e.text for e in view.timeline.entries))

    async def test_a_mode_that_the_agent_does_not_have(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            before = session.view
            with pytest.raises(CannotDo, match="work in mode plan"):
                await session.switch_mode("plan")
            with pytest.raises(InvalidCommand, match="no mode 'yolo'"):
                await session.switch_mode("yolo")
            assert session.view is before
            await session.switch_mode("auto")
            assert session.summary.mode == "auto"

    async def test_one_that_cannot_switch_while_it_runs_keeps_its_mode(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            before = session.view
            with pytest.raises(CannotDo):
                await session.switch_mode("auto")
            assert session.view is before

    async def test_what_only_a_running_agent_can_do(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("able", cwd=str(tmp_path))
            with pytest.raises(NotAllowed, match="isn't running"):
                await session.bash("ls")
            await session.prompt("say one")
            await session.settled()
            await session.bash("ls")
            await session.compact()
            await until(session, lambda view: any("compacted" in e.text for e in view.timeline.entries))
            assert any("ran ls" in text for text in await texts_of(session))
            plain = await deck.create("test", "say one", cwd=str(tmp_path))
            await plain.settled()
            with pytest.raises(CannotDo):
                await plain.compact()

    async def test_a_question_is_open_and_names_stay(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "question which?", cwd=str(tmp_path), name="Mine", model="m1")
            gate = await gate_of(session)
            assert (session.summary.name, session.summary.model) == ("Mine", "m1")
            await session.respond(gate.id, "red")
            await session.settled()
            assert session.summary.name == "Mine"
