"""Test stores of processes that were killed: every acknowledged event is there, and nothing else."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck import events as ev
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.inspect import Inspection
from quarterdeck.testing.logs import OPENED, SampleWriter

KILLED = """
import asyncio, os, sys
from pathlib import Path
from quarterdeck import events as ev
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.testing.logs import OPENED, SampleWriter

path, how, size, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

async def main():
    log = await SqliteLog.open(path)
    if how == "opened":
        os.kill(os.getpid(), 9)
    writing = SampleWriter(log)
    for number in range(count):
        await writing.write(ev.Notice(text=str(number) * size) if number else OPENED)
        print(writing.index, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def killed(path: Path, how: str, size: int = 1, count: int = 1) -> int:
    """Run a process that is killed, and return how many events it had acknowledged."""
    command = [sys.executable, "-c", KILLED, str(path), how, str(size), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    return len(done.stdout.split())


@pytest.mark.parametrize(
    ("how", "size", "count"),
    [("opened", 1, 1), ("written", 1, 3), ("written", 2000, 30), ("written", 6000, 900)],
    ids=["right after opening", "a little written", "some written", "checkpointed"],
)
def test_what_was_acknowledged_is_there_and_nothing_else(tmp_path: Path, how: str, size: int, count: int) -> None:
    path = tmp_path / "x.db"
    acknowledged = killed(path, how, size, count)
    found = list[int]()

    async def look() -> None:
        log = await SqliteLog.open(path)
        if await log.sessions():
            found.extend(event.index for event in await log.read("s1", limit=10_000))
        await SampleWriter(log, "another").write(OPENED)
        await log.close()

    asyncio.run(look())
    assert found == list(range(1, acknowledged + 1))
    assert [one.name for one in tmp_path.iterdir()] == ["x.db"]


async def test_a_second_time_killed_on_top_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    assert killed(path, "written", 100, 20) == 20
    assert killed(path, "opened") == 0

    log = await SqliteLog.open(path)
    assert [event.index for event in await log.read("s1")] == list(range(1, 21))
    await log.close()


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
        writing = SampleWriter(log)
        await writing.write(OPENED)
        for number in range(10):
            await writing.write(ev.Notice(text=str(number)))
        assert await asyncio.to_thread(read_by_another, path) == ["ok", 11]
        look = Inspection(path)
        assert look.integrity_errors() == []
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
