"""Test the changes of a session: available from the first turn on, updated after each turn, and never overstated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck import Changes, Diff, SessionHandle
from quarterdeck.deck.git import tracker
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home
from tests.support.decks import at_home, eventually, until
from tests.support.git_repositories import Repository


def shown(diff: Diff) -> dict[str, tuple[str, int, int]]:
    return {one.path: (one.status, one.added, one.removed) for one in diff.files}


async def told(session: SessionHandle, files: int, added: int, removed: int) -> None:
    """Wait until the summary shows these changes."""
    await until(session, lambda view: view.state.profile.changes == Changes(files, added, removed))


async def done(session: SessionHandle, prompt: str) -> None:
    """Run a turn and wait for its snapshot."""
    before = len(await session.events(types={"agent_end"}))
    await session.prompt(prompt)
    await until(session, lambda view: not view.state.turn.is_open and not view.state.queue)
    assert len(await session.events(types={"agent_end"})) == before + 1
    live = await session._deck.load_session(session.id)
    await eventually(lambda: not live.has_background_work)


async def test_a_session_a_turn_and_what_is_between(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    own = repository.as_it_is()
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(repository.root))
        nothing = await session.changes()
        assert (nothing.base, nothing.files, nothing.patch) == ("", (), "")
        repository.write("mine", "before anything began\n")
        await done(session, "write a b; write new n")
        await told(session, 2, 2, 0)
        first = await session.changes()
        assert shown(first) == {"a": ("modified", 1, 0), "new": ("added", 1, 0)}
        assert first.total == session.summary.changes
        assert (first.live, first.truncated, first.shared_with) == (False, False, ())
        assert "+++ b/a\n" in first.patch
        assert (await session.changes("turn")).patch == first.patch
        # The file is written after the turn, so it isn't counted until the next turn ends.
        repository.write("between", "a person\n")
        assert (await session.changes()).files == first.files
        await done(session, "write a c")
        assert shown(await session.changes("turn")) == {"a": ("modified", 1, 0)}
        assert shown(await session.changes()) == {
            "a": ("modified", 2, 0),
            "new": ("added", 1, 0),
            "between": ("added", 1, 0),
        }
        await told(session, 3, 4, 0)
        assert (await session.changes()).base == first.base
        types = [event.type for event in await session.events()]
        assert types.count("changes_updated") == 2
        await done(session, "say nothing changed")
        assert (await session.changes("turn")).files == ()
        assert len(await session.events(types={"changes_updated"})) == 2
    assert repository.as_it_is() == own


async def test_while_it_works_the_present_is_shown(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "write a b; hang", cwd=str(repository.root / ""))
        await eventually(lambda: (repository.root / "a").read_text() == "a\nb\n")
        now = await session.changes("turn")
        assert now.live
        assert shown(now) == {"a": ("modified", 1, 0)}
        repository.write("a", "a\n")
        assert (await session.changes()).files == ()
        repository.write("other", "x\n")
        await session.abort()
        await told(session, 1, 1, 0)


async def test_commits_do_not_hide_what_changed(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "write a b; question go on?", cwd=str(repository.root))
        gate = (await until(session, lambda view: view.state.gates.open)).state.gates.open[0]
        repository.commit()
        await session.respond(gate.id, "yes")
        await told(session, 1, 1, 0)


async def test_others_in_the_same_repository_are_named(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    repository.write("deep/b", "b\n")
    async with at_home(tmp_path) as deck:
        one = await deck.create("test", cwd=str(repository.root))
        two = await deck.create("test", cwd=str(repository.root / "deep"))
        await deck.create("test", cwd=str(tmp_path))
        await done(one, "write a one")
        assert (await one.changes()).shared_with == ()
        await done(two, "write b two")
        assert shown(await two.changes()) == {"deep/b": ("modified", 1, 0)}
        assert (await two.changes()).shared_with == ()
        await done(one, "say again")
        assert (await one.changes()).shared_with == (two.id,)
        assert shown(await one.changes()) == {"a": ("modified", 1, 0), "deep/b": ("modified", 1, 0)}


async def test_it_outlives_the_deck_and_goes_with_the_session(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(repository.root))
        other = await deck.create("test", cwd=str(repository.root))
        await done(session, "write a b")
        await done(other, "say hello")
        before = await session.changes()
    async with at_home(tmp_path) as deck:
        session, other = deck.session(session.id), deck.session(other.id)
        assert (await session.changes()).patch == before.patch
        await done(session, "write a c")
        assert shown(await session.changes()) == {"a": ("modified", 2, 0)}
        assert (await session.changes()).base == before.base
        await session.archive()
        repository.write("a", "later\n")
        assert shown(await session.changes()) == {"a": ("modified", 2, 0)}
        await deck.retain()
        assert shown(await session.changes()) == {"a": ("modified", 2, 0)}
        shadows = Home(deck.home).changes
        await session.delete()
        assert len(list(shadows.iterdir())) == 1
        await other.delete()
        assert list(shadows.iterdir()) == []


async def test_a_turn_that_was_cut_off_is_compared_with_the_present(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(repository.root))
        await done(session, "write a b")
        await session.prompt("write a c; hang")
        await eventually(lambda: "c" in (repository.root / "a").read_text())
    async with at_home(tmp_path) as deck:
        found = await deck.session(session.id).changes()
        assert found.live
        assert shown(found) == {"a": ("modified", 2, 0)}


async def refused(session: SessionHandle) -> str:
    with pytest.raises(QuarterdeckError) as error:
        await session.changes()
    assert error.value.hint
    return error.value.code


async def test_where_nothing_can_be_known_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    repository = Repository(tmp_path / "repo", a="a\n")
    (tmp_path / "plain").mkdir()
    async with at_home(tmp_path) as deck:
        plain = await deck.create("test", cwd=str(tmp_path / "plain"))
        await done(plain, "write a b")
        assert await refused(plain) == "no_repository"
        monkeypatch.setenv("PATH", str(tmp_path / "plain"))
        without = await deck.create("test", cwd=str(repository.root))
        await done(without, "write a b")
        monkeypatch.undo()
        assert await refused(without) == "no_snapshot"
        # Git is available from this turn on, so changes are counted from its start.
        await done(without, "write a c")
        assert shown(await without.changes()) == {"a": ("modified", 1, 0)}
        monkeypatch.setenv("PATH", str(tmp_path / "plain"))
        assert await refused(without) == "git_missing"
        monkeypatch.undo()
    async with at_home(tmp_path, track_changes=False) as deck:
        untold = await deck.create("test", cwd=str(repository.root))
        await done(untold, "write a d")
        assert await refused(untold) == "no_snapshot"
        assert untold.summary.changes == Changes()


async def test_a_slow_snapshot_keeps_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    repository = Repository(tmp_path / "repo", a="a\n")
    monkeypatch.setattr(tracker, "PATIENCE_S", 0.05)
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    async with at_home(tmp_path) as deck:
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        session = await deck.create("test", "write a b", cwd=str(repository.root))
        await until(session, lambda view: view.state.phase.value == "completed")
        asking = asyncio.create_task(session.changes())
        await asyncio.sleep(0)
    # Closing the deck ends the hanging git and fails the call that waits for it.
    with pytest.raises(QuarterdeckError):
        await asking
