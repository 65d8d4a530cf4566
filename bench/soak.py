"""`make soak`: run a thousand sessions for ten minutes, with a hundred WebSocket clients that read all of them.

The sessions are the deck's own, with its log on disk, its folds, its catalogue and its streams. The events of their agents
are written here, without a thousand processes. A session lasts one to four turns, is archived and deleted, and another one
replaces it, so that a memory leak would show.

First the server runs as fast as its clients can read, for a while, to find the peak. Then it runs at half of that rate, and
every event in the log must have reached every client, in order, 99 of 100 within 100 ms. The report also says how long
server and clients waited for a core, because each hop of an event (loop, writer's thread, loop, client) can wait there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.hosting import Host
from quarterdeck import events as ev
from quarterdeck.deck.deck import Deck
from quarterdeck.events import Body, Event, encode_event
from quarterdeck.log.deltas import is_delta
from quarterdeck.server import main as serve

SESSIONS = 1_000
CLIENTS = 100
TURNS = 4
#: How many events may be on their way to the slowest client while the peak is measured.
AHEAD = 1_000
LATE_MS = 100
DELETED_AFTER_S = 2.0
#: How much more memory than after the first minute still counts as flat.
FLAT = 1.10
_PIECE = "and the parser took that for the end of the file "


def _turn(number: int) -> Iterator[Body]:
    message, call = f"m{number}", f"c{number}"
    yield ev.PromptReceived(text="And the other one?", message_id=f"p{number}")
    yield ev.AgentStart(turn_id=f"t{number}")
    yield ev.RequestStart(model="m-large")
    yield ev.MessageStart(message_id=message)
    for _ in range(12):
        yield ev.MessageDelta(message_id=message, delta=_PIECE)
    yield ev.ResponseComplete(message_id=message, blocks=(ev.Block(text=_PIECE * 12),))
    yield ev.ToolExecutionStart(name="Edit", call_id=call, args={"file_path": "a.py"})
    yield ev.ToolExecutionEnd(name="Edit", call_id=call, result="done")
    yield ev.AgentEnd(turn_id=f"t{number}")


class Clients:
    """Control the process of the clients."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.slowest = 0
        self.lost = 0
        self.last: dict[str, Any] = {}
        self._task = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def start(cls, url: str, token: str, count: int) -> Clients:
        command = [sys.executable, "-m", "bench.soak_clients", url, token, str(count)]
        return cls(
            await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 24)
        )

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.last = json.loads(line)
            self.slowest, self.lost = self.last["slowest"], self.last["lost"]

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def end(self) -> dict[str, Any]:
        self.say("end")
        await self._task
        await self._process.wait()
        return self.last


class Soak:
    """Drive the sessions, and count the events that clients must receive."""

    def __init__(self, deck: Deck, folder: Path) -> None:
        self._deck = deck
        self._folder = folder
        self._live: list[tuple[Any, Iterator[Body], int]] = []
        self._uses: dict[str, Any] = {}
        self._dice = random.Random(1)
        self._number = 0
        self._enders: set[asyncio.Task[None]] = set()
        self.written = 0
        self.published = 0
        self.lasting = 0
        self.sum = 0
        self.ended = 0
        self.turned_over = 0.0
        self.errors: list[str] = []
        publish = deck.feed.publish

        def counted(events: Sequence[Event]) -> None:
            self._count(events)
            publish(events)

        deck.feed.publish = counted  # type: ignore[method-assign]

    def _count(self, events: Sequence[Event]) -> None:
        """Count and checksum the events that every client must receive, in the bytes that it receives."""
        self.published += len(events)
        for event in events:
            if not is_delta(event.body):
                self.lasting += 1
                self.sum = zlib.crc32(b'{"op":"event","event":' + encode_event(event) + b"}", self.sum)

    async def begin(self, count: int) -> None:
        for _ in range(count):
            await self._open()

    async def _open(self) -> None:
        handle = await self._deck.create("test", cwd=str(self._folder))
        session = await self._deck.load_session(handle.id)
        self._uses[session.id] = session.in_use()
        self._uses[session.id].__enter__()
        self._number += 1
        self._live.append((session, _turn(self._number), self._number % TURNS))

    def write(self, size: int) -> bool:
        """Write events to a random session. Return False if there is none now, because all are being replaced."""
        if not self._live:
            return False
        place = self._dice.randrange(len(self._live))
        self._live[place], self._live[-1] = self._live[-1], self._live[place]
        session, bodies, turns = self._live.pop()
        said = [body for _, body in zip(range(size), bodies, strict=False)]
        if said:
            session.writer.write(said, "stream")
            self._live.append((session, bodies, turns))
            self.written += len(said)
            return True
        if turns:
            self._number += 1
            self._live.append((session, _turn(self._number), turns - 1))
            return True
        task = asyncio.get_running_loop().create_task(self._replace(session))
        self._enders.add(task)
        task.add_done_callback(self._enders.discard)
        return True

    async def _replace(self, session: Any) -> None:
        try:
            await session.writer.flush()
            self._uses.pop(session.id).__exit__(None, None, None)
            await self._deck.session(session.id).archive()
            # A reader that is behind doesn't get the events of a deleted session, so give readers time before deleting.
            await asyncio.sleep(DELETED_AFTER_S)
            await self._deck.session(session.id).delete()
            self.ended += 1
            await self._open()
        except Exception as error:
            self.errors.append(repr(error))

    async def settled(self) -> None:
        while self._enders:
            await asyncio.wait(self._enders)
        for session, _, _ in list(self._live):
            await session.writer.flush()


