"""Room for the write-ahead log: made where it can be, and of no consequence where it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from quarterdeck import events as ev
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.inspect import Inspection
from quarterdeck.log.sqlite.room import ROOM, make_room
from quarterdeck.log.sqlite.writer import Writer
from quarterdeck.testing.logs import OPENED, Writing


def test_a_log_that_is_open_has_room_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work() -> None:
        log = await SqliteLog.open(path)
        writing = Writing(log)
        await writing.write(OPENED)
        assert os.path.getsize(f"{path}-wal") == ROOM  # noqa: ASYNC240
        for number in range(20):
            await writing.write(ev.Notice(text=str(number)))
        make_room(path)  # in the middle of it: nothing is left to do
        assert [event.index for event in await log.read("s1")] == list(range(1, 22))
        await log.close()

    asyncio.run(work())


def test_a_disk_that_refuses_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = tmp_path / "x.db-wal"
    wal.write_bytes(b"as it was")

    def full(handle: int, data: bytes, place: int) -> int:
        os.lseek(handle, place, os.SEEK_SET)
        os.write(handle, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    make_room(tmp_path / "x.db")
    assert wal.read_bytes() == b"as it was"


def test_with_little_space_none_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = tmp_path / "x.db-wal"
    wal.write_bytes(b"as it was")
    monkeypatch.setattr("quarterdeck.log.sqlite.room._SPARE", 1 << 62)
    make_room(tmp_path / "x.db")
    assert wal.read_bytes() == b"as it was"


def test_a_store_without_such_a_log_is_not_touched(tmp_path: Path) -> None:
    make_room(tmp_path / "x.db")
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_writes_while_room_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zeros go behind what is there: what another process appended in between they would destroy."""
    path, real, said = tmp_path / "x.db", os.fstatvfs, list[str]()

    def another_comes(handle: int) -> os.statvfs_result:
        other = apsw.Connection(str(path))
        try:
            other.execute("CREATE TABLE other (x)").fetchall()
            said.append("written")
        except apsw.BusyError:
            said.append("refused")
        finally:
            other.close()
        return real(handle)

    monkeypatch.setattr(os, "fstatvfs", another_comes)
    asyncio.run(_opened_and_closed(path))
    monkeypatch.undo()
    assert said == ["refused"]
    asyncio.run(_opened_and_closed(path))
    assert apsw.Connection(str(path)).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def _opened_and_closed(path: Path) -> None:
    await (await SqliteLog.open(path)).close()


def test_a_store_that_another_process_holds_is_opened_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.log.sqlite.connection._BUSY_MS", 20)
    path = tmp_path / "x.db"

    async def work() -> None:
        writer = await asyncio.to_thread(Writer, path)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE").fetchall()
        writer.make_room()
        other.execute("ROLLBACK").fetchall()
        other.close()
        assert os.path.getsize(f"{path}-wal") < ROOM  # noqa: ASYNC240
        writer.close()

    asyncio.run(work())


# --- killed

KILLED = """
import asyncio, os, sys
from pathlib import Path
from quarterdeck import events as ev
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.testing.logs import OPENED, Writing

path, how, size, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
pwrite = os.pwrite

def half(handle, data, place):
    pwrite(handle, data[: len(data) // 2 + 77], place)
    os.kill(os.getpid(), 9)

async def main():
    if how == "half":
        os.pwrite = half
    log = await SqliteLog.open(path)
    if how == "opened":
        os.kill(os.getpid(), 9)
    writing = Writing(log)
    for number in range(count):
        await writing.write(ev.Notice(text=str(number) * size) if number else OPENED)
        print(writing.index, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def killed(path: Path, how: str, size: int = 1, count: int = 1) -> int:
    """How many events a process that was killed had acknowledged."""
    command = [sys.executable, "-c", KILLED, str(path), how, str(size), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    return len(done.stdout.split())


@pytest.mark.parametrize(
    ("how", "size", "count"),
    [("opened", 1, 1), ("half", 1, 1), ("written", 1, 3), ("written", 2000, 30), ("written", 6000, 900)],
    ids=["right after opening", "in the middle of the zeros", "a little written", "some written", "begun anew"],
)
def test_what_was_acknowledged_is_there_and_nothing_else(tmp_path: Path, how: str, size: int, count: int) -> None:
    path = tmp_path / "x.db"
    acknowledged = killed(path, how, size, count)
    assert os.path.getsize(f"{path}-wal") > (ROOM // 2 if how == "half" else ROOM - 1 if how == "written" else 0)
    found = list[int]()

    async def look() -> None:
        log = await SqliteLog.open(path)
        if await log.sessions():
            found.extend(event.index for event in await log.read("s1", limit=10_000))
        await Writing(log, "another").write(OPENED)
        await log.close()

    asyncio.run(look())
    assert found == list(range(1, acknowledged + 1))
    assert [one.name for one in tmp_path.iterdir()] == ["x.db"]  # the zeros went with the log


def test_a_second_time_killed_on_top_of_the_first(tmp_path: Path) -> None:
    """A log with room is found again, and filled on."""
    path = tmp_path / "x.db"
    assert killed(path, "half") == 0
    assert killed(path, "written", 100, 20) == 20
    assert killed(path, "opened") == 0

    async def look() -> None:
        log = await SqliteLog.open(path)
        assert [event.index for event in await log.read("s1")] == list(range(1, 21))
        await log.close()

    asyncio.run(look())


OTHER = """
import json, sqlite3, sys
found = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
asked = ("PRAGMA integrity_check", "SELECT count(*) FROM event")
print(json.dumps([found.execute(one).fetchone()[0] for one in asked]))
"""


def test_another_build_of_sqlite_reads_along_and_a_copy_is_whole(tmp_path: Path) -> None:
    path, copy = tmp_path / "x.db", tmp_path / "copy.db"

    async def work() -> None:
        log = await SqliteLog.open(path)
        writing = Writing(log)
        await writing.write(OPENED)
        for number in range(10):
            await writing.write(ev.Notice(text=str(number)))
        assert await asyncio.to_thread(read_by_another, path) == ["ok", 11]
        look = Inspection(path)
        assert look.damages() == []
        look.copy_to(copy, lambda *_: None)
        look.close()
        await writing.write(ev.Notice(text="after it"))
        await log.close()

    asyncio.run(work())
    assert read_by_another(copy) == ["ok", 11]
    assert read_by_another(path) == ["ok", 12]


def read_by_another(path: Path) -> list[object]:
    done = subprocess.run([sys.executable, "-c", OTHER, str(path)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="SQLite's own command line is not installed")
def test_sqlites_own_command_line_recovers_a_killed_store(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    acknowledged = killed(path, "written", 500, 40)
    asked = ["sqlite3", str(path), "PRAGMA integrity_check; SELECT count(*) FROM event;"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split() == ["ok", str(acknowledged)]
