"""The short way in, for hooks: they come by the hundred, and an agent waits for each of them.

It has the same doors as the long way (Host, Origin, secret) and leaves out what such a request does not need: no route is
looked for, and the answer is bytes from the start. Whatever is not as usual goes the long way, which says what is wrong with
it; nothing is refused here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TypeAlias

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness import hooks
from quarterdeck.server.access_log import HEADER, LEFT, Access
from quarterdeck.server.bodies import READ
from quarterdeck.server.headers import HEADERS
from quarterdeck.server.ingest import EMPTY, LIMIT, Hook, Ingest

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_START = "/ingest/"


class Plain(web.StreamResponse):
    """An answer that is bytes already, to be written at once."""

    def __init__(self, data: bytes, *, keeps_alive: bool) -> None:
        super().__init__()
        self._data = data
        self._keep_alive = keeps_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Writes all of it, if somebody is still there."""
        if request.transport is not None:
            request.transport.write(self._data)
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """It is written."""


class Shortcut:
    """`check_page` raises for what does not come from a page of ours, or from none."""

    def __init__(self, ingest: Ingest, access: Access, check_page: Callable[[web.BaseRequest], None]) -> None:
        self._ingest = ingest
        self._access = access
        self._check_page = check_page
        self._head = b""
        self._second = 0

    def before(self, handler: Handler) -> Handler:
        """Takes what it can, and leaves the rest to this handler."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            if request.method == "POST" and request.raw_path.startswith(_START):
                hook = self._hook(request)
                if hook is not None:
                    return await self._answered(request, hook)
            return await handler(request)

        return handle

    def _hook(self, request: web.BaseRequest) -> Hook | None:
        """None unless everything about it is as usual: it came in one piece, and with an id that is one, if any."""
        content = request.content
        agent, _, session_id = request.raw_path[len(_START) :].partition("/")
        is_whole = content.is_eof() and content.exception() is None and (request.content_length or 0) <= LIMIT
        is_usual = is_whole and request.version == HttpVersion11 and not self._access.is_telling
        if not is_usual or agent not in hooks.AGENTS or not (session_id.isalnum() or not session_id):
            return None
        if not self._is_let_in(request, session_id):
            return None
        data = request[READ] = content.read_nowait()
        return self._ingest.at_hand(agent, session_id, data) if len(data) <= LIMIT else None

    async def _answered(self, request: web.BaseRequest, hook: Hook) -> web.StreamResponse:
        route = request.raw_path if hook.agent else f"{request.raw_path.rpartition('/')[0]}/{{id}}"
        status = LEFT
        try:
            body = EMPTY
            if self._ingest.is_deciding(hook):
                body = await self._ingest.decided(hook)
            else:
                self._ingest.take(hook)
            status = 200
        finally:
            self._access.count("POST", route, status)
        return Plain(self._written(body, request.keep_alive), keeps_alive=request.keep_alive)

    def _written(self, body: bytes, keeps_alive: bool) -> bytes:
        """The whole answer. What all of them begin with is made once a second, for it tells the time."""
        second = int(time.time())
        if second != self._second:
            self._second, self._head = second, _head(second)
        name = self._access.name().encode()
        last = b"" if keeps_alive else b"\r\nConnection: close"
        return b"%b%b\r\nContent-Length: %d%b\r\n\r\n%b" % (self._head, name, len(body), last, body)

    def _is_let_in(self, request: web.BaseRequest, session_id: str) -> bool:
        """By the same doors; a refusal is the long way's to tell, and to count."""
        try:
            self._check_page(request)
        except QuarterdeckError:
            return False
        return self._ingest.knows(request, session_id)


def _head(second: int) -> bytes:
    """Up to the name of the request."""
    date = formatdate(second, usegmt=True)
    said = {"Content-Type": "application/json", "Date": date, **HEADERS, "Cache-Control": "no-store"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"HTTP/1.1 200 OK\r\n{lines}{HEADER}: ".encode()
