"""Measure starting with a full store: the time until the log and the deck are ready, and the memory for the sessions."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from bench import raw_store, sessions
from bench.figure import Figure
from bench.log import working
from bench.measure import SMOKE, Effort, Ratio, Work, ratio
from quarterdeck import events as ev
from quarterdeck.deck.deck import Deck
from quarterdeck.events import encode_body, type_of
from quarterdeck.home import Home
from quarterdeck.kernel.view import fold
from quarterdeck.log.rows import catalogue_row, encode_snapshot
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.sql import queries
from quarterdeck.log.sqlite.writer import row_values

SESSIONS = 10_000
EVENTS = 1_000_000
MEGABYTE = 1_000_000
RESIDENT_MB = 200
IDLE_KB = 10

#: Opens a store. Returns the objects that hold the sessions in memory, and a function that closes the store.
Opener: TypeAlias = Callable[[Path], Awaitable[tuple[object, Callable[[], Awaitable[None]]]]]


async def open_log(path: Path) -> tuple[object, Callable[[], Awaitable[None]]]:
    log = await SqliteLog.open(path)
    return (log, await log.sessions()), log.close


async def open_deck(path: Path) -> tuple[object, Callable[[], Awaitable[None]]]:
    """Open a deck as `quarterdeck.open` does: take the lock, find leftover processes, read the store, repair sessions."""
    deck = await Deck.open(path.parent, environment={})
    return deck, deck.close


OPENERS: dict[str, Opener] = {"the log": open_log, "the deck": open_deck}


def figures(effort: Effort) -> Iterator[Figure]:
    count_, events = (SESSIONS, EVENTS) if effort is not SMOKE else (20, 200)
    with tempfile.TemporaryDirectory() as folder:
        path = Home(Path(folder)).store
        filled(path, count_, events)
        what = f"{count_:,} sessions, {events:,} events"
        for name, opener in OPENERS.items():
            found = ratio(_opened(path, opener), _bare(path), effort)
            yield Figure("catalogue", f"{name} with {what}, ready, to reading the catalogue", found, 3)
            before, after = _resident(path, name)
            whole, idle = _of(after, RESIDENT_MB * MEGABYTE), _of((after - before) / count_, IDLE_KB * 1_000)
            yield Figure("catalogue", f"{name} with {what}, resident, to {RESIDENT_MB} MB", whole, 1, unit="bytes")
            yield Figure("catalogue", f"{name}, one idle session, to {IDLE_KB} kB", idle, 1, unit="bytes")


def _of(size: float, limit: float) -> Ratio:
    """Return bytes as a share of a budget."""
    return Ratio(size / limit, size / limit, size / limit, size, limit)


def filled(path: Path, sessions_: int, events: int) -> None:
    """Write a store of the size of a busy year: rows and views of a real session, and its events."""
    connection = raw_store.open_store(path, 0)
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    view = sessions.grown(60)
    # A deck that is closed suspends all of its sessions.
    view = fold(view, sessions.next_event(view, ev.SessionSuspended(reason="shutdown")))
    row, blob = row_values(catalogue_row(view.state)), encode_snapshot(view.state)
    tape = [("stream", type_of(body), encode_body(body)) for body in working(0)]
    each, cursors = events // sessions_, count(1)
    connection.execute("BEGIN").fetchall()
    for number in range(1, sessions_ + 1):
        values = (f"session-{number:08d}", *row, each, blob, each)
        connection.execute(queries()["insert_session"], values).fetchall()
        rows = [(next(cursors), number, place, 1, *tape[place % len(tape)]) for place in range(1, each + 1)]
        connection.executemany(raw_store.INSERT, rows)
    for settled in ("settle_indexes", "settle_cursor"):
        connection.execute(queries()[settled]).fetchall()
    connection.execute("COMMIT").fetchall()
    connection.close()


def _bare(path: Path) -> Work:
    """Open the file and read all rows of the catalogue."""

    def run() -> int:
        connection: Any = apsw.Connection(str(path))
        found = connection.execute(queries()["sessions"]).fetchall()
        connection.close()
        return len(found)

    return Work(run, 1)


def _opened(path: Path, opener: Opener) -> Work:
    async def opened() -> None:
        _, close = await opener(path)
        await close()

    return Work(lambda: asyncio.run(opened()), 1)


def _resident(path: Path, name: str) -> tuple[int, int]:
    """Return the resident bytes of another process before and after it opened the store."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.catalogue", str(path), name], stdout=subprocess.PIPE, text=True, check=True
    )
    before, after = json.loads(done.stdout)
    return before, after


async def _tell(path: Path, name: str) -> None:
    # Open an empty store first, so that modules imported on first use don't count.
    with tempfile.TemporaryDirectory() as folder:
        _, close = await OPENERS[name](Home(Path(folder)).store)
        await close()
    before = _now()
    held, close = await OPENERS[name](path)
    gc.collect()
    print(json.dumps([before, _now()]))
    assert held
    await close()


def _now() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    asyncio.run(_tell(Path(sys.argv[1]), sys.argv[2]))
