"""The transport of `Client`: http.client, blocking, usable from several threads.

Its methods are coroutines that never suspend: they block the thread instead. A coroutine that only awaits this
transport therefore runs to its end in one step, without an event loop. `run_blocking` and `iterate_blocking` do that.
"""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import SplitResult, urlencode

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
from quarterdeck.client.transport import BUSY_STATUSES, SILENCE_S, Response, StreamCut, check_token, parse_address

if TYPE_CHECKING:
    import ssl

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

    def __init__(self, address: SplitResult, timeout_s: float, tls_cert: str) -> None:
        assert address.hostname is not None
        is_secure = address.scheme == "https"
        # Always pass a port: without one, http.client takes the end of an IPv6 address for it.
        self._target = address.hostname, address.port or (443 if is_secure else 80)
        self._timeout_s = timeout_s
        self._context = _tls_context(tls_cert) if is_secure else None
        self.http = http.client.HTTPConnection(*self._target)
        # A connection that was closed stays closed. http.client would open it again, unknown to `interrupt`.
        self.http.auto_open = 0
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Connect. Raises `OSError` or `UnicodeError` if that fails."""
        connected = socket.create_connection(self._target, self._timeout_s)
        # Send the body right after the headers instead of waiting for their acknowledgement.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        if self._context is not None:
            # The handshake is a step of its own, so that `interrupt` can end it: the socket must be known before it.
            secured = self._context.wrap_socket(
                connected, server_hostname=self._target[0], do_handshake_on_connect=False
            )
            self._socket = secured
            secured.do_handshake()
        self.http.sock = self._socket

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed this idle connection: it has nothing to send on it but the end."""
        poll = select.poll()
        poll.register(self._open_socket(), select.POLLIN)
        return bool(poll.poll(0))

    def set_timeout(self, timeout_s: float) -> None:
        self._open_socket().settimeout(timeout_s)

    def interrupt(self) -> None:
        """Wake the thread that waits for this connection."""
        if self._socket is not None:
            # Not SSLSocket.shutdown: it also drops the TLS state that the waiting thread uses.
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.http.close()
        if self._socket is not None:
            self._socket.close()

    def _open_socket(self) -> socket.socket:
        assert self._socket is not None
        return self._socket


def _tls_context(tls_cert: str) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=tls_cert or None)
    except OSError as error:
        raise OSError(f"the certificate {tls_cert} can't be read: {error.strerror or error}") from None
    if tls_cert:
        # Commands reach the server of this machine by an address that its certificate needn't name, and the certificate
        # needn't be signed by a known authority. So trust what is in its file, for every host name.
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class BlockingTransport:
    """Implements `Transport`. `tls_cert` is the file of the one certificate to trust; without it, the system's."""

    def __init__(self, url: str, token: str, timeout_s: float, tls_cert: str = "") -> None:
        self.url = url
        self._address = parse_address(url)
        self._token = check_token(token)
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
        target = self._request_target(path, query)
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": "application/json"})
        while True:
            connection, is_reused = self._acquire()
            try:
                return self._exchange(connection, method, target, body, headers)
            except TimeoutError:
                raise TimedOut(f"{method} {path}", self._timeout_s) from None
            except _FAILURES as error:
                # The server may have closed an idle connection just when the request was sent on it. Repeat only a
                # request that changes nothing: a command may have been carried out before the connection was lost.
                if self.is_closed or not (is_reused and method == "GET"):
                    raise connection_lost(f"{method} {path}", error) from None

    async def open_stream(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[EventBlock]:
        try:
            connection = self._connect()
        except Unreachable as error:
            raise StreamCut(error) from None
        try:
            target = self._request_target(path, query)
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
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
                if not connection.is_stale:
                    self._busy.add(connection)
                    return connection, True
            connection.close()
        return self._connect(), False

    def _connect(self) -> _Connection:
        if self.is_closed:
            raise client_closed(self.url)
        try:
            connection = _Connection(self._address, self._timeout_s, self._tls_cert)
        except OSError as error:
            raise unreachable(self.url, error) from None
        with self._lock:
            self._busy.add(connection)
        is_open = False
        try:
            connection.open()
            is_open = True
        except (*_FAILURES, UnicodeError) as error:  # A UnicodeError is a host name that can't exist.
            if not self.is_closed:
                raise unreachable(self.url, error) from None
        finally:
            # If `close` ran before there was a socket, it couldn't interrupt this connection.
            if not is_open or self.is_closed:
                self._release(connection, is_reusable=False)
        if self.is_closed:
            raise client_closed(self.url)
        return connection

    def _exchange(
        self, connection: _Connection, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        is_reusable = False
        try:
            is_sent = True
            try:
                connection.http.request(method, target, body, self._headers(headers))
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a large body answers and closes before it has read all of it. If there is no
                # such answer, `getresponse` fails as well.
                is_sent = False
            response = connection.http.getresponse()
            answer = Response(response.status, response.read())
            is_reusable = is_sent and not response.will_close
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

    def _request_target(self, path: str, query: Mapping[str, str]) -> str:
        """Return what the request line names. The server's address can have a path, behind a reverse proxy."""
        return self._address.path + path + (f"?{urlencode(query)}" if query else "")
