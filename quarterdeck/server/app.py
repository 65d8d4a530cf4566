"""The web application: every request passes the same doors, then goes where the route table says.

The doors, in this order, for HTTP and WebSocket alike: the Host must be ours, the Origin must be ours, a token must be
there and right, its role must allow the method. What a handler raises is answered as the contract's JSON error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from quarterdeck.deck.deck import Deck
from quarterdeck.errors import QuarterdeckError
from quarterdeck.server import socket, sse
from quarterdeck.server.failures import Failures
from quarterdeck.server.guard import Guard
from quarterdeck.server.ingest import Ingest
from quarterdeck.server.openapi import openapi
from quarterdeck.server.route import KEY_LIMIT, Call, Route, read_body, read_query
from quarterdeck.server.routes import all_routes
from quarterdeck.server.statuses import (
    BadRequest,
    ForeignHost,
    ForeignOrigin,
    MethodNotAllowed,
    NoSuchRoute,
    NoToken,
    TooManyFailures,
    ViewOnly,
    status_of,
)
from quarterdeck.server.tokens import Tokens, Visitor

log = logging.getLogger("quarterdeck.server")

COOKIE = "quarterdeck"
BODY_LIMIT = 32 * 1024 * 1024
_SAFE = frozenset({"GET", "HEAD"})
#: Reached without a token: they tell nothing of any session.
_OPEN = frozenset({"/", "/healthz", "/login"})
_HEADERS = {
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
_VISITOR = web.RequestKey("visitor", Visitor)
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_encode = msgspec.json.Encoder().encode


class Server:
    """A deck behind its doors. `app` is what aiohttp runs."""

    def __init__(self, deck: Deck, tokens: Tokens, guard: Guard, *, is_secure: bool = False) -> None:
        self.deck = deck
        self.tokens = tokens
        self.guard = guard
        self.is_secure = is_secure
        self.streams = sse.Streams(deck)
        self.shared = socket.Shared(deck)
        self.ingest = Ingest(deck, tokens.owner())
        self.routes = all_routes()
        self._by_command = {one.path.removeprefix("/sessions/{id}/"): one for one in self.routes if _is_command(one)}
        self._failures = Failures(time.monotonic)
        self._openapi = _encode(openapi(self.routes))
        self.app = web.Application(middlewares=[self._doors], client_max_size=BODY_LIMIT)
        self._register()

    def _register(self) -> None:
        for route in self.routes:
            self.app.router.add_route(route.method, route.path, self._handler(route))
        add = self.app.router.add_get
        add("/", _front)
        add("/healthz", self._health)
        add("/login", self._login)
        add("/openapi.json", self._schema)
        # a HEAD of a stream would never be answered
        add("/events", self._all_events, allow_head=False)
        add("/sessions/{id}/events", self._events, allow_head=False)
        add("/ws", self._socket, allow_head=False)
        self.app.on_shutdown.extend((self.streams.close, self.shared.close))
        self.ingest.register(self.app)

    # --- the doors

    @web.middleware
    async def _doors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check_doors(request)
            response = await handler(request)
        except QuarterdeckError as error:
            response = _refusal(error)
        except web.HTTPException as error:
            response = _refusal(_as_ours(error, request))
        except Exception:
            log.exception("a request failed: %s %s", request.method, request.path)
            response = _refusal(_Internal())
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _check_doors(self, request: web.Request) -> None:
        host = request.headers.get("Host")
        if len(request.headers.getall("Host", [])) != 1 or not self.guard.knows_host(host):
            raise ForeignHost(host or "")
        if not self.guard.knows_origin(request.headers.get("Origin"), host or ""):
            raise ForeignOrigin
        if request.path in _OPEN:
            return
        if request.path.startswith("/ingest/"):
            self.ingest.check(request)
            return
        visitor = self._visitor(request)
        if visitor.role != "operate" and request.method not in _SAFE:
            raise ViewOnly
        request[_VISITOR] = visitor

    def _visitor(self, request: web.Request) -> Visitor:
        header = request.headers.get("Authorization", "")
        scheme, _, token = header.partition(" ")
        by_cookie = not header
        if by_cookie:
            token = request.cookies.get(COOKIE, "")
        elif scheme.lower() != "bearer":
            token = ""
        visitor = self.tokens.visitor(token.strip()) if token else None
        if visitor is None:
            wait = self._failures.wait(request.remote or "") if token else 0
            raise TooManyFailures(wait) if wait else NoToken()
        if by_cookie and request.method not in _SAFE and "Origin" not in request.headers:
            # a browser always says where such a request comes from
            raise ForeignOrigin
        return visitor

    # --- routes

    def _handler(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = read_body(route.body, await request.read()) if route.body is not None else None
            answer = await route.handle(self._call(route, request, body))
            if route.status == 204:
                return web.Response(status=204)
            if isinstance(answer, web.StreamResponse):
                return answer
            return _json(answer, route.status)

        return handle

    def _call(self, route: Route, request: web.Request, body: Any) -> Call:
        query = read_query(route.query, request.query) if route.query is not None else None
        header = request.headers.get("Idempotency-Key", "")
        if len(header) > KEY_LIMIT:
            raise BadRequest(f"Idempotency-Key: longer than {KEY_LIMIT} characters", "Use a UUID.")
        key = getattr(body, "client_id", "") or header
        return Call(self.deck, request[_VISITOR], request.match_info, query, body, key)

    async def obey(self, session_id: str, name: str, args: dict[str, Any], client_id: str) -> Any:
        """A command of the WebSocket is the POST of the same name."""
        route = self._by_command.get(name)
        if route is None:
            raise BadRequest(f"there is no command {name[:100]!r}", f"Commands: {', '.join(self._by_command)}.")
        assert route.body is not None
        body = read_body(route.body, _encode(args))
        call = Call(self.deck, Visitor("", "operate"), {"id": session_id}, None, body, client_id or body.client_id)
        return await route.handle(call)

    # --- streams

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return await self.streams.session(request)

    async def _all_events(self, request: web.Request) -> web.StreamResponse:
        return await self.streams.all(request)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        return await socket.serve(request, self.deck, self.shared, request[_VISITOR], self.obey)

    # --- the rest

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """The token moves from the address into a cookie that no script can read."""
        visitor = self.tokens.visitor(request.query.get("token", ""))
        if visitor is None:
            wait = self._failures.wait(request.remote or "")
            raise TooManyFailures(wait) if wait else NoToken()
        response = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store"})
        response.set_cookie(
            COOKIE, request.query["token"], httponly=True, samesite="Strict", secure=self.is_secure, max_age=30 * 86400
        )
        return response

    async def _health(self, _: web.Request) -> web.StreamResponse:
        """Whether the log can be read and written: a server that cannot is not healthy, whatever it answers."""
        await self.deck.check()
        return _json({"status": "ok"})

    async def _schema(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._openapi, content_type="application/json")


class _Internal(QuarterdeckError):
    """Our own fault; what it was is in the server's log and nowhere else."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("the server failed at this request", "Its log says why; please report it.")


