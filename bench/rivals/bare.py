"""No agent: the bare client that `bench.engine` compares with."""

from __future__ import annotations

import aiohttp

from bench.engine import bare_turn
from bench.worker import Turn


def turn_of(url: str) -> Turn:
    found: Turn | None = None

    async def turn(scenario: str) -> str:
        nonlocal found
        if found is None:  # a session wants a loop that runs
            found = bare_turn(url, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        return await found(scenario)

    return turn
