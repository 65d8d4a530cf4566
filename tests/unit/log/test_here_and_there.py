"""Where a commit is made, on the loop or on the writer's thread, and that nobody can tell the difference."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from quarterdeck import events as ev
from quarterdeck.log.base import Append, LogUnavailable, Receipt
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.inspect import Inspection
from quarterdeck.log.sqlite.room import ROOM
from quarterdeck.log.sqlite.writer import Outcome
from quarterdeck.testing.logs import OPENED, Writing, last_word, row_of
from tests.decks import eventually

Work = Callable[[SqliteLog, list[str]], Awaitable[None]]
#: As many quick commits as are ever asked for.
TRUSTED = 1_000_000


def with_log(path: Path, work: Work) -> None:
    """The work gets the log and a list of where each commit was tried and each fold was made."""

    async def run() -> None:
        log = await SqliteLog.open(path)
        places, loop_thread = list[str](), threading.get_ident()
        commit, fold = log._writer.commit, log._writer.fold

        def place() -> str:
            return "here" if threading.get_ident() == loop_thread else "there"

        def committed(appends: list[Append]) -> list[Outcome]:
            places.append(place())
            return commit(appends)

        def folded() -> None:
            places.append(f"folded {place()}")
            fold()

        log._writer.commit, log._writer.fold = committed, folded
        try:
            await work(log, places)
        finally:
            await log.close()

    asyncio.run(run())


async def at_rest(log: SqliteLog, *writings: Writing) -> None:
    """All of them are open, the thread has nothing to do, and the disk is trusted."""
    for writing in writings:
        await writing.write(OPENED)
    await log.last_cursor()
    log._quick = TRUSTED


def test_a_lone_append_is_committed_here_and_company_there(tmp_path: Path) -> None:
    async def work(log: SqliteLog, places: list[str]) -> None:
        a, b = Writing(log, "a"), Writing(log, "b")
        await at_rest(log, a, b)
        places.clear()
        await a.write(ev.Notice(text="alone"))
        assert places == ["here"]
        await asyncio.gather(a.write(ev.Notice(text="x")), b.write(ev.Notice(text="y")))
        assert places == ["here", "there"]
        await a.write(*(ev.Notice(text="many") for _ in range(100)))
        assert places == ["here", "there", "there"]

    with_log(tmp_path / "x.db", work)


def test_a_disk_is_trusted_only_after_some_quick_commits(tmp_path: Path) -> None:
    """And the longer it once stood still, the longer it is watched."""

    async def work(log: SqliteLog, places: list[str]) -> None:
        a = Writing(log)
        await at_rest(log, a)
        log._took(0.5)
        assert log._quick == -500
        log._took(0.002)
        assert log._quick == -500, "a lesser one forgives nothing"
        places.clear()
        await a.write(ev.Notice(text="x"))
        assert places == ["there"]

    with_log(tmp_path / "x.db", work)


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_much_is_written_there(tmp_path: Path, size: int) -> None:
    async def work(log: SqliteLog, places: list[str]) -> None:
        a = Writing(log)
        await at_rest(log, a)
        places.clear()
        await a.write(ev.Notice(text="x" * size))
        assert places == ["here", "there"], "nothing of the first attempt is left"
        assert [event.index for event in await log.read("s1")] == [1, 2]

    with_log(tmp_path / "x.db", work)


def test_many_packs_are_dropped_there(tmp_path: Path) -> None:
    """A long text that came in many commits, told as a whole."""

    async def work(log: SqliteLog, places: list[str]) -> None:
        a = Writing(log)
        await at_rest(log, a)
        for _ in range(100):
            await a.write(ev.MessageDelta(message_id="m", delta="x"))
        await log.last_cursor()
        log._quick = TRUSTED
        places.clear()
        receipt = await a.write(ev.MessageAborted(message_id="m"))
        assert places == ["here", "there"]
        assert [event.cursor for event in await log.read("s1", since=1)] == [receipt.events[0].cursor]

    with_log(tmp_path / "x.db", work)


def test_a_store_that_somebody_holds_is_waited_for_there(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, places: list[str]) -> None:
        a = Writing(log)
        await at_rest(log, a)
        places.clear()
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(a.write(ev.Notice(text="x")))
        await eventually(lambda: "there" in places)  # the loop runs on meanwhile
        assert not writing.done()
        other.execute("ROLLBACK")
        other.close()
        await writing
        assert places == ["here", "there"]

    with_log(path, work)


def test_everybody_is_told_in_the_order_of_the_cursors(tmp_path: Path) -> None:
    """Lone appends, company, a deletion and a probe, one on the heels of the other."""

    async def work(log: SqliteLog, places: list[str]) -> None:
        heard: list[str] = []

        def told(receipt: Receipt | None, _: BaseException | None = None) -> None:
            assert receipt is not None
            heard.extend(event.cursor for event in receipt.events)

        async def writes(writing: Writing, pauses: int) -> None:
            for _ in range(60):
                done = asyncio.Event()

                def hears(receipt: Receipt | None, _: BaseException | None, done: asyncio.Event = done) -> None:
                    told(receipt)
                    assert receipt is not None
                    writing.fence, writing.index = receipt.fence, receipt.events[-1].index
                    done.set()

                log._quick = TRUSTED
                log.submit(writing.unit(ev.Notice(text="x")), hears)
                await done.wait()
                for _ in range(pauses):
                    await asyncio.sleep(0)
            await log.delete(writing.session_id, writing.fence, last_word(writing), told)

        several = [Writing(log, f"s{number}") for number in range(4)]
        await at_rest(log, *several)
        probing = asyncio.ensure_future(log.probe())
        await asyncio.gather(*(writes(one, 3 * number) for number, one in enumerate(several)))
        await probing
        assert heard == sorted(heard)
        assert len(heard) == len(set(heard)) == 4 * 61
        assert {"here", "there"} <= set(places)

    with_log(tmp_path / "x.db", work)


def test_what_waits_when_it_is_closed_is_committed_though_one_who_is_told_fails(tmp_path: Path) -> None:
    path, seen = tmp_path / "x.db", list[str]()

    def fails(*_: object) -> None:
        raise ValueError("a defect")

    async def run() -> None:
        log = await SqliteLog.open(path)
        a, b = Writing(log, "a"), Writing(log, "b")
        await at_rest(log, a, b)
        asyncio.get_running_loop().set_exception_handler(lambda _, said: seen.append(str(said["exception"])))
        log.submit(a.unit(ev.Notice(text="x")), fails)
        log.submit(b.unit(ev.Notice(text="x")), lambda receipt, _: seen.append("told" if receipt else "refused"))
        await log.last_cursor()
        await log.last_cursor()
        log.submit(Append(session_id="a", events=(), fence="old"), fails)
        await log.close()

    asyncio.run(run())
    assert seen == ["a defect", "told", "a defect"]


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_commit_that_a_person_interrupts_leaves_a_log_that_works(tmp_path: Path, is_durable: bool) -> None:
    """Ctrl-C may come right before the commit, or right behind it; the loop is asked to run on, to close things."""
    loop = asyncio.new_event_loop()
    do = loop.run_until_complete
    log = do(SqliteLog.open(tmp_path / "x.db"))
    a, b = Writing(log, "a"), Writing(log, "b")
    do(at_rest(log, a, b))
    transaction = log._writer._store.transaction
    execute = transaction._execute

    def interrupted(sql: str) -> None:
        if sql != "COMMIT" or is_durable:
            execute(sql)
        if sql == "COMMIT":
            transaction._execute = execute
            raise KeyboardInterrupt

    transaction._execute = interrupted
    writing = loop.create_task(a.write(ev.Notice(text="x")))
    with pytest.raises(KeyboardInterrupt):
        do(writing)
    with pytest.raises(LogUnavailable, match="interrupted"):
        do(writing)
    do(b.write(ev.Notice(text="another session")))
    stored = do(log.session("a"))
    assert stored.last_index == (2 if is_durable else 1)
    a.fence, a.index = stored.fence, stored.last_index
    do(a.write(ev.Notice(text="y")))
    cursors = [event.cursor for event in do(log.read_all())]
    assert len(cursors) == len(set(cursors)) == stored.last_index + 3
    do(log.close())
    loop.close()


def test_what_was_taken_one_by_one_is_not_refused_with_the_next(tmp_path: Path) -> None:
    """A group with an impossible row, and a store that somebody takes while each is tried alone."""
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, places: list[str]) -> None:
        good, bad = Writing(log, "good"), Writing(log, "bad")
        await at_rest(log, good)
        other, commit = apsw.Connection(str(path)), log._writer.commit

        def held(appends: list[Append]) -> list[Outcome]:
            outcomes = commit(appends)
            if len(appends) == 1 and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")
            return outcomes

        log._writer.commit = held
        log._writer._store.is_patient = False
        first, second = await asyncio.gather(
            good.write(ev.Notice(text="x")), bad.write(OPENED, row=row_of("bad", "nonsense")), return_exceptions=True
        )
        other.close()
        assert isinstance(first, Receipt)
        assert isinstance(second, LogUnavailable)
        assert [event.index for event in await log.read("good")] == [1, 2]

    with_log(path, work)


# --- the write-ahead log


def length(path: Path) -> int:
    return os.path.getsize(f"{path}-wal")


def test_a_long_log_is_folded_there_and_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, places: list[str]) -> None:
        a = Writing(log)
        await at_rest(log, a)
        places.clear()
        for _ in range(1_500):
            log._quick = TRUSTED
            await a.write(ev.Notice(text="x"))
        assert "here" in places
        assert places.count("folded there") >= 2
        assert "folded here" not in places
        assert length(path) <= 1.5 * ROOM

    with_log(path, work)


def test_deletions_alone_fold_it_too(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, places: list[str]) -> None:
        several = [Writing(log, f"s{number}") for number in range(12)]
        await at_rest(log, *several)
        for one in several:
            await one.write(*(ev.Notice(text="x" * 300) for _ in range(3_000)))
        await log.last_cursor()
        places.clear()
        for one in several:
            await log.delete(one.session_id, one.fence, last_word(one))
        await log.last_cursor()
        assert places.count("folded there") >= 2

    with_log(path, work)


def test_few_large_events_fold_it_too(tmp_path: Path) -> None:
    async def work(log: SqliteLog, places: list[str]) -> None:
        a = Writing(log)
        await at_rest(log, a)
        places.clear()
        for _ in range(3):
            await a.write(ev.Notice(text="x" * 5_000_000))
        await log.last_cursor()
        assert places.count("folded there") == 3

    with_log(tmp_path / "x.db", work)


def test_it_is_folded_also_when_sqlite_has_counted_to_its_end(tmp_path: Path) -> None:
    async def work(log: SqliteLog, places: list[str]) -> None:
        a = Writing(log)
        await at_rest(log, a)
        places.clear()
        log._writer._folded = 0x7FFF_FFFF - 2_000
        await a.write(ev.Notice(text="x"))
        await log.last_cursor()
        assert "folded there" in places

    with_log(tmp_path / "x.db", work)


# --- marks


def test_an_event_that_is_marked_wrongly_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, _: list[str]) -> None:
        await Writing(log).write(OPENED, ev.Notice(text="x"))

    with_log(path, work)
    look = Inspection(path)
    assert look.strays() == []
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE event SET is_rare = CASE WHEN is_rare IS NULL THEN 1 END")
    connection.close()
    assert look.strays() == [f"the event at cursor {cursor} is not marked as its type is" for cursor in (1, 2)]
    look.close()
