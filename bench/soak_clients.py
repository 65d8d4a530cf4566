"""Run the clients of `make soak`: minimal WebSockets in another process, cheap enough not to slow the server down.

    python -m bench.soak_clients URL TOKEN COUNT

Each client subscribes to everything and counts the events that stay in the log; the number must match the log's. Every tenth
client reads frame by frame and computes a checksum of the events, which must match the log's too. The first one decodes each
event and measures its age. Ten lines of JSON a second report the position of the slowest client. `end` on standard input
requests the last line.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import sys
import time
import zlib
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop

_EVENT = b'{"op":"event","event":'
#: Text deltas may be dropped from the log while a slow reader catches up. This soak has no other deltas.
_PIECE = b'"type":"message_delta"'


class _Envelope(msgspec.Struct):
    session_id: str
    index: int
    at: int


class _Message(msgspec.Struct):
    event: _Envelope


_decode = msgspec.json.Decoder(_Message).decode


class Client(asyncio.Protocol):
    """One connection. On the client that measures, `ages` counts how many events had which age in milliseconds."""

    def __init__(self, head: bytes, measures: bool) -> None:
        self._head = head
        self._measures = measures
        self._rest = b""
        self._is_open = False
        self._last: dict[str, int] = {}
        self.count = 0
        self.lasting = 0
        self.sum = 0
        self.ages: dict[int, int] = {}
        self.wrong = 0
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        place = 0
        if not self._is_open:
            place = data.find(b"\r\n\r\n") + 4
            if place < 4:
                self._rest = data
                return
            self._is_open = True
            self._say(0x1, b'{"op":"subscribe","session":"*","types":' + _TYPES + b"}")
        self._rest = data[self._frames(data, place) :]

    def _frames(self, data: bytes, place: int) -> int:
        size = len(data)
        while place + 2 <= size:
            length, start = data[place + 1], place + 2
            if length == 126:
                if start + 2 > size:
                    break
                (length,), start = struct.unpack_from("!H", data, start), start + 2
            elif length == 127:
                if start + 8 > size:
                    break
                (length,), start = struct.unpack_from("!Q", data, start), start + 8
            if start + length > size:
                break
            self._frame(data[place], data[start : start + length])
            place = start + length
        return place

    def _frame(self, first: int, payload: bytes) -> None:
        if first & 0xF == 0x9:
            self._say(0xA, payload)
        elif payload.startswith(_EVENT):
            self.count += 1
            if payload.find(_PIECE, 0, 220) < 0:
                self.lasting += 1
                self.sum = zlib.crc32(payload, self.sum)
            if self._measures:
                self._measure(_decode(payload).event)

    def _measure(self, event: _Envelope) -> None:
        age = int(time.time() * 1000) - event.at
        self.ages[age] = self.ages.get(age, 0) + 1
        if event.index <= self._last.get(event.session_id, 0):
            self.wrong += 1
        self._last[event.session_id] = event.index

    def _say(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        head = bytes([0x80 | opcode, 0x80 | size]) if size < 126 else struct.pack("!BBH", 0x80 | opcode, 0xFE, size)
        self._transport.write(head + b"\0\0\0\0" + payload)


class Counter(Client):
    """Searches only for words that every event contains, so that a hundred clients fit beside the server."""

    def __init__(self, head: bytes) -> None:
        super().__init__(head, False)
        self._ends = b""

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            super().data_received(data)
            return
        # A word may be split between two reads. The end of the last read is prepended, too short to hold a whole word.
        events = (self._ends[1 - len(_EVENT) :] + data).count(_EVENT)
        pieces = (self._ends[1 - len(_PIECE) :] + data).count(_PIECE)
        self._ends = data[-64:] if len(data) >= 64 else (self._ends + data)[-64:]
        self.count += events
        self.lasting += events - pieces

    def alive(self) -> None:
        """Send a pong unasked, because this client doesn't parse pings."""
        self._say(0xA, b"")


_TYPES = b"[]"


async def main() -> None:
    global _TYPES
    url, token, count = sys.argv[1:]
    from quarterdeck.events import NAMES

    _TYPES = msgspec.json.encode(sorted(NAMES.values()))
    where = urlsplit(url)
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /ws HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {token}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for number in range(int(count)):
        made = Counter(head) if number % 10 else Client(head, number == 0)
        _, client = await loop.create_connection(lambda made=made: made, where.hostname, where.port)
        clients.append(client)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    ended = loop.create_task(commands.readline())
    due = time.monotonic() + 5
    while not ended.done():
        _report(clients)
        if time.monotonic() > due:
            due += 5
            for client in clients:
                if isinstance(client, Counter):
                    client.alive()
        await asyncio.wait([ended], timeout=0.1)
        if ended.done() and ended.result() == b"forget\n":
            clients[0].ages.clear()
            ended = loop.create_task(commands.readline())
    _report(clients, whole=True)


def _report(clients: list[Client], *, whole: bool = False) -> None:
    said: dict[str, Any] = {"slowest": min(one.count for one in clients), "lost": sum(one.is_lost for one in clients)}
    if whole:
        said |= {
            "lasting": sorted({one.lasting for one in clients}),
            "sums": len({one.sum for one in clients if not isinstance(one, Counter)}),
            "sum": clients[0].sum,
            "wrong": clients[0].wrong,
            "ages": {str(age): count for age, count in clients[0].ages.items()},
            "received": sum(one.count for one in clients),
        }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())
