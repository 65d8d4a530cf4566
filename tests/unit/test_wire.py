"""The command line's client against a server that says what the test wants, over a real socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quarterdeck.cli.exits import Exit, exit_for
from quarterdeck.cli.wire import Told, Wire, present, token_of
from quarterdeck.client.failures import Refused, Unreachable
from quarterdeck.home import Home
from quarterdeck.process.identity import start_time
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo


def answer(status: int, body: str, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body.encode())}\r\n{more}\r\n{body}".encode()


class Talk:
    """Takes one connection after the other; each gets the next list of answers, one for each request, and is closed."""

    def __init__(self, *connections: list[bytes]) -> None:
        self.requests: list[str] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, args=(connections,))

    def _serve(self, connections: tuple[list[bytes], ...]) -> None:
        for answers in connections:
            line, _ = self.listening.accept()
            with line:
                for one in answers:
                    data = b""
                    while b"\r\n\r\n" not in data:
                        data += line.recv(65536)
                    self.requests.append(data.decode())
                    line.sendall(one)

    def wire(self) -> Wire:
        port = self.listening.getsockname()[1]
        return Wire(ServerInfo(1, 1, 0, 0, f"http://127.0.0.1:{port}", "1", 0, {}), "secret-token")


@contextmanager
def talk(*connections: list[bytes]) -> Iterator[tuple[Wire, Talk]]:
    made = Talk(*connections)
    made._thread.start()
    with made.wire() as wire:
        yield wire, made
        wire.close()
    made._thread.join(30)
    made.listening.close()


def test_json_goes_and_comes():
    with talk([answer(200, '{"a": 1}'), answer(204, ""), answer(201, "[]")]) as (wire, made):
        assert wire.get("/x", q="a b", none=None) == {"a": 1}
        assert wire.ask("DELETE", "/x") is None
        assert wire.post("/y", {"text": "é"}) == []
    assert made.requests[0].startswith("GET /x?q=a+b HTTP/1.1\r\n")
    assert "Authorization: Bearer secret-token\r\n" in made.requests[0]
    assert "Accept: application/json\r\n" in made.requests[0]


@pytest.mark.parametrize(
    ("status", "code", "left"),
    [
        (404, "no_such_session", Exit.NO_SUCH_THING),
        (409, "queue_full", Exit.NOT_ALLOWED_NOW),
        (409, "of_a_newer_release", Exit.NOT_ALLOWED_NOW),
        (400, "bad_request", Exit.WRONG_USE),
        (503, "deck_closed", Exit.UNREACHABLE),
        (500, "internal", Exit.FAILED),
        (401, "no_token", Exit.FAILED),
    ],
)
def test_what_is_refused_has_the_servers_words_and_an_exit_code(status: int, code: str, left: Exit):
    body = f'{{"error": {{"code": "{code}", "message": "m", "hint": "h"}}}}'
    with talk([answer(status, body)]) as (wire, _), pytest.raises(Refused) as raised:
        wire.get("/x")
    error = raised.value
    assert (error.code, error.message, error.hint, error.status) == (code, "m", "h", status)
    assert exit_for(error.code, error.status) is left


def test_an_answer_of_a_stranger():
    with talk([answer(502, "<html>")]) as (wire, _), pytest.raises(Refused) as raised:
        wire.get("/x")
    assert raised.value.code == "bad_answer"


def test_a_kept_connection_that_was_closed_is_opened_again_for_a_question():
    with talk([answer(200, "1")], [answer(200, "2")]) as (wire, made):
        assert wire.get("/x") == 1
        assert wire.get("/x") == 2
    assert len(made.requests) == 2


def test_but_not_for_a_command_which_may_have_been_heard():
    with talk([answer(200, "1")]) as (wire, made):
        assert wire.get("/x") == 1
        with pytest.raises(Unreachable):
            wire.post("/x")
    assert len(made.requests) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: [b""],
        lambda: [b"what?\r\n\r\n"],
        lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123"],
    ],
    ids=["silence", "no HTTP", "half an answer"],
)
def test_what_is_no_answer_is_unreachable(spoil: Callable[[], list[bytes]]):
    with talk(spoil()) as (wire, _), pytest.raises(Unreachable) as raised:
        wire.get("/x")
    assert "does not answer" in raised.value.message
    assert exit_for(raised.value.code) is Exit.UNREACHABLE


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unreachable, match="refused"):
        Wire(ServerInfo(1, 1, 0, 0, address, "1", 0, {}), "t").get("/x")


def test_a_stream():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    text = b': \n\nid: 7\nevent: notice\ndata: {"a": 1}\n\nevent: end\ndata: 2\n\n'
    parts = [text[:9], text[9:30], text[30:]]
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    with talk([head + body]) as (wire, made):
        assert list(wire.stream("/events", since=5)) == [Told("notice", "7", {"a": 1}), Told("end", "", 2)]
    assert made.requests[0].startswith("GET /events?since=5 ")


def test_a_stream_that_is_cut():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with talk([head + b"5\r\nab"]) as (wire, _), pytest.raises(Unreachable):
        list(wire.stream("/events"))


def test_a_stream_that_is_refused():
    body = '{"error": {"code": "no_such_session", "message": "m", "hint": "h"}}'
    with talk([answer(404, body)]) as (wire, _), pytest.raises(Refused):
        list(wire.stream("/events"))


def test_a_token_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(Unreachable, match="there is no token in"):
        token_of(Home(tmp_path))
    (tmp_path / "token").write_bytes(b"two words")
    with pytest.raises(Unreachable, match="cannot be read: a token is one word"):
        token_of(Home(tmp_path))


def test_a_server_that_leaves_is_not_present(tmp_path: Path):
    place = Home(tmp_path)
    assert present(place) is None
    started = start_time(os.getpid()) or 0
    light = ServerInfo(os.getpid(), started, 0, 0, "http://127.0.0.1:1", "1", 0, {}, stopping=True)
    server_file.write_server_info(place, light)
    assert present(place) is None
    place.token.write_text("t\n", encoding="ascii")
    server_file.write_server_info(place, light._replace(stopping=False))
    found = present(place)
    assert found is not None
    assert found.beacon.pid == os.getpid()
