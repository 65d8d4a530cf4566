"""Plain HTTP of the command line, against a server that says exactly what a test wants."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from quarterdeck.cli.line import BadAnswer, Line

_HEAD = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def _answering(*answers: bytes) -> Iterator[tuple[Line, list[bytes]]]:
    """A server that takes one connection, and for each request says one of these; it hangs up behind the last."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked: list[bytes] = []

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(ConnectionError):  # a client may have had enough
                for answer in answers:
                    asked.append(connection.recv(1 << 16))
                    for place in range(0, len(answer), 7):  # never in one piece
                        connection.sendall(answer[place : place + 7])

        thread = Thread(target=serve, daemon=True)
        thread.start()
        line = Line("127.0.0.1", server.getsockname()[1], 30)
        try:
            yield line, asked
        finally:
            line.close()
            thread.join()


def _asked(line: Line, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    line.request(method, "/x?y=1", body, {"Accept": "application/json"})
    answer = line.getresponse()
    return answer.status, answer.read()


def test_one_after_the_other_over_one_connection() -> None:
    first = b"HTTP/1.1 202 Accepted\r\ncontent-LENGTH: 2\r\n\r\n{}"
    with _answering(first, _HEAD + b"Content-Length: 0\r\n\r\n") as (line, asked):
        assert _asked(line, "POST", b"[1]") == (202, b"{}")
        assert _asked(line) == (200, b"")
    host = asked[0].partition(b"Host: ")[2].partition(b"\r\n")[0]
    assert asked == [
        b"POST /x?y=1 HTTP/1.1\r\nHost: %b\r\nAccept: application/json\r\nContent-Length: 3\r\n\r\n[1]" % host,
        b"GET /x?y=1 HTTP/1.1\r\nHost: %b\r\nAccept: application/json\r\n\r\n" % host,
    ]


def test_an_answer_in_chunks() -> None:
    chunks = b"5;name=value\r\nhello\r\nA\r\n, is it me?\r\n0\r\n\r\n".replace(b"A\r\n", b"b\r\n")
    with _answering(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks) as (line, _):
        assert _asked(line) == (200, b"hello, is it me?")


def test_an_answer_without_a_body() -> None:
    with _answering(b"HTTP/1.1 204 No Content\r\n\r\n", _HEAD + b"Content-Length: 1\r\n\r\n1") as (line, _):
        assert _asked(line, "DELETE") == (204, b"")
        assert _asked(line) == (200, b"1")


def test_a_connection_that_is_to_be_closed_is_closed() -> None:
    said = _HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    with _answering(said) as (line, _):
        assert _asked(line) == (200, b"{}")
        assert line._socket is None  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "hung up"),
        (_HEAD, "hung up"),
        (_HEAD + b"Content-Length: 5\r\n\r\n{}", "hung up"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 fine\r\n\r\n", "does not speak HTTP"),
        (_HEAD + b"\r\n{}", "unknown length"),
        (_HEAD + b"Content-Length: -1\r\n\r\n{}", "unknown length"),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", "a chunk without its size"),
        (_HEAD + b"X: y\r\n" * 20_000, "headers without an end"),
    ],
)
def test_what_is_no_answer_is_a_broken_connection(said: bytes, why: str) -> None:
    with _answering(said) as (line, _), pytest.raises(BadAnswer, match=why):
        _asked(line)
