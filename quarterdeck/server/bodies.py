"""The body of a request: never more than is taken, and never for longer than it may take."""

from __future__ import annotations

import asyncio

from aiohttp import web

from quarterdeck.server.errors import TooLarge, TooSlow, UnreadableBody

#: Twenty megabytes of images take two minutes over a bad line; whoever needs more than that sends nothing.
BODY_S = 120.0
#: The whole body, of a request that somebody looked into before.
READ = web.RequestKey("read", bytes)


async def body_of(request: web.Request, limit: int) -> bytes:
    """All of it. TooLarge as soon as it is known to be, TooSlow when it takes too long."""
    if (request.content_length or 0) > limit:
        raise TooLarge(limit)
    try:
        if READ in request:
            data = request[READ]
        elif request.content.is_eof():
            data = request.content.read_nowait()
        else:
            async with asyncio.timeout(BODY_S):
                data = await _gathered(request, limit)
    except TimeoutError:
        raise TooSlow from None
    except web.RequestPayloadError:
        request.content.feed_eof()  # or the rest of it would be read, and fail again
        raise UnreadableBody from None
    if len(data) > limit:
        raise TooLarge(limit)
    return data


async def _gathered(request: web.Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise TooLarge(limit)
    return b"".join(parts)
