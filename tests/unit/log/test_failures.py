"""Test a store on disks that fail: full, read-only, locked, damaged. Errors are typed, and no acknowledged event is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from quarterdeck import events as ev
from quarterdeck.log.base import LogUnavailable
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.testing.logs import OPENED, SampleWriter

COMMON = """
import asyncio, json, os, resource, subprocess, sys
from pathlib import Path
from quarterdeck import events as ev
from quarterdeck.log.base import LogUnavailable
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.testing.logs import OPENED, SampleWriter

folder = Path(sys.argv[1])
said = {}

async def until_refused(writing, size):
    for _ in range(10_000):
        try:
            await writing.write(ev.Notice(text="x" * size))
        except LogUnavailable as error:
            return error.message, error.hint
    raise AssertionError("never refused")

async def again(log, writing, name):
    before = writing.index
    await writing.write(ev.Notice(text="after"))
    said[name] = [event.index for event in await log.read("s1", limit=100_000)] == list(range(1, before + 2))

async def reopened():
    log = await SqliteLog.open(folder / "x.db")
    writing = SampleWriter(log)
    stored = await log.session("s1")
    writing.fence, writing.index = stored.fence, stored.last_index
    return log, writing
"""


def child(script: str, folder: Path, *before: str) -> dict[str, object]:
    """Run a script in a process of its own, started with the command `before`, and return its results."""
    done = subprocess.run(
        [*before, sys.executable, "-c", COMMON + script + "\nprint(json.dumps(said))", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


own_disk = pytest.mark.skipif(
    not may_mount(), reason="this kernel lets nobody mount; the tests with limits and permissions show the same"
)

FULL_DISK = """
async def main():
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    log = await SqliteLog.open(folder / "x.db")
    writing = SampleWriter(log)
    await writing.write(OPENED)
    await until_refused(writing, 3_000)
    said["message"], said["hint"] = await until_refused(writing, 20_000)
    said["still"] = [event.index for event in await log.read("s1", limit=100_000)] == list(range(1, writing.index + 1))
    subprocess.run(["mount", "-o", "remount,size=8m", str(folder)], check=True)
    await again(log, writing, "after more space")
    await log.close()
    log, same = await reopened()
    said["kept"] = same.index == writing.index
    await again(log, same, "after opening again")
    await log.close()

asyncio.run(main())
"""


@own_disk
def test_a_full_disk(tmp_path: Path) -> None:
    said = child(FULL_DISK, tmp_path, *NAMESPACE)
    assert "the disk is full" in str(said.pop("message"))
    assert "Free some space" in str(said.pop("hint"))
    assert said == {"still": True, "after more space": True, "kept": True, "after opening again": True}


FULL_AT_START = """
async def main():
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    filler = folder / "filler"
    try:
        filler.write_bytes(b"x" * 2_000_000)
    except OSError:
        pass
    try:
        await SqliteLog.open(folder / "x.db")
    except LogUnavailable as error:
        said["message"] = error.message
    filler.unlink()
    log = await SqliteLog.open(folder / "x.db")
    await SampleWriter(log).write(OPENED)
    said["then"] = len(await log.read("s1"))
    await log.close()

asyncio.run(main())
"""


@own_disk
def test_a_disk_that_is_full_before_the_store_is_made(tmp_path: Path) -> None:
    said = child(FULL_AT_START, tmp_path, *NAMESPACE)
    assert "the log is unavailable" in str(said["message"])
    assert said["then"] == 1


READ_ONLY_DISK = """
async def main():
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    log = await SqliteLog.open(folder / "x.db")
    writing = SampleWriter(log)
    await writing.write(OPENED, ev.Notice(text="kept"))
    await log.close()
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        await reopened()
    except LogUnavailable as error:
        said["message"], said["hint"] = error.message, error.hint
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    log, writing = await reopened()
    await again(log, writing, "writable again")
    await log.close()

asyncio.run(main())
"""


@own_disk
def test_a_read_only_file_system(tmp_path: Path) -> None:
    said = child(READ_ONLY_DISK, tmp_path, *NAMESPACE)
    assert "can't be opened" in str(said["message"])
    assert "read-only disk" in str(said["hint"])
    assert said["writable again"] is True


READ_ONLY_FILES = """
from quarterdeck.log.sqlite.sql import migrations, queries

assert queries() and migrations()  # read while we still may
if os.geteuid() == 0:
    os.setuid(65534)  # root may write everywhere

