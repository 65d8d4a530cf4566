"""Test actions by the clock: end idle processes, delete old sessions, and wait a minute after the machine slept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest

from quarterdeck import Deck, SessionHandle, Settings
from quarterdeck import events as ev
from quarterdeck.config import IDLE_TIMEOUT, InvalidSetting, settings_from
from quarterdeck.deck.agents.launcher import ProcessState
from quarterdeck.deck.agents.observed_sessions import ObservedSessions
from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal
from quarterdeck.kernel.session_list import Filter
from quarterdeck.kernel.view import View
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import (
    SETTINGS,
    Time,
    all_events,
    at_home,
    busy,
    gate_of,
    is_alive,
    pid_of,
    texts_of,
    types_of,
    until,
)

MINUTE = 60.0
DAY = 24 * 60 * MINUTE


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


async def _done(deck: Deck, folder: Path, text: str = "say one") -> tuple[SessionHandle, int]:
    """Create a session with an idle agent, and return the session and the agent's pid."""
    session = await deck.create("test", text, cwd=str(folder))
    await session.settled()
    return session, pid_of(deck, session)


async def _pass(deck: Deck, time: Time, minutes: float) -> None:
    """Advance the clock in steps of a minute, and wait for the jobs that start."""
    for _ in range(int(minutes)):
        await time.skip(MINUTE)
        while deck._jobs:
            await asyncio.wait(deck._jobs)


class TestReaper:
    @case("2-063")
    async def test_it_comes_every_five_minutes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        time, came = Time(), []

        async def reap(deck: Deck) -> None:
            came.append(time.moved)

        monkeypatch.setattr(Deck, "reap", reap)
        async with at_home(tmp_path, clock=time.clock()) as deck:
            await _pass(deck, time, 16)
        assert came == [5 * MINUTE, 10 * MINUTE, 15 * MINUTE]

    @case("2-030", "2-031", "2-064", "2-066", "2-067")
    async def test_a_process_that_was_idle_for_half_an_hour_ends_at_its_next_visit(self, tmp_path: Path) -> None:
        assert settings_from({}).idle_timeout == 30 * MINUTE
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, pid = await _done(deck, tmp_path)
            await _pass(deck, time, 29)
            await deck.reap()
            assert is_alive(pid)
            await _pass(deck, time, 6)
            assert not is_alive(pid)
            await until(session, lambda view: view.state.process.value == "none")
            assert session.summary.lifecycle == "active"
            assert session.summary.phase == "completed"
            assert [row.status for row in deck.rows()] == ["active"]
            assert "session_archived" not in await types_of(session)
            assert session.summary.composer.enabled

    @case("2-069", "U-077")
    async def test_the_next_prompt_starts_it_again_in_the_same_conversation(self, tmp_path: Path) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, pid = await _done(deck, tmp_path)
            native = session.view.state.profile.native_session_id
            await _pass(deck, time, 36)
            assert not is_alive(pid)
            receipt = await session.prompt("say two")
            assert receipt.disposition == "started"
            await session.settled()
            assert await texts_of(session, "assistant") == ["one", "two"]
            ready = [event.body.native_session_id for event in await all_events(session) if event.type == "agent_ready"]
            assert ready == [native, native]

    @case("2-065")
    async def test_the_environment_says_after_how_many_minutes(self, tmp_path: Path) -> None:
        time = Time()
        settings = settings_from({IDLE_TIMEOUT: "7"}, stop_grace=0.3)
        async with at_home(tmp_path, settings, time.clock()) as deck:
            session, pid = await _done(deck, tmp_path)
            await _pass(deck, time, 6)
            await deck.reap()
            assert is_alive(pid)
            await _pass(deck, time, 2)
            await deck.reap()
            assert not is_alive(pid)
            assert session.summary.lifecycle == "active"

    @case("2-065", "2-066")
    async def test_a_deck_reads_it_itself(self, tmp_path: Path) -> None:
        for text, seconds in (("7", 420.0), ("0.5", 30.0), (None, 1800.0)):
            environment = {} if text is None else {IDLE_TIMEOUT: text}
            async with await Deck.open(tmp_path / "home", environment=environment) as deck:
                assert deck.settings.idle_timeout == seconds
        with pytest.raises(InvalidSetting, match=IDLE_TIMEOUT) as refused:
            await Deck.open(tmp_path / "home", environment={IDLE_TIMEOUT: "soon"})
        assert refused.value.hint
        async with await Deck.open(tmp_path / "home", environment={}):
            pass  # The deck that was refused has released the home.

    @case("2-068")
    async def test_each_idle_one_and_no_other_and_a_failure_does_not_stop_the_rest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            idle = [await _done(deck, tmp_path) for _ in range(3)]
            working = await deck.create("test", "hang", cwd=str(tmp_path))
            await busy(working)
            await _pass(deck, time, 29)
            fresh, fresh_pid = await _done(deck, tmp_path)
            time.moved += 2 * MINUTE
            broken = deck.services.supervisor.sessions[idle[0][0].id].launcher

            async def refuses() -> None:
                raise RuntimeError("it cannot be ended")

            monkeypatch.setattr(broken, "stop", refuses)
            await deck.reap()
            assert [is_alive(pid) for _, pid in idle] == [True, False, False]
            assert is_alive(pid_of(deck, working))
            assert is_alive(fresh_pid)
            assert fresh.summary.process == "up"
            monkeypatch.undo()

    @case("X-039")
    @pytest.mark.parametrize(
        "script",
        ["hang", "ask rm", "question which?", "flood 10; sleep 600"],
        ids=["busy", "approval", "question", "asleep"],
    )
    async def test_never_while_it_is_busy_or_asked(self, tmp_path: Path, script: str) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session = await deck.create("test", script, cwd=str(tmp_path))
            await busy(session)
            if not script.startswith(("hang", "flood")):
                await gate_of(session)
            pid = pid_of(deck, session)
            await _pass(deck, time, 70)
            assert is_alive(pid)
            assert session.summary.process == "up"

    @case("X-039")
    async def test_never_while_a_text_waits_or_work_goes_on_in_the_background(self, tmp_path: Path) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, pid = await _done(deck, tmp_path)
            live = deck.services.supervisor.sessions[session.id]
            live.record(ev.BackgroundStarted(kind="shell", id="b1", title="npm run dev"))
            await live.writer.flush()
            await _pass(deck, time, 70)
            assert is_alive(pid)
            live.record(ev.BackgroundEnded(kind="shell", id="b1"))
            await live.writer.flush()
            await _pass(deck, time, 6)
            assert not is_alive(pid)

    async def test_background_work_does_not_keep_it_for_ever(self, tmp_path: Path) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, pid = await _done(deck, tmp_path)
            live = deck.services.supervisor.sessions[session.id]
            live.record(ev.BackgroundStarted(kind="shell", id="b1", title="npm run dev"))
            await live.writer.flush()
            time.moved += deck.settings.background_cap + MINUTE
            await deck.reap()
            assert not is_alive(pid)

    @case("X-039")
    async def test_a_prompt_that_comes_while_it_ends_is_answered(self, tmp_path: Path) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, _ = await _done(deck, tmp_path)
            time.moved += 31 * MINUTE
            reaping = asyncio.create_task(deck.reap())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert deck.services.supervisor.sessions[session.id].launcher.state is ProcessState.STOPPING
            receipt = await session.prompt("say two")
            assert receipt.disposition == "started"
            assert session.summary.phase == "streaming"
            await session.settled()
            await reaping
            assert await texts_of(session, "assistant") == ["one", "two"]
            assert "stopped" not in {await _phase_at(session, event.index) for event in await all_events(session)}


