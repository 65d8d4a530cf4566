"""A connection before there is a request: how long it may take to say what it wants, and what garbage is answered.

aiohttp waits for ever for the end of a first request's headers. Here a connection that has not said a whole one within
`HEADERS_S` is closed, however busily it sends; between requests the keep-alive time is the same kind of limit.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from aiohttp import web

from quarterdeck.errors import QuarterdeckError
from quarterdeck.server.errors import BadRequest, Internal
from quarterdeck.server.headers import HEADERS
from quarterdeck.server.shortcut import Shortcut

log = logging.getLogger("quarterdeck.server")

HEADERS_S = 20.0
KEEP_ALIVE_S = 75.0
#: How long the rest of a body that nobody wants is read, so that the client can see why.
LINGER_S = 1.0


class Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_headers_due",)

    def __init__(
        self, manager: web.Server, *, loop: asyncio.AbstractEventLoop, headers_s: float, **options: Any
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self._headers_due = loop.call_later(headers_s, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if not self._request_count:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._headers_due.cancel()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP. Its bytes are told to nobody: they may hold half of a token."""
        if status < 500:
            log.debug("a request that is no HTTP: %s", type(exc).__name__)
            return _refusal(status, BadRequest("this is no HTTP request", "Send HTTP/1.1 with one header a line."))
        log.error("a request failed", exc_info=exc)
        return _refusal(status, Internal())


def _refusal(status: int, error: QuarterdeckError) -> web.Response:
    body = msgspec.json.encode(error.as_json())
    headers = {**HEADERS, "Cache-Control": "no-store", "Server": ""}
    response = web.Response(status=status, body=body, content_type="application/json", headers=headers)
    response.force_close()
    return response


class Connections(web.Server):
    """Makes them."""

    def __init__(self, made: web.Server, shortcut: Shortcut, headers_s: float, **options: Any) -> None:
        super().__init__(
            shortcut.before(made.request_handler),
            request_factory=made.request_factory,
            handler_cancellation=True,
            **options,
        )
        self._make = lambda: Connection(self, loop=asyncio.get_running_loop(), headers_s=headers_s, **options)

    def __call__(self) -> web.RequestHandler:
        return self._make()


class Runner(web.AppRunner):
    """Runs a server's application. No access log: addresses may hold a token until the login has read it."""

    def __init__(
        self, app: web.Application, shortcut: Shortcut, *, shutdown_timeout: float = 10.0, headers_s: float = HEADERS_S
    ) -> None:
        super().__init__(app, handler_cancellation=True, shutdown_timeout=shutdown_timeout)
        self._shortcut = shortcut
        self._headers_s = headers_s

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return Connections(
            made,
            self._shortcut,
            self._headers_s,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=LINGER_S,
        )
