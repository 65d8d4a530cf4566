"""The transport of `AsyncClient`: aiohttp with one connection pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress

import aiohttp

from quarterdeck.client.errors import (
    TimedOut,
    client_closed,
    connection_lost,
    decode_error,
    decode_refusal,
    unreachable,
)
from quarterdeck.client.sse import BlockParser, EventBlock
from quarterdeck.client.transport import BUSY_STATUSES, SILENCE_S, Response, StreamCut, check_token, parse_address


class AiohttpTransport:
    """Implements `Transport`."""

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        parse_address(url)
        self.url = url
        self._token = check_token(token)
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._closed = asyncio.Event()
        self._streams: set[aiohttp.ClientResponse] = set()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def request(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, str], accept: str
    ) -> Response:
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": "application/json"})
        try:
            async with self._session().request(
                method, self.url + path, data=body, params=query, headers=headers, allow_redirects=False
            ) as response:
                return Response(response.status, await response.read())
        except TimeoutError:
            raise TimedOut(f"{method} {path}", self._timeout_s) from None
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self.url, error) from None
        except aiohttp.ClientError as error:
            raise connection_lost(f"{method} {path}", error) from None

    async def open_stream(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[EventBlock]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=SILENCE_S)
        headers = {"Accept": "text/event-stream"}
        try:
            async with self._session().get(
                self.url + path, params=query, timeout=timeout, headers=headers, allow_redirects=False
            ) as response:
                if response.status >= 400:
                    error = decode_error(response.status, await response.read())
                    raise StreamCut(error) if response.status in BUSY_STATUSES else error
                if response.content_type != "text/event-stream":
                    # Another server's page. Reconnecting to it would never end.
                    raise decode_refusal(response.status, b"")
                yield EventBlock("open", "", b"")
                self._streams.add(response)
                parser = BlockParser()
                try:
                    async for data in response.content.iter_any():
                        for block in parser.feed(data):
                            yield block
                finally:
                    self._streams.discard(response)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise StreamCut(unreachable(self.url, error)) from None

    async def pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)

    async def close(self) -> None:
        self._closed.set()
        for response in self._streams:
            response.close()  # Wakes the task that waits for the next block.
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _session(self) -> aiohttp.ClientSession:
        if self.is_closed:
            raise client_closed(self.url)
        if self._http is None:
            headers = {"Authorization": f"Bearer {self._token}"}
            self._http = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=self._timeout_s))
        return self._http
