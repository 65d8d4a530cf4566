"""Test the SQLite log: migrations, refusals, ownership, kill -9, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.log.base import Append, Fence, LogUnavailable, NewerLog, Receipt, StaleFence
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.connection import StoreConnection
from quarterdeck.log.sqlite.delta_packs import decode_pack
from quarterdeck.log.sqlite.sql import RARE, migrations, newest_version, queries, typed
from quarterdeck.testing.logs import OPENED, SampleWriter, deletion_event, sample_row
from tests.conformance.marks import case

Work = Callable[[SqliteLog], Awaitable[None]]


def with_log(path: Path, work: Work) -> None:
    async def run() -> None:
        log = await SqliteLog.open(path)
        try:
            await work(log)
        finally:
            await log.close()

    asyncio.run(run())


async def two_events(log: SqliteLog) -> None:
    await SampleWriter(log).write(OPENED, ev.Notice(text="kept"))


def test_migrations_are_numbered_without_gaps() -> None:
    assert [version for version, _ in migrations()] == list(range(1, newest_version() + 1))


def test_every_query_is_understood_by_sqlite(tmp_path: Path) -> None:
    store = StoreConnection(tmp_path / "x.db")
    store.migrate()
    for name in queries():
        sql = typed(name, None)
        assert store.execute(f"EXPLAIN {sql}", [None] * sql.count("?")), name
    store.close()


def test_a_newer_store_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with_log(path, two_events)
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA user_version = {newest_version() + 1}").fetchall()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NewerLog, match="version"):
        with_log(path, two_events)
    assert path.read_bytes() == before


@pytest.mark.parametrize("types", [("command_receipt",), ("command_receipt", "process_starting"), RARE])
def test_rare_types_are_found_by_their_index(tmp_path: Path, types: tuple[str, ...]) -> None:
    """Check that the code and the migration list the same types: otherwise SQLite wouldn't use the partial index."""
    store = StoreConnection(tmp_path / "x.db")
    store.migrate()
    for name, index in (("read_session", "event_rare"), ("read_all", "event_rare_all")):
        sql = typed(name, types)
        plan = store.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))
        assert f"USING INDEX {index} (" in str(plan), plan
    store.close()


def test_a_status_that_cannot_be_fails_alone(tmp_path: Path) -> None:
    async def work(log: SqliteLog) -> None:
        good, bad = SampleWriter(log, "good"), SampleWriter(log, "bad")
        outcomes = await asyncio.gather(
            good.write(OPENED), bad.write(OPENED, row=sample_row("bad", "nonsense")), return_exceptions=True
        )
        assert isinstance(outcomes[0], Receipt)
        assert isinstance(outcomes[1], LogUnavailable)
        await good.write(ev.Notice(text="goes on"))
        assert [event.session_id for event in await log.read_all()] == ["good", "good"]

    with_log(tmp_path / "x.db", work)


def test_a_pack_is_dropped_although_the_store_was_closed_between(tmp_path: Path) -> None:
    """Share a pack between two messages, and finish one before the store is closed and one afterwards."""
    path = tmp_path / "x.db"
    told = ev.MessageAborted(message_id="m")

    async def before(log: SqliteLog) -> None:
        a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
        await asyncio.gather(a.write(OPENED), b.write(OPENED))
        growing = ev.MessageDelta(message_id="m", delta="x")
        await asyncio.gather(a.write(growing), b.write(growing))
        await a.write(told)

    async def after(log: SqliteLog) -> None:
        b = SampleWriter(log, "b")
        b.fence, b.index = (await log.session("b")).fence, 2
        await b.write(told)
        assert [(event.session_id, event.index) for event in await log.read_all() if event.index == 2] == []

    with_log(path, before)
    with_log(path, after)


def _packs(log: SqliteLog) -> list[list[int]]:
    """Return the numbers of the sessions that have deltas in each pack."""
    store = log._writer._store  # pyright: ignore[reportPrivateUsage]
    return [[piece.session for piece in decode_pack(blob)] for _, blob in store.rows("deltas")]


