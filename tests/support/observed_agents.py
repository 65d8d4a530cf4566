"""Run a real server over a real deck on the loopback interface, and read its log file and its metrics."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from quarterdeck import Deck
from quarterdeck.server import log_setup
from quarterdeck.server.app import Server
from quarterdeck.server.tokens import Tokens
from tests.support.decks import at_home


class Observed(NamedTuple):
    """A running server. `client` sends the owner's token, `stranger` sends none."""

    deck: Deck
    server: Server
    url: str
    token: str
    client: aiohttp.ClientSession
    stranger: aiohttp.ClientSession

    async def get(self, path: str) -> tuple[int, str]:
        async with self.client.get(self.url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, **body: Any) -> Any:
        async with self.client.post(self.url + path, json=body) as response:
            return await response.json()

    async def renamed(self, session: str, name: str) -> Any:
        async with self.client.patch(f"{self.url}/sessions/{session}", json={"name": name}) as response:
            return await response.json()

    async def metrics(self) -> dict[str, float]:
        status, text = await self.get("/metrics")
        assert status == 200
        return parsed(text)

    def lines(self) -> list[dict[str, Any]]:
        """Return the entries of the log file."""
        for handler in logging.getLogger().handlers:
            handler.flush()
        return lines_of(self.deck.home)


def lines_of(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / log_setup.FILE_NAME).read_text("utf-8").splitlines()]


@asynccontextmanager
async def observed(folder: Path, level: str = "INFO") -> AsyncIterator[Observed]:
    """Run a server as the product does, except that the port is arbitrary."""
    (folder / "home").mkdir(exist_ok=True)
    book = log_setup.configure(folder / "home", to_terminal=False, level=level)
    try:
        async with at_home(folder) as deck:
            tokens = Tokens(deck.home)
            token = tokens.owner()
            server = Server(deck, tokens)
            runner = web.AppRunner(server.app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            headers = {"Authorization": f"Bearer {token}"}
            try:
                async with aiohttp.ClientSession(headers=headers) as client, aiohttp.ClientSession() as stranger:
                    yield Observed(deck, server, url, token, client, stranger)
            finally:
                await runner.cleanup()
    finally:
        book.close()


# --- a strict parser of Prometheus' text format

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(,|$)')
_SAMPLE = re.compile(rf"({_NAME})(?:{{(.*)}})? (\S+)$")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


def parsed(text: str) -> dict[str, float]:
    """Return every sample by its name and labels, as written. Fail on anything that the format doesn't allow."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    family = helped = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
            assert re.fullmatch(_NAME, helped)
            assert helped not in kinds, f"{helped} comes twice"
        elif line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family == helped
            kinds[family] = kind
            assert kind != "counter" or family.endswith("_total")
        else:
            name, value = _sample(line)
            assert name.partition("{")[0] in [family + end for end in _SUFFIXES[kinds[family]]], line
            assert name not in found, f"{name} comes twice"
            found[name] = value
    for family, kind in kinds.items():
        if kind == "histogram":
            _check_histogram(family, found)
    return found


def _sample(line: str) -> tuple[str, float]:
    sample = _SAMPLE.fullmatch(line)
    assert sample, line
    _, labels, value = sample.groups()
    place, seen = 0, set[str]()
    while labels and place < len(labels):
        label = _LABEL.match(labels, place)
        assert label, line
        assert label[1] not in seen, line
        seen.add(label[1])
        place = label.end()
    return line[: sample.start(3) - 1], float(value)


def _check_histogram(family: str, found: dict[str, float]) -> None:
    bounds = [(name, value) for name, value in found.items() if name.startswith(f"{family}_bucket")]
    assert [value for _, value in bounds] == sorted(value for _, value in bounds)
    assert bounds[-1][0] == f'{family}_bucket{{le="+Inf"}}'
    assert bounds[-1][1] == found[f"{family}_count"]