async def main():
    log = await SqliteLog.open(folder / "x.db")
    writing = SampleWriter(log)
    await writing.write(OPENED, ev.Notice(text="kept"))
    await log.close()
    os.chmod(folder / "x.db", 0o444)
    os.chmod(folder, 0o555)
    try:
        await reopened()
    except LogUnavailable as error:
        said["message"], said["hint"] = error.message, error.hint
    os.chmod(folder, 0o755)
    os.chmod(folder / "x.db", 0o644)
    log, writing = await reopened()
    await again(log, writing, "writable again")
    await log.close()

asyncio.run(main())
"""


def test_read_only_files_and_folder() -> None:
    """Use a folder that every user can reach: only the user who runs pytest can reach `tmp_path`."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "deck"
        folder.mkdir()
        os.chmod(name, 0o755)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        said = child(READ_ONLY_FILES, folder)
    assert "read-only" in str(said["message"])
    assert "writable" in str(said["hint"])
    assert said["writable again"] is True


def test_a_store_that_becomes_read_only_under_us(tmp_path: Path) -> None:
    async def work(log: SqliteLog) -> None:
        writing = SampleWriter(log)
        await writing.write(OPENED)
        store = log._writer._store  # pyright: ignore[reportPrivateUsage]
        store.execute("PRAGMA query_only = ON")
        with pytest.raises(LogUnavailable, match="read-only"):
            await writing.write(ev.Notice(text="not now"))
        store.execute("PRAGMA query_only = OFF")
        await writing.write(ev.Notice(text="now"))
        assert [event.index for event in await log.read("s1")] == [1, 2]

    with_log(tmp_path / "x.db", work)


LIMITED = """
async def main():
    log = await SqliteLog.open(folder / "x.db")
    writing = SampleWriter(log)
    await writing.write(OPENED)
    size = len((folder / "x.db-wal").read_bytes().rstrip(bytes(1)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, resource.RLIM_INFINITY))
    said["message"], said["hint"] = await until_refused(writing, 3_000)
    said["still"] = [event.index for event in await log.read("s1", limit=1_000)] == list(range(1, writing.index + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await again(log, writing, "after more space")
    await log.close()
    log, same = await reopened()
    said["kept"] = same.index == writing.index
    await log.close()

asyncio.run(main())
"""


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """Limit the file size, which fails like a quota: the write itself returns an error."""
    said = child(LIMITED, tmp_path)
    assert "the disk" in str(said.pop("message"))
    assert "No acknowledged event is lost" in str(said.pop("hint"))
    assert said == {"still": True, "after more space": True, "kept": True}


LIMITED_AT_START = """
async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
    try:
        await SqliteLog.open(folder / "x.db")
    except LogUnavailable as error:
        said["message"] = error.message
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log = await SqliteLog.open(folder / "x.db")
    await SampleWriter(log).write(OPENED)
    said["then"] = len(await log.read("s1"))
    await log.close()

asyncio.run(main())
"""


def test_a_store_that_finds_no_room_to_be_made(tmp_path: Path) -> None:
    said = child(LIMITED_AT_START, tmp_path)
    assert "the log is unavailable" in str(said["message"])
    assert said["then"] == 1


# --- Locks

