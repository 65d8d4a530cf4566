"""HTTP below the routes: limits on connections and bodies, and the headers of every response.

aiohttp waits forever for the end of a first request's headers. Here, a connection that hasn't sent a whole request within
`HEADERS_S` is closed, even if it keeps sending. Between requests, the keep-alive time is the limit.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from aiohttp import web

from quarterdeck.errors import QuarterdeckError
from quarterdeck.server.errors import BadRequest, Internal, TooLarge, TooSlow, UnreadableBody

log = logging.getLogger("quarterdeck.server")

HEADERS_S = 20.0
KEEP_ALIVE_S = 75.0
#: How long to read the rest of a refused body, so that the client gets to see the response.
LINGER_S = 1.0
#: How long a body may take. Twenty megabytes of images take two minutes on a slow connection.
BODY_S = 120.0

#: There is no Strict-Transport-Security: browsers apply it to all ports of a name, and other programs use `localhost` too.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every response has, streams included. aiohttp calls this before the first byte."""
    headers = response.headers
    headers.update(SECURITY_HEADERS)
    headers.setdefault("Cache-Control", "no-store")
    headers.popall("Server", None)


async def read_bytes(request: web.Request, limit: int) -> bytes:
    """Read the whole body of a request.

    Raises:
        TooLarge: as soon as the body is known to exceed the limit.
        TooSlow: the body didn't arrive within `BODY_S`.
        UnreadableBody: the body is cut off, or isn't compressed as its header says.
    """
    if (request.content_length or 0) > limit:
        raise TooLarge(limit)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            # The length isn't known beforehand if the body is chunked or compressed.
            async for part in request.content.iter_any():
                data += part
                if len(data) > limit:
                    raise TooLarge(limit)
    except TimeoutError:
        raise TooSlow from None
    except web.RequestPayloadError:
        request.content.feed_eof()  # Otherwise aiohttp reads the rest of the body and fails again.
        raise UnreadableBody from None
    return bytes(data)


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_headers_timer",)

    def __init__(
        self, manager: web.Server, *, loop: asyncio.AbstractEventLoop, headers_s: float, **options: Any
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self._headers_timer = loop.call_later(headers_s, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if not self._request_count:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._headers_timer.cancel()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that aren't HTTP. Neither the log nor the response quotes them: they may hold part of a token."""
        if status < 500:
            log.debug("a request isn't valid HTTP: %s", type(exc).__name__)
            return _error_response(
                status, BadRequest("the request isn't valid HTTP", "Send HTTP/1.1 with one header per line.")
            )
        log.error("a request failed", exc_info=exc)
        return _error_response(status, Internal())


def _error_response(status: int, error: QuarterdeckError) -> web.Response:
    body = msgspec.json.encode(error.as_json())
    headers = {**SECURITY_HEADERS, "Cache-Control": "no-store", "Server": ""}
    response = web.Response(status=status, body=body, content_type="application/json", headers=headers)
    response.force_close()
    return response


class _Connections(web.Server):
    """Creates our connections instead of aiohttp's."""

    def __init__(self, server: web.Server, headers_s: float, **options: Any) -> None:
        super().__init__(
            server.request_handler, request_factory=server.request_factory, handler_cancellation=True, **options
        )
        self._headers_s = headers_s
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=asyncio.get_running_loop(), headers_s=self._headers_s, **self._options)


class Runner(web.AppRunner):
    """Runs a server's application.

    aiohttp's access log is off, because it writes addresses, and that of a login holds a token (see access_log.py).
    """

    def __init__(self, app: web.Application, *, shutdown_timeout: float = 10.0, headers_s: float = HEADERS_S) -> None:
        super().__init__(app, handler_cancellation=True, shutdown_timeout=shutdown_timeout)
        self._headers_s = headers_s

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return _Connections(
            server, self._headers_s, access_log=None, keepalive_timeout=KEEP_ALIVE_S, lingering_time=LINGER_S
        )
