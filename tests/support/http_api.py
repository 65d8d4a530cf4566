"""Run a real server for tests, and send requests to it with a client or as raw bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from quarterdeck import Deck
from quarterdeck.deck.clock import Clock
from quarterdeck.server.app import Server
from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.server.connection import HEADERS_S, Runner
from quarterdeck.server.tokens import Tokens
from tests.support.decks import SETTINGS


class Answer(msgspec.Struct):
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The error's code, or '' if the response isn't an error."""
        return self.json["error"]["code"] if self.status >= 400 else ""


class RunningServer:
    """A running server. `token` is the owner's."""

    def __init__(
        self, deck: Deck, tokens: Tokens, server: Server, runner: Runner, client: aiohttp.ClientSession
    ) -> None:
        self.deck = deck
        self.tokens = tokens
        self.server = server
        self.runner = runner
        self.client = client
        self.token = tokens.owner()
        self.port: int = runner.addresses[0][1]
        self.scheme = "http"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.host}"

    async def ask(
        self, method: str, path: str, token: str | None = "", headers: Mapping[str, str] | None = None, **more: Any
    ) -> Answer:
        """Send a request as the owner, or with another token. None sends no token."""
        said = dict(headers or {})
        if token is not None:
            said.setdefault("Authorization", f"Bearer {token or self.token}")
        async with self.client.request(method, self.address + path, headers=said, **more) as found:
            return Answer(found.status, found.headers, await found.read())

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: object = None, **more: Any) -> Answer:
        return await self.ask("POST", path, json={} if body is None else body, **more)

    async def hook(self, agent: str, payload: object, session_id: str = "", **more: Any) -> Answer:
        """Send a hook with the right secret."""
        path = f"/ingest/{agent}/{session_id}" if session_id else f"/ingest/{agent}"
        said = {SECRET: secret_for(self.token, session_id)}
        return await self.ask("POST", path, None, said, json=payload, **more)

    async def raw(self, data: bytes) -> bytes:
        """Send raw bytes. Return one response, or everything until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _header(head, b"content-length")
            return head + (await reader.readexactly(int(length)) if length else b"")
        except asyncio.IncompleteReadError as error:
            return error.partial
        finally:
            writer.close()

    async def asked_raw(self, start: bytes, *lines: bytes, body: bytes = b"") -> int:
        """Send a request as raw lines and return its status."""
        answer = await self.raw(b"\r\n".join([start, *lines, b"", body]))
        return int(answer.split(b" ", 2)[1]) if answer else 0


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    allowed: frozenset[str] = frozenset(),
    headers_s: float = HEADERS_S,
    secure: ssl.SSLContext | None = None,
    clock: Clock | None = None,
    **changes: object,
) -> AsyncIterator[RunningServer]:
    """Run a server with its home in this folder."""
    deck = await Deck.open(folder / "home", settings=msgspec.structs.replace(SETTINGS, **changes), clock=clock)
    try:
        tokens = Tokens(deck.home)
        server = Server(deck, tokens, allowed, is_secure=secure is not None)
        runner = Runner(server.app, shutdown_timeout=1.0, headers_s=headers_s)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=secure).start()
            connector = aiohttp.TCPConnector(ssl=False, force_close=True)
            patient, no_jar = aiohttp.ClientTimeout(total=None), aiohttp.DummyCookieJar()
            async with aiohttp.ClientSession(connector=connector, cookie_jar=no_jar, timeout=patient) as client:
                house = RunningServer(deck, tokens, server, runner, client)
                house.scheme = "http" if secure is None else "https"
                yield house
        finally:
            await runner.cleanup()
    finally:
        await deck.close()