HOLDER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN EXCLUSIVE").fetchall()
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """Another process that locks the store until it is stopped."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        self._process.communicate()


async def test_a_store_that_another_process_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarterdeck.log.sqlite.connection._BUSY_MS", 50)
    path = tmp_path / "x.db"

    log = await SqliteLog.open(path)
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    await a.write(OPENED)
    holder = Holder(path)
    try:
        outcomes = await asyncio.gather(a.write(ev.Notice(text="x")), b.write(OPENED), return_exceptions=True)
        assert ["locked" in str(one) for one in outcomes] == [True, True]
        with pytest.raises(LogUnavailable, match="locked"):
            await SqliteLog.open(path)
        assert [event.index for event in await log.read("a")] == [1]
    finally:
        holder.let_go()
    await asyncio.gather(a.write(ev.Notice(text="x")), b.write(OPENED))
    assert [(event.session_id, event.index) for event in await log.read_all()] == [("a", 1), ("a", 2), ("b", 1)]
    await log.close()


# --- Damage


def with_log(path: Path, work: Callable[[SqliteLog], object]) -> None:
    async def run() -> None:
        log = await SqliteLog.open(path)
        try:
            await work(log)  # pyright: ignore[reportGeneralTypeIssues]
        finally:
            await log.close()

    asyncio.run(run())


KILLED = """
async def main():
    writing = SampleWriter(await SqliteLog.open(folder / "x.db"))
    await writing.write(OPENED)
    for number in range(30):
        await writing.write(ev.Notice(text=str(number) * 200))
    print(json.dumps({}), flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Create a store whose events are all still in its write-ahead log."""
    subprocess.run([sys.executable, "-c", COMMON + KILLED, str(tmp_path)], check=False, capture_output=True)
    assert len(_written(tmp_path / "x.db")) > 50_000
    return tmp_path / "x.db"


def _written(store: Path) -> bytes:
    """Return the part of the write-ahead log that was written, without the empty space after it."""
    return Path(f"{store}-wal").read_bytes().rstrip(b"\0")


def test_garbage_in_the_write_ahead_log_leaves_a_prefix(killed: Path, tmp_path: Path) -> None:
    """Check that SQLite stops at the first frame with a wrong checksum and ignores the frames after it."""
    rng = random.Random(4)
    whole = _written(killed)
    lengths: set[int] = set()
    for number in range(25):
        # The first round damages the header.
        place = rng.randrange(len(whole)) if number else 8
        spoilt = whole[:place] + rng.randbytes(64) + whole[place + 64 :]
        lengths.add(_prefix(killed, tmp_path / f"spoilt{number}.db", spoilt))
    assert len(lengths) > 5
    assert _prefix(killed, tmp_path / "random.db", rng.randbytes(len(whole))) == 0
    assert _prefix(killed, tmp_path / "longer.db", whole + rng.randbytes(5_000)) == 31


def _prefix(killed: Path, copy: Path, wal: bytes) -> int:
    """Count the store's events with this write-ahead log. Check that they are the first ones and that writes work."""
    copy.write_bytes(killed.read_bytes())
    Path(f"{copy}-wal").write_bytes(wal)
    found: list[int] = []

    async def work(log: SqliteLog) -> None:
        for stored in await log.sessions():
            found.extend(event.index for event in await log.read(stored.row.session_id))
            assert stored.last_index == len(found)
        fresh = SampleWriter(log, "fresh")
        await fresh.write(OPENED)

    with_log(copy, work)
    assert found == list(range(1, len(found) + 1))
    return len(found)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog) -> None:
        writing = SampleWriter(log)
        await writing.write(OPENED)
        await writing.write(*(ev.Notice(text="x" * 500) for _ in range(2_000)))

    with_log(path, work)
    return path


def test_a_damaged_file_is_a_typed_error_wherever_it_shows(large: Path) -> None:
    """Check damage that is found at opening, at reading and at writing. It never shows up as an event."""
    rng, whole, refused = random.Random(9), large.read_bytes(), 0
    for _ in range(20):
        page = rng.randrange(1, len(whole) // 4096) * 4096
        large.write_bytes(whole[:page] + rng.randbytes(4096) + whole[page + 4096 :])
        for suffix in ("-wal", "-shm"):
            Path(f"{large}{suffix}").unlink(missing_ok=True)
        refused += asyncio.run(_uses(large))
    assert refused > 0


async def _uses(path: Path) -> bool:
    """Open, read and write, and return whether that was refused. Check that every event is one that was written."""
    try:
        log = await SqliteLog.open(path)
    except LogUnavailable:
        return True
    try:
        for event in await log.read("s1", limit=10_000):
            assert event.body in (OPENED, ev.Notice(text="x" * 500))
        await SampleWriter(log, "fresh").write(OPENED)
    except LogUnavailable:
        return True
    finally:
        await log.close()
    return False


@pytest.mark.parametrize("size", [100, 4096, 10_000, 200_000])
def test_a_file_that_was_cut_is_a_typed_error(large: Path, size: int) -> None:
    large.write_bytes(large.read_bytes()[:size])
    assert asyncio.run(_uses(large))


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    assert not asyncio.run(_opened_and_written(tmp_path / "x.db"))


async def _opened_and_written(path: Path) -> bool:
    log = await SqliteLog.open(path)
    await SampleWriter(log).write(OPENED)
    empty = not await log.read("s1")
    await log.close()
    return empty


def test_a_database_of_somebody_else_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE session (mine); INSERT INTO session VALUES (1)").fetchall()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LogUnavailable):
        asyncio.run(_opened_and_written(path))
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT * FROM session").fetchall() == [(1,)]
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("session",)]
    connection.close()
    assert len(before) == len(path.read_bytes())