async def _peak(soak: Soak, clients: Clients, seconds: float) -> float:
    """Return events a second, with the slowest client close behind. The first third of the time isn't counted."""
    end = time.monotonic() + seconds
    begun, at = 0, end
    first, seen = soak.written, clients.slowest
    while (now := time.monotonic()) < end:
        if at == end and now > end - seconds * 2 / 3:
            begun, at = clients.slowest, now
        for _ in range(4):
            if soak.written - first - (clients.slowest - seen) < AHEAD:
                soak.write(2)
        await asyncio.sleep(0.001)
    return (clients.slowest - begun) / (time.monotonic() - at)


async def _steady(soak: Soak, rate: float, seconds: float) -> list[tuple[float, int]]:
    """Write at this rate. Return samples of memory, and note when sessions have been replaced once on average."""
    begin, first = time.monotonic(), soak.written
    samples = [(0.0, _resident())]
    soak.turned_over = seconds
    while (passed := time.monotonic() - begin) < seconds:
        while soak.written - first < passed * rate and soak.write(2):
            pass
        if soak.ended >= SESSIONS:
            soak.turned_over = min(soak.turned_over, passed)
        if passed - samples[-1][0] >= 1:
            samples.append((passed, _resident()))
        await asyncio.sleep(0.005)
    return samples


async def _quiet(clients: Clients) -> None:
    """Wait until clients receive nothing more."""
    before = -1
    while clients.slowest != before:
        before = clients.slowest
        await asyncio.sleep(2)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


def _waited(pid: int) -> float:
    """Return for how many seconds the threads of a process were runnable but had no core."""
    return sum(
        int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


def _quantile(ages: dict[str, int], part: float) -> int:
    left = part * sum(ages.values())
    for age, count in sorted((int(age), count) for age, count in ages.items()):
        left -= count
        if left <= 0:
            return age
    return 0


def _mean(samples: list[tuple[float, int]], start: float, end: float) -> float:
    chosen = [size for at, size in samples if start <= at <= end] or [samples[-1][1]]
    return sum(chosen) / len(chosen)


async def _run(host: Host, folder: Path, seconds: float, sessions: int, count: int) -> dict[str, Any]:
    deck, url, token = await host.deck(folder / "home")
    serve.freeze_memory()
    soak = Soak(deck, folder)
    clients = await Clients.start(url, token, count)
    while not clients.last:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    await soak.begin(sessions)
    peak = await _peak(soak, clients, min(30.0, seconds / 4))
    await _quiet(clients)
    clients.say("forget")
    started, cpu = soak.published, time.process_time()
    before = [_waited(pid) for pid in (os.getpid(), clients.pid)]
    samples = await _steady(soak, peak / 2, seconds)
    spent = time.process_time() - cpu
    waits = [_waited(pid) - waited for pid, waited in zip((os.getpid(), clients.pid), before, strict=True)]
    await soak.settled()
    await _quiet(clients)
    last = await clients.end()
    # At a low rate, sessions are still young after a minute, and their conversations still grow.
    minute = min(max(60.0, soak.turned_over), seconds / 3)
    early, late = _mean(samples, minute, minute + 30), _mean(samples, seconds - 30, seconds)
    return {
        "seconds": seconds,
        "sessions": sessions,
        "clients": count,
        "sessions ended and replaced": soak.ended,
        "peak events a second": round(peak),
        "peak deliveries a second": round(peak * count),
        "events at half of it": soak.published - started,
        "deliveries in all": last["received"],
        "CPU share of the server": round(spent / seconds, 2),
        "server waited for a core, share": round(waits[0] / seconds, 2),
        "clients waited for one, share": round(waits[1] / seconds, 2),
        "load averages": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "p50 ms": _quantile(last["ages"], 0.5),
        "p99 ms": _quantile(last["ages"], 0.99),
        "worst ms": _quantile(last["ages"], 1),
        "first measured after, s": round(minute),
        "memory MB then": round(early / 1e6, 1),
        "memory MB at the end": round(late / 1e6, 1),
        "memory grew": round(late / early, 3),
        "memory MB in tenths of the time": " ".join(
            f"{_mean(samples, seconds * part / 10, seconds * (part + 1) / 10) / 1e6:.0f}" for part in range(10)
        ),
        "errors": soak.errors[:5],
        "connections lost": last["lost"],
        "out of order": last["wrong"],
        "all clients alike": last["sums"] == 1 and last["lasting"] == [soak.lasting] and last["sum"] == soak.sum,
    }


def _verdict(found: dict[str, Any]) -> list[str]:
    wrong: list[str] = []
    if found["errors"] or found["connections lost"] or found["out of order"]:
        wrong.append("there were errors")
    if not found["all clients alike"]:
        wrong.append("a client did not get what the log holds")
    if found["p99 ms"] >= LATE_MS:
        wrong.append(f"p99 is not under {LATE_MS} ms")
    if found["memory grew"] > FLAT:
        wrong.append("memory grew")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    options = parser.parse_args()
    host = Host()
    with tempfile.TemporaryDirectory() as folder:
        found = host.run(_run(host, Path(folder), options.seconds, options.sessions, options.clients))
        host.close()
    for name, value in found.items():
        print(f"{name:32} {value}")
    wrong = _verdict(found)
    print("ok" if not wrong else "FAILED: " + "; ".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
