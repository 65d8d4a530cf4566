"""Test that a gate's number is never used again, no matter how the deck ended or how many were decided since.

`qd db check` finds no problem in the store of a killed deck.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from quarterdeck.cli.app import app
from quarterdeck.cli.exits import Exit
from quarterdeck.home import Home
from quarterdeck.kernel.session_list import Filter
from tests.support.decks import at_home
from tests.support.killed_deck import STORIES, asked_in, opened


def _killed(folder: Path, story: str) -> int:
    """Kill a deck at the end of this story, and return the highest gate number."""
    program = [sys.executable, "-m", "tests.support.killed_deck", str(folder), story]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -signal.SIGKILL
    return int(done.stdout)


def _checked(folder: Path, *more: str) -> int:
    told = CliRunner().invoke(app, ["db", "check", *more], env={"QUARTERDECK_HOME": str(folder / "home")})
    return told.exit_code


async def _next_number(folder: Path) -> int:
    async with at_home(folder) as deck:
        session = await opened(deck, f"next {os.urandom(4).hex()}")
        return int(asked_in(session, 1)[0].id[1:])


async def _look(folder: Path) -> None:
    """Check that the list and the row have the time of the last event as the session's last activity."""
    async with at_home(folder) as deck:
        rows = {row.session_id: row for row in deck.rows()}
        for shown in deck.list(Filter(archived=True)).sessions:
            events = await deck.session(shown.id).events(0, 10_000)
            assert shown.last_active_at == rows[shown.id].last_active_at == events[-1].at


@pytest.mark.parametrize("story", STORIES)
def test_after_a_kill_no_number_comes_again_and_nothing_is_amiss(tmp_path: Path, story: str) -> None:
    last = _killed(tmp_path, story)
    assert _checked(tmp_path) == Exit.DONE
    asyncio.run(_look(tmp_path))
    for number in (last + 1, last + 2):
        assert asyncio.run(_next_number(tmp_path)) == number
        assert _checked(tmp_path) == Exit.DONE


@pytest.mark.parametrize("story", ["several_open", "last_decided_first", "turn_ended"])
def test_a_row_that_says_what_no_event_does_is_told_and_cured(tmp_path: Path, story: str) -> None:
    last = _killed(tmp_path, story)
    store = apsw.Connection(str(Home(tmp_path / "home").store))
    store.execute("UPDATE session SET last_active_at = 77")
    store.close()
    assert _checked(tmp_path) == Exit.FAILED
    assert _checked(tmp_path, "--repair") == Exit.DONE
    assert _checked(tmp_path) == Exit.DONE
    assert asyncio.run(_next_number(tmp_path)) == last + 1
