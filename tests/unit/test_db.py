"""Test `qd db`: check, repair, migrate and copy the store, also while another process writes to it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

from quarterdeck.cli.app import app
from quarterdeck.cli.exits import Exit
from quarterdeck.log.sqlite.sql import newest_version
from tests.support.servers import PATIENCE_S, read_until
from tests.unit.log.old_stores import SESSIONS, restored, written


def qd(folder: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["db", *args], prog_name="qd", env={"QUARTERDECK_HOME": str(folder)})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Create a store with the code that a deck uses."""
    path = tmp_path / "quarterdeck.db"
    asyncio.run(written(path))
    # Normally the code that opens gates stores their last number. The bare record doesn't open gates.
    sql(path, "UPDATE session SET last_gate = CASE id WHEN 'talk' THEN 3 WHEN 'growing' THEN 12 ELSE 0 END")
    return path


def sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    rows: list[tuple[object, ...]] = []
    for statement in statements:
        rows = list(connection.execute(statement))
    connection.close()
    return rows


def checked(folder: Path, *args: str) -> tuple[int, dict[str, object]]:
    done = qd(folder, "check", "--json", *args)
    return done.exit_code, json.loads(done.stdout)


class TestCheck:
    def test_a_good_store_is_good(self, store: Path) -> None:
        code, report = checked(store.parent)
        assert code == Exit.DONE
        assert report["sessions"] == len(SESSIONS)
        assert report["version"] == newest_version()
        assert (report["damages"], report["differences"], report["repaired"]) == ([], [], 0)
        assert qd(store.parent, "check").stdout.endswith("no differences\n")

    def test_it_takes_no_ownership_and_changes_nothing(self, store: Path) -> None:
        before = store.read_bytes()
        assert checked(store.parent)[0] == Exit.DONE
        assert store.read_bytes() == before

    def test_progress_goes_to_standard_error(self, store: Path) -> None:
        done = qd(store.parent, "check", "--json")
        assert "folding the sessions: 100 %" in done.stderr
        assert "folding" not in done.stdout

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ("UPDATE session SET name = 'other' WHERE id = 'talk'", "name"),
            ("UPDATE session SET status = 'suspended' WHERE id = 'talk'", "status"),
            ("UPDATE session SET last_gate = 2 WHERE id = 'talk'", "last_gate"),
            ("UPDATE session SET last_active_at = 77 WHERE id = 'talk'", "last_active_at"),
            ("UPDATE session SET last_index = last_index + 1 WHERE id = 'talk'", "last_index"),
            ("UPDATE session SET view = x'00' WHERE id = 'talk'", "view"),
            ("UPDATE session SET view = (SELECT view FROM session WHERE id = 'growing') WHERE id = 'talk'", "view.run"),
        ],
    )
    def test_each_difference_is_told_and_repaired(self, store: Path, change: str, what: str) -> None:
        before = sql(store, "SELECT * FROM session ORDER BY id")
        sql(store, change)
        code, report = checked(store.parent)
        assert code == Exit.FAILED
        assert {"talk"} == {one["session"] for one in report["differences"]}
        assert what in [one["what"] for one in report["differences"]]
        assert "talk: " in qd(store.parent, "check").stdout
        code, report = checked(store.parent, "--repair")
        assert (code, report["repaired"]) == (Exit.DONE, len(report["differences"]))
        assert checked(store.parent)[0] == Exit.DONE
        assert _without_views(sql(store, "SELECT * FROM session ORDER BY id")) == _without_views(before)

    def test_an_event_out_of_order_is_told_and_cannot_be_cured(self, store: Path) -> None:
        sql(store, "UPDATE event SET at = 1 WHERE session = 1 AND position = 16")
        code, report = checked(store.parent, "--repair")
        assert (code, report["repaired"]) == (Exit.FAILED, 0)
        assert "event 16 is older than 15" in [one["what"] for one in report["differences"]]

    def test_an_event_that_cannot_be_read_is_told(self, store: Path) -> None:
        sql(store, "UPDATE event SET body = CAST('{' AS BLOB) WHERE session = 1 AND position = 3")
        code, report = checked(store.parent)
        assert code == Exit.FAILED
        assert [one["what"] for one in report["differences"]] == ["an event"]

    def test_a_delta_of_nobody_is_told(self, store: Path) -> None:
        sql(
            store,
            "PRAGMA foreign_keys = OFF",
            "DELETE FROM event WHERE session = 2",
            "DELETE FROM session WHERE number = 2",
        )
        code, report = checked(store.parent)
        assert code == Exit.FAILED
        assert [one["session"] for one in report["differences"]] == ["", ""]

    def test_damage_is_told(self, store: Path) -> None:
        size = os.path.getsize(store)
        with open(store, "r+b") as file:
            file.seek(size - 4096 * 2)
            file.write(os.urandom(4096))
        done = qd(store.parent, "check")
        assert done.exit_code == Exit.FAILED
        assert "damaged: " in done.stdout
        assert "Restore a backup" in done.stdout

    def test_no_store(self, tmp_path: Path) -> None:
        for command in (["check"], ["check", "--repair"], ["migrate"], ["backup", str(tmp_path / "copy.db")]):
            done = qd(tmp_path / "nowhere", *command)
            assert done.exit_code == Exit.NO_SUCH_THING, command
            assert "there is no store" in done.stderr
        assert not (tmp_path / "copy.db").exists()

    def test_not_a_store(self, tmp_path: Path) -> None:
        (tmp_path / "quarterdeck.db").write_text("a letter to my aunt" * 500)
        done = qd(tmp_path, "check")
        assert done.exit_code == Exit.FAILED
        assert "not a Quarterdeck store" in done.stderr

    def test_repair_wants_to_be_alone(self, store: Path) -> None:
        with open(store.parent / "lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for command in (["check", "--repair"], ["migrate"]):
                done = qd(store.parent, *command)
                assert done.exit_code == Exit.NOT_ALLOWED_NOW
                assert "a deck is running" in done.stderr
            assert checked(store.parent)[0] == Exit.DONE


def _without_views(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Remove the stored views: a repair writes the current ones, which may be newer."""
    return [tuple(one for one in row if not isinstance(one, bytes)) for row in rows]


class TestMigrate:
    def test_an_old_store_is_brought_forward_once(self, tmp_path: Path) -> None:
        restored(1, tmp_path / "quarterdeck.db")
        assert qd(tmp_path, "check").exit_code == Exit.FAILED
        assert "qd db migrate" in qd(tmp_path, "check").stderr
        done = qd(tmp_path, "migrate")
        assert (done.exit_code, done.stdout.rpartition(": ")[2]) == (Exit.DONE, f"version 1 → {newest_version()}\n")
        assert "already" in qd(tmp_path, "migrate").stdout
        assert checked(tmp_path)[0] == Exit.DONE

    def test_a_newer_store_is_refused(self, store: Path) -> None:
        sql(store, "PRAGMA user_version = 99")
        for command in (["migrate"], ["check"], ["backup", str(store.parent / "copy.db")]):
            done = qd(store.parent, *command)
            assert done.exit_code == Exit.FAILED
            assert "version 99" in done.stderr


class TestBackup:
    def test_the_copy_is_a_store(self, store: Path, tmp_path: Path) -> None:
        folder = tmp_path / "copy"
        folder.mkdir()
        done = qd(store.parent, "backup", str(folder / "quarterdeck.db"))
        assert done.exit_code == Exit.DONE, done.stderr
        assert "copying: 100 %" in done.stderr
        assert os.listdir(folder) == ["quarterdeck.db"]
        assert os.stat(folder / "quarterdeck.db").st_mode & 0o777 == 0o600
        assert checked(folder)[1]["events"] == checked(store.parent)[1]["events"]

    def test_it_writes_over_nothing(self, store: Path, tmp_path: Path) -> None:
        target = tmp_path / "precious"
        target.write_text("precious")
        done = qd(store.parent, "backup", str(target))
        assert done.exit_code == Exit.NOT_ALLOWED_NOW
        assert "already exists" in done.stderr
        assert target.read_text() == "precious"

    def test_a_folder_that_is_not_there(self, store: Path, tmp_path: Path) -> None:
        done = qd(store.parent, "backup", str(tmp_path / "no" / "copy.db"))
        assert done.exit_code == Exit.NO_SUCH_THING
        assert "there is no folder" in done.stderr


WRITER = """
import asyncio, sys
from pathlib import Path
from quarterdeck import events as ev
from quarterdeck.log.session_writer import SessionWriter
from quarterdeck.log.sqlite import SqliteLog

async def main():
    log = await SqliteLog.open(Path(sys.argv[1]))
    records = [SessionWriter(log, f"busy{n}", clock=lambda: 10_000) for n in range(4)]
    for record in records:
        record.write([ev.SessionOpened(agent="test", prompt="x"), ev.AgentReady(), ev.AgentStart()], "engine")
    for turn in range(100_000):
        for record in records:
            name = f"m{turn}"
            record.write([ev.MessageStart(message_id=name), ev.MessageDelta(message_id=name, delta="x" * 50)], "engine")
            if turn % 3:
                record.write([ev.ResponseComplete(message_id=name)], "engine")
        for record in records:
            await record.flush()
        print(turn, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """Create a store that another process writes to until the test ends."""
    path = tmp_path / "quarterdeck.db"
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    read_until(child, child.stdout, "19\n")
    yield path
    assert child.poll() is None, "the writer was disturbed"
    before = _turns(path)
    child.stdout.read(1)
    child.kill()
    child.stdout.close()
    child.wait(PATIENCE_S)
    assert _turns(path) >= before


def _turns(path: Path) -> int:
    return int(str(sql(path, "SELECT max(position) FROM event")[0][0]))


def test_a_store_in_use_is_checked_without_a_false_alarm(busy: Path) -> None:
    for _ in range(3):
        code, report = checked(busy.parent)
        assert (code, report["differences"], report["damages"]) == (Exit.DONE, [], [])
        assert report["sessions"] == 4
    assert sql(busy, "SELECT value FROM meta WHERE key = 'epoch'") == [(1,)]


def test_a_store_in_use_is_copied_as_of_one_moment(busy: Path, tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / f"copy{number}"
        folder.mkdir()
        done = qd(busy.parent, "backup", str(folder / "quarterdeck.db"))
        assert done.exit_code == Exit.DONE, done.stderr
        code, report = checked(folder)
        assert (code, report["differences"]) == (Exit.DONE, [])
