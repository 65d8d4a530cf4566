"""Every request: counted by route and status, and told in one line. It has an id, which its answer and its lines bear.

The line names the route's template and never the address itself: addresses carry what people chose.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from aiohttp import web

from quarterdeck.server import log_setup
from quarterdeck.server.tokens import Visitor

log = logging.getLogger("quarterdeck.access")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADER = "X-Request-Id"
#: Set by whoever begins an answer that ends only when the client leaves.
STARTED = web.RequestKey("started", int)
REQUEST_ID = web.RequestKey("request_id", str)
#: The client left before there was an answer.
LEFT = 499
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NAMES = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}
#: Asked again and again by programs, and told in the log of events anyhow.
_QUIET = ("/healthz", "/metrics", "/ingest/")


class Access:
    """`visitor` is where the doors put who they let in."""

    def __init__(self, visitor: web.RequestKey[Visitor]) -> None:
        #: (method, route, status)
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self._visitor = visitor
        self._run = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    @property
    def is_telling(self) -> bool:
        """Whether every request is told, those of programs too."""
        return log.isEnabledFor(logging.DEBUG)

    def name(self) -> str:
        """The id of one more request."""
        return f"{self._run}-{next(self._numbers)}"

    def count(self, method: str, route: str, status: int) -> None:
        """One more that was answered."""
        self.requests[method, route, status] += 1

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Around all others: it sees what the client gets."""
        began = time.perf_counter()
        name = request[REQUEST_ID] = self.name()
        status = LEFT
        try:
            response = await handler(request)
            status = response.status
            if not response.prepared:
                response.headers[HEADER] = name
            return response
        finally:
            self._ended(request, request.get(STARTED, status), time.perf_counter() - began)

    def _ended(self, request: web.Request, status: int, seconds: float) -> None:
        method = request.method if request.method in _METHODS else OTHER
        route = route_of(request)
        self.count(method, route, status)
        level = _level(route, status)
        if log.isEnabledFor(level):
            _tell(level, self._line(request, method, route, status, seconds))

    def _line(self, request: web.Request, method: str, route: str, status: int, seconds: float) -> dict[str, Any]:
        visitor = request.get(self._visitor)
        line: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "visitor": visitor.name if visitor is not None else "",
            "request": request[REQUEST_ID],
        }
        session = request.match_info.get("id")
        # what nobody knows is no id; it may be anything that somebody pasted into an address
        is_known = session is not None and visitor is not None and status != 404
        return line | {"session": session} if is_known else line


def _tell(level: int, line: dict[str, Any]) -> None:
    """A record of `logging` costs a third of a small request, so it is made only for those who would not get it else."""
    file = log_setup.quick_file()
    if file is None:
        log.log(level, "request", extra=line)
        return
    head = {"at": int(time.time() * 1000), "level": _NAMES[level], "logger": log.name, "message": "request"}
    file.add(head | line, level)


def route_of(request: web.Request) -> str:
    """The route's template; `other` for what is at no route."""
    resource = request.match_info.route.resource
    return OTHER if resource is None else resource.canonical


def tags(request: web.Request) -> dict[str, str]:
    """What a line about this request bears."""
    return {"request": request.get(REQUEST_ID, ""), "method": request.method[:10], "route": route_of(request)}


def _level(route: str, status: int) -> int:
    if status >= 500:
        return logging.WARNING
    return logging.DEBUG if status < 400 and route.startswith(_QUIET) else logging.INFO