def test_a_session_leaves_nothing_in_packs_that_it_shared(tmp_path: Path) -> None:
    """Delete a session's deltas, finished or not: a new session may get its number and must not find its text."""
    path = tmp_path / "x.db"
    told, growing = ev.MessageAborted(message_id="m"), ev.MessageDelta(message_id="m", delta="x")

    async def work(log: SqliteLog) -> None:
        a, b, c = writers = [SampleWriter(log, name) for name in "abc"]
        await asyncio.gather(*(one.write(OPENED) for one in writers))
        await asyncio.gather(*(one.write(growing) for one in writers))
        assert _packs(log) == [[1, 2, 3]]
        await a.write(told)
        await log.delete("a", a.fence, deletion_event(a))
        assert _packs(log) == [[2, 3]]
        await b.write(told)
        await log.delete("c", c.fence, deletion_event(c))
        assert _packs(log) == [], "what is left of it is restated"
        await log.delete("b", b.fence, deletion_event(b))
        for name in "def":
            await SampleWriter(log, name).write(OPENED)
            assert [event.body for event in await log.read(name)] == [OPENED]

    with_log(path, work)


def test_a_pack_that_nobody_needs_goes_when_the_store_is_opened(tmp_path: Path) -> None:
    """Leave a pack as an older release did when it deleted a session."""
    path = tmp_path / "x.db"

    async def before(log: SqliteLog) -> None:
        a = SampleWriter(log, "a")
        await a.write(OPENED, ev.MessageDelta(message_id="m", delta="x"))
        await a.write(ev.MessageDelta(message_id="m", delta="y"))
        store = log._writer._store  # pyright: ignore[reportPrivateUsage]
        kept = store.rows("deltas")
        await a.write(ev.MessageAborted(message_id="m"))
        assert _packs(log) == []
        store.run_many("insert_delta", kept)

    async def after(log: SqliteLog) -> None:
        assert _packs(log) == []
        assert [event.index for event in await log.read("a")] == [1, 4]
        assert (await SampleWriter(log, "b").write(OPENED)).events[0].cursor > (await log.read("a"))[-1].cursor

    with_log(path, before)
    with_log(path, after)


@case("2-047", "2-048")
@pytest.mark.parametrize("status", ["completed", "cancelled", "", "ACTIVE"])
def test_a_status_outside_the_four_is_refused(tmp_path: Path, status: str) -> None:
    path = tmp_path / "x.db"
    with_log(path, two_events)
    connection = apsw.Connection(str(path))
    with pytest.raises(apsw.ConstraintError):
        connection.execute("UPDATE session SET status = ?", (status,)).fetchall()
    indexed = [
        row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")
    ]
    assert any("(status)" in str(sql) for sql in indexed)
    connection.close()


def test_a_file_that_is_no_store_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"this is a letter to my aunt, not a database" * 100)
    before = path.read_bytes()
    with pytest.raises(LogUnavailable):
        with_log(path, two_events)
    assert path.read_bytes() == before


def test_it_is_the_users_alone_also_where_others_may_look(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    async def work(log: SqliteLog) -> None:
        await two_events(log)
        modes = {one.name: one.stat().st_mode & 0o777 for one in os.scandir(tmp_path)}
        assert modes == {"x.db": 0o600, "x.db-shm": 0o600, "x.db-wal": 0o600}

    with_log(tmp_path / "x.db", work)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="can't be opened"):
        with_log(tmp_path / "no" / "x.db", two_events)


def test_a_locked_store_fails_the_append_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarterdeck.log.sqlite.connection._BUSY_MS", 10)
    path = tmp_path / "x.db"

    async def work(log: SqliteLog) -> None:
        writing = SampleWriter(log)
        await writing.write(OPENED)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE").fetchall()
        with pytest.raises(LogUnavailable, match="locked"):
            await writing.write(ev.Notice(text="not now"))
        other.execute("ROLLBACK").fetchall()
        other.close()
        await writing.write(ev.Notice(text="now"))
        assert [event.index for event in await log.read("s1")] == [1, 2]

    with_log(path, work)


def test_a_full_disk_fails_the_append_and_recovers(tmp_path: Path) -> None:
    async def work(log: SqliteLog) -> None:
        writing = SampleWriter(log)
        await writing.write(OPENED)
        pages = log._writer._store.execute("PRAGMA page_count")[0][0]  # pyright: ignore[reportPrivateUsage]
        log._writer._store.execute(f"PRAGMA max_page_count = {pages + 2}")  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(LogUnavailable, match="full"):
            await writing.write(ev.Notice(text="x" * 1_000_000))
        log._writer._store.execute("PRAGMA max_page_count = 1000000")  # pyright: ignore[reportPrivateUsage]
        await writing.write(ev.Notice(text="fits"))
        assert [event.body for event in await log.read("s1", since=1)] == [ev.Notice(text="fits")]

    with_log(tmp_path / "x.db", work)


