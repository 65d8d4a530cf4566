"""The connections to the services: one session of aiohttp for each event loop, shared by all agents of the process.

It is made by the first request. Connections that nobody uses are closed by aiohttp after some seconds, so what stays of
an idle process is an object. It is closed together with its loop: a generator that is left open is what asyncio tells
of that (`loop.shutdown_asyncgens`, which `asyncio.run` calls).
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator
from functools import lru_cache
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

#: Connections are kept this long for the next request.
_KEPT_S = 20.0
#: A service that cannot be reached within this time is not there. How long it may think is not decided here.
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30)


_LARGE = 1 << 20
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class _Kept(NamedTuple):
    session: aiohttp.ClientSession
    closer: AsyncGenerator[None]


_kept: dict[asyncio.AbstractEventLoop, _Kept] = {}


async def post(url: URL, headers: dict[str, str], body: bytes) -> aiohttp.ClientResponse:
    """The response, its body still to come. What aiohttp raises.

    A redirect is not followed: the key would go to wherever it leads.
    """
    loop = asyncio.get_running_loop()
    kept = _kept.get(loop) or await _opened(loop)
    # aiohttp warns of bytes that are written in one go, and takes files in pieces
    data = body if len(body) < _LARGE else io.BytesIO(body)
    return await kept.session.post(url, data=data, headers=headers, proxy=_proxy(url.origin()), allow_redirects=False)


async def _opened(loop: asyncio.AbstractEventLoop) -> _Kept:
    for other in [one for one in _kept if one.is_closed()]:
        del _kept[other]  # a loop that was not ended by asyncio.run
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S)
    session = aiohttp.ClientSession(
        connector=connector, timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True
    )
    closer = _closed_with_loop(session, loop)
    kept = _kept[loop] = _Kept(session, closer)
    await anext(closer)
    return kept


async def _closed_with_loop(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        _kept.pop(loop, None)
        await session.close()


@lru_cache(maxsize=64)
def _proxy(origin: URL) -> URL | None:
    """What the environment says: HTTPS_PROXY and the like, NO_PROXY. This machine is never asked for by way of another."""
    if origin.host in _HERE:
        return None
    found = getproxies().get(origin.scheme)
    return URL(found) if found and not proxy_bypass(origin.authority) else None


async def ended(response: aiohttp.ClientResponse, patience: float = 0.5) -> None:
    """Reads to the end of a body that has said all: only then can its connection be used again."""
    content = response.content
    if content.at_eof():
        return
    try:
        async with asyncio.timeout(patience):
            while await content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError):
        response.close()
