"""Run the shipped test suite against every adapter of the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck.log.base import Log
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.testing.logs import CHECKS, Check, OpenLog


def memory(_: Path) -> OpenLog:
    """Return the same object at each opening: a memory log has no file, and lasts as long as its process."""
    log = MemoryLog()

    async def opened() -> Log:
        log.reopen()
        return log

    return opened


def sqlite(folder: Path) -> OpenLog:
    async def opened() -> Log:
        return await SqliteLog.open(folder / "quarterdeck.db")

    return opened


@pytest.mark.parametrize("adapter", [memory, sqlite])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_adapter_does_what_a_log_must(adapter: object, check: Check, tmp_path: Path) -> None:
    assert callable(adapter)
    asyncio.run(check(adapter(tmp_path)))
