"""The command line's own client: finds the server of this home, starts it if need be, and talks JSON to it.

A connection of our own (`line`), and `http.client` where that is not enough: a command must not pay for a framework. What
the server refuses becomes an error with the server's code, message and hint, and so the exit code of the contract.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

from quarterdeck.cli.line import Answer, Line
from quarterdeck.client.blocks import Splitter
from quarterdeck.client.failures import Unreachable, refusal
from quarterdeck.home import Home, home
from quarterdeck.server import server_file
from quarterdeck.server.server_file import InvalidTokenFile, ServerInfo, read_owner_token

if TYPE_CHECKING:
    import http.client

_TIMEOUT_S = 30.0
_INTERRUPTS = "Busy sessions are interrupted by it, and can be resumed."


class Told(NamedTuple):
    """One event of a stream."""

    event: str
    id: str
    data: Any


class Wire:
    """A connection to one server. Not for several threads."""

    def __init__(self, light: ServerInfo, token: str) -> None:
        self.beacon = light
        self._token = token
        self._connection: Line | http.client.HTTPConnection | None = None
        self._connect: Callable[[ServerInfo], Line | http.client.HTTPConnection] = _connection

    def get(self, path: str, **query: Any) -> Any:
        """The answer to a GET; parameters that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return self.ask("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self.ask("POST", path, body or {})

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of the answer, None when it has none. Refused, Unreachable."""
        answer = self._sent(method, path, body)
        try:
            data = answer.read()
        except _failures() as error:
            raise self._unreachable(error) from None
        if answer.status >= 400:
            raise refusal(answer.status, data)
        return json.loads(data) if data else None

    def stream(self, path: str, **query: Any) -> Generator[Told]:
        """Server-Sent Events as they come, on a connection of their own. Ends when the server ends it; Unreachable when
        it is cut."""
        accept = {"Accept": "text/event-stream"}
        with Wire(self.beacon, self._token) as other:
            other._connect = _streaming
            answer = cast("http.client.HTTPResponse", other._sent("GET", f"{path}?{urlencode(query)}", None, accept))
            try:
                if answer.status >= 400:
                    raise refusal(answer.status, answer.read())
                yield from _events(answer)
            except _failures() as error:
                raise self._unreachable(error) from None

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sent(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | http.client.HTTPResponse:
        """A kept connection may have been closed by the other side; a request is repeated only if it changes nothing."""
        data = None if body is None else json.dumps(body).encode()
        json_only = {"Accept": "application/json", "Content-Type": "application/json"}
        every = {"Authorization": f"Bearer {self._token}", **json_only, **(headers or {})}
        was_open = self._connection is not None
        try:
            return self._once(method, path, data, every)
        except _failures() as error:
            self.close()
            if not (was_open and method == "GET"):
                raise self._unreachable(error) from None
        try:
            return self._once(method, path, data, every)
        except _failures() as error:
            raise self._unreachable(error) from None

    def _once(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer | http.client.HTTPResponse:
        if self._connection is None:
            self._connection = self._connect(self.beacon)
        self._connection.request(method, path, data, dict(headers))
        return self._connection.getresponse()

    def _unreachable(self, error: Exception) -> Unreachable:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return Unreachable(
            f"the server at {self.beacon.address} does not answer: {why}", "`qd restart` starts it anew."
        )


def _failures() -> tuple[type[Exception], ...]:
    """What may go wrong on a connection; `http.client` has errors of its own, if somebody uses it."""
    module = sys.modules.get("http.client")
    return (OSError,) if module is None else (OSError, module.HTTPException)


def _connection(light: ServerInfo) -> Line | http.client.HTTPConnection:
    parts = urlsplit(light.address)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return _secure(light, parts.hostname, parts.port, _TIMEOUT_S)
    return Line(parts.hostname, parts.port, _TIMEOUT_S)


def _streaming(light: ServerInfo) -> http.client.HTTPConnection:
    """For an answer that has no end."""
    import http.client

    parts = urlsplit(light.address)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return _secure(light, parts.hostname, parts.port, None)
    return http.client.HTTPConnection(parts.hostname, parts.port)


def _secure(light: ServerInfo, host: str, port: int | None, timeout: float | None) -> http.client.HTTPConnection:
    import http.client
    import ssl

    # the very certificate that the server of this home shows, whoever signed it and for whatever name
    context = ssl.create_default_context(cafile=light.tls_cert)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def _events(answer: http.client.HTTPResponse) -> Generator[Told]:
    splitter = Splitter()
    while data := answer.read1():
        for block in splitter.feed(data):
            yield Told(block.name or "message", block.id, json.loads(block.data))


def token_of(place: Home) -> str:
    """The owner's own; Unreachable when it cannot be read."""
    try:
        token = read_owner_token(place.token)
    except FileNotFoundError:
        token = ""
    except (OSError, InvalidTokenFile) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        hint = f"Remove it; `qd restart --force` then makes a new one. {_INTERRUPTS}"
        raise Unreachable(f"{place.token} cannot be read: {why}", hint) from None
    if not token:
        raise Unreachable(f"there is no token in {place.token}", f"`qd restart --force` makes a new one. {_INTERRUPTS}")
    return token


def present(place: Home | None = None) -> Wire | None:
    """To the server that runs; None when none does. Nothing is started."""
    place = place or home()
    light = server_file.find_server(place)
    return None if light is None or light.is_leaving else Wire(light, token_of(place))


def connected(place: Home | None = None) -> Wire:
    """To the server of this home, which is started in the background if none runs."""
    place = place or home()
    found = present(place)
    if found is not None:
        return found
    from quarterdeck.cli.starting import in_background

    return Wire(in_background(place, {}), token_of(place))
