"""Close streams whose token was revoked.

A request is checked once, but a stream may stay open for days. Every process that changes the tokens writes a byte to a
named pipe in the home (`Tokens.change_pipe`), and the server then checks all open streams. A change that was made with an
editor isn't announced there; it is found with the next request of any client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

from quarterdeck.server.tokens import Tokens, Visitor

log = logging.getLogger("quarterdeck.server")


class TokenWatch:
    """The open streams of a server, with the token that each was opened with."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._streams: dict[asyncio.Transport, Visitor] = {}
        self._pipe: int | None = None
        tokens.on_change = self._check_soon

    async def start(self, _: web.Application) -> None:
        """Create the pipe and listen to it. Without a pipe, only requests make the server check its streams."""
        path = self._tokens.change_pipe
        try:
            path.unlink(missing_ok=True)  # A killed server leaves its pipe behind.
            os.mkfifo(path, 0o600)
            # Open it for writing too: a pipe without a writer is always readable (end of file).
            self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            log.warning("streams with a revoked token stay open until the next request: %s", error)
            return
        asyncio.get_running_loop().add_reader(self._pipe, self._on_notification)

    async def stop(self, _: web.Application) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None
            self._tokens.change_pipe.unlink(missing_ok=True)

    @contextmanager
    def watch(self, request: web.Request, visitor: Visitor) -> Generator[None]:
        """Close the request's connection if its token is revoked inside this block.

        Raises:
            ConnectionResetError: the client has disconnected.
        """
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        self._streams[transport] = visitor
        try:
            yield
        finally:
            self._streams.pop(transport, None)

    def _on_notification(self) -> None:
        assert self._pipe is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe, 4096)
        self._check()

    def _check_soon(self) -> None:
        """Check after the current callback, which is in the middle of a request."""
        if self._streams:
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        for transport, visitor in list(self._streams.items()):
            if not self._tokens.is_current(visitor):
                transport.abort()
