"""Who is connected for long, and by which token: a stream does not outlive the token that opened it.

Nobody looks regularly. Whoever changes the tokens rings (`bell`); a change that was made by hand is seen with the next
request of anybody, and then the streams are looked at as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

from quarterdeck.server.token_watch import Bell
from quarterdeck.server.tokens import Tokens, Visitor

log = logging.getLogger("quarterdeck.server")


class Presence:
    """The open streams."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._here: dict[asyncio.Transport, Visitor] = {}
        self._bell: Bell | None = None
        tokens.on_change = self._soon

    async def begin(self, _: web.Application) -> None:
        """Listens from now on."""
        try:
            self._bell = Bell(self._tokens.bell, self._look)
        except OSError as error:
            log.warning("open streams outlive a revoked token until the next request: %s", error)

    async def end(self, _: web.Application) -> None:
        """Listens no more."""
        if self._bell is not None:
            self._bell.take_down()
            self._bell = None

    @contextmanager
    def of(self, request: web.Request, visitor: Visitor) -> Generator[None]:
        """As long as this lasts the connection is closed when its token is worth nothing any more."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        self._here[transport] = visitor
        try:
            yield
        finally:
            self._here.pop(transport, None)

    def _soon(self) -> None:
        """Not in the middle of the request that noticed the change."""
        if self._here:
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        for transport, visitor in list(self._here.items()):
            if not self._tokens.is_current(visitor):
                transport.abort()
