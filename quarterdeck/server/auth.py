"""Decide whether a request may be handled.

`Auth.authorize` makes the same checks for every HTTP request and WebSocket, in this order:

1. `Host` is one of our names. A foreign site can point its own name at this server (DNS rebinding); the browser then
   still sends that name.
2. `Origin` and `Sec-Fetch-Site` are ours or missing. A page of a foreign site can make a browser send requests here.
3. The request carries a valid token, or the secret of an agent for `/ingest/`.
4. The token's role allows the method.

SECURITY.md lists the attacks and the test of each.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDictProxy

from quarterdeck.errors import QuarterdeckError
from quarterdeck.server.errors import ForeignHost, ForeignOrigin, NoSecret, NoToken, TooManyFailures, ViewOnly
from quarterdeck.server.tokens import COOKIE, Tokens, Visitor

#: Whom the request's token belongs to. Requests to open routes and from agents have none.
VISITOR = web.RequestKey("visitor", Visitor)
#: Header with the secret of an agent.
SECRET = "X-Quarterdeck-Secret"

_SAFE_METHODS = frozenset({"GET", "HEAD"})
#: Routes that need no token. They reveal nothing about any session.
_OPEN_ROUTES = frozenset({"/", "/healthz", "/login"})
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class Auth:
    """Checks requests against the tokens of a home and the names of a server."""

    def __init__(self, tokens: Tokens, allowed_hosts: frozenset[str], now: Callable[[], float]) -> None:
        self.tokens = tokens
        self.codes = LoginCodes(now)
        self.failures = FailureLimit(now)
        self._hosts = _LOOPBACK_NAMES | {name.lower().removesuffix(".") for name in allowed_hosts}

    def authorize(self, request: web.Request) -> None:
        """Check a request, and remember its visitor as `request[VISITOR]`.

        Raises:
            QuarterdeckError: the request must not be handled.
        """
        self.check_origin(request.headers)
        # Use the resolved route and not the path, which can be written in many ways.
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else ""
        if route in _OPEN_ROUTES:
            return
        if route.startswith("/ingest/"):
            self._check_secret(request)
            return
        visitor = self._visitor(request)
        if visitor.role != "operate" and request.method not in _SAFE_METHODS:
            raise ViewOnly
        request[VISITOR] = visitor

    # --- Host and Origin

    def check_origin(self, headers: CIMultiDictProxy[str]) -> None:
        """Check that a request addresses this server, and comes from its own page or from no page.

        Raises:
            ForeignHost, ForeignOrigin
        """
        hosts, origins = headers.getall("Host", ()), headers.getall("Origin", ())
        host = hosts[0] if hosts else ""
        if len(hosts) != 1 or host_name(host) not in self._hosts:
            raise ForeignHost(host)
        if len(origins) > 1 or (origins and not self._is_own_origin(origins[0], host)):
            raise ForeignOrigin
        # Browsers send no Origin with images and scripts, but this. Other ports of this machine are the same site to a
        # browser, which also sends them our cookie, so only "same-origin" counts. A foreign page may link to us.
        is_own_site = headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none")
        if not is_own_site and headers.get("Sec-Fetch-Mode") != "navigate":
            raise ForeignOrigin

    def _is_own_origin(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        is_origin = parts.scheme in ("http", "https") and not (parts.path or parts.query or parts.fragment)
        return is_origin and parts.netloc.lower() == host.lower() and host_name(parts.netloc) in self._hosts

    # --- Tokens

    def _visitor(self, request: web.Request) -> Visitor:
        token = token_of(request)
        visitor = self.tokens.visitor(token) if token else None
        if visitor is None:
            raise self.refuse(request, NoToken(), is_wrong=bool(token))
        by_cookie = not request.headers.get("Authorization")
        changes_nothing = request.method in _SAFE_METHODS and "Upgrade" not in request.headers
        # Browsers always send Origin with such requests, so one without it was forged (CSRF).
        if by_cookie and not changes_nothing and "Origin" not in request.headers:
            raise ForeignOrigin
        return visitor

    def log_in(self, request: web.Request) -> str:
        """Return the token that a login names, by itself or by a one-time code.

        Raises:
            NoToken, TooManyFailures
        """
        token = request.query.get("token") or self.codes.redeem(request.query.get("code", ""))
        if self.tokens.visitor(token) is None:
            raise self.refuse(request, NoToken(), is_wrong=bool(request.query))
        return token

    def refuse(self, request: web.Request, error: NoToken, *, is_wrong: bool) -> QuarterdeckError:
        """Return the error for a request without a valid token. Count it if the token is wrong and not just missing."""
        seconds = self.failures.record(request.remote or "") if is_wrong else 0
        return TooManyFailures(seconds) if seconds else error

    # --- Agents

    def _check_secret(self, request: web.Request) -> None:
        """Check that an agent sent the secret of its session, or of this install if the route names no session."""
        secret = request.headers.get(SECRET, "")
        if not secret:
            # OpenTelemetry exporters can set this header only.
            _, _, secret = request.headers.get("Authorization", "").partition(" ")
        expected = secret_for(self.tokens.current_owner_token(), request.match_info.get("id", ""))
        if not hmac.compare_digest(secret.encode(errors="surrogateescape"), expected.encode()):
            raise self.refuse(request, NoSecret(), is_wrong=True)


_FORBIDDEN_IN_HOST = frozenset("/\\@?# \t,")


def host_name(header: str) -> str | None:
    """Return the name in a Host header without the port, or None if the header isn't valid."""
    if not _FORBIDDEN_IN_HOST.isdisjoint(header):
        return None
    if header.startswith("["):
        name, bracket, rest = header[1:].partition("]")
        return name.lower() if bracket and (not rest or _is_port(rest)) else None
    name, colon, port = header.partition(":")
    if colon and not _is_port(f":{port}"):
        return None
    return name.lower().removesuffix(".") or None


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isdecimal() and text.isascii() and len(text) <= 6


