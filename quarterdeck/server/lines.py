"""Connections as lines of bytes, below aiohttp's own interfaces: one write for all that a wake-up found."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler


class TransportLine:
    """Writes to a transport and knows how much of it is unsent."""

    def __init__(self, request: web.Request) -> None:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        self._transport: asyncio.Transport = transport
        self._protocol: RequestHandler = request.protocol

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    @property
    def unsent(self) -> int:
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    async def drained(self) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        await self._protocol._drain_helper()  # pyright: ignore[reportPrivateUsage]
