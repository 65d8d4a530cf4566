"""Run servers to measure on this process's own loop: ours with a temporary home, and bare ones for comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from aiohttp import web

from quarterdeck.deck.deck import Deck
from quarterdeck.log.base import Log
from quarterdeck.server.app import Server
from quarterdeck.server.connection import Runner
from quarterdeck.server.tokens import Tokens

T = TypeVar("T")


class Host:
    """A loop, and the servers that run on it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._runners: list[web.AppRunner] = []
        self._decks: list[Deck] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def serve(self, app: web.Application) -> str:
        """Serve an application. Return its address."""
        return await self._listen(web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1))

    async def _listen(self, runner: web.AppRunner) -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def deck(self, home: Path, log: Log | None = None) -> tuple[Deck, str, str]:
        """Serve a deck. Return it with its address and its token. With a log from the caller it doesn't use the disk."""
        await asyncio.to_thread(home.mkdir, exist_ok=True, mode=0o700)
        deck = await (Deck.open(home) if log is None else Deck.over(log, home))
        tokens = Tokens(home)
        server = Server(deck, tokens)
        self._decks.append(deck)
        return deck, await self._listen(Runner(server.app, shutdown_timeout=0.1)), tokens.owner()

    def close(self) -> None:
        self.run(self._close())
        self.loop.close()

    async def _close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        for deck in self._decks:
            await deck.close()
