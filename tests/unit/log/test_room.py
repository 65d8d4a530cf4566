"""Room for the write-ahead log: made where it can be, and of no consequence where it cannot."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from quarterdeck import events as ev
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.room import ROOM, make_room
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
