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
from msgspec import Struct

from quarterdeck.deck.deck import Deck
from quarterdeck.errors import QuarterdeckError
from quarterdeck.server import socket, sse
from quarterdeck.server.bodies import body_of
from quarterdeck.server.failures import Failures
from quarterdeck.server.frames import with_restating
from quarterdeck.server.guard import Guard
from quarterdeck.server.headers import dress
from quarterdeck.server.ingest import Ingest
from quarterdeck.server.openapi import openapi
from quarterdeck.server.presence import Presence
from quarterdeck.server.route import Call, Route, read_body, read_query
from quarterdeck.server.routes import all_routes
from quarterdeck.server.routes.reading import event_page
from quarterdeck.server.statuses import (
    BadRequest,
    ForeignHost,
    ForeignOrigin,
    Internal,
    MethodNotAllowed,
    NoSuchRoute,
    NoToken,
    TooLarge,
    TooManyFailures,
    TooSlow,
    UnreadableBody,
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
        self.shared = socket.Shared()
        self.ingest = Ingest(deck, tokens.key)
        self.routes = all_routes()
        self._by_command = {one.path.removeprefix("/sessions/{id}/"): one for one in self.routes if _is_command(one)}
        self._failures = Failures(time.monotonic)
        self._openapi = _encode(openapi(self.routes))
        self.presence = Presence(tokens)
        self.app = web.Application(middlewares=[self._doors], client_max_size=BODY_LIMIT)
        self.app.on_response_prepare.append(dress)
        self._register()

    def _register(self) -> None:
        for route in self.routes:
            self.app.router.add_route(route.method, route.path, self._handler(route))
        add = self.app.router.add_get
        add("/", _front)
        add("/healthz", self._health)
        add("/login", self._login)
        add("/openapi.json", self._schema)
        add("/events", self._all_events)
        add("/sessions/{id}/events", self._events)
        add("/ws", self._socket)
        self.ingest.register(self.app)

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
            # as it came over the wire: decoded, it could look like lines of its own
            log.exception("a request failed: %s %s", request.method, request.rel_url.raw_path)
            return _refusal(Internal())

    def _check_doors(self, request: web.Request) -> None:
        self._check_page(request)
        # by the route that was found, never by the text of the address: there are many ways to write one
        resource = request.match_info.route.resource
        door = resource.canonical if resource is not None else ""
        if door in _OPEN:
            return
        if door.startswith("/ingest/"):
            if not self.ingest.knows(request):
                raise self._refused(request, is_wrong=True)
            return
        visitor = self._visitor(request)
        if visitor.role != "operate" and request.method not in _SAFE:
            raise ViewOnly
        request[_VISITOR] = visitor

    def _check_page(self, request: web.Request) -> None:
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
        header = request.headers.get("Authorization", "")
        scheme, _, token = header.partition(" ")
        by_cookie = not header
        if by_cookie:
            token = request.cookies.get(COOKIE, "")
        elif scheme.lower() != "bearer":
            token = ""
        visitor = self.tokens.visitor(token.strip()) if token else None
        if visitor is None:
            raise self._refused(request, is_wrong=bool(token))
        is_harmless = request.method in _SAFE and "Upgrade" not in request.headers
        if by_cookie and not is_harmless and "Origin" not in request.headers:
            # a browser always says where such a request comes from
            raise ForeignOrigin
        return visitor

    def _refused(self, request: web.Request, *, is_wrong: bool) -> QuarterdeckError:
        """A wrong token is counted, and too many are told to wait; one that is missing is only missing."""
        wait = self._failures.wait(request.remote or "") if is_wrong else 0
        return TooManyFailures(wait) if wait else NoToken()

    # --- routes

    def _handler(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = read_body(route.body, await body_of(request, BODY_LIMIT)) if route.body is not None else None
            answer = await route.handle(self._call(route, request, body))
            if route.status == 204:
                return web.Response(status=204)
            return _json(answer, route.status)

        return handle

    def _call(self, route: Route, request: web.Request, body: Any) -> Call:
        query = read_query(route.query, request.query) if route.query is not None else None
        key = getattr(body, "client_id", "") or request.headers.get("Idempotency-Key", "")
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
        query: _EventsQuery = read_query(_EventsQuery, request.query)
        session_id = request.match_info["id"]
        self.deck.session(session_id)
        since = _index(request.headers.get("Last-Event-ID"), query.since)
        types = _types(query.types)
        if "application/json" in request.headers.get("Accept", ""):
            call = Call(self.deck, request[_VISITOR], request.match_info, query, None, "")
            return _json(await event_page(call, since, tuple(types) if types else None, query.limit))
        with self.presence.of(request, request[_VISITOR]):
            return await self.streams.session(request, session_id, since, types)

    async def _all_events(self, request: web.Request) -> web.StreamResponse:
        query: _AllQuery = read_query(_AllQuery, request.query)
        since = request.headers.get("Last-Event-ID") or query.since
        if since and not (since.isdecimal() and len(since) < 40):
            raise BadRequest("since: not a cursor", "Send the cursor of the last event that you have.")
        types = _types(query.types)
        if "application/json" in request.headers.get("Accept", ""):
            return _json(await _all_page(self.deck, since, types, query.limit))
        with self.presence.of(request, request[_VISITOR]):
            return await self.streams.all(request, since, types)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        with self.presence.of(request, request[_VISITOR]):
            return await socket.serve(request, self.deck, self.shared, request[_VISITOR], self.obey)

    # --- the rest

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """The token moves from the address into a cookie that no script can read."""
        visitor = self.tokens.visitor(request.query.get("token", ""))
        if visitor is None:
            raise self._refused(request, is_wrong=bool(request.query.get("token")))
        response = web.Response(status=303, headers={"Location": "/"})
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


class _EventsQuery(Struct, frozen=True, kw_only=True):
    since: int = 0
    types: str = ""
    limit: int = 1000


class _AllQuery(Struct, frozen=True, kw_only=True):
    since: str = ""
    types: str = ""
    limit: int = 1000


def _is_command(route: Route) -> bool:
    return route.method == "POST" and route.path.startswith("/sessions/{id}/")


def _types(text: str) -> frozenset[str] | None:
    return with_restating([one for one in text.split(",") if one]) if text else None


def _index(last_event_id: str | None, since: int) -> int:
    """What the browser remembers wins over the address."""
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 17:
        return int(last_event_id)
    if not 0 <= since < 1 << 53:
        raise BadRequest("since: not an index", "Send the index of the last event that you have.")
    return since


async def _all_page(deck: Deck, since: str, types: frozenset[str] | None, limit: int) -> dict[str, Any]:
    from quarterdeck.events import encode_event

    events = await deck.house.log.read_all(since, max(1, min(limit, 1000)), types)
    return {
        "events": [msgspec.Raw(encode_event(event)) for event in events],
        "next": events[-1].cursor if events else since,
    }


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
