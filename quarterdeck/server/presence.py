"""Who is connected for long, and by which token: a stream does not outlive the token that opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

from quarterdeck.server.tokens import Tokens, Visitor

#: How long a stream may outlive its token.
EVERY_S = 2.0


class Presence:
    """The open streams. While there are any their tokens are looked at again and again."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._here: dict[asyncio.Transport, Visitor] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def of(self, request: web.Request, visitor: Visitor) -> Generator[None]:
        """As long as this lasts the connection is closed when its token is worth nothing any more."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        self._here[transport] = visitor
        self._arm()
        try:
            yield
        finally:
            self._here.pop(transport, None)

    def _arm(self) -> None:
        if self._timer is None and self._here:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        for transport, visitor in list(self._here.items()):
            if not self._tokens.is_current(visitor):
                transport.abort()
        self._arm()
