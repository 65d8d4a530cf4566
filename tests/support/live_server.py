"""Run a real server on a real port, with clients that read bytes as a browser, a slow phone or a cut cable would.

`Port` serves a home and can be restarted on the same port. `SseTap` and `WsTap` read a connection step by step, so that a
test decides how much is read, how slowly, and where it is cut off.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from quarterdeck import Deck, Settings
from quarterdeck.server.app import Server
from quarterdeck.server.tokens import Tokens
from tests.support.decks import SETTINGS

Message = dict[str, Any]


class Port:
    """A server for one home. `url` and `token` stay the same over restarts."""

    def __init__(self, home: Path, settings: Settings = SETTINGS) -> None:
        self.home = home
        self.settings = settings
        self.port = 0
        self.token = ""
        self.deck: Deck
        self.server: Server
        self._runner: web.AppRunner

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def start(self) -> None:
        self.deck = await Deck.open(self.home, settings=self.settings)
        tokens = Tokens(self.home)
        self.token = tokens.owner()
        self.server = Server(self.deck, tokens)
        self._runner = web.AppRunner(
            self.server.app, access_log=None, handler_cancellation=True, shutdown_timeout=1, keepalive_timeout=5
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self.deck.close()


@asynccontextmanager
async def served(folder: Path, settings: Settings = SETTINGS, **changes: object) -> AsyncGenerator[Port]:
    """Run a server over the home in this folder. `changes` are changes to the settings."""
    port = Port(folder / "home", msgspec.structs.replace(settings, **changes))
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


class Cut(Exception):
    """The connection is closed."""


class Tap:
    """A connection that the test reads step by step. With `small`, the kernel's receive buffer is tiny."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def connected(port: Port, head: str, small: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        line = socket.socket()
        line.setblocking(False)
        if small:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        try:
            await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", port.port))
            reader, writer = await asyncio.open_connection(sock=line, limit=2048 if small else 1 << 16)
        except OSError as error:
            line.close()
            raise Cut from error
        writer.write(f"{head}Host: 127.0.0.1:{port.port}\r\nAuthorization: Bearer {port.token}\r\n\r\n".encode())
        return reader, writer

    async def some(self, most: int = 1 << 16) -> bytes:
        """Read the available bytes, but no more than `most`."""
        try:
            data = await self._reader.read(most)
        except OSError as error:
            raise Cut from error
        if not data:
            raise Cut
        return data

    async def exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Cut from error

    async def head(self) -> bytes:
        """Read the head of the response."""
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            self.cut()
            raise Cut from error

    def cut(self) -> None:
        """Abort the connection at once, without flushing."""
        self._writer.transport.abort()


class Block(msgspec.Struct):
    """One block of an SSE stream."""

    name: str
    id: str
    data: Any


class SseTap(Tap):
    """An SSE stream. `blocks` reads bytes and returns the complete blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.status = 0
        self.comments = 0
        self._raw = b""
        self._body = b""
        self._is_over = False

    @classmethod
    async def open(cls, port: Port, path: str, *, small: bool = False, last: str = "", **query: object) -> SseTap:
        head = f"GET {path}?{urlencode(query)} HTTP/1.1\r\n" + (f"Last-Event-ID: {last}\r\n" if last else "")
        tap = cls(*await cls.connected(port, head, small))
        answer = await tap.head()
        tap.status = int(answer.split()[1])
        return tap

    async def blocks(self, most: int = 1 << 16) -> list[Block]:
        """Return the blocks that the next bytes complete, if any."""
        if self._is_over:
            raise Cut
        self._raw += await self.some(most)
        self._unchunk()
        *whole, self._body = self._body.split(b"\n\n")
        return [block for text in whole if (block := self._block(text)) is not None]

    def _unchunk(self) -> None:
        while True:
            size, found, rest = self._raw.partition(b"\r\n")
            if not found or len(rest) < (length := int(size, 16)) + 2:
                return
            if not length:
                self._is_over = True
                return
            self._body += rest[:length]
            self._raw = rest[length + 2 :]

    def _block(self, text: bytes) -> Block | None:
        fields: dict[str, str] = {}
        for line in text.decode().split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        if "data" not in fields:
            self.comments += "" in fields
            return None
        return Block(fields["event"], fields.get("id", ""), json.loads(fields["data"]))


class WsTap(Tap):
    """A WebSocket client that frames its own messages."""

    @classmethod
    async def open(cls, port: Port, *, small: bool = False) -> WsTap:
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        )
        tap = cls(*await cls.connected(port, head, small))
        answer = await tap.head()
        if b" 101 " not in answer:
            tap.cut()
            raise Cut(answer)
        return tap

    def say(self, **message: object) -> None:
        self._frame(0x1, json.dumps(message).encode())

    def _frame(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        size = len(payload)
        head = bytes([0x80 | opcode, 0x80 | size]) if size < 126 else struct.pack("!BBH", 0x80 | opcode, 0xFE, size)
        masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
        self._writer.write(head + mask + masked)

    async def hear(self) -> Message:
        """Return the next message. Answer pings meanwhile."""
        while True:
            first, size = await self.exactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self.exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.exactly(8))
            payload = await self.exactly(size)
            opcode = first & 0xF
            if opcode == 0x8:
                raise Cut(payload)
            if opcode == 0x9:
                self._frame(0xA, payload)
            elif opcode == 0x1:
                return json.loads(payload)