async def test_another_owner_fences_off_the_first(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    first = await SqliteLog.open(path)
    writing = SampleWriter(first)
    await writing.write(OPENED)
    second = await SqliteLog.open(path)
    with pytest.raises(StaleFence):
        await writing.write(ev.Notice(text="late"))
    with pytest.raises(StaleFence):
        await first.delete("s1", writing.fence, deletion_event(writing))
    again = SampleWriter(second)
    again.fence, again.index = (await second.session("s1")).fence, 1
    await again.write(ev.Notice(text="mine"))
    assert [event.index for event in await second.read("s1")] == [1, 2]
    await first.close()
    await second.close()


def test_a_truncated_write_ahead_log_is_a_clean_recovery(tmp_path: Path) -> None:
    """Cut the log at any byte: the store opens and has a prefix of the written events, never a part of one."""
    path = tmp_path / "x.db"
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from quarterdeck import events as ev\n"
        "from quarterdeck.log.sqlite import SqliteLog\n"
        "from quarterdeck.testing.logs import OPENED, SampleWriter\n"
        "async def main():\n"
        "    writing = SampleWriter(await SqliteLog.open(Path(sys.argv[1])))\n"
        "    await writing.write(OPENED)\n"
        "    for number in range(20):\n"
        "        await writing.write(ev.Notice(text=str(number)))\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    wal = Path(f"{path}-wal")
    whole = wal.read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 23)):
        copy = tmp_path / f"cut-{size}.db"
        copy.write_bytes(path.read_bytes())
        Path(f"{copy}-wal").write_bytes(whole[:size])
        found = _indexes(copy)
        assert found == list(range(1, len(found) + 1)), size
    assert _indexes(path) == list(range(1, 22))


