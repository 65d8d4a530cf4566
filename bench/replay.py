"""Measure reading a long session again, against a bare select and decode of the same rows."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import replace

from bench.figure import Figure
from bench.log import streaming, working
from bench.measure import SMOKE, Effort, Work, ratio
from quarterdeck import events as ev
from quarterdeck.events import decode_body
from quarterdeck.kernel.view import View, fold
from quarterdeck.log.session_writer import SessionWriter
from quarterdeck.log.sqlite import SqliteLog

EVENTS = 100_000
PAGE = 2_000
#: One round takes almost a second.
ROUNDS = 9
_SELECT = (
    "SELECT cursor, position, at, origin, body FROM event WHERE session = 1 AND position > ? ORDER BY position LIMIT ?"
)


def figures(effort: Effort) -> Iterator[Figure]:
    events = EVENTS if effort is not SMOKE else 500
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quarterdeck.db"
        loop = asyncio.new_event_loop()
        log, last = loop.run_until_complete(_write_session(path, events))
        floor, ours, folded = _bare(path), _read(loop, log), _folded(loop, log)
        assert floor.run() == ours.run() == folded.run() == last
        per_event = [Work(work.run, events) for work in (floor, ours, folded)]
        effort = replace(effort, rounds=min(effort.rounds, ROUNDS))
        name = f"replay of {events:,} events"
        yield Figure(
            "replay", f"{name}, read, to a bare select and decode", ratio(per_event[1], per_event[0], effort), 2.4
        )
        yield Figure("replay", f"{name}, read and folded", ratio(per_event[2], per_event[0], effort))
        loop.run_until_complete(log.close())
        loop.close()


async def _write_session(path: Path, events: int) -> tuple[SqliteLog, int]:
    """Write a session that has this many events after its deltas were dropped."""
    log = await SqliteLog.open(path)
    writer = SessionWriter(log, "s1", clock=lambda: 1)
    writer.write([ev.SessionOpened(agent="bench"), ev.AgentReady()], "process")
    kept, turn = 2, 0
    while kept < events:
        bodies = streaming(turn) if turn % 8 == 0 else working(turn)
        writer.write(bodies, "stream")
        await writer.flush()
        kept, turn = kept + sum(not isinstance(body, ev.MessageDelta) for body in bodies), turn + 1
    return log, writer.durable_view.index


def _bare(path: Path) -> Work:
    connection: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)

    def run() -> int:
        since = 0
        while rows := connection.execute(_SELECT, (since, PAGE)).fetchall():
            for row in rows:
                decode_body(row[4])
            since = rows[-1][1]
        return since

    return Work(run, 1)


def _read(loop: asyncio.AbstractEventLoop, log: SqliteLog) -> Work:
    async def read() -> int:
        since = 0
        while page := await log.read("s1", since, PAGE):
            since = page[-1].index
        return since

    return Work(lambda: loop.run_until_complete(read()), 1)


def _folded(loop: asyncio.AbstractEventLoop, log: SqliteLog) -> Work:
    """Read and fold everything, timeline included, as restoring a session does."""

    async def read() -> int:
        view = View()
        while page := await log.read("s1", view.index, PAGE):
            for event in page:
                view = fold(view, event)
        return view.index

    return Work(lambda: loop.run_until_complete(read()), 1)