def token_of(request: web.Request) -> str:
    """Return the token of the Authorization header, or of the cookie if there is no such header."""
    header = request.headers.get("Authorization", "")
    if not header:
        return request.cookies.get(COOKIE, "").strip()
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def secret_for(owner_token: str, session_id: str = "") -> str:
    """Return the secret that an agent sends with its hooks: of one session, or of the hooks that the user installed.

    It is derived from the owner's token, so it needs no storage and changes when that token is rotated.
    """
    return hmac.new(owner_token.encode(), f"ingest {session_id}".encode(), hashlib.sha256).hexdigest()


# --- One-time codes


class LoginCodes:
    """Codes that stand for a token, once and for a minute.

    A browser is started with one instead of a token, because every process on the machine can read its command line.
    """

    LIFETIME_S = 60.0
    _LIMIT = 100

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: code → token, and when it expires
        self._tokens: dict[str, tuple[str, float]] = {}

    def create(self, token: str) -> str:
        while len(self._tokens) >= self._LIMIT:
            self._tokens.pop(next(iter(self._tokens)))
        code = secrets.token_urlsafe(32)
        self._tokens[code] = (token, self._now() + self.LIFETIME_S)
        return code

    def redeem(self, code: str) -> str:
        """Return the token of a code, which can't be used again. Return "" if the code isn't valid."""
        token, expires_at = self._tokens.pop(code, ("", 0.0))
        return token if self._now() < expires_at else ""


# --- Wrong tokens


class FailureLimit:
    """Counts wrong tokens by address. Requests with a valid token are never delayed, even from the same address."""

    LIMIT = 20
    WITHIN_S = 60.0
    _ADDRESS_LIMIT = 1000

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_address: dict[str, deque[float]] = {}

    def record(self, address: str) -> int:
        """Count a failure. Return how many seconds the address must wait, or 0 if it is below the limit."""
        now = self._now()
        times = self._by_address.setdefault(address, deque(maxlen=self.LIMIT))
        while times and now - times[0] > self.WITHIN_S:
            times.popleft()
        if len(times) == self.LIMIT:
            return max(1, int(self.WITHIN_S - (now - times[0])) + 1)
        times.append(now)
        if len(self._by_address) > self._ADDRESS_LIMIT:
            self._by_address.pop(next(iter(self._by_address)))
        return 0