def _indexes(path: Path) -> list[int]:
    found: list[int] = []

    async def work(log: SqliteLog) -> None:
        for stored in await log.sessions():
            found.extend(event.index for event in await log.read(stored.row.session_id))

    with_log(path, work)
    return found


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """Check that the file has every index that the child printed, which it does only after the append returned."""
    path = tmp_path / "x.db"
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from quarterdeck import events as ev\n"
        "from quarterdeck.log.sqlite import SqliteLog\n"
        "from quarterdeck.testing.logs import OPENED, SampleWriter\n"
        "async def main():\n"
        "    writing = SampleWriter(await SqliteLog.open(Path(sys.argv[1])), sys.argv[2])\n"
        "    await writing.write(OPENED)\n"
        "    while True:\n"
        "        await writing.write(ev.Notice(text='x'), ev.MessageDelta(message_id='m', delta='y'))\n"
        "        print(writing.index, flush=True)\n"
        "asyncio.run(main())\n"
    )
    for kill in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(path), f"s{kill}"], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(30 + 17 * kill)]
        os.kill(child.pid, signal.SIGKILL)
        told += child.stdout.readlines()
        child.stdout.close()
        child.wait()
        acknowledged = max(int(line) for line in told if line.endswith("\n"))

        async def work(log: SqliteLog, name: str = f"s{kill}", upto: int = acknowledged) -> None:
            events = await log.read(name, limit=100_000)
            indexes = [event.index for event in events]
            assert indexes == list(range(1, len(indexes) + 1))
            assert indexes[-1] >= upto

        with_log(path, work)


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_how_far_a_session_is_does_not_depend_on_when_its_row_was_told(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Combine the row, the events and the dropped deltas: the row's last index is updated only now and then."""
    monkeypatch.setattr("quarterdeck.log.sqlite.writer.SETTLE_EVERY", every)
    said: list[Body] = [
        ev.Notice(text="a"),
        ev.MessageStart(message_id="m"),
        ev.MessageDelta(message_id="m", delta="half"),
        ev.Notice(text="b"),
        ev.MessageDelta(message_id="m", delta=" and half"),
        ev.ResponseComplete(message_id="m", blocks=(ev.Block(text="half and half"),)),
    ]

    async def known(log: SqliteLog) -> set[tuple[str, int, Fence]]:
        one = await log.session("s1")
        stored = await log.sessions()
        assert one in stored
        return {(each.row.session_id, each.last_index, each.fence) for each in stored}

    async def work(log: SqliteLog) -> None:
        first, second = SampleWriter(log), SampleWriter(log, "s2")
        await second.write(OPENED)
        await first.write(OPENED)
        for body in said:
            await first.write(body)
            assert await known(log) == {("s1", first.index, first.fence), ("s2", 1, second.fence)}

    async def again(log: SqliteLog) -> None:
        assert {(name, index) for name, index, _ in await known(log)} == {("s1", 7), ("s2", 1)}
        writing = SampleWriter(log)
        stored = await log.session("s1")
        writing.fence, writing.index = stored.fence, stored.last_index
        await writing.write(ev.Notice(text="c"))
        assert [event.index for event in await log.read("s1")] == [1, 2, 3, 5, 7, 8]

    with_log(tmp_path / "x.db", work)
    with_log(tmp_path / "x.db", again)


def test_a_deletion_is_told_before_the_appends_that_come_after_it(tmp_path: Path) -> None:
    """Keep the order also when a busy loop gets both results at once."""

    async def work(log: SqliteLog) -> None:
        one, other = SampleWriter(log, "s1"), SampleWriter(log, "s2")
        await one.write(OPENED)
        await other.write(OPENED)
        heard: list[str] = []

        def told(receipt: Receipt | None, _: BaseException | None = None) -> None:
            assert receipt is not None
            heard.append(receipt.events[-1].cursor)

        deleted = asyncio.ensure_future(log.delete("s1", one.fence, deletion_event(one), told))
        await asyncio.sleep(0)
        later = Append(session_id="s2", events=other.events(ev.Notice(text="later")), fence=other.fence)
        appended = asyncio.ensure_future(log.append(later))
        appended.add_done_callback(lambda done: told(done.result()))
        await asyncio.sleep(0)  # The append starts its commit.
        await asyncio.sleep(0)
        # Block the loop until both are durable.
        log._writer_thread.submit(lambda: None).result()  # pyright: ignore[reportPrivateUsage]
        await deleted
        await appended
        await asyncio.sleep(0)
        assert heard == sorted(heard)
        assert len(heard) == 2

    with_log(tmp_path / "x.db", work)


# --- Files and threads left behind


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


async def falls_to(count: int) -> bool:
    """Wait until at most this many files are open: a stopped thread closes its pipes a moment later."""
    for _ in range(300):
        if handles() <= count:
            return True
        await asyncio.sleep(0.01)
    return False


async def opened_and_closed(path: Path) -> None:
    log = await SqliteLog.open(path)
    await log.close()


async def refused(path: Path) -> None:
    with pytest.raises(LogUnavailable):
        await SqliteLog.open(path)


async def given_up(path: Path) -> None:
    opening = asyncio.ensure_future(SqliteLog.open(path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


@pytest.mark.parametrize("use", [opened_and_closed, refused, given_up])
def test_no_file_stays_open(tmp_path: Path, use: Callable[[Path], Awaitable[None]]) -> None:
    path = tmp_path / "x.db"
    if use is refused:
        path.write_bytes(b"no store at all " * 500)

    async def work() -> None:
        await use(path)
        assert await falls_to(before)
        for _ in range(200):
            await use(path)
        assert await falls_to(before)

    async def first() -> None:
        await opened_and_closed(tmp_path / "first.db")

    asyncio.run(first())
    # The next event loop opens three files of its own.
    before = handles() + 3
    asyncio.run(work())


def test_a_process_that_may_open_no_more_files_is_told_so_and_loses_none(tmp_path: Path) -> None:
    script = """
import asyncio, os, resource, sys
from pathlib import Path
from quarterdeck.errors import QuarterdeckError
from quarterdeck.log.sqlite import SqliteLog

async def main():
    path = Path(sys.argv[1])
    await (await SqliteLog.open(path)).close()
    await asyncio.sleep(0.2)
    before, (soft, hard) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = 0
    for more in range(20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + more, hard))
        try:
            await (await SqliteLog.open(path)).close()
        except QuarterdeckError as error:
            assert error.hint
            refused += 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await asyncio.sleep(0.5)
    print(0 < refused < 20, len(os.listdir("/proc/self/fd")) - before)

asyncio.run(main())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "x.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True 0\n", "")


def test_deltas_that_cannot_be_read_are_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog) -> None:
        writing = SampleWriter(log)
        await writing.write(OPENED)
        await writing.write(ev.MessageDelta(delta="a", message_id="m"))

    with_log(path, work)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE delta SET pieces = x'ff00'").fetchall()
    connection.close()
    with pytest.raises(LogUnavailable, match="deltas can't be read"):
        asyncio.run(opened_and_closed(path))
