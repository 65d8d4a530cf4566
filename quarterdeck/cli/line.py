"""Plain HTTP to the server of this machine: one request after the other, each answer read whole.

`http.client` brings the email package along, which costs a command as much as all the rest of it; it is used for streams and
TLS only. What is not understood is an `OSError`, as a connection that breaks is.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

_MOST_HEADERS = 65536
_NO_BODY = (204, 304)


class BadAnswer(OSError):
    """What came is no HTTP as we know it."""


class Answer:
    """One answer; `status`, and all of its body."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._body = body

    def read(self) -> bytes:
        return self._body


class Line:
    """One connection, with the names of `http.client`."""

    def __init__(self, host: str, port: int | None, timeout: float | None) -> None:
        self._where = (host, port or 80)
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._rest = b""

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Sends it, connecting first if need be."""
        host, port = self._where
        if self._socket is None:
            self._socket = socket.create_connection(self._where, self._timeout)
        said = {"Host": f"[{host}]:{port}" if ":" in host else f"{host}:{port}", **headers}
        if body is not None or method != "GET":
            said["Content-Length"] = str(len(body or b""))
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        self._socket.sendall(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + (body or b""))

    def getresponse(self) -> Answer:
        """The answer to it."""
        first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise BadAnswer("it does not speak HTTP")
        status = int(rest[:3])
        said = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = b"" if status in _NO_BODY else self._body(said)
        if said.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, body)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._rest = b""

    def _body(self, said: Mapping[str, str]) -> bytes:
        if said.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks()
        length = said.get("content-length", "")
        if not length.isdecimal():
            raise BadAnswer("an answer of unknown length")
        return self._exactly(int(length))

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while True:
            size = self._until(b"\r\n").partition(b";")[0].strip()
            try:
                part = self._exactly(int(size, 16) + 2)[:-2]
            except ValueError:
                raise BadAnswer("a chunk without its size") from None
            if not part:
                return b"".join(parts)
            parts.append(part)

    def _until(self, end: bytes) -> bytes:
        while end not in self._rest:
            if len(self._rest) > _MOST_HEADERS:
                raise BadAnswer("headers without an end")
            self._more()
        found, _, self._rest = self._rest.partition(end)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._more()
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _more(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(1 << 16)
        if not data:
            raise BadAnswer("it hung up")
        self._rest += data
