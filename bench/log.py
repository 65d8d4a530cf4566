"""Measure what durability costs: fold, append and publish, against bare apsw with the same tables and batches."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import uvloop

from bench import raw_store
from bench.figure import Figure
from bench.measure import SMOKE, Effort, Work, ratio, ratio_of_waits
from quarterdeck import events as ev
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Event
from quarterdeck.log.base import Append, CatalogueRow
from quarterdeck.log.session_writer import SessionWriter
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.writer import Outcome
from quarterdeck.log.tail import Feed

SESSIONS = 64
#: How many events a session writes before it waits until they are durable.
AWAIT_EVERY = 8
LONE = 20
_PIECE = "and the parser took that for "
_ARGS = {"file_path": "/home/dev/project/src/parser/lexer.py", "old_string": "return None", "new_string": "return []"}
_OUTPUT = "src/parser/lexer.py:41: def tokens(self) -> list[Token]:\n"


def figures(effort: Effort) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        sessions = SESSIONS if effort is not SMOKE else 2
        for name, make, target in (("95 % deltas", streaming, 2.7), ("no deltas", working, 4.7)):
            subfolder = Path(folder) / make.__name__
            subfolder.mkdir()
            yield _flood(subfolder, name, make, sessions, target, effort)
        yield from _lone(Path(folder), effort)


def streaming(turn: int) -> list[Body]:
    """Return a turn in which 19 of 20 events are deltas."""
    message = f"m{turn}"
    pieces = [ev.MessageDelta(message_id=message, delta=_PIECE, turn_id="t") for _ in range(114)]
    return [
        ev.PromptReceived(text="And the other one?", message_id=f"p{turn}"),
        ev.AgentStart(turn_id="t"),
        ev.RequestStart(model="m-large", turn_id="t"),
        ev.MessageStart(message_id=message, turn_id="t"),
        *pieces,
        ev.ResponseComplete(message_id=message, blocks=(ev.Block(text=_PIECE * 114),), turn_id="t"),
        ev.AgentEnd(turn_id="t"),
    ]


def working(turn: int) -> list[Body]:
    """Return a turn without deltas: whole texts and tool calls."""
    bodies: list[Body] = [ev.PromptReceived(text="Go on", message_id=f"p{turn}"), ev.AgentStart(turn_id="t")]
    for step in range(7):
        message, call = f"m{turn}_{step}", f"c{turn}_{step}"
        bodies += [
            ev.RequestStart(model="m-large", turn_id="t"),
            ev.MessageStart(message_id=message, turn_id="t"),
            ev.ResponseComplete(message_id=message, blocks=(ev.Block(text=_PIECE * 4),), turn_id="t"),
            ev.ToolCall(name="Edit", call_id=call, args=_ARGS, turn_id="t"),
            ev.ToolExecutionStart(name="Edit", call_id=call, args=_ARGS, turn_id="t"),
            ev.ToolExecutionEnd(name="Edit", call_id=call, result=_OUTPUT, turn_id="t"),
        ]
    return [*bodies, ev.Usage(tokens=ev.TokenUsage(input=1200, output=300), turn_id="t"), ev.AgentEnd(turn_id="t")]


class Publisher:
    """Publishes the durable events of a writer to a feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def on_durable(self, events: Sequence[Event], row: CatalogueRow | None) -> None:
        self._feed.publish(events)

    def on_log_error(self, error: QuarterdeckError | None) -> None:
        pass


class Flood:
    """Sessions that all write at once, each through its `SessionWriter`, with a feed."""

    def __init__(self, path: Path, sessions: int) -> None:
        self.loop = uvloop.new_event_loop()
        self.commits = 0
        self.events = 0
        self.loop.run_until_complete(self._open(path, sessions))

    async def _open(self, path: Path, sessions: int) -> None:
        self.log = await SqliteLog.open(path)
        feed = await Feed.over(self.log)
        self.writers = [
            SessionWriter(self.log, f"s{number}", Publisher(feed), clock=lambda: 1) for number in range(sessions)
        ]
        for writer in self.writers:
            writer.write([ev.SessionOpened(agent="bench"), ev.AgentReady()], "process")
            await writer.flush()

    def count_commits(self) -> None:
        store_writer = self.log._writer  # pyright: ignore[reportPrivateUsage]
        commit = store_writer.commit

        def counted(appends: list[Append]) -> list[Outcome]:
            self.commits += 1
            self.events += sum(len(append.events) for append in appends)
            return commit(appends)

        store_writer.commit = counted

    def run(self, bodies: Sequence[Body]) -> None:
        self.loop.run_until_complete(self._all(bodies))

    async def _all(self, bodies: Sequence[Body]) -> None:
        await asyncio.gather(*(self._write_one(writer, bodies) for writer in self.writers))

    async def _write_one(self, writer: SessionWriter, bodies: Sequence[Body]) -> None:
        for number, body in enumerate(bodies, 1):
            writer.write((body,), "stream")
            if number % AWAIT_EVERY == 0:
                await writer.flush()
        await writer.flush()

    def batch(self) -> int:
        """Return how many events shared a commit on average."""
        return max(1, round(self.events / self.commits))

    def close(self) -> None:
        self.loop.run_until_complete(self.log.close())
        self.loop.close()


def _flood(
    folder: Path, name: str, make: Callable[[int], list[Body]], sessions: int, target: float, effort: Effort
) -> Figure:
    flood, turns, tape = Flood(folder / "ours.db", sessions), count(), make(0)
    flood.count_commits()
    flood.run(make(next(turns)))
    batch = flood.batch()
    subject = Work(lambda: flood.run(make(next(turns))), len(tape) * sessions)
    floor = raw_store.insert_work(folder / "raw.db", tape, sessions, batch)
    measured = ratio(subject, floor, effort)
    flood.close()
    return Figure("log", f"{sessions} sessions, {name}, {batch} a commit, to bare inserts", measured, target)


def _lone(folder: Path, effort: Effort) -> Iterator[Figure]:
    """Measure one append while nothing else writes: the time that a person waits for, and CPU time."""
    flood, body = Flood(folder / "lone.db", 1), ev.Notice(text=_PIECE)
    writer = flood.writers[0]

    async def appended() -> None:
        writer.write((body,), "stream")
        await writer.flush()

    async def appended_often() -> None:
        for _ in range(LONE):
            await appended()

    floor = raw_store.commit_work(folder / "lone_raw.db", body, 1).run
    waited = flood.loop.run_until_complete(ratio_of_waits(appended, floor, effort))
    yield Figure("log", "one lone append to one bare commit, wall time", waited, 3.0)
    subject = Work(lambda: flood.loop.run_until_complete(appended_often()), LONE)
    floors = raw_store.commit_work(folder / "lone_raw_cpu.db", body, LONE)
    yield Figure("log", "one lone append to one bare commit, CPU time", ratio(subject, floors, effort))
    flood.close()
