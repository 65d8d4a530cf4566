"""Test raw bytes: invalid HTTP, request smuggling, huge bodies, and requests that never end."""

from __future__ import annotations

import asyncio
import gzip
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import http_writer

from quarterdeck.server import connection
from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.server.connection import SECURITY_HEADERS
from tests.support.http_api import RunningServer, serving


def _lines(house: RunningServer, *more: bytes) -> list[bytes]:
    return [f"Host: {house.host}".encode(), f"Authorization: Bearer {house.token}".encode(), *more]


async def _closed(reader: asyncio.StreamReader) -> bytes:
    """Return everything until the server closes the connection."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


class TestSmuggling:
    """A proxy may read two requests where we read one, or the other way round. All of these are refused."""

    async def test_two_lengths(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            body = b'{"agent": "test"}'
            length = f"Content-Length: {len(body)}".encode()
            tricks: list[tuple[bytes, ...]] = [
                (length, b"Transfer-Encoding: chunked"),
                (length, b"Content-Length: 0"),
                (length, length),
                (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
                (b"Transfer-Encoding: xchunked",),
                (b"Transfer-Encoding: chunked, identity",),
                (b"Content-Length: +17",),
                (b"Content-Length: -1",),
                (b"Content-Length: 1_7",),
                (b"Content-Length: 0x11",),
                (b"Content-Length : 17",),
                (length, b"Transfer-Encoding:\x0bchunked"),
                (length, b" folded: yes"),
                (b"X-Header: a\r\n\tContent-Length: 17",),
                (b"X\x00: a", length),
                (b"X: a\x00b", length),
                (b"X: a\rb", length),
                (b"no colon here", length),
            ]
            for trick in tricks:
                status = await house.asked_raw(b"POST /sessions HTTP/1.1", *_lines(house, *trick), body=body)
                assert status in (0, 400, 411, 501), trick
            assert (await house.get("/sessions")).json["sessions"] == []

    async def test_broken_chunks(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for body in (
                b"11;\x00ext\r\n" + b'{"agent": "test"}' + b"\r\n0\r\n\r\n",
                b"0x11\r\n" + b'{"agent": "test"}' + b"\r\n0\r\n\r\n",
                b"-1\r\n\r\n0\r\n\r\n",
                b"11\n" + b'{"agent": "test"}' + b"\n0\n\n",
                b"12\r\n" + b'{"agent": "test"}' + b"\r\n0\r\n\r\n",
            ):
                chunked = _lines(house, b"Transfer-Encoding: chunked", b"Connection: close")
                status = await house.asked_raw(b"POST /sessions HTTP/1.1", *chunked, body=body)
                assert status in (0, 400), body
            assert (await house.get("/sessions")).json["sessions"] == []

    async def test_what_follows_a_refused_request_is_not_read_as_another(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            second = b"POST /sessions HTTP/1.1\r\n" + b"\r\n".join(_lines(house, b"Content-Length: 17"))
            both = b"\r\n".join(
                [
                    b"POST /sessions HTTP/1.1",
                    *_lines(house, b"Content-Length: 4", b"Transfer-Encoding: chunked"),
                    b"",
                    b"0\r\n\r\n" + second + b'\r\n\r\n{"agent": "test"}',
                ]
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(both)
            assert (await _closed(reader)).count(b"Content-Length:") == 1
            writer.close()
            assert (await house.get("/sessions")).json["sessions"] == []


class TestNoHttp:
    async def test_garbage_is_answered_as_an_error_like_all_others(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for garbage in (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
                b"GET\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header: x\r\n\r\n",
                b"G\x00T / HTTP/1.1\r\n\r\n",
                b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 5000 + b"\r\n",
            ):
                answer = await house.raw(garbage)
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.split(b" ")[1] == b"400", garbage[:40]
                assert body.startswith(b'{"error":{"code":"bad_request"'), garbage[:40]
                for name in SECURITY_HEADERS:
                    assert name.encode() in head

    async def test_nothing_of_it_is_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("DEBUG", logger="quarterdeck")
        async with serving(tmp_path) as house:
            await house.raw(b"GET /login?token=tellnobody HTTP/1.1\r\nAuthorization Bearer tellnobody\r\n\r\n")
            await house.raw(b"GET /login?token=tellnobody HTTP/tellnobody\r\n\r\n")
        assert "tellnobody" not in caplog.text
        assert "isn't valid HTTP" in caplog.text


class TestPaths:
    async def test_no_way_of_writing_an_address_leads_past_the_doors(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            session = (await house.post("/sessions", {"agent": "test"})).json["id"]
            host = f"Host: {house.host}".encode()
            secret = f"{SECRET}: {secret_for(house.token)}".encode()
            for path in (
                "//sessions",
                "/./sessions",
                "/login/../sessions",
                "/healthz/../sessions",
                "/login/%2e%2e/sessions",
                "/ingest/../sessions",
                "/ingest/%2e%2e/sessions",
                "/ingest/..%2fsessions",
                "/ingest/claude/..%2f..%2fsessions",
                "/ingest/claude/../../sessions",
                "/ingest/",
                "/ingest//sessions",
                "/%69ngest/../sessions",
                "/%73essions",
                "/sessions%00",
                "/sessions/%00",
                "/sessions;/login",
                "/sessions#/login",
                "/sessions?/login",
                "/login%00/../sessions",
                f"/sessions/{session}%2f",
                f"/ingest/claude/..%2f..%2fsessions%2f{session}",
                "/sessions/" + "a" * 4000,
                "/sessions/" + "%2e%2e%2f" * 400 + "etc%2fpasswd",
                "http://localhost/sessions",
                "*",
            ):
                for method in ("GET", "POST", "DELETE"):
                    status = await house.asked_raw(
                        f"{method} {path} HTTP/1.1".encode(), host, secret, b"Content-Length: 0"
                    )
                    assert status in (400, 401, 404, 405, 429), (method, path, status)
            assert len((await house.get("/sessions")).json["sessions"]) == 1

    async def test_names_in_addresses_are_names_and_no_files(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for name in (
                "..%2f..%2ftoken",
                "%2e%2e",
                "%00",
                "token",
                "%ff",
                "a" * 4000,
                "%F0%9F%98%80",
                "%5c..%5ctoken",
            ):
                for path in (f"/sessions/{name}", f"/sessions/{name}/timeline", f"/sessions/{name}/events", f"/{name}"):
                    answer = await _get(house, path)
                    assert (answer[0], answer[1][:9]) == (404, b'{"error":'), path


async def _get(house: RunningServer, path: str) -> tuple[int, bytes]:
    """Send a path unchanged; a client would normalize it."""
    answer = await house.raw(b"\r\n".join([f"GET {path} HTTP/1.1".encode(), *_lines(house), b"", b""]))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


class TestHuge:
    async def test_a_body_that_says_it_is_too_large_is_not_read(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            secret = f"{SECRET}: {secret_for(house.token)}".encode()
            for path, size in (
                ("/sessions", 33_554_433),
                ("/ingest/claude", 8_388_609),
                ("/ingest/otlp/v1/logs", 10**15),
            ):
                lines = _lines(house, secret, f"Content-Length: {size}".encode(), b"Expect: 100-continue")
                answer = await house.raw(b"\r\n".join([f"POST {path} HTTP/1.1".encode(), *lines, b"", b""]))
                answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n") or answer
                if b"413" not in answer[:20]:  # "100 Continue" is a response of its own.
                    answer = await house.raw(
                        b"\r\n".join([f"POST {path} HTTP/1.1".encode(), *lines[:-1], b"", b"only this"])
                    )
                assert answer.startswith(b"HTTP/1.1 413"), path
                assert b'"too_large"' in answer

    async def test_a_body_that_does_not_say_so_is_read_to_the_limit(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            sent = 0

            async def endless() -> Any:
                nonlocal sent
                while True:
                    sent += 1 << 20
                    yield b" " * (1 << 20)

            said = {SECRET: secret_for(house.token)}
            try:
                answer = await house.ask("POST", "/ingest/claude", None, said, data=endless())
                assert (answer.status, answer.code) == (413, "too_large")
            except aiohttp.ClientError:
                pass  # The client was still sending when the server closed the connection.
            assert sent > 8 << 20
            assert (await house.get("/sessions")).status == 200

    async def test_a_small_body_that_unpacks_to_a_huge_one(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            bomb = gzip.compress(b" " * (64 << 20))
            assert len(bomb) < 100_000
            said = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
            for path in ("/ingest/claude", "/ingest/otlp/v1/logs"):
                secret = {SECRET: secret_for(house.token)}
                answer = await house.ask("POST", path, None, said | secret, data=bomb)
                assert (answer.status, answer.code) == (413, "too_large")
            answer = await house.ask("POST", "/sessions", headers=said, data=bomb)
            assert (answer.status, answer.code) == (413, "too_large")

    async def test_a_body_that_is_packed_wrongly(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            good = gzip.compress(b'{"agent": "test"}')
            for kind in ("gzip", "deflate"):
                for data in (b"no gzip", good[:-15], b"\x1f\x8b" + b"\xff" * 30, good[:5]):
                    answer = await house.ask("POST", "/sessions", headers={"Content-Encoding": kind}, data=data)
                    assert (answer.status, answer.code) == (400, "bad_request"), (kind, data)
            assert (await house.get("/sessions")).json["sessions"] == []


class TestSlow:
    async def test_a_connection_that_never_says_what_it_wants_is_closed(self, tmp_path: Path) -> None:
        async with serving(tmp_path, headers_s=0.2) as house:
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            assert await _closed(reader) == b""
            writer.close()

    async def test_headers_a_byte_at_a_time_are_cut_off(self, tmp_path: Path) -> None:
        """Send bytes all the time, but never a whole request (slow loris)."""
        async with serving(tmp_path, headers_s=0.2) as house:
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            closed = asyncio.ensure_future(_closed(reader))
            writer.write(b"GET /sessions HTTP/1.1\r\nHost: localhost\r\nX: ")
            while not closed.done():
                writer.write(b"a")
                await asyncio.wait([closed], timeout=0.01)
            assert closed.result() == b""
            writer.close()
            assert (await house.get("/sessions")).status == 200

    async def test_a_request_that_is_under_way_is_not_cut_off(self, tmp_path: Path) -> None:
        async with serving(tmp_path, headers_s=0.05) as house:
            held = asyncio.ensure_future(house.hook("claude", _asking("n1")))
            while not (await house.get("/attention")).json["sessions"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            shown = (await house.get("/attention")).json["sessions"][0]
            await house.post(f"/sessions/{shown['id']}/approve", {"gate_id": shown["attention"]["gate_id"]})
            assert (await held).json["hookSpecificOutput"]["decision"] == {"behavior": "allow"}

    async def test_a_body_a_byte_at_a_time_is_cut_off(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "BODY_S", 0.2)
        async with serving(tmp_path) as house:
            for path in (b"/sessions", b"/ingest/claude"):
                secret = f"{SECRET}: {secret_for(house.token)}".encode()
                reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
                lines = [b"POST " + path + b" HTTP/1.1", *_lines(house, secret, b"Content-Length: 1000000"), b"", b""]
                writer.write(b"\r\n".join(lines))
                said = asyncio.ensure_future(reader.readuntil(b"}}"))
                while not said.done():
                    writer.write(b" ")
                    await asyncio.wait([said], timeout=0.01)
                assert said.result().startswith(b"HTTP/1.1 408"), path
                assert b'"too_slow"' in said.result()
                writer.close()

    async def test_a_body_that_stops_in_the_middle_changes_nothing(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            _, writer = await asyncio.open_connection("127.0.0.1", house.port)
            lines = [b"POST /sessions HTTP/1.1", *_lines(house, b"Content-Length: 18"), b"", b'{"agent": "test"}']
            writer.write(b"\r\n".join(lines))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            assert (await house.get("/sessions")).json["sessions"] == []


def _asking(native: str) -> dict[str, Any]:
    args = {"command": "rm x"}
    return {"session_id": native, "hook_event_name": "PermissionRequest", "tool_name": "Bash", "tool_input": args}


class TestHeaders:
    async def test_every_answer_has_them(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            session = (await house.post("/sessions", {"agent": "test"})).json["id"]
            answers = [
                await house.get("/"),
                await house.get("/healthz"),
                await house.get("/openapi.json"),
                await house.get("/sessions"),
                await house.get("/nothing"),
                await house.get("/sessions", token=None),
                await house.get("/sessions", token="wrong"),
                await house.get("/sessions", headers={"Host": "evil.example"}),
                await house.get("/login?token=x", token=None),
                await house.get(f"/login?token={house.token}", token=None, allow_redirects=False),
                await house.ask("PUT", "/sessions"),
                await house.post("/sessions", [1]),
                await house.post(f"/sessions/{session}/approve", {"gate_id": "x"}),
                await house.hook("claude", {}),
                await house.hook("claude", {"session_id": "n", "hook_event_name": "Stop"}),
            ]
            assert sorted({one.status for one in answers}) == [200, 303, 400, 401, 403, 404, 405, 409]
            for answer in answers:
                assert SECURITY_HEADERS.items() <= dict(answer.headers).items()
                assert answer.headers["Cache-Control"] == "no-store"
                assert "Server" not in answer.headers

    async def test_streams_have_them(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            said = {"Authorization": f"Bearer {house.token}"}
            async with house.client.get(f"{house.address}/events", headers=said) as stream:
                assert SECURITY_HEADERS.items() <= dict(stream.headers).items()
                assert "Server" not in stream.headers
            async with house.client.ws_connect(f"{house.address}/ws", headers=said) as socket:
                found = dict(socket._response.headers)
                assert SECURITY_HEADERS.items() <= found.items()
                assert "Server" not in found

    async def test_our_own_fault_has_them_and_tells_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(tmp_path) as house:
            monkeypatch.setattr(house.deck, "attention", lambda: 1 // 0)
            answer = await house.get("/attention")
            assert (answer.status, answer.code) == (500, "internal")
            assert b"Zero" not in answer.body
            assert SECURITY_HEADERS.items() <= dict(answer.headers).items()
            assert "ZeroDivisionError" in caplog.text

    def test_no_script_but_ours_may_run(self) -> None:
        policy = SECURITY_HEADERS["Content-Security-Policy"]
        rules = dict(re.match(r"(\S+) (.*)", one.strip()).groups() for one in policy.split(";"))  # type: ignore[union-attr]
        assert rules["default-src"] == "'self'"
        assert "script-src" not in rules
        assert rules["frame-ancestors"] == rules["object-src"] == rules["base-uri"] == "'none'"


class TestOneWrite:
    async def test_headers_and_body_of_a_hooks_answer_go_out_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Send one write: with two, Nagle's algorithm and delayed acknowledgements would cost 40 ms per hook."""
        writes: list[bytes] = []
        write, write_lines = http_writer.StreamWriter._write, http_writer.StreamWriter._writelines

        def one(self: Any, chunk: Any) -> None:
            writes.append(bytes(chunk))
            write(self, chunk)

        def many(self: Any, chunks: Any) -> None:
            writes.append(b"".join(chunks))
            write_lines(self, chunks)

        async with serving(tmp_path) as house:
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            monkeypatch.setattr(http_writer.StreamWriter, "_write", one)
            monkeypatch.setattr(http_writer.StreamWriter, "_writelines", many)
            body = b'{"session_id": "n1", "hook_event_name": "Stop"}'
            secret = f"{SECRET}: {secret_for(house.token)}".encode()
            lines = [f"Host: {house.host}".encode(), secret, f"Content-Length: {len(body)}".encode()]
            writer.write(b"\r\n".join([b"POST /ingest/claude HTTP/1.1", *lines, b"", body]))
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
            writer.close()
            assert len(writes) == 1
            assert writes[0].endswith(b"\r\n\r\n{}")


def _certified(folder: Path) -> ssl.SSLContext:
    """Return a context with a self-signed certificate."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    named = ["-subj", "/CN=localhost", "-days", "1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *named], check=True, capture_output=True)
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(certificate, key)
    return secure


class TestTls:
    async def test_it_is_spoken_and_the_cookie_is_for_it_only(self, tmp_path: Path) -> None:
        async with serving(tmp_path, secure=_certified(tmp_path)) as house:
            assert house.address.startswith("https://")
            own = {"Origin": house.address}
            assert (await house.post("/sessions", {"agent": "test"}, headers=own)).status == 201
            answer = await house.get(f"/login?token={house.token}", token=None, allow_redirects=False)
            assert "; Secure" in answer.headers["Set-Cookie"]
            assert await house.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""

    async def test_without_it_the_cookie_still_works(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            answer = await house.get(f"/login?token={house.token}", token=None, allow_redirects=False)
            assert "Secure" not in answer.headers["Set-Cookie"]
