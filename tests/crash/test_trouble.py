"""Test disks, files and clocks that fail a whole deck: a clear error or a clean recovery, never a wrong state.

Events of an agent during the failure are in the log afterwards. Commands of a user during the failure are refused
without an effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from quarterdeck.deck.clock import Clock
from quarterdeck.deck.deck import Deck
from quarterdeck.harness import registry
from tests.crash.agent import NAME
from tests.crash.audit import Audit
from tests.crash.conftest import Live
from tests.crash.ledger import Deed, Ledger
from tests.crash.life import Life, Refused, left_behind, until

COMMANDS = {
    "prompt": {"text": "say more"},
    "rename": {"name": "another name"},
    "mark": {"snoozed_until": 12},
    "switch_model": {"model": "other"},
    "abort": {"clear_queue": True},
}


class Desk:
    """A session at work, and a ledger of the commands sent to it."""

    def __init__(self, home: Path, life: Life, script: str) -> None:
        assert life.wait_open(), life.refused
        self.home = home
        self.life = life
        self.ledger = Ledger(home.parent / "evidence")
        self.session = life.ask("create", prompt=script, cwd=str(home.parent / "work"))

    def ask(self, method: str) -> Deed:
        deed = Deed(self.session, method, f"key of {method}", dict(COMMANDS[method]))
        self.ledger.deeds.append(deed)
        deed.future = self.life.send(
            "command", session=self.session, method=method, client_id=deed.key, **COMMANDS[method]
        )
        with contextlib.suppress(Refused):
            deed.future.result(30)
        return deed

    def refused(self, method: str) -> str:
        """Send a command that must be refused without changing the state, and return its error code."""
        before = self.life.state(self.session)
        deed = self.ask(method)
        assert deed.future is not None
        error = deed.future.exception()
        assert isinstance(error, Refused), error
        deed.settle()
        after = self.life.state(self.session)
        assert {**after, "index": 0} == {**before, "index": 0}, method
        assert error.error["hint"]
        return error.error["code"]

    def findings(self) -> list[str]:
        return Audit(self.home, self.ledger).lasting()

    def texts(self) -> str:
        entries = self.life.ask("command", session=self.session, method="timeline")
        return " ".join(one["text"] for one in entries if one["kind"] == "assistant")


# --- a disk that fails


@pytest.mark.parametrize("trouble", ["full", "broken"])
def test_a_disk_that_takes_nothing(home: Path, live: Live, trouble: str) -> None:
    desk = Desk(home, live(disk="sound"), "sleep 1; say these words were said; tool ls; say in time")
    until("the agent is at work", lambda: desk.life.state(desk.session)["run"] != "idle")
    desk.life.ask("disk", trouble=trouble)
    assert {desk.refused(method) for method in COMMANDS} == {"log_unavailable"}
    # The agent writes its reply meanwhile, and none of it can be stored.
    time.sleep(1.2)
    assert {desk.refused(method) for method in ("rename", "mark")} == {"log_unavailable"}
    desk.life.ask("disk", trouble="")
    until("what the agent said is there", lambda: desk.life.state(desk.session)["phase"] == "completed")
    assert desk.texts() == "these words were said  in time "
    assert desk.findings() == []
    assert not desk.ask("rename").future.exception()
    desk.ledger.deeds.clear()
    assert desk.findings() == []


def test_a_kill_while_the_disk_is_full(home: Path, live: Live) -> None:
    desk = Desk(home, live(disk="sound"), "sleep 0.5; flood 300; ask rm")
    until("the agent is at work", lambda: desk.life.state(desk.session)["run"] != "idle")
    desk.life.ask("disk", trouble="full")
    assert {desk.refused(method) for method in COMMANDS} == {"log_unavailable"}
    time.sleep(0.6)
    desk.life.kill("deck")
    desk.life.wait_end()
    assert left_behind(home) == []
    again = live()
    assert again.wait_open(), again.refused
    assert Audit(home, desk.ledger).at_rest(again.ask("states"), desk.life.published) == []
    assert again.state(desk.session)["lifecycle"] == "suspended"


def test_a_start_on_a_full_disk(home: Path, live: Live) -> None:
    desk = Desk(home, live(), "ask rm")
    until("it asks", lambda: desk.life.state(desk.session)["open"])
    desk.life.kill("deck")
    desk.life.wait_end()
    full = live(disk="full")
    assert not full.wait_open()
    full.wait_end()
    assert full.refused is not None
    assert full.refused["code"] == "log_unavailable"
    again = live()
    assert again.wait_open(), again.refused
    assert Audit(home, desk.ledger).at_rest(again.ask("states"), desk.life.published) == []


# --- a read-only home

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def may_mount() -> bool:
    return (
        shutil.which("unshare") is not None and not subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode
    )


def read_only(home: Path) -> tuple[str, ...]:
    """Return the command prefix that runs a program for which this home is read-only.

    If mounting isn't allowed, remove the folder's write permission instead. That doesn't restrict root, but root may
    mount.
    """
    if may_mount():
        script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        return (*NAMESPACE, "sh", "-c", script, str(home))
    assert os.getuid() != 0, "neither mounting nor rights can make a folder read-only here"
    os.chmod(home, 0o500)
    return ()


def test_a_read_only_home(home: Path, live: Live) -> None:
    desk = Desk(home, live(), "ask rm")
    until("it asks", lambda: desk.life.state(desk.session)["open"])
    desk.life.kill("deck")
    desk.life.wait_end()
    before = (home / "quarterdeck.db").read_bytes()
    refused = live(before=read_only(home))
    assert not refused.wait_open()
    refused.wait_end()
    os.chmod(home, 0o700)
    assert refused.refused is not None
    assert refused.refused["code"] == "log_unavailable"
    assert refused.refused["hint"]
    assert (home / "quarterdeck.db").read_bytes() == before
    again = live()
    assert again.wait_open(), again.refused
    assert Audit(home, desk.ledger).at_rest(again.ask("states"), desk.life.published) == []


def test_a_home_that_is_a_file(home: Path, live: Live) -> None:
    home.write_text("mine")
    life = live()
    assert not life.wait_open()
    life.wait_end()
    assert life.refused is not None
    assert life.refused["code"] == "log_unavailable"
    assert home.read_text() == "mine"


def test_two_decks_on_one_home(home: Path, live: Live) -> None:
    desk = Desk(home, live(), "ask rm")
    until("it asks", lambda: desk.life.state(desk.session)["open"])
    second = live()
    assert not second.wait_open()
    second.wait_end()
    assert second.refused is not None
    assert second.refused["code"] == "home_in_use"
    # The first deck isn't affected: its agent is alive and its gate can be answered.
    gate = desk.life.state(desk.session)["open"][0]
    desk.life.ask("command", session=desk.session, method="approve", gate_id=gate)
    until("it goes on", lambda: desk.life.state(desk.session)["phase"] == "completed")
    assert desk.findings() == []


# --- another program's lock


def test_a_locked_store(home: Path, live: Live) -> None:
    desk = Desk(home, live(), "sleep 1; say these words were said")
    until("the agent is at work", lambda: desk.life.state(desk.session)["run"] != "idle")
    with contextlib.closing(sqlite3.connect(home / "quarterdeck.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert desk.refused("rename") == "log_unavailable"
        other.execute("ROLLBACK")
    until("what the agent said is there", lambda: desk.life.state(desk.session)["phase"] == "completed")
    assert desk.texts() == "these words were said "
    assert desk.findings() == []


def test_a_start_on_a_locked_store(home: Path, live: Live) -> None:
    desk = Desk(home, live(), "ask rm")
    until("it asks", lambda: desk.life.state(desk.session)["open"])
    desk.life.kill("both")
    desk.life.wait_end()
    with contextlib.closing(sqlite3.connect(home / "quarterdeck.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = live()
        assert not refused.wait_open()
        refused.wait_end()
    assert refused.refused is not None
    assert refused.refused["code"] == "log_unavailable"
    assert left_behind(home) == []
    again = live()
    assert again.wait_open(), again.refused
    assert Audit(home, desk.ledger).at_rest(again.ask("states"), desk.life.published) == []


# --- a damaged write-ahead log


def worked_and_killed(home: Path, live: Live) -> Desk:
    """Run a turn and kill the deck. Without a checkpoint, many events are in the write-ahead log only."""
    desk = Desk(home, live(), "flood 200; tool ls; say done")
    until("the turn is over", lambda: desk.life.state(desk.session)["phase"] == "completed")
    for method in COMMANDS:
        desk.ask(method).settle()
    desk.life.kill("deck")
    desk.life.wait_end()
    assert written(home / "quarterdeck.db-wal") > 20_000
    return desk


def written(wal: Path) -> int:
    """Return the length of the written part. SQLite may allocate more, filled with zeros."""
    return len(wal.read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("seed", range(3))
def test_garbage_at_the_end_of_the_write_ahead_log(home: Path, live: Live, seed: int) -> None:
    desk = worked_and_killed(home, live)
    with open(home / "quarterdeck.db-wal", "r+b") as file:
        file.seek(written(home / "quarterdeck.db-wal"))
        file.write(random.Random(seed).randbytes(4096 * 3 + seed * 1000))
    again = live()
    assert again.wait_open(), again.refused
    assert Audit(home, desk.ledger).at_rest(again.ask("states"), desk.life.published) == []


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_write_ahead_log(home: Path, live: Live, share: float) -> None:
    """Events in the lost part are gone, but the rest is consistent and the deck continues from there."""
    desk = worked_and_killed(home, live)
    wal = home / "quarterdeck.db-wal"
    os.truncate(wal, int(written(wal) * share))
    again = live()
    assert again.wait_open(), again.refused
    states = again.ask("states")
    assert Audit(home, Ledger(desk.ledger.evidence)).at_rest(states, []) == []
    fresh = again.ask("create", prompt="say hello", cwd=str(home.parent / "work"))
    until("it works", lambda: again.state(fresh)["phase"] == "completed")


# --- a clock that is set back


def test_a_clock_that_goes_back(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.HARNESSES, NAME, "tests.crash.agent:harness")
    behind = [0]

    def clock() -> Clock:
        return Clock(wall=lambda: time.time_ns() // 1_000_000 - behind[0])

    async def work() -> None:
        deck = await Deck.open(home, clock=clock())
        session = await deck.create(NAME, "say one", cwd=str(home.parent / "work"))
        await session.settled()
        behind[0] = 3_600_000
        await session.prompt("say two")
        await session.settled()
        await session.rename("after the clock was set back")
        await deck.close()
        behind[0] = 2 * 3_600_000
        deck = await Deck.open(home, clock=clock())
        await deck.session(session.id).prompt("say three")
        view = await deck.session(session.id).settled()
        assert view.state.phase.value == "completed"
        other = await deck.create(NAME, "say four", cwd=str(home.parent / "work"))
        await other.settled()
        assert [one.text for one in await deck.session(session.id).timeline() if one.kind == "assistant"] == [
            "one ",
            "two ",
            "three ",
        ]
        await deck.close()

    asyncio.run(asyncio.wait_for(work(), 60))
    assert Audit(home, Ledger(home.parent / "evidence")).lasting() == []
