"""The web application: every request passes the same doors, then goes where the route table says.

The doors, in this order, for HTTP and WebSocket alike: the Host must be ours, the Origin must be ours, a token must be
there and right, its role must allow the method. What a handler raises is answered as the contract's JSON error. SECURITY.md
has the attacks and the tests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from quarterdeck.deck import validation
from quarterdeck.deck.deck import Deck
from quarterdeck.errors import QuarterdeckError
from quarterdeck.server import access_log, metrics, notices, socket, sse
from quarterdeck.server.bodies import body_of
from quarterdeck.server.codes import Codes
from quarterdeck.server.errors import (
    BadRequest,
    ForeignHost,
    ForeignOrigin,
    Internal,
    MethodNotAllowed,
    NoSecret,
    NoSuchRoute,
    NoToken,
    TooLarge,
    TooManyFailures,
    TooSlow,
    UnreadableBody,
    ViewOnly,
    status_of,
)
from quarterdeck.server.failures import Failures
from quarterdeck.server.guard import Guard
from quarterdeck.server.headers import dress
from quarterdeck.server.health import Health
from quarterdeck.server.ingest import Ingest
from quarterdeck.server.openapi import openapi
from quarterdeck.server.presence import Presence
from quarterdeck.server.route import Call, Route, read_body, read_query
from quarterdeck.server.routes import all_routes
from quarterdeck.server.shortcut import Shortcut
from quarterdeck.server.tokens import COOKIE, Tokens, Visitor

log = logging.getLogger("quarterdeck.server")

BODY_LIMIT = 32 * 1024 * 1024
_SAFE = frozenset({"GET", "HEAD"})
#: Reached without a token: they tell nothing of any session.
_OPEN = frozenset({"/", "/healthz", "/login"})
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
        self.ingest = Ingest(deck, tokens.key)
        self.routes = all_routes()
        self._by_command = {one.path.removeprefix("/sessions/{id}/"): one for one in self.routes if _is_command(one)}
        self._failures = Failures(time.monotonic)
        self._codes = Codes(time.monotonic)
        self._openapi = _encode(openapi(self.routes))
        self.presence = Presence(tokens)
        self.access = access_log.Access(_VISITOR)
        self.metrics = metrics.Metrics(deck, self.access, self.streams, self.shared)
        self.shortcut = Shortcut(self.ingest, self.access, self._check_page)
        self.health = Health(deck.check, time.monotonic)
        deck.watchers.append(notices.tell)
        self.app = web.Application(middlewares=[self.access.middleware, self._doors], client_max_size=BODY_LIMIT)
        self.app.on_response_prepare.append(dress)
        self._register()

    def _register(self) -> None:
        for route in self.routes:
            self.app.router.add_route(route.method, route.path, self._handler(route))
        add = self.app.router.add_get
        add("/", _front)
        add("/healthz", self._health)
        add("/metrics", self._metrics)
        add("/login", self._login)
        self.app.router.add_post("/login/code", self._login_code)
        add("/openapi.json", self._schema)
        # a HEAD of a stream would never be answered
        add("/events", self._all_events, allow_head=False)
        add("/sessions/{id}/events", self._events, allow_head=False)
        add("/ws", self._socket, allow_head=False)
        self.app.on_startup.append(self.presence.begin)
        self.app.on_cleanup.append(self.presence.end)
        self.app.on_shutdown.extend((self.streams.close, self.shared.on_shutdown))
        self.ingest.register(self.app)

    async def goodbye(self, seconds: float) -> None:
        """Ends every stream and every WebSocket, orderly: their clients know that it is not a cut."""
        self.streams.end()
        await self.shared.close(seconds)

    # --- the doors

    @web.middleware
    async def _doors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check_doors(request)
            return await handler(request)
        except QuarterdeckError as error:
            return _refusal(error)
        except web.HTTPException as error:
            return _refusal(_as_ours(error, request))
        except ConnectionError:
            raise  # nobody is there any more
        except Exception:
            log.exception("a request failed", extra=access_log.tags(request))
            return _refusal(Internal())

    def _check_doors(self, request: web.Request) -> None:
        self._check_page(request)
        # by the route that was found, never by the text of the address: there are many ways to write one
        resource = request.match_info.route.resource
        door = resource.canonical if resource is not None else ""
        if door in _OPEN:
            return
        if door.startswith("/ingest/"):
            if not self.ingest.knows(request, request.match_info.get("id", "")):
                raise self._refused(request, NoSecret(), is_wrong=True)
            return
        visitor = self._visitor(request)
        if visitor.role != "operate" and request.method not in _SAFE:
            raise ViewOnly
        request[_VISITOR] = visitor

    def _check_page(self, request: web.BaseRequest) -> None:
        """Whether the page that asks, if it is a page, is one of ours."""
        headers = request.headers
        host = headers.get("Host")
        if len(headers.getall("Host", [])) != 1 or not self.guard.knows_host(host):
            raise ForeignHost(host or "")
        if len(headers.getall("Origin", [])) > 1 or not self.guard.knows_origin(headers.get("Origin"), host or ""):
            raise ForeignOrigin
        if not self.guard.knows_site(headers.get("Sec-Fetch-Site"), headers.get("Sec-Fetch-Mode")):
            raise ForeignOrigin

    def _visitor(self, request: web.Request) -> Visitor:
        token = _token(request)
        visitor = self.tokens.visitor(token) if token else None
        if visitor is None:
            raise self._refused(request, NoToken(), is_wrong=bool(token))
        by_cookie = not request.headers.get("Authorization")
        is_harmless = request.method in _SAFE and "Upgrade" not in request.headers
        if by_cookie and not is_harmless and "Origin" not in request.headers:
            # a browser always says where such a request comes from
            raise ForeignOrigin
        return visitor

    def _refused(self, request: web.Request, refusal: NoToken, *, is_wrong: bool) -> QuarterdeckError:
        """A wrong token is counted, and too many are told to wait; one that is missing is only missing."""
        wait = self._failures.wait(request.remote or "") if is_wrong else 0
        return TooManyFailures(wait) if wait else refusal

    # --- routes

    def _handler(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = read_body(route.body, await body_of(request, BODY_LIMIT)) if route.body is not None else None
            answer = await route.handle(self._call(route, request, body))
            if route.status == 204:
                return web.Response(status=204)
            if isinstance(answer, web.StreamResponse):
                return answer
            return _json(answer, route.status)

        return handle

    def _call(self, route: Route, request: web.Request, body: Any) -> Call:
        query = read_query(route.query, request.query) if route.query is not None else None
        header = validation.client_id(request.headers.get("Idempotency-Key", ""))
        key = validation.client_id(getattr(body, "client_id", "")) or header
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
        with self.presence.of(request, request[_VISITOR]):
            return await self.streams.session(request)

    async def _all_events(self, request: web.Request) -> web.StreamResponse:
        with self.presence.of(request, request[_VISITOR]):
            return await self.streams.all(request)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        with self.presence.of(request, request[_VISITOR]):
            return await socket.serve(request, self.deck, self.shared, request[_VISITOR], self.obey)

    # --- the rest

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """The token moves from the address into a cookie that no script can read."""
        token = request.query.get("token") or self._codes.taken(request.query.get("code", ""))
        visitor = self.tokens.visitor(token)
        if visitor is None:
            raise self._refused(request, NoToken(), is_wrong=bool(request.query))
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=self.is_secure, max_age=30 * 86400)
        return response

    async def _login_code(self, request: web.Request) -> web.StreamResponse:
        """For a browser that is started with an address: the code works once, and not for long."""
        return _json({"code": self._codes.made(_token(request))}, 201)

    async def _health(self, _: web.Request) -> web.StreamResponse:
        """Whether the log can be read and written: a server that cannot is not healthy, whatever it answers."""
        await self.health.check()
        return _json({"status": "ok", "environment": self.deck.environments.usual.source})

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=(await self.metrics.text()).encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _schema(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._openapi, content_type="application/json")


def _token(request: web.Request) -> str:
    """Of the header; of the cookie only where there is no header."""
    header = request.headers.get("Authorization", "")
    if not header:
        return request.cookies.get(COOKIE, "").strip()
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


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
    if isinstance(error, TooLarge | TooSlow | UnreadableBody):
        response.force_close()  # what is left of the body is no request
    if isinstance(error, NoToken):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _as_ours(error: web.HTTPException, request: web.Request) -> QuarterdeckError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(error.method, tuple(sorted(error.allowed_methods)))
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLarge(BODY_LIMIT)
    if error.status == 404:
        return NoSuchRoute(request.path)
    return BadRequest(error.reason, "See /openapi.json.")


async def _front(_: web.Request) -> web.StreamResponse:
    page = (
        "<!doctype html><meta charset=utf-8><title>Quarterdeck</title><p>Quarterdeck is running. Its API: /openapi.json"
    )
    return web.Response(text=page, content_type="text/html")
