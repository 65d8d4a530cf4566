"""Test commits of the SQLite log: groups, their order, closing, and checkpoints."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from quarterdeck import events as ev
from quarterdeck.log.base import Append, LogUnavailable, Receipt
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.inspect import Inspection
from quarterdeck.log.sqlite.writer import Outcome
from quarterdeck.testing.logs import OPENED, SampleWriter, deletion_event, sample_row

Work = Callable[[SqliteLog, list[str]], Awaitable[None]]


def with_log(path: Path, work: Work) -> None:
    """Run `work` with a log and a list that records each commit and each checkpoint."""

    async def run() -> None:
        log = await SqliteLog.open(path)
        steps = list[str]()
        commit, checkpoint = log._writer.commit, log._writer.checkpoint

        def noted_commit(appends: list[Append]) -> list[Outcome]:
            steps.append("commit")
            return commit(appends)

        def noted_checkpoint() -> None:
            steps.append("checkpoint")
            checkpoint()

        log._writer.commit, log._writer.checkpoint = noted_commit, noted_checkpoint
        try:
            await work(log, steps)
        finally:
            await log.close()

    asyncio.run(run())


def test_appends_of_one_pass_share_a_commit(tmp_path: Path) -> None:
    async def work(log: SqliteLog, steps: list[str]) -> None:
        await asyncio.gather(*(SampleWriter(log, f"s{number}").write(OPENED) for number in range(20)))
        assert steps == ["commit"]

    with_log(tmp_path / "x.db", work)


def test_everybody_is_told_in_the_order_of_the_cursors(tmp_path: Path) -> None:
    """Send appends of several sessions, deletions and a probe without pauses."""

    async def work(log: SqliteLog, steps: list[str]) -> None:
        heard: list[str] = []

        def told(receipt: Receipt) -> None:
            heard.extend(event.cursor for event in receipt.events)

        async def writes(writing: SampleWriter, pauses: int) -> None:
            await writing.write(OPENED)
            for _ in range(60):
                told(await writing.write(ev.Notice(text="x")))
                for _ in range(pauses):
                    await asyncio.sleep(0)
            await log.delete(writing.session_id, writing.fence, deletion_event(writing), told)

        several = [SampleWriter(log, f"s{number}") for number in range(4)]
        probing = asyncio.ensure_future(log.probe())
        await asyncio.gather(*(writes(one, 3 * number) for number, one in enumerate(several)))
        await probing
        assert heard == sorted(heard)
        assert len(heard) == len(set(heard)) == 4 * 61

    with_log(tmp_path / "x.db", work)


async def test_what_waits_when_the_log_is_closed_is_committed(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "x.db")
    a, b = SampleWriter(log, "a"), SampleWriter(log, "b")
    appends = [asyncio.ensure_future(one.write(OPENED)) for one in (a, b)]
    await asyncio.sleep(0)
    await log.close()
    assert all(isinstance(receipt, Receipt) for receipt in await asyncio.gather(*appends))


def test_what_was_taken_one_by_one_is_not_refused_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit a group with an invalid row, and lock the store from another connection during the retries one by one."""
    monkeypatch.setattr("quarterdeck.log.sqlite.connection._BUSY_MS", 10)
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, steps: list[str]) -> None:
        good, bad = SampleWriter(log, "good"), SampleWriter(log, "bad")
        await good.write(OPENED)
        other, commit = apsw.Connection(str(path)), log._writer.commit

        def held(appends: list[Append]) -> list[Outcome]:
            outcomes = commit(appends)
            if len(appends) == 1 and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")
            return outcomes

        log._writer.commit = held
        first, second = await asyncio.gather(
            good.write(ev.Notice(text="x")),
            bad.write(OPENED, row=sample_row("bad", "nonsense")),
            return_exceptions=True,
        )
        other.close()
        assert isinstance(first, Receipt)
        assert isinstance(second, LogUnavailable)
        assert [event.index for event in await log.read("good")] == [1, 2]

    with_log(path, work)


# --- Checkpoints


def test_a_long_write_ahead_log_is_checkpointed(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, steps: list[str]) -> None:
        a = SampleWriter(log)
        await a.write(OPENED)
        for _ in range(1_500):
            await a.write(ev.Notice(text="x"))
        assert steps.count("checkpoint") >= 2
        assert os.path.getsize(f"{path}-wal") < 10_000_000

    with_log(path, work)


def test_deletions_alone_are_checkpointed_too(tmp_path: Path) -> None:
    async def work(log: SqliteLog, steps: list[str]) -> None:
        several = [SampleWriter(log, f"s{number}") for number in range(12)]
        for one in several:
            await one.write(OPENED)
            await one.write(*(ev.Notice(text="x" * 300) for _ in range(3_000)))
        await log.last_cursor()
        steps.clear()
        for one in several:
            await log.delete(one.session_id, one.fence, deletion_event(one))
        assert steps.count("checkpoint") >= 2

    with_log(tmp_path / "x.db", work)


def test_few_large_events_are_checkpointed_too(tmp_path: Path) -> None:
    async def work(log: SqliteLog, steps: list[str]) -> None:
        a = SampleWriter(log)
        await a.write(OPENED)
        for _ in range(3):
            await a.write(ev.Notice(text="x" * 5_000_000))
        await log.last_cursor()
        assert steps.count("checkpoint") == 3

    with_log(tmp_path / "x.db", work)


# --- Marks


def test_an_event_that_is_marked_wrongly_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    async def work(log: SqliteLog, _: list[str]) -> None:
        await SampleWriter(log).write(OPENED, ev.Notice(text="x"))

    with_log(path, work)
    look = Inspection(path)
    assert look.strays() == []
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE event SET is_rare = CASE WHEN is_rare IS NULL THEN 1 END")
    connection.close()
    assert look.strays() == [f"the event at cursor {cursor} has a wrong is_rare mark" for cursor in (1, 2)]
    look.close()