def _is_command(route: Route) -> bool:
    return route.method == "POST" and route.path.startswith("/sessions/{id}/")


def _json(answer: Any, status: int = 200) -> web.Response:
    return web.Response(body=_encode(answer), status=status, content_type="application/json")


def _refusal(error: QuarterdeckError) -> web.Response:
    response = _json(error.as_json(), status_of(error))
    if isinstance(error, TooManyFailures):
        response.headers["Retry-After"] = str(error.wait)
    if isinstance(error, MethodNotAllowed):
        response.headers["Allow"] = ", ".join(error.allowed)
    if isinstance(error, NoToken):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _as_ours(error: web.HTTPException, request: web.Request) -> QuarterdeckError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(error.method, tuple(sorted(error.allowed_methods)))
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return _TooLarge()
    if error.status == 404:
        return NoSuchRoute(request.path)
    return BadRequest(error.reason, "See /openapi.json.")


class _TooLarge(QuarterdeckError):
    """The body is larger than any that is taken."""

    code = "too_large"

    def __init__(self) -> None:
        super().__init__(f"the body is larger than {BODY_LIMIT} bytes", "Put it into a file and name that.")


async def _front(_: web.Request) -> web.StreamResponse:
    page = (
        "<!doctype html><meta charset=utf-8><title>Quarterdeck</title><p>Quarterdeck is running. Its API: /openapi.json"
    )
    return web.Response(text=page, content_type="text/html")