async def _phase_at(session: SessionHandle, index: int) -> str:
    return (await session.view_at(index)).state.phase.value


class _Due:
    """A translator with one deadline that counts how often it is reached."""

    at: float | None = None
    ticks = unknown = 0
    origins: ClassVar[dict[str, Origin]] = {}

    def restore(self, view: View) -> None:
        """Ignore the view, because this translator has no state."""

    def feed(self, signal: Signal, now: float) -> list[Body]:
        return []

    def deadline(self) -> float | None:
        return self.at

    def tick(self, now: float) -> list[Body]:
        self.at, self.ticks = None, self.ticks + 1
        return []

    def end(self, now: float) -> list[Body]:
        return []


class TestSleep:
    async def test_after_a_sleep_nothing_is_judged_for_a_minute_and_a_line_says_how_long_it_was(
        self, tmp_path: Path
    ) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, pid = await _done(deck, tmp_path)
            time.moved += 31 * MINUTE
            time.slept += 2 * 60 * MINUTE + 5.5
            await deck.reap()
            assert is_alive(pid)
            view = await until(session, lambda view: any("slept" in entry.text for entry in view.timeline.entries))
            assert [e.text for e in view.timeline.entries if "slept" in e.text] == ["The machine slept for 120 min 5 s"]
            await time.skip(59)
            await deck.reap()
            assert is_alive(pid)
            await time.skip(31 * MINUTE)
            await deck.reap()
            assert not is_alive(pid)

    async def test_an_agent_that_somebody_else_started_has_its_minute_too(self, tmp_path: Path) -> None:
        """Give the agent a minute after sleep: it was asleep too, so its silence means nothing."""
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session = await ObservedSessions(deck).session("claude", "native", str(tmp_path))
            translator = _Due()
            observation = session.observe(translator)
            translator.at = deck.clock.monotonic() + 30
            observation.feed(Signal("notify", {}))
            time.slept += 60 * MINUTE
            await deck.reap()
            await time.skip(59)
            assert translator.ticks == 0
            await time.skip(2)
            assert translator.ticks == 1

    async def test_a_clock_that_is_set_back_never_turns_the_log_round(self, tmp_path: Path) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, pid = await _done(deck, tmp_path)
            time.wall_moved_ms -= int(3 * DAY * 1000)
            await session.prompt("say two")
            await session.settled()
            times = [event.at for event in await all_events(session)]
            assert times == sorted(times)
            await deck.reap()
            assert is_alive(pid)
            assert not any("slept" in text for text in await texts_of(session))

    async def test_times_go_on_rising_after_a_restart_too(self, tmp_path: Path) -> None:
        time = Time()
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session, _ = await _done(deck, tmp_path)
        time.wall_moved_ms -= int(3 * DAY * 1000)
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session = deck.session(session.id)
            await session.rename("later")
            times = [event.at for event in await all_events(session)]
            assert times == sorted(times)


