"""Test how a deck closes, and in which state the next deck finds its home."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import apsw
import pytest

from quarterdeck import Deck, SessionHandle
from quarterdeck.deck.deck import DeckClosed, HomeInUse, home_id
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.kernel.view import fold_all
from quarterdeck.log.base import LogUnavailable
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, eventually, gate_of, is_alive, pid_of, types_of, until


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


class TestClose:
    async def test_every_active_session_is_suspended_and_no_process_is_left(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            made = {
                "paused": await deck.create("test", "orphan 600; hang", cwd=str(tmp_path)),
                "stopped": await deck.create("test", "ask rm", cwd=str(tmp_path)),
                "completed": await deck.create("test", "say done", cwd=str(tmp_path)),
                "idle": await deck.create("test", cwd=str(tmp_path)),
            }
            away = await deck.create("test", cwd=str(tmp_path))
            await away.archive()
            await until(made["paused"], lambda view: any(e.kind == "tool" for e in view.timeline.entries))
            await gate_of(made["stopped"])
            await made["completed"].settled()
            pids = [pid_of(deck, made[name]) for name in ("paused", "stopped", "completed")]
        assert not any(is_alive(pid) for pid in pids)
        async with at_home(tmp_path) as deck:
            for phase, session in made.items():
                shown = deck.session(session.id).summary
                assert (shown.lifecycle, shown.phase, shown.process) == ("suspended", phase, "none")
            assert deck.session(away.id).summary.lifecycle == "archived"
            assert deck.badge().count == 4

    async def test_sessions_that_start_or_wait_are_suspended_too(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, running_limit=1) as deck:
            starts = await deck.create("gated", "say one", cwd=str(tmp_path))
            await until(starts, lambda view: view.state.process.value == "starting")
            waits = await deck.create("test", "say two", cwd=str(tmp_path))
            await eventually(lambda: deck.waiting() == (waits.id,))
        async with at_home(tmp_path) as deck:
            for session, text in ((starts, "say one"), (waits, "say two")):
                shown = deck.session(session.id)
                assert (shown.summary.lifecycle, shown.summary.process) == ("suspended", "none")
                assert [(item.text, item.receipt) for item in shown.queue] == [(text, "queued")]
                assert not shown.summary.flags.showSpinner

    async def test_a_deaf_agent_does_not_keep_it(self, tmp_path: Path) -> None:
        """Check that the time limits of all steps of a stop add up to less than the shutdown's ten seconds."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "child 600; deaf", cwd=str(tmp_path))
            await until(session, lambda view: any(e.kind == "tool" for e in view.timeline.entries))
            pid = pid_of(deck, session)
            whole = 1.2 * 5 + 0.5
            assert whole < deck.settings.shutdown_within
        assert not is_alive(pid)
        async with at_home(tmp_path) as deck:
            assert deck.session(session.id).summary.lifecycle == "suspended"

    async def test_an_agent_that_nothing_ends_in_time_is_killed(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, stop_grace=30, shutdown_within=0.5) as deck:
            session = await deck.create("test", "child 600; deaf", cwd=str(tmp_path))
            await until(session, lambda view: any(e.kind == "tool" for e in view.timeline.entries))
            pid = pid_of(deck, session)
        await eventually(lambda: not is_alive(pid))
        async with at_home(tmp_path) as deck:
            shown = deck.session(session.id).summary
            assert (shown.lifecycle, shown.phase, shown.process) == ("suspended", "paused", "none")

    async def test_a_closed_deck_takes_nothing_more(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
        for late in (
            deck.create("test", cwd=str(tmp_path)),
            session.prompt("say two"),
            session.rename("x"),
            session.timeline(),
            deck.delete(session.id),
        ):
            with pytest.raises(DeckClosed) as refused:
                await late
            assert refused.value.code == "deck_closed"
            assert refused.value.hint
        await deck.close()

    async def test_a_command_while_it_closes_is_done_or_refused(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            prompts = [asyncio.create_task(session.prompt(f"say {number}")) for number in range(5)]
            await asyncio.sleep(0)
            await deck.close()
            done = await asyncio.gather(*prompts, return_exceptions=True)
        assert all(not isinstance(one, BaseException) or isinstance(one, QuarterdeckError) for one in done)
        taken = [one.message_id for one in done if not isinstance(one, BaseException)]
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            bodies = [event.body for event in await all_events(session)]
            known = {getattr(body, "message_id", "") or getattr(body, "ref", "") for body in bodies}
            assert set(taken) <= known
            assert session.summary.lifecycle == "suspended"
            assert session.summary.process == "none"

    async def test_readers_end_or_can_be_ended(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            seen = []

            async def read() -> None:
                async for event in session.subscribe():
                    seen.append(event.type)  # noqa: PERF401 # The stream never ends by itself.

            reader = asyncio.create_task(read())
            await session.settled()
        await asyncio.sleep(0)
        assert seen[-1] in ("session_suspended", "process_exited")
        reader.cancel()


class TestHome:
    async def test_it_has_one_deck(self, tmp_path: Path) -> None:
        async with at_home(tmp_path):
            with pytest.raises(HomeInUse) as refused:
                await Deck.open(tmp_path / "home")
            assert refused.value.code == "home_in_use"
            assert refused.value.hint
        async with at_home(tmp_path):
            pass

    async def test_one_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(LogUnavailable) as refused:
            await Deck.open(tmp_path / "file" / "home")
        assert refused.value.hint

    async def test_one_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "home").touch()
        with pytest.raises(LogUnavailable) as refused:
            await Deck.open(tmp_path / "home")
        assert refused.value.hint

    async def test_it_is_private(self, tmp_path: Path) -> None:
        async with at_home(tmp_path):
            assert (tmp_path / "home").stat().st_mode & 0o077 == 0


async def _folded(session: SessionHandle) -> None:
    """Check that the view equals the fold of the log."""
    events = await all_events(session)
    assert session.view.state == fold_all(events).state


def _started(folder: Path) -> tuple[Path, subprocess.Popen[str]]:
    """Start a program with a deck, and return its home and its process."""
    home = folder / "home"
    home.mkdir()
    program = [sys.executable, "-m", "tests.support.signalled_deck", str(home)]
    server = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert server.stdout is not None
    assert server.stdout.readline() == "READY\n"
    return home, server


def _signalled(folder: Path, number: signal.Signals) -> None:
    home, server = _started(folder)
    with server:
        marked = _of_home(home)
        assert len(marked) >= 3
        server.send_signal(number)
        assert server.wait(30) == 0
        assert server.stdout is not None
        assert server.stdout.read() == "CLOSED\n"
    assert not any(is_alive(pid) for pid in marked)
    asyncio.run(_look_at(home))


async def _look_at(home: Path) -> None:
    async with await Deck.open(home) as deck:
        rows = deck.list().sessions
        assert [row.lifecycle for row in rows] == ["suspended"] * 3
        assert sorted(row.phase for row in rows) == ["completed", "paused", "stopped"]
        for row in rows:
            session = deck.session(row.id)
            suspended = [event.body.reason for event in await all_events(session) if event.type == "session_suspended"]
            # The session's own deck wrote this, not the repair at the next start.
            assert suspended == ["shutdown"]
            assert "session_archived" not in await types_of(session)
            await _folded(session)


def _of_home(home: Path) -> list[int]:
    """Return the pids of the processes that a deck of this home started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if home_id(home.resolve()).encode() in environ:
                found.append(int(entry.name))
    return found


@case("2-012", "2-021")
def test_sigterm(tmp_path: Path) -> None:
    _signalled(tmp_path, signal.SIGTERM)


@case("2-013", "2-021")
def test_sigint(tmp_path: Path) -> None:
    _signalled(tmp_path, signal.SIGINT)


def test_a_deck_that_was_killed_leaves_nothing_running_and_nothing_active(tmp_path: Path) -> None:
    home, server = _started(tmp_path)
    with server:
        server.kill()
    asyncio.run(_look_after_a_kill(home, _of_home(home)))


async def _look_after_a_kill(home: Path, left: list[int]) -> None:
    async with await Deck.open(home) as deck:
        assert not any(is_alive(pid) for pid in left)
        assert [row.lifecycle for row in deck.list().sessions] == ["suspended"] * 3
        for row in deck.list().sessions:
            session = deck.session(row.id)
            assert session.view.state.gates.open == ()
            assert not session.summary.flags.showSpinner
            await _folded(session)
        assert _of_home(home) == []
        resumed = await deck.resume_interrupted()
        assert len(resumed) == 2
        for name in resumed:
            await until(deck.session(name), lambda view: view.state.process.value == "up")


async def test_a_session_that_cannot_be_read_keeps_no_deck_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = at_home(tmp_path)
    deck = await home.__aenter__()
    resting = await deck.create("test", cwd=str(tmp_path))
    working = await deck.create("test", "hang", cwd=str(tmp_path))
    await until(working, lambda view: view.state.turn.is_open)
    pid = pid_of(deck, working)
    deck.services.supervisor.evict_sessions()
    assert resting.id not in deck.services.supervisor.sessions

    async def broken(*_: object) -> None:
        raise LogUnavailable("the disk reports an error")

    monkeypatch.setattr(deck.services.log, "read", broken)
    await deck.close()
    assert not is_alive(pid)
    async with at_home(tmp_path) as deck:
        assert {deck.session(one.id).summary.lifecycle for one in (resting, working)} == {"suspended"}


async def test_a_view_that_cannot_be_read_is_made_from_the_events(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "say done", cwd=str(tmp_path))
        await session.settled()
        store = deck.home / "quarterdeck.db"
    spoil = "UPDATE session SET view = x'c0'"
    _changed(store, spoil + ", status = 'active'")
    async with at_home(tmp_path) as deck:
        assert deck.session(session.id).summary.lifecycle == "suspended"
        assert deck.view(session.id).state == fold_all(await all_events(deck.session(session.id))).state
    _changed(store, spoil)
    # The session is already suspended, so opening the deck doesn't need its view and doesn't rebuild it.
    async with at_home(tmp_path) as deck:
        shown = deck.session(session.id).summary
        assert (shown.lifecycle, shown.phase, shown.agent, shown.cwd) == ("suspended", "error", "test", str(tmp_path))
        assert "qd db check --repair" in shown.error.message
        await deck.session(session.id).rename("used again")
        assert deck.session(session.id).summary.phase == "completed"


async def test_a_view_that_cannot_be_read_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        spoiled, fine = [await deck.create("test", "say done", cwd=str(tmp_path)) for _ in range(2)]
        for session in (spoiled, fine):
            await session.settled()
        await fine.prompt("hang")
        await until(fine, lambda view: view.state.turn.is_open)
        store = deck.home / "quarterdeck.db"
    _changed(store, f"UPDATE session SET view = x'c0' WHERE id = '{spoiled.id}'")
    async with at_home(tmp_path) as deck:
        assert {row.id: row.phase for row in deck.list().sessions} == {spoiled.id: "error", fine.id: "paused"}
        assert await deck.resume_interrupted() == [fine.id]


async def test_who_waits_for_what_never_comes_is_told_that_the_deck_closed(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        waiting = [
            asyncio.ensure_future(session.until(lambda view: view.state.turn.is_open)),
            asyncio.ensure_future(_last(session.subscribe())),
            asyncio.ensure_future(_last(deck.subscribe())),
        ]
        await asyncio.sleep(0.05)
    for reader in waiting:
        with pytest.raises(LogUnavailable, match="closed"):
            await asyncio.wait_for(reader, 5)


async def _last(events: AsyncGenerator[Event]) -> None:
    async for _ in events:
        pass


def _changed(store: Path, statement: str) -> None:
    connection = apsw.Connection(str(store))
    connection.execute(statement).fetchall()
    connection.close()
