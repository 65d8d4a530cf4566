"""Test that clients lose nothing: connections are cut at random, readers are slow or paused, the server restarts.

In the end, every reader has the events of the log once and in order. Deltas of finished messages may have been dropped from
the log by then, so they are compared by the view that they fold to. A patched mirror equals a fresh snapshot at every index
at which it changed.

`QD_CUTS=20000 pytest -s` runs longer and prints the counts.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, decode_event, encode_event
from quarterdeck.kernel.summary import view_values
from quarterdeck.kernel.timeline import window
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.deltas import is_delta
from tests.conformance.marks import case
from tests.support.decks import SETTINGS
from tests.support.live_server import Cut, Message, Port, SseTap, WsTap
from tests.support.mirror import apply_changes

CUTS = int(os.environ.get("QD_CUTS", "2000"))
SESSIONS = 3
RESTARTS = 6
LIMITS = (7, 200)
FILTER = ("message_delta", "agent_end", "notice")


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def turn(dice: random.Random, number: int) -> Iterator[Body]:
    """Return the events of a turn. Some turns are aborted in the middle of a message."""
    yield ev.PromptReceived(text=f"prompt {number}", message_id=f"p{number}")
    yield ev.AgentStart(turn_id=f"t{number}")
    for step in range(dice.randint(1, 3)):
        message, call = f"m{number}_{step}", f"c{number}_{step}"
        yield ev.RequestStart(model="m", turn_id=f"t{number}")
        yield ev.MessageStart(message_id=message)
        pieces = [dice.choice(["one ", "two ", "three\n", "é✓ ", "x" * 500]) for _ in range(dice.randint(1, 30))]
        for piece in pieces:
            yield ev.MessageDelta(message_id=message, delta=piece)
        if dice.random() < 0.1:
            yield ev.AgentAbort(reason="interrupted")
            return
        yield ev.ResponseComplete(message_id=message, blocks=(ev.Block(text="".join(pieces)),))
        yield ev.ToolExecutionStart(name="Edit", call_id=call, args={"file_path": "a.py"})
        yield ev.ToolExecutionOutput(call_id=call, delta="line\n" * dice.randint(1, 20))
        yield ev.ToolExecutionEnd(name="Edit", call_id=call, result="done")
    yield ev.Notice(text=f"notice {number}")
    yield ev.AgentEnd(turn_id=f"t{number}")


class Scene:
    """The server, the events written to it, and every view that was durable."""

    def __init__(self, port: Port, dice: random.Random) -> None:
        self.port = port
        self.dice = dice
        self.names: list[str] = []
        self.views: dict[tuple[str, int], View] = {}
        self.shows: dict[tuple[str, int], dict[str, Any]] = {}
        self.windows: dict[tuple[str, int, int], list[Any]] = {}
        self.cuts = self.restarts = self.written = self.checked = 0
        self.is_over = False

    async def begin(self) -> None:
        self.names = [(await self.port.deck.create("test", cwd=str(self.port.home))).id for _ in range(SESSIONS)]

    async def _watch(self) -> None:
        """Store each view when its events are published, before any reader gets them."""
        deck = self.port.deck
        sessions = {name: await deck.load_session(name) for name in self.names}
        publish = deck.feed.publish

        def noted(events: Sequence[Event]) -> None:
            name = events[-1].session_id
            view = sessions[name].writer.durable_view
            self.views[name, view.index] = view
            publish(events)

        deck.feed.publish = noted
        self.uses = {name: session.in_use() for name, session in sessions.items()}
        for name, session in sessions.items():
            self.uses[name].__enter__()
            await session.load()
            self.views[name, session.writer.durable_view.index] = session.writer.durable_view

    async def write(self) -> None:
        """Write until enough connections were cut, with restarts in between."""
        number = 0
        for restart in range(RESTARTS + 1):
            await self._watch()
            for name in self.names:
                if restart:
                    (await self.port.deck.load_session(name)).writer.write([ev.SessionResumed()], "supervisor")
            while self.cuts < CUTS * (restart + 1) // (RESTARTS + 1):
                number += 1
                await self._turn(number)
            if restart < RESTARTS:
                await self.port.stop()
                self.restarts += 1
                await asyncio.sleep(0.02)
                await self.port.start()
        self.is_over = True

    async def _turn(self, number: int) -> None:
        record = (await self.port.deck.load_session(self.dice.choice(self.names))).writer
        bodies = list(turn(self.dice, number))
        while bodies:
            size = self.dice.choice((1, 1, 2, 5, 40))
            record.write(bodies[:size], "stream")
            self.written += len(bodies[:size])
            del bodies[:size]
            await asyncio.sleep(self.dice.choice((0, 0, 0.001, 0.004)))
        await record.flush()

    def shown(self, name: str, index: int) -> dict[str, Any]:
        if (name, index) not in self.shows:
            self.shows[name, index] = plain(view_values(self.views[name, index]))
        return self.shows[name, index]

    def window(self, name: str, index: int, limit: int) -> list[Any]:
        key = (name, index, limit)
        if key not in self.windows:
            self.windows[key] = plain(window(self.views[name, index].timeline, limit))
        return self.windows[key]


class Reader:
    """Collects events over many connections. Each is cut after some bytes or messages, except the last one."""

    def __init__(self, scene: Scene, name: str, dice: random.Random, types: tuple[str, ...] = ()) -> None:
        self.scene = scene
        self.name = name
        self.dice = dice
        self.types = types
        self.events: list[Event] = []
        self.is_done = False

    async def run(self) -> None:
        while not self.is_done:
            try:
                await self.once(self.dice.random() < 0.5, self.dice.choice((1, 1, 2, 8, 60)))
                self.scene.cuts += 1
            except Cut:
                await asyncio.sleep(0.005)

    async def once(self, small: bool, budget: int) -> None:
        raise NotImplementedError

    async def dawdle(self) -> None:
        if self.dice.random() < 0.02:
            await asyncio.sleep(self.dice.choice((0.001, 0.01, 0.1)))

    def take(self, data: bytes) -> None:
        event = decode_event(data)
        if event.type == "session_deleted":
            self.is_done = True
        else:
            self.events.append(event)


class SseReader(Reader):
    async def once(self, small: bool, budget: int) -> None:
        since = self.events[-1].index if self.events else 0
        types = {"types": ",".join(self.types)} if self.types else {}
        # Last-Event-ID overrides the address.
        wrong, last = (0, str(since)) if since and self.dice.random() < 0.5 else (since, "")
        tap = await SseTap.open(
            self.scene.port, f"/sessions/{self.name}/events", small=small, last=last, since=wrong, **types
        )
        await self.read(tap, budget)

    async def read(self, tap: SseTap, budget: int) -> None:
        if tap.status != 200:
            tap.cut()
            self.is_done = tap.status == 404
            raise Cut
        try:
            while (budget > 0 or self.scene.is_over) and not self.is_done:
                for block in await tap.blocks(self.dice.choice((300, 5000, 1 << 16))):
                    assert block.name not in ("gap", "snapshot")
                    if block.name not in ("cursor", "end"):
                        self.take(msgspec.json.encode(block.data))
                budget -= 1
                await self.dawdle()
        finally:
            tap.cut()


class SseAllReader(SseReader):
    """Reads all sessions by cursor."""

    async def once(self, small: bool, budget: int) -> None:
        since = self.events[-1].cursor if self.events else ""
        tap = await SseTap.open(self.scene.port, "/events", small=small, since=since)
        await self.read(tap, budget)

    def take(self, data: bytes) -> None:
        event = decode_event(data)
        self.events.append(event)
        self.is_done = self.scene.is_over and [one.type for one in self.events].count("session_deleted") == SESSIONS


class WsReader(Reader):
    """Reads events, and mirrors the timeline and the view."""

    async def once(self, small: bool, budget: int) -> None:
        tap = await WsTap.open(self.scene.port, small=small)
        limit = self.dice.choice(LIMITS)
        since = self.events[-1].index if self.events else 0
        tap.say(op="subscribe", session=self.name, since=since, timeline={"limit": limit})
        mirror = Mirror(self.scene, self.name, limit)
        try:
            while (budget > 0 or self.scene.is_over) and not self.is_done:
                message = await tap.hear()
                if message["op"] == "event":
                    self.take(msgspec.json.encode(message["event"]))
                elif message["op"] == "error":
                    assert message["error"]["code"] in ("no_such_session", "deck_closed"), message
                    self.is_done = message["error"]["code"] == "no_such_session"
                    raise Cut
                else:
                    mirror.take(message)
                budget -= 1
                await self.dawdle()
        finally:
            tap.cut()


class Mirror:
    """The state of one session as a web page has it."""

    def __init__(self, scene: Scene, name: str, limit: int) -> None:
        self.scene = scene
        self.name = name
        self.limit = limit
        self.entries: list[dict[str, Any]] = []
        self.view: dict[str, Any] = {}
        self.pending = 0

    def take(self, message: Message) -> None:
        assert message["op"] in ("snapshot", "view", "patch"), message
        index = message["index"]
        if message["op"] == "snapshot":
            self.entries, self.view = message["timeline"], message["view"]
            self.check(index)
        elif message["op"] == "patch":
            self.entries = apply_changes(self.entries, message["changes"])
            self.check(index)
        elif message["changes"][0]["op"] != "remove":
            for change in message["changes"]:
                self.view[change["field"]] = change["value"]
            assert {**self.view, "index": index} == self.scene.shown(self.name, index)

    def check(self, index: int) -> None:
        self.scene.checked += 1
        assert self.entries == self.scene.window(self.name, index, self.limit)


def stays(event: Event) -> bool:
    return not is_delta(event.body)


def same(found: Sequence[Event], log: Sequence[Event]) -> None:
    """Check that no event is missing, repeated or unexpected."""
    assert [encode_event(one) for one in found if stays(one)] == [encode_event(one) for one in log if stays(one)]
    indexes = [event.index for event in found]
    assert indexes == sorted(set(indexes))


@case("U-113")
def test_readers_that_are_cut_get_what_an_uncut_reader_gets(tmp_path: Path):
    uvloop.run(asyncio.wait_for(_cut_and_compare(tmp_path), 300 + CUTS / 5))


async def _cut_and_compare(folder: Path) -> None:
    port = Port(folder / "home", SETTINGS)
    await port.start()
    scene = Scene(port, random.Random(1))
    await scene.begin()
    readers: list[Reader] = []
    for place, name in enumerate(scene.names):
        readers += [kind(scene, name, random.Random(place)) for kind in (SseReader, WsReader, WsReader)]
    readers += [SseAllReader(scene, "*", random.Random(9)) for _ in range(2)]
    filtered = SseReader(scene, scene.names[0], random.Random(10), FILTER)
    tasks = [asyncio.create_task(reader.run()) for reader in (*readers, filtered)]
    await scene.write()
    logs = {name: await _log(port, name) for name in scene.names}
    await _caught_up(tasks, readers, logs)
    for name in scene.names:
        await port.deck.session(name).archive()
    ends = {name: await _log(port, name) for name in scene.names}
    await _caught_up(tasks, readers, ends)
    for name in scene.names:
        await port.deck.session(name).delete()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    await port.stop()
    for reader in readers:
        _compare(scene, reader, ends)
    wanted = [one for one in ends[scene.names[0]] if one.type in {*FILTER, "response_complete", "message_aborted"}]
    same(filtered.events, wanted)
    sys.stdout.write(
        f"\n{scene.cuts} cuts, {scene.restarts} restarts, {scene.written} events written, "
        f"{sum(len(one.events) for one in readers)} read by {len(readers) + 1} readers, {scene.checked} mirrors compared\n"
    )
    assert scene.cuts >= CUTS
    assert scene.checked > CUTS / 10


async def _log(port: Port, name: str) -> list[Event]:
    session = await port.deck.load_session(name)
    await session.writer.flush()
    return await port.deck.session(name).events(0, 1_000_000)


async def _caught_up(tasks: list[asyncio.Task[None]], readers: list[Reader], logs: dict[str, list[Event]]) -> None:
    last = max(log[-1].cursor for log in logs.values())
    while any(
        not reader.events or (reader.events[-1].cursor < (last if reader.name == "*" else logs[reader.name][-1].cursor))
        for reader in readers
    ):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.01)


def _compare(scene: Scene, reader: Reader, logs: dict[str, list[Event]]) -> None:
    if reader.name != "*":
        same(reader.events, logs[reader.name])
        _folds_alike(reader.events, logs[reader.name])
        return
    cursors = [event.cursor for event in reader.events]
    assert cursors == sorted(set(cursors))
    for name in scene.names:
        found = [event for event in reader.events if event.session_id == name]
        assert found[-1].type == "session_deleted"
        same(found[:-1], logs[name])
        _folds_alike(found[:-1], logs[name])


def _folds_alike(found: list[Event], log: list[Event]) -> None:
    ours, theirs = fold_all(found, View()), fold_all(log, View())
    assert plain(view_values(ours)) == plain(view_values(theirs))
    assert plain(window(ours.timeline)) == plain(window(theirs.timeline))