class TestRetention:
    @staticmethod
    async def _sessions(folder: Path, time: Time) -> dict[str, str]:
        """Create one session of each kind, and close their deck."""
        async with at_home(folder, SETTINGS, time.clock()) as deck:
            made = {}
            for agent in ("test", "forgetful"):
                session, _ = await _made(deck, folder, agent)
                made[agent] = session.id
            archived = await deck.create("test", cwd=str(folder))
            await archived.archive()
            failed = await deck.create("test", cwd=str(folder))
            live = deck.services.supervisor.sessions[failed.id]
            live.record(ev.SessionFailed(message="the store of the agent is gone"))
            await live.writer.flush()
            return made | {"archived": archived.id, "error": failed.id}

    @case("2-021", "2-079")
    async def test_ages_by_status_and_nothing_is_ever_archived(self, tmp_path: Path) -> None:
        time = Time()
        names = await self._sessions(tmp_path, time)
        async with at_home(tmp_path, clock=time.clock()) as deck:
            active = await deck.create("test", cwd=str(tmp_path))
            left = {**names, "active": active.id}

            async def after(days: float) -> set[str]:
                time.moved = days * DAY
                await deck.retain()
                return {kind for kind, name in left.items() if deck.has(name)}

            assert await after(0.9) == set(left)
            assert await after(1.1) == set(left) - {"error"}
            assert await after(6.9) == set(left) - {"error"}
            assert await after(7.1) == {"test", "archived", "active"}
            assert await after(29.9) == {"test", "archived", "active"}
            assert await after(30.1) == {"archived", "active"}
            assert await after(3650) == {"archived", "active"}
            assert deck.session(active.id).summary.lifecycle == "active"
            assert [row.id for row in deck.list(Filter(status=("archived",))).sessions] == [names["archived"]]

    @case("2-079")
    async def test_it_comes_daily(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        time, came = Time(), []

        async def retain(deck: Deck) -> None:
            came.append(time.moved)

        monkeypatch.setattr(Deck, "retain", retain)
        async with at_home(tmp_path, clock=time.clock()) as deck:
            for _ in range(49):
                await time.skip(3600)
                while deck._jobs:
                    await asyncio.wait(deck._jobs)
        assert came == [DAY, 2 * DAY]

    @case("2-079")
    async def test_not_after_the_clock_jumped(self, tmp_path: Path) -> None:
        time = Time()
        names = await self._sessions(tmp_path, time)
        async with at_home(tmp_path, clock=time.clock()) as deck:
            time.wall_moved_ms += int(400 * DAY * 1000)
            await deck.retain()
            assert all(deck.has(name) for name in names.values())
            # The second run, a day later, trusts the new time.
            await deck.retain()
            assert deck.has(names["archived"])
            assert not deck.has(names["error"])

    async def test_what_is_in_use_again_is_kept(self, tmp_path: Path) -> None:
        time = Time()
        names = await self._sessions(tmp_path, time)
        time.moved = 31 * DAY
        async with at_home(tmp_path, clock=time.clock()) as deck:
            session = deck.session(names["test"])
            await session.resume()
            await deck.retain()
            assert deck.has(names["test"])
            assert session.summary.lifecycle == "active"

    @case("2-079")
    async def test_the_date_is_shown_beforehand(self, tmp_path: Path) -> None:
        time = Time()
        names = await self._sessions(tmp_path, time)
        async with at_home(tmp_path, clock=time.clock()) as deck:
            for kind, days in (("test", 30), ("forgetful", 7), ("error", 1)):
                session = deck.session(names[kind])
                assert session.details.deletes_at == session.summary.last_active_at + days * DAY * 1000
            assert deck.session(names["archived"]).details.deletes_at is None


async def _made(deck: Deck, folder: Path, agent: str) -> tuple[SessionHandle, int]:
    session = await deck.create(agent, "say one", cwd=str(folder))
    await session.settled()
    return session, pid_of(deck, session)


def test_the_defaults_are_the_designs() -> None:
    settings = Settings()
    assert (settings.idle_timeout, settings.reaper_every, settings.running_limit) == (1800, 300, 8)
    assert (settings.stop_grace, settings.start_timeout, settings.shutdown_within) == (5, 30, 10)
    assert (settings.steering_limit, settings.tail, settings.images_limit) == (3, 200, 20 * 1024 * 1024)
    assert (settings.retention_every, settings.delivery_retries) == (DAY, 3)
