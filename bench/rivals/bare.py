"""Run the bare client that `bench.engine` compares with, without an agent."""

from __future__ import annotations

import aiohttp

from bench.engine import bare_turn
from bench.worker import Turn


def turn_of(url: str) -> Turn:
    found: Turn | None = None

    async def turn(scenario: str) -> str:
        nonlocal found
        if found is None:  # aiohttp's session needs a running loop.
            found = bare_turn(url, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        return await found(scenario)

    return turn
