"""Test the blocking client over a real socket, against a server with scripted answers."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quarterdeck import AsyncClient, Client, Event
from quarterdeck.cli.connect import find_server, read_token
from quarterdeck.cli.exits import Exit, exit_for
from quarterdeck.client.api import RemoteSession
from quarterdeck.client.blocking_transport import run_blocking
from quarterdeck.client.errors import Refused, TimedOut, Unreachable
from quarterdeck.client.sse import EventBlock
from quarterdeck.client.sync_client import Session
from quarterdeck.client.transport import StreamCut
from quarterdeck.home import Home
from quarterdeck.process.identity import start_time
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo

PAGE = '{"sessions": [], "next_cursor": null, "badge": {"count": %d, "attention": 0}}'
PATIENCE_S = 10
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(status: int, body: str, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body.encode())}\r\n{more}\r\n{body}".encode()


class ScriptedServer:
    """Accept connections one by one. Each gets the next list of answers, one per request, and is closed."""

    def __init__(self, *connections: list[bytes], listener: socket.socket | None = None) -> None:
        self.requests: list[str] = []
        #: Released once for each closed connection.
        self.closed = threading.Semaphore(0)
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, args=(connections,), daemon=True)

    def _serve(self, connections: tuple[list[bytes], ...]) -> None:
        for answers in connections:
            peer, _ = self.listener.accept()
            with peer:
                for data in answers:
                    self.requests.append(self._read_request(peer))
                    peer.sendall(data)
            self.closed.release()

    def _read_request(self, peer: socket.socket) -> str:
        data = b""
        while b"\r\n\r\n" not in data:
            received = peer.recv(65536)
            if not received:
                raise ConnectionError("the client closed the connection")
            data += received
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += peer.recv(65536)
        return (head + b"\r\n\r\n" + body).decode()


@contextmanager
def scripted(
    *connections: list[bytes], listener: socket.socket | None = None
) -> Iterator[tuple[Client, ScriptedServer]]:
    server = ScriptedServer(*connections, listener=listener)
    server.thread.start()
    with Client(f"http://127.0.0.1:{server.port}", "secret-token\n", timeout_s=PATIENCE_S) as client:
        yield client, server
    server.thread.join(PATIENCE_S)
    server.listener.close()


def test_requests_and_answers_are_json():
    with scripted([answer(200, PAGE % 3), answer(204, ""), answer(202, '{"ref": "r", "status": "queued"}')]) as (
        client,
        server,
    ):
        assert client.list(q="a b").badge.count == 3
        client.session("s").delete()
        assert client.session("s").steer("é").status == "queued"
    assert server.requests[0].startswith("GET /sessions?limit=20&q=a+b HTTP/1.1\r\n")
    assert "Authorization: Bearer secret-token\r\n" in server.requests[0]
    assert "Accept: application/json\r\n" in server.requests[0]
    assert "é" in server.requests[2]


@pytest.mark.parametrize(
    ("status", "code", "left"),
    [
        (404, "no_such_thing", Exit.NO_SUCH_THING),
        (409, "queue_full", Exit.NOT_ALLOWED_NOW),
        (409, "of_a_newer_release", Exit.NOT_ALLOWED_NOW),
        (400, "bad_request", Exit.WRONG_USE),
        (503, "deck_closed", Exit.UNREACHABLE),
        (500, "internal", Exit.FAILED),
        (401, "no_token", Exit.FAILED),
    ],
)
def test_a_refusal_has_the_servers_words_and_an_exit_code(status: int, code: str, left: Exit):
    body = f'{{"error": {{"code": "{code}", "message": "m", "hint": "h"}}}}'
    with scripted([answer(status, body)]) as (client, _), pytest.raises(Exception, match="m") as raised:
        client.list()
    error = raised.value
    assert (error.code, error.message, error.hint) == (code, "m", "h")
    assert exit_for(error.code, getattr(error, "status", 0)) is left


def test_an_answer_from_another_program():
    with scripted([answer(502, "<html>")]) as (client, _), pytest.raises(Refused) as raised:
        client.list()
    assert raised.value.code == "bad_answer"


def test_a_closed_idle_connection_is_opened_again_for_a_read():
    with scripted([answer(200, PAGE % 1)], [answer(200, PAGE % 2)]) as (client, server):
        assert client.list().badge.count == 1
        assert client.list().badge.count == 2
    assert len(server.requests) == 2


def test_a_command_isnt_sent_on_a_connection_that_the_server_has_closed():
    with scripted([answer(200, PAGE % 1)], [answer(200, "{}")]) as (client, server):
        client.list()
        server.closed.acquire(timeout=PATIENCE_S)
        client.session("s").compact()
    assert len(server.requests) == 2


def test_a_command_that_may_have_arrived_is_not_repeated():
    with scripted([answer(200, PAGE % 1), b""], [answer(200, "{}")]) as (client, server):
        client.list()
        with pytest.raises(Unreachable, match="lost before the answer to POST") as raised:
            client.session("s").compact()
        assert "same client_id" in raised.value.hint
        assert len(server.requests) == 2
        # The scripted server ends after its last answer was fetched.
        client.session("s").compact()


def test_a_read_that_may_be_repeated_has_a_hint_without_a_client_id():
    with scripted([b""]) as (client, _), pytest.raises(Unreachable) as raised:
        client.list()
    assert raised.value.hint == "Try again."


def test_a_body_that_is_refused_before_it_was_read():
    body = '{"error": {"code": "of_a_newer_release", "message": "m", "hint": "h"}}'
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")

        def refuse() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1024)
                peer.sendall(answer(413, body))

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(Refused) as raised:
            client.session("s").prompt("x" * 30_000_000)
        thread.join(PATIENCE_S)
        assert (raised.value.status, raised.value.code) == (413, "of_a_newer_release")
        client.close()


@pytest.mark.parametrize("status", [302, 304])
def test_a_redirect_is_not_followed_and_not_a_success(status: int):
    with (
        scripted([answer(status, "", "Location: /elsewhere\r\n")]) as (client, server),
        pytest.raises(Refused) as raised,
    ):
        client.session("s").delete()
    assert raised.value.code == "bad_answer"
    assert len(server.requests) == 1


def test_a_path_in_the_address_is_part_of_every_request():
    with (
        scripted([answer(200, PAGE % 1)], [STREAM_HEAD + b"0\r\n\r\n"]) as (_, server),
        Client(f"http://127.0.0.1:{server.port}/deck/", "t") as client,
    ):
        assert client.list().badge.count == 1
        list(client.session("s").blocks())
    assert server.requests[0].startswith("GET /deck/sessions?")
    assert server.requests[1].startswith("GET /deck/sessions/s/events?")


def test_an_ipv6_address():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with (
        scripted([answer(200, PAGE % 5)], listener=listener) as (_, server),
        Client(f"http://[::1]:{server.port}", "t") as client,
    ):
        assert client.list().badge.count == 5
    assert f"Host: [::1]:{server.port}" in server.requests[0]


def test_an_ipv6_address_without_a_port(monkeypatch: pytest.MonkeyPatch):
    addresses: list[Any] = []

    def refuse(address: Any, *_: Any) -> None:
        addresses.append(address)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for url in ("http://[::1]", "https://[::1]"):
        with pytest.raises(Unreachable):
            Client(url, "t").list()
    assert addresses == [("::1", 80), ("::1", 443)]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4986", "localhost:4986", "ftp://x", "http://", "http://x:port", "http://[::1"]
)
def test_what_is_not_an_address_is_refused_at_once(kind: type[Client] | type[AsyncClient], url: str):
    with pytest.raises(Unreachable, match="isn't the address of a server") as raised:
        kind(url, "t")
    assert "http://127.0.0.1:4986" in raised.value.hint


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_is_not_a_token_is_refused_and_not_shown(kind: type[Client] | type[AsyncClient]):
    for token in ("two words", "sécret", "line\nline"):
        with pytest.raises(Unreachable) as raised:
            kind("http://127.0.0.1:1", token)
        assert token not in str(raised.value)


def test_a_host_name_that_cannot_exist():
    with pytest.raises(Unreachable):
        Client(f"http://{'x' * 80}.example", "t").list()


@pytest.mark.parametrize(
    "data",
    [b"", b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123"],
    ids=["silence", "not HTTP", "half an answer"],
)
def test_what_is_not_an_answer_is_unreachable(data: bytes):
    with scripted([data]) as (client, _), pytest.raises(Unreachable) as raised:
        client.list()
    assert exit_for(raised.value.code) is Exit.UNREACHABLE


def test_no_server_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unreachable, match="refused"):
        Client(address, "t").list()
    with pytest.raises(Unreachable, match="refused"):
        next(Client(address, "t").subscribe())


def test_a_server_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t", timeout_s=0.05)
        with pytest.raises(TimedOut, match="GET /sessions") as raised:
            client.list()
        assert exit_for(raised.value.code) is Exit.UNREACHABLE
        client.close()


def test_a_stream():
    text = b': \n\nid: 7\nevent: notice\ndata: {"a": 1}\n\nevent: end\ndata: 2\n\n'
    parts = [text[:9], text[9:30], text[30:]]
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    with scripted([STREAM_HEAD + body]) as (client, server):
        assert list(client.session("s").blocks(5)) == [
            EventBlock("open", "", b""),
            EventBlock("notice", "7", b'{"a": 1}'),
            EventBlock("end", "", b"2"),
        ]
    assert server.requests[0].startswith("GET /sessions/s/events?since=5 ")


def test_a_stream_that_is_cut():
    with scripted([STREAM_HEAD + b"5\r\nab"]) as (client, _), pytest.raises(StreamCut):
        list(client.session("s").blocks())


def test_a_stream_that_is_refused():
    body = '{"error": {"code": "of_a_newer_release", "message": "m", "hint": "h"}}'
    with scripted([answer(404, body)]) as (client, _), pytest.raises(Refused):
        list(client.session("s").blocks())


def test_closing_the_client_ends_a_stream_that_another_thread_reads():
    blocks: list[Event] = []
    is_open, is_over = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")

        def read() -> None:
            blocks.extend(client.subscribe())
            is_over.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(STREAM_HEAD)
            is_open.wait(0.1)
            client.close()
            assert is_over.wait(10)
        reader.join(10)
    assert blocks == []


def test_closing_the_client_ends_a_pause_and_a_request_of_other_threads():
    errors: list[Exception] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")

        def read() -> None:
            try:
                client.list()
            except Unreachable as error:
                errors.append(error)

        threads = [
            threading.Thread(target=read),
            threading.Thread(target=lambda: run_blocking(client.async_client.transport.pause(PATIENCE_S))),
        ]
        for thread in threads:
            thread.start()
        peer, _ = listener.accept()
        peer.recv(65536)
        client.close()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        peer.close()
    assert len(errors) == 1


def test_closing_the_client_while_another_thread_connects(monkeypatch: pytest.MonkeyPatch):
    """A connection that is established after `close` must not be used: nothing would ever interrupt it."""
    connect = socket.create_connection
    is_connecting, may_connect = threading.Event(), threading.Event()

    def slowly(*args: Any) -> socket.socket:
        is_connecting.set()
        may_connect.wait(PATIENCE_S)
        return connect(*args)

    monkeypatch.setattr(socket, "create_connection", slowly)
    errors: list[Exception] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")

        def read() -> None:
            try:
                list(client.session("s").blocks())
            except StreamCut as cut:
                errors.append(cut.error)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert is_connecting.wait(PATIENCE_S)
        client.close()
        may_connect.set()
        reader.join(5)
        assert not reader.is_alive()
    assert [str(error).partition(": ")[2] for error in errors] == ["this client is closed"]


def test_closing_the_client_ends_a_handshake():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"https://127.0.0.1:{listener.getsockname()[1]}", "t")

        def read() -> None:
            with pytest.raises(Unreachable):
                client.list()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        peer, _ = listener.accept()
        peer.recv(65536)  # The client has sent its greeting and waits for ours.
        client.close()
        reader.join(5)
        assert not reader.is_alive()
        peer.close()


def test_an_abandoned_stream_closes_its_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")
        blocks = client.session("s").blocks()
        peers: list[socket.socket] = []

        def serve() -> None:
            peer, _ = listener.accept()
            peer.recv(65536)
            peer.sendall(STREAM_HEAD)
            peers.append(peer)

        server = threading.Thread(target=serve)
        server.start()
        assert next(blocks).name == "open"
        server.join(PATIENCE_S)
        del blocks
        peers[0].settimeout(PATIENCE_S)
        assert peers[0].recv(1) == b""
        peers[0].close()
        client.close()


def test_the_client_works_inside_an_asyncio_program():
    async def main() -> list[EventBlock]:
        return list(client.session("s").blocks())

    with scripted([STREAM_HEAD + b"0\r\n\r\n"]) as (client, _):
        assert asyncio.run(main()) == [EventBlock("open", "", b"")]


def test_methods_have_the_signatures_and_docstrings_of_the_async_client():
    for sync, asynchronous in ((Client, AsyncClient), (Session, RemoteSession)):
        commands = {name for name, method in inspect.getmembers(asynchronous, callable) if not name.startswith("_")}
        assert commands - {"run"} <= set(dir(sync))
        for name, method in vars(sync).items():
            if name.startswith("_") or not callable(method):
                continue
            original = getattr(asynchronous, name)
            assert method.__name__ == name
            assert method.__doc__ or not original.__doc__, name
            assert list(inspect.signature(method).parameters) == list(inspect.signature(original).parameters), name


def test_a_token_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(Unreachable, match="there is no token in"):
        read_token(Home(tmp_path))
    (tmp_path / "token").write_bytes(b"two words")
    with pytest.raises(Unreachable, match="can't be read"):
        read_token(Home(tmp_path))


def test_a_server_that_is_stopping_is_not_used(tmp_path: Path):
    home = Home(tmp_path)
    assert find_server(home) is None
    started = start_time(os.getpid()) or 0
    server = ServerInfo(os.getpid(), started, 0, 0, "http://127.0.0.1:1", "1", 0, {}, stopping=True)
    server_file.write_server_info(home, server)
    assert find_server(home) is None
    home.token.write_text("t\n", encoding="ascii")
    server_file.write_server_info(home, server._replace(stopping=False))
    connection = find_server(home)
    assert connection is not None
    assert connection.server.pid == os.getpid()
