"""The web application: authorize every request, call its route's handler, answer errors as JSON.

    AccessLog.middleware → Server._answer_errors → Auth.authorize → handler

The API's routes are in `routes/`. The routes here are the rest: the page, the login, streams, health and metrics.
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
from quarterdeck.server.access_log import AccessLog, log_events, request_fields
from quarterdeck.server.auth import VISITOR, Auth, token_of
from quarterdeck.server.connection import add_headers, read_bytes
from quarterdeck.server.errors import (
    BadRequest,
    Internal,
    MethodNotAllowed,
    NoSuchRoute,
    NoToken,
    TooLarge,
    TooManyFailures,
    TooSlow,
    UnreadableBody,
    status_of,
)
from quarterdeck.server.ingest import Ingest
from quarterdeck.server.metrics import CONTENT_TYPE, Health, Metrics
from quarterdeck.server.openapi import openapi
from quarterdeck.server.route import Call, Route, read_body, read_query
from quarterdeck.server.routes import all_routes
from quarterdeck.server.socket import Sockets, serve_socket
from quarterdeck.server.sse import Streams
from quarterdeck.server.token_watch import TokenWatch
from quarterdeck.server.tokens import COOKIE, Tokens, Visitor

log = logging.getLogger("quarterdeck.server")

BODY_LIMIT = 32 * 1024 * 1024
_COOKIE_S = 30 * 24 * 60 * 60
_PAGE = "<!doctype html><meta charset=utf-8><title>Quarterdeck</title><p>Quarterdeck is running. Its API: /openapi.json"
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_encode_json = msgspec.json.Encoder().encode


class Server:
    """A deck as a web application. `app` is what aiohttp runs."""

    def __init__(
        self, deck: Deck, tokens: Tokens, allowed_hosts: frozenset[str] = frozenset(), *, is_secure: bool = False
    ) -> None:
        self.deck = deck
        self.auth = Auth(tokens, allowed_hosts, time.monotonic)
        self.token_watch = TokenWatch(tokens)
        self.is_secure = is_secure
        self.streams = Streams(deck)
        self.sockets = Sockets(deck)
        self.ingest = Ingest(deck)
        self.access_log = AccessLog()
        self.metrics = Metrics(deck, self.access_log, self.streams, self.sockets)
        self.health = Health(deck.check, time.monotonic)
        self.routes = all_routes()
        self._commands = {
            route.path.removeprefix("/sessions/{id}/"): route for route in self.routes if _is_command(route)
        }
        self._openapi = _encode_json(openapi(self.routes))
        deck.watchers.append(log_events)
        self.app = web.Application(
            middlewares=[self.access_log.middleware, self._answer_errors], client_max_size=BODY_LIMIT
        )
        self._register()

    def _register(self) -> None:
        router = self.app.router
        for route in self.routes:
            router.add_route(route.method, route.path, self._handler(route))
        router.add_get("/", self._page)
        router.add_get("/healthz", self._healthz)
        router.add_get("/metrics", self._metrics)
        router.add_get("/openapi.json", self._openapi_json)
        router.add_get("/login", self._login)
        router.add_post("/login/code", self._login_code)
        # A HEAD request of a stream would never get a response.
        router.add_get("/events", self._all_events, allow_head=False)
        router.add_get("/sessions/{id}/events", self._session_events, allow_head=False)
        router.add_get("/ws", self._socket, allow_head=False)
        self.ingest.register(self.app)
        self.app.on_response_prepare.append(add_headers)
        self.app.on_startup.append(self.token_watch.start)
        self.app.on_cleanup.append(self.token_watch.stop)
        self.app.on_shutdown.extend((self.streams.on_shutdown, self.sockets.on_shutdown))

    async def close_streams(self, seconds: float) -> None:
        """End every stream and WebSocket in a way that their clients can tell from a lost connection."""
        self.streams.close()
        await self.sockets.close(seconds)

    # --- Every request

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authorize a request, and turn whatever is raised into the contract's JSON error."""
        try:
            self.auth.authorize(request)
            return await handler(request)
        except QuarterdeckError as error:
            return _error_response(error)
        except web.HTTPException as error:
            return _error_response(_translate(error, request))
        except ConnectionError:
            raise  # The client has disconnected, so there is no response.
        except Exception:
            log.exception("a request failed", extra=request_fields(request))
            return _error_response(Internal())

    # --- The API's routes

    def _handler(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = read_body(route.body, await read_bytes(request, BODY_LIMIT)) if route.body is not None else None
            answer = await route.handle(self._call(route, request, body))
            if route.status == 204:
                return web.Response(status=204)
            if isinstance(answer, web.StreamResponse):
                return answer
            return _json_response(answer, route.status)

        return handle

    def _call(self, route: Route, request: web.Request, body: Any) -> Call:
        query = read_query(route.query, request.query) if route.query is not None else None
        header = validation.check_client_id(request.headers.get("Idempotency-Key", ""))
        client_id = validation.check_client_id(getattr(body, "client_id", "")) or header
        return Call(self.deck, request[VISITOR], request.match_info, query, body, client_id)

    async def run_command(self, session_id: str, name: str, args: dict[str, Any], client_id: str) -> Any:
        """Run a command of a WebSocket. It is the same as a POST to the route of that name."""
        route = self._commands.get(name)
        if route is None:
            raise BadRequest(f"there is no command {name[:100]!r}", f"Use one of {', '.join(self._commands)}.")
        assert route.body is not None
        body = read_body(route.body, _encode_json(args))
        call = Call(self.deck, Visitor("", "operate"), {"id": session_id}, None, body, client_id or body.client_id)
        return await route.handle(call)

    # --- Streams

    async def _session_events(self, request: web.Request) -> web.StreamResponse:
        with self.token_watch.watch(request, request[VISITOR]):
            return await self.streams.session_events(request)

    async def _all_events(self, request: web.Request) -> web.StreamResponse:
        with self.token_watch.watch(request, request[VISITOR]):
            return await self.streams.all_events(request)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        with self.token_watch.watch(request, request[VISITOR]):
            return await serve_socket(request, self.deck, self.sockets, request[VISITOR], self.run_command)

    # --- Login

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """Move the token from the address into a cookie that no script can read."""
        token = self.auth.log_in(request)
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=self.is_secure, max_age=_COOKIE_S)
        return response

    async def _login_code(self, request: web.Request) -> web.StreamResponse:
        """Create a one-time code for the address that a browser is started with."""
        return _json_response({"code": self.auth.codes.create(token_of(request))}, 201)

    # --- The rest

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=_PAGE, content_type="text/html")

    async def _healthz(self, _: web.Request) -> web.StreamResponse:
        await self.health.check()
        return _json_response({"status": "ok", "environment": self.deck.environments.usual.source})

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=(await self.metrics.text()).encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _openapi_json(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._openapi, content_type="application/json")


def _is_command(route: Route) -> bool:
    return route.method == "POST" and route.path.startswith("/sessions/{id}/")


def _json_response(answer: Any, status: int = 200) -> web.Response:
    return web.Response(body=_encode_json(answer), status=status, content_type="application/json")


def _error_response(error: QuarterdeckError) -> web.Response:
    response = _json_response(error.as_json(), status_of(error))
    if isinstance(error, TooManyFailures):
        response.headers["Retry-After"] = str(error.seconds)
    if isinstance(error, MethodNotAllowed):
        response.headers["Allow"] = ", ".join(error.allowed)
    if isinstance(error, TooLarge | TooSlow | UnreadableBody):
        response.force_close()  # The rest of the body must not be read as the next request.
    if isinstance(error, NoToken):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _translate(error: web.HTTPException, request: web.Request) -> QuarterdeckError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(error.method, tuple(sorted(error.allowed_methods)))
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLarge(BODY_LIMIT)
    if error.status == 404:
        return NoSuchRoute(request.path)
    return BadRequest(error.reason, "Look up the routes in /openapi.json.")
