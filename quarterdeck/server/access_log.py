"""Log every request and every notable event in one line, and count requests.

Lines about requests name the route's template (`/sessions/{id}`) and never the address, which may hold anything that a
user typed. Lines about events name ids and types, never contents.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from aiohttp import web

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.server.auth import VISITOR

log = logging.getLogger("quarterdeck.access")
event_log = logging.getLogger("quarterdeck.events")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID_HEADER = "X-Request-Id"
#: Status of a stream, set when it begins. Its request ends only when the client disconnects.
STREAM_STATUS = web.RequestKey("stream_status", int)
REQUEST_ID = web.RequestKey("request_id", str)
#: Status of a request whose client disconnected before there was a response.
CLIENT_DISCONNECTED = 499
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Routes that programs poll, and hooks, whose events are logged anyway.
_QUIET_ROUTES = ("/healthz", "/metrics", "/ingest/")


class AccessLog:
    """Gives each request an id, counts it and logs it."""

    def __init__(self) -> None:
        #: (method, route, status) → number of requests
        self.requests: Counter[tuple[str, str, int]] = Counter()
        #: Prefix of request ids, so that they differ between runs of the server.
        self._run_id = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Wrap all other middlewares, to see the response that the client gets."""
        started_at = time.perf_counter()
        request_id = request[REQUEST_ID] = f"{self._run_id}-{next(self._numbers)}"
        status = CLIENT_DISCONNECTED
        try:
            response = await handler(request)
            status = response.status
            if not response.prepared:
                response.headers[REQUEST_ID_HEADER] = request_id
            return response
        finally:
            self._record(request, request.get(STREAM_STATUS, status), time.perf_counter() - started_at)

    def _record(self, request: web.Request, status: int, seconds: float) -> None:
        method = request.method if request.method in _METHODS else OTHER
        route = route_of(request)
        self.requests[method, route, status] += 1
        level = logging.INFO
        if status >= 500:
            level = logging.WARNING
        elif status < 400 and route.startswith(_QUIET_ROUTES):
            level = logging.DEBUG
        if not log.isEnabledFor(level):
            return
        visitor = request.get(VISITOR)
        line: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "visitor": visitor.name if visitor is not None else "",
            "request": request[REQUEST_ID],
        }
        session_id = request.match_info.get("id")
        # Log an id only if it exists: otherwise it may be anything that was pasted into the address.
        if session_id is not None and visitor is not None and status != 404:
            line["session"] = session_id
        log.log(level, "request", extra=line)


def route_of(request: web.Request) -> str:
    """Return the route's template, or `other` if no route matches."""
    resource = request.match_info.route.resource
    return OTHER if resource is None else resource.canonical


def request_fields(request: web.Request) -> dict[str, str]:
    """Return the fields of a log line about a request."""
    return {"request": request.get(REQUEST_ID, ""), "method": request.method[:10], "route": route_of(request)}


# --- Events

#: Events that are logged, with the level and the fields of the line. No field may hold text of a user or an agent.
_EVENTS: dict[type[Body], tuple[int, tuple[str, ...]]] = {
    ev.SessionOpened: (logging.INFO, ("agent",)),
    ev.SessionResumed: (logging.INFO, ()),
    ev.SessionSuspended: (logging.INFO, ()),
    ev.SessionArchived: (logging.INFO, ("end_reason",)),
    ev.SessionFailed: (logging.ERROR, ("kind",)),
    ev.SessionDeleted: (logging.INFO, ()),
    ev.OwnerChanged: (logging.INFO, ("epoch",)),
    ev.ProcessStarting: (logging.INFO, ("pid",)),
    ev.ProcessError: (logging.WARNING, ()),
    ev.ProcessExited: (logging.INFO, ("code", "signal", "asked")),
    ev.AgentReady: (logging.INFO, ("version",)),
    ev.TurnFailed: (logging.WARNING, ("kind",)),
    ev.CommandFailed: (logging.WARNING, ("command_id",)),
    ev.StreamError: (logging.WARNING, ()),
    ev.ApprovalRequired: (logging.INFO, ()),
    ev.ApprovalResolved: (logging.INFO, ("gate_id", "status", "by")),
    ev.ViewRefolded: (logging.INFO, ("to",)),
}


def log_events(events: Sequence[Event]) -> None:
    """Log the notable ones of these events. The deck calls this with all events that became durable."""
    for event in events:
        if type(event.body) not in _EVENTS:
            continue
        level, fields = _EVENTS[type(event.body)]
        if event_log.isEnabledFor(level):
            line = {"session": event.session_id, "event": event.type, "index": event.index, "origin": event.origin}
            if isinstance(event.body, ev.ApprovalRequired):
                line["gate_id"] = event.body.gate.gate_id
            event_log.log(level, "event", extra=line | {name: getattr(event.body, name) for name in fields})
