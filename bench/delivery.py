"""Measure events to a hundred clients, over WebSocket and SSE, against bare sends of aiohttp.

Only the server's CPU time counts: the clients are another process. The subject is the whole path: an event is written to a
session's record with a log in memory, folded, published and sent. The floor sends a prepared text to as many connections,
one after another, as in aiohttp's documentation.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.crowd import Crowd
from bench.figure import Figure
from bench.hosting import Host
from bench.measure import SMOKE, Effort, Ratio, Work, ratio
from quarterdeck import events as ev
from quarterdeck.events import Event, encode_event
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.session_writer import SessionWriter

CLIENTS = 100
RATE = 100_000
_PIECE = "and the parser took that for "


def figures(effort: Effort) -> Iterator[Figure]:
    clients = CLIENTS if effort is not SMOKE else 3
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in (("WebSocket", "ws"), ("SSE", "sse")):
            scene = Scene(Path(folder) / kind, kind, clients)
            for burst, target in ((1, 1.6), (8, 0.5)):
                found = ratio(scene.ours(burst), scene.bare(burst), effort)
                what = f"{name}, {clients} clients, {burst} a wake-up"
                yield Figure("delivery", f"{what}, to bare aiohttp sends", found, target)
                yield Figure("delivery", f"{what}, to {RATE:,} deliveries a second", _of_rate(found), 1)
            scene.close()
        scene = Scene(Path(folder) / "mirror", "mirror", clients)
        found = ratio(scene.ours(1), scene.bare(1), effort)
        yield Figure("delivery", f"WebSocket with a mirror of the timeline, {clients} clients, 1 a wake-up", found)
        scene.close()


def _of_rate(found: Ratio) -> Ratio:
    """Return the time of a delivery as a share of the time that the target rate allows."""
    each = 1e9 / RATE
    low, high = found.subject_range_ns
    return Ratio(found.subject_ns / each, low / each, high / each, found.subject_ns, each)


class Scene:
    """Run our server and a bare one, each with its clients."""

    def __init__(self, home: Path, kind: str, clients: int) -> None:
        self._host = Host()
        self._kind = kind
        self._clients = clients
        self._lines: list[Any] = []
        self._crowds: list[Crowd] = []
        self._record: SessionWriter
        self._host.run(self._open(home))

    async def _open(self, home: Path) -> None:
        deck, url, token = await self._host.deck(home, MemoryLog())
        handle = await deck.create("test", cwd=str(home))
        session = await deck.load_session(handle.id)
        self._use = session.in_use()
        self._use.__enter__()
        self._record = session.writer
        start = [ev.AgentReady(), ev.PromptReceived(text="Go", message_id="p"), ev.AgentStart(), ev.MessageStart("m")]
        self._record.write(start, "stream")
        await self._record.flush()
        self._crowds.append(await Crowd.start("read", url, token, *self._asks(handle.id)))
        bare = web.Application()
        bare.router.add_get("/", self._bare_socket if self._kind != "sse" else self._bare_stream)
        message = ["{}"] if self._kind != "sse" else []
        address = await self._host.serve(bare)
        self._crowds.append(await Crowd.start("read", address, "t", "/", str(self._clients), *message))
        await asyncio.sleep(0.2)

    def _asks(self, session: str) -> list[str]:
        if self._kind == "sse":
            return [f"/sessions/{session}/events", str(self._clients)]
        mirror = {"timeline": {"limit": 200}} if self._kind == "mirror" else {}
        return ["/ws", str(self._clients), json.dumps({"op": "subscribe", "session": session, "since": 0, **mirror})]

    async def _bare_socket(self, request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse(compress=False)
        await response.prepare(request)
        self._lines.append(response.send_str)
        async for _ in response:
            pass
        return response

    async def _bare_stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": \n\n")
        self._lines.append(response.write)
        await asyncio.get_running_loop().create_future()
        return response

    def ours(self, burst: int) -> Work:
        bodies = [ev.MessageDelta(message_id="m", delta=_PIECE)] * burst

        async def told() -> None:
            self._record.write(bodies, "stream")
            await self._record.flush()
            for _ in range(3):
                await asyncio.sleep(0)

        return Work(lambda: self._host.run(told()), burst * self._clients)

    def bare(self, burst: int) -> Work:
        event = Event("0123456789abcdef", 1000, 1_700_000_000_000, "stream", ev.MessageDelta("m", _PIECE), "0" * 20)
        payload: Any = encode_event(event) if self._kind == "sse" else encode_event(event).decode()
        assert len(self._lines) == self._clients

        async def told() -> None:
            for _ in range(burst):
                for send in self._lines:
                    await send(payload)
                await asyncio.sleep(0)

        return Work(lambda: self._host.run(told()), burst * self._clients)

    def close(self) -> None:
        for crowd in self._crowds:
            self._host.run(crowd.stop())
        self._host.close()
