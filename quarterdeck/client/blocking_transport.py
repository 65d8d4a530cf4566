"""The transport of `Client`: http.client, blocking, usable from several threads.

Its methods are coroutines that never suspend: they block the thread instead. A coroutine that only awaits this
transport therefore runs to its end in one step, without an event loop. `run_blocking` and `iterate_blocking` do that.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from quarterdeck.client.errors import (
    TimedOut,
    Unreachable,
    client_closed,
    connection_lost,
    decode_error,
    decode_refusal,
    unreachable,
)
from quarterdeck.client.sse import BlockParser, EventBlock
from quarterdeck.client.transport import BUSY_STATUSES, SILENCE_S, Response, StreamCut

T = TypeVar("T")

#: What http.client raises when a connection fails or the peer doesn't speak HTTP.
_FAILURES = (OSError, http.client.HTTPException)


def run_blocking(work: Awaitable[T]) -> T:
    """Run a coroutine over a `BlockingTransport` and return its result."""
    try:
        cast("Coroutine[Any, Any, T]", work).send(None)
    except StopIteration as finished:
        return cast(T, finished.value)
    raise RuntimeError("a blocking transport suspended its caller")


def iterate_blocking(items: AsyncGenerator[T]) -> Iterator[T]:
    """Iterate over an async generator over a `BlockingTransport`. Leaving the loop closes the generator."""
    try:
        while True:
            yield run_blocking(items.__anext__())
    except StopAsyncIteration:
        return
    finally:
        run_blocking(items.aclose())


class _Connection:
    """One HTTP connection. Keeps the socket, because http.client drops its own reference while a response is read."""

    def __init__(self, url: str, timeout_s: float, tls_cert: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            self.http = _secure_connection(parts.hostname, parts.port, timeout_s, tls_cert)
        else:
            self.http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        self.http.connect()
        self._socket: socket.socket = self.http.sock

    def set_timeout(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)

    def interrupt(self) -> None:
        """Wake the thread that waits for this connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.http.close()
        with suppress(OSError):
            self._socket.close()


def _secure_connection(host: str, port: int | None, timeout_s: float, tls_cert: str) -> http.client.HTTPSConnection:
    import ssl

    context = ssl.create_default_context(cafile=tls_cert or None)
    if tls_cert:
        # Trust exactly the certificate that the server of this machine uses, whoever signed it and for whatever name.
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


class BlockingTransport:
    """Implements `Transport`. `tls_cert` is the file of the one certificate to trust; without it, the system's."""

    def __init__(self, url: str, token: str, timeout_s: float, tls_cert: str = "") -> None:
        self.url = url
        self._token = token
        self._timeout_s = timeout_s
        self._tls_cert = tls_cert
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def request(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, str], accept: str
    ) -> Response:
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": "application/json"})
        connection, is_reused = self._acquire()
        try:
            return self._exchange(connection, method, target, body, headers)
        except TimeoutError:
            raise TimedOut(f"{method} {path}", self._timeout_s) from None
        except _FAILURES as error:
            # The server closes idle connections. Repeat only a request that changes nothing: a command may have
            # been carried out before the connection was lost.
            if not (is_reused and method == "GET") or self.is_closed:
                raise connection_lost(f"{method} {path}", error) from None
        connection = self._connect()
        try:
            return self._exchange(connection, method, target, body, headers)
        except TimeoutError:
            raise TimedOut(f"{method} {path}", self._timeout_s) from None
        except _FAILURES as error:
            raise connection_lost(f"{method} {path}", error) from None

    async def open_stream(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[EventBlock]:
        try:
            connection = self._connect()
        except Unreachable as error:
            raise StreamCut(error) from None
        try:
            target = f"{path}?{urlencode(query)}" if query else path
            connection.http.request("GET", target, headers=self._headers({"Accept": "text/event-stream"}))
            response = connection.http.getresponse()
            if response.status >= 400:
                refused = decode_error(response.status, response.read())
                raise StreamCut(refused) if response.status in BUSY_STATUSES else refused
            if response.headers.get_content_type() != "text/event-stream":
                # Another server's page. Reconnecting to it would never end.
                raise decode_refusal(response.status, b"")
            yield EventBlock("open", "", b"")
            connection.set_timeout(SILENCE_S)
            parser = BlockParser()
            while data := response.read1():
                for block in parser.feed(data):
                    yield block
        except _FAILURES as error:
            raise StreamCut(unreachable(self.url, error)) from None
        finally:
            self._release(connection, is_reusable=False)

    async def pause(self, seconds: float) -> None:
        self._closed.wait(seconds)

    async def close(self) -> None:
        with self._lock:
            self._closed.set()
            for connection in self._idle:
                connection.close()
            self._idle.clear()
            for connection in self._busy:
                connection.interrupt()

    # --- connections

    def _acquire(self) -> tuple[_Connection, bool]:
        """Return a connection for one request, and whether it was used before."""
        with self._lock:
            if self._idle:
                connection = self._idle.pop()
                self._busy.add(connection)
                return connection, True
        return self._connect(), False

    def _connect(self) -> _Connection:
        if self.is_closed:
            raise client_closed(self.url)
        try:
            connection = _Connection(self.url, self._timeout_s, self._tls_cert)
        except _FAILURES as error:
            raise unreachable(self.url, error) from None
        with self._lock:
            self._busy.add(connection)
        return connection

    def _exchange(
        self, connection: _Connection, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        is_reusable = False
        try:
            connection.http.request(method, target, body, self._headers(headers))
            response = connection.http.getresponse()
            answer = Response(response.status, response.read())
            is_reusable = not response.will_close
            return answer
        finally:
            self._release(connection, is_reusable)

    def _release(self, connection: _Connection, is_reusable: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if is_reusable and not self.is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", **headers}
