"""Test `qd up`, `down`, `restart` and `status` with real processes, signals and kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from quarterdeck import Deck, __version__
from quarterdeck.cli.connect import read_token
from quarterdeck.cli.exits import Exit
from quarterdeck.process.identity import is_alive, start_time
from quarterdeck.process.tree import kill_processes, wait_until_gone
from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.server.server_file import ServerInfo
from tests.conformance.marks import case
from tests.support.servers import PATIENCE_S, QD, At, eventually, home_at, is_gone, read_until


@pytest.fixture
def at(tmp_path: Path) -> Iterator[At]:
    with home_at(tmp_path) as found:
        yield found


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def login(address: str) -> tuple[int, str, str]:
    """Open the address and return the status, the redirect and the cookie."""
    try:
        answer = urllib.request.build_opener(_Stay).open(address)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers.get("Location", ""), answer.headers.get("Set-Cookie", "")


class TestUpAndDown:
    def test_from_up_to_down(self, at: At):
        done = at.qd("up", "-d", "--port", "0")
        light = at.light()
        token = read_token(at.place)
        assert done.returncode == Exit.DONE, done.stderr
        assert done.stdout.count(f"{light.address}/login?token={token}") == 1
        assert login(f"{light.address}/login?token={token}")[:2] == (303, "/")

        told = json.loads(at.place.server.read_text("utf-8"))
        assert (told["pid"], told["address"], told["version"]) == (light.pid, light.address, __version__)
        assert stat.S_IMODE(at.place.server.stat().st_mode) == 0o600
        assert token not in at.place.server.read_text("utf-8")

        status = json.loads(at.qd("status", "--json").stdout)
        assert status.items() >= {"running": True, "healthy": True, "pid": light.pid, "sessions": 0}.items()
        assert light.address in at.qd("status").stdout

        down = at.qd("down")
        assert (down.returncode, down.stdout) == (Exit.DONE, "the server is down\n")
        assert is_gone(light)
        assert not at.place.server.exists()
        assert at.qd("status").returncode == Exit.UNREACHABLE
        assert json.loads(at.qd("status", "--json").stdout)["running"] is False
        assert at.qd("down").stdout == "no server is running\n"

    def test_one_that_runs_is_said_and_left_alone(self, at: At):
        light = at.up()
        again, other = at.qd("up", "--port", "0"), at.qd("up", "-d", "--allow-host", "deck.example")
        assert again.stderr == ""
        assert (again.returncode, other.returncode) == (Exit.DONE, Exit.DONE)
        assert f"{light.address}/login?token=" in again.stdout
        assert "other options" in other.stderr
        assert at.light() == light

    def test_many_at_once_are_one_server(self, at: At):
        starting = [at.begin("up", "-d", "--port", "0") for _ in range(5)]
        said = {process.communicate(timeout=120)[0] for process in starting}
        assert [process.returncode for process in starting] == [0] * 5
        assert len(said) == 1
        assert at.light().address in said.pop()
        assert [line["message"] for line in at.log()].count("serving") == 1

    def test_a_starter_that_is_killed_leaves_a_start_that_is_waited_for(self, at: At):
        first = at.begin("up", "-d", "--port", "0")
        # The server is being started once this file exists.
        eventually(at.place.errors.exists)
        first.kill()
        first.communicate(timeout=PATIENCE_S)
        light = at.up()
        assert [line["message"] for line in at.log()].count("serving") == 1
        assert not light.is_leaving

    def test_a_command_that_needs_a_server_starts_it(self, at: At):
        code = (
            "from quarterdeck.cli.connect import connect; from quarterdeck.home import home; "
            "connect(home()).client.check_health(); print('ok')"
        )
        environment = {**at.environment, "QUARTERDECK_PORT": "0"}
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
            assert (done.stdout, done.stderr) == ("ok\n", "")
        assert [line["message"] for line in at.log()].count("serving") == 1
        at.light()

    def test_who_must_be_alone_with_the_store_is_refused_while_it_runs(self, at: At):
        at.up()
        done = at.qd("db", "migrate")
        assert done.returncode == Exit.NOT_ALLOWED_NOW
        assert "a deck is running" in done.stderr
        assert at.qd("down").returncode == Exit.DONE
        assert at.qd("db", "migrate").returncode == Exit.DONE

    def test_another_deck_on_this_home_is_said(self, at: At):
        async def with_a_deck() -> subprocess.CompletedProcess[str]:
            deck = await Deck.open(at.place.folder)
            try:
                return await asyncio.to_thread(at.qd, "up", "-d", "--port", "0")
            finally:
                await deck.close()

        done = asyncio.run(with_a_deck())
        assert done.returncode == Exit.NOT_ALLOWED_NOW
        assert "another deck uses" in done.stderr

    def test_a_home_that_cannot_be_made_is_said(self, at: At, tmp_path: Path):
        (tmp_path / "file").touch()
        at.environment["QUARTERDECK_HOME"] = str(tmp_path / "file" / "home")
        done = at.qd("up", "-d")
        assert done.returncode == Exit.FAILED
        assert "can't be the home" in done.stderr

    def test_a_store_that_is_none_says_why_it_fails(self, at: At):
        at.place.folder.mkdir(parents=True)
        at.place.store.write_bytes(b"not a database at all" * 1000)
        done = at.qd("up", "-d", "--port", "0")
        assert done.returncode == Exit.FAILED
        assert done.stderr.startswith("error: ")
        assert not at.place.server.exists()

    @pytest.mark.parametrize("mode", [["-d"], []], ids=["background", "terminal"])
    def test_a_server_that_cannot_even_begin_is_heard(self, at: At, tmp_path: Path, mode: list[str]):
        (tmp_path / "uvloop.py").write_text("raise SystemError('no loop today')\n", encoding="utf-8")
        at.environment["PYTHONPATH"] = str(tmp_path)
        done = at.qd("up", "--port", "0", *mode)
        assert done.returncode == Exit.FAILED
        assert "no loop today" in done.stderr
        del at.environment["PYTHONPATH"]
        at.up()


class TestThePort:
    @pytest.mark.parametrize("mode", [["-d"], []], ids=["background", "terminal"])
    def test_a_strangers_port(self, at: At, mode: list[str]):
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            done = at.qd("up", *mode, "--port", str(stranger.getsockname()[1]))
        assert done.returncode == Exit.FAILED
        assert "is in use by another program\nChoose another port with --port N" in done.stderr
        assert not at.place.server.exists()

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "deck.example"])
    def test_no_host_for_others_without_a_word(self, at: At, host: str):
        done = at.qd("up", "-d", "--port", "0", "--host", host)
        assert done.returncode == Exit.WRONG_USE
        assert "--expose" in done.stderr

    def test_with_it_there_is_a_warning_and_only_allowed_names(self, at: At):
        done = at.qd("up", "-d", "--port", "0", "--host", "0.0.0.0", "--expose", "--allow-host", "deck.example")
        assert done.returncode == Exit.DONE
        assert done.stderr.count("warning:") == 2
        address = at.light().address
        for name, status in {"deck.example": 200, "127.0.0.1": 200, "evil.example": 403}.items():
            try:
                answer = urllib.request.urlopen(urllib.request.Request(f"{address}/healthz", headers={"Host": name}))
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                assert answer.status == status

    def test_tls(self, at: At, tmp_path: Path):
        subject = ["-subj", "/CN=deck.example", "-days", "2"]
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
        subprocess.run([*new, *files, *subject], check=True, capture_output=True)
        light = at.up("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
        assert light.address.startswith("https://127.0.0.1:")
        assert at.api().get("/sessions")["sessions"] == []
        assert at.qd("status").returncode == Exit.DONE

    def test_a_certificate_that_is_none(self, at: At, tmp_path: Path):
        (tmp_path / "cert.pem").write_text("no certificate", encoding="utf-8")
        cert = str(tmp_path / "cert.pem")
        done = at.qd("up", "-d", "--port", "0", "--tls-cert", cert, "--tls-key", cert)
        assert done.returncode == Exit.FAILED
        assert "can't be used" in done.stderr


def killed_server(light: ServerInfo) -> None:
    kill_processes([light.server])


def killed_keeper(light: ServerInfo) -> None:
    assert light.keeper is not None
    kill_processes([light.keeper])


def killed_both(light: ServerInfo) -> None:
    assert light.keeper is not None
    kill_processes([light.keeper, light.server])


class TestAfterAKill:
    @pytest.mark.parametrize("killing", [killed_server, killed_keeper, killed_both])
    def test_the_next_start_works_and_no_agent_is_left(self, at: At, killing: Callable[[ServerInfo], None]):
        light = at.up()
        session = at.session("child 300; orphan 300; hang")
        eventually(lambda: len(at.agents()) >= 3)
        before = at.agents()
        killing(light)
        again = at.up()
        assert again.server != light.server
        assert not [one for one in before if is_alive(one)]
        shown = at.api().get(f"/sessions/{session}")
        assert (shown["lifecycle"], shown["process"]) == ("suspended", "none")
        assert at.agents() == []

    def test_a_pid_that_came_again_is_not_the_server(self, at: At):
        light = at.up()
        killed_both(light)
        assert wait_until_gone(light.server, 60)
        for pid, started in [(os.getpid(), (start_time(os.getpid()) or 0) - 1), (1, 1)]:
            stale = light._replace(pid=pid, started=started, keeper_pid=pid, keeper_started=started)
            at.place.server.write_text(json.dumps(stale._asdict()), encoding="utf-8")
            assert at.qd("status").returncode == Exit.UNREACHABLE
            assert at.qd("down").stdout == "no server is running\n"
        assert at.up().pid not in (1, os.getpid())

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1, "address": 5}'])
    def test_a_broken_server_json_leads_nowhere(self, at: At, content: str):
        at.place.folder.mkdir(parents=True)
        at.place.server.write_text(content, encoding="utf-8")
        assert at.qd("status").returncode == Exit.UNREACHABLE


class TestTheEnd:
    @pytest.mark.usefixtures("hangups_are_heard")
    @pytest.mark.parametrize(
        "number",
        [
            pytest.param(signal.SIGTERM, marks=case("2-012"), id="SIGTERM"),
            pytest.param(signal.SIGINT, marks=case("2-013"), id="SIGINT"),
            pytest.param(signal.SIGHUP, id="SIGHUP"),
        ],
    )
    def test_a_signal_ends_it_orderly(self, at: At, number: signal.Signals):
        process = at.begin("up", "--port", "0", "--no-open")
        read_until(process, process.stdout, "Quarterdeck runs at")
        light = at.light()
        sessions = [at.session("hang"), at.session("say done"), at.session("ask bash")]
        eventually(lambda: len(at.agents()) == 3)
        process.send_signal(number)
        assert process.wait(60) == Exit.DONE
        process.communicate(timeout=PATIENCE_S)
        assert is_gone(light)
        assert at.agents() == []
        assert not at.place.server.exists()
        at.up()
        for session in sessions:
            events = at.api().get(f"/sessions/{session}/events?since=0&limit=1000")["events"]
            assert [one["reason"] for one in events if one["type"] == "session_suspended"] == ["shutdown"]
            assert at.api().get(f"/sessions/{session}")["lifecycle"] == "suspended"

    def test_streams_are_told_before(self, at: At):
        at.up()
        session = at.session("hang")
        streams, sockets = asyncio.run(self.ends(at, session))
        for stream in streams:
            assert stream.endswith('event: end\ndata: {"reason":"shutdown"}\n\n')
            assert stream.count("event: end") == 1
        assert sockets == [(aiohttp.WSCloseCode.GOING_AWAY, "shutdown")] * 2

    async def ends(self, at: At, session: str) -> tuple[list[str], list[tuple[int | None, object]]]:
        light = at.light()
        headers = {"Authorization": f"Bearer {read_token(at.place)}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            paths = ["/events", f"/sessions/{session}/events"]
            streams = [await client.get(light.address + path) for path in paths]
            sockets = [await client.ws_connect(f"{light.address}/ws") for _ in range(2)]
            await sockets[0].send_json({"op": "subscribe", "session": session})
            await sockets[0].receive()
            down = asyncio.create_task(asyncio.to_thread(at.qd, "down", "--force"))
            texts = [(await one.read()).decode() for one in streams]
            closed: list[tuple[int | None, object]] = []
            for one in sockets:
                message = await one.receive()
                while message.type is aiohttp.WSMsgType.TEXT:
                    message = await one.receive()
                closed.append((one.close_code, message.extra))
            assert (await down).returncode == Exit.DONE
            return texts, closed

    def test_clients_that_neither_read_nor_finish_are_not_waited_for(self, at: At):
        light = at.up()
        at.session("flood 20000; hang")
        host, port = light.address.removeprefix("http://").split(":")
        head = f"HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {read_token(at.place)}\r\n"
        ask = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        upgrade = "".join(f"{name}: {value}\r\n" for name, value in ask.items())
        requests = [
            f"GET /events {head}\r\n",
            f"GET /ws {head}{upgrade}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            f"POST /sessions {head}Content-Length: 100\r\n\r\n{{",
            "GET /healthz HTT",
        ]
        with contextlib.ExitStack() as stack:
            for request in requests:
                raw = stack.enter_context(socket.socket())
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                raw.connect((host, int(port)))
                raw.sendall(request.encode())
            assert at.qd("down", "--force").returncode == Exit.DONE
        assert is_gone(light)
        assert [line["level"] for line in at.log() if line["level"] != "info"] == []

    def test_a_server_that_hangs_is_killed_by_force(self, at: At):
        light = at.up()
        at.place.server.write_text(json.dumps(light._replace(leaves_within=3.0)._asdict()), encoding="utf-8")
        os.kill(light.pid, signal.SIGSTOP)
        assert at.qd("down", "--force").returncode == Exit.DONE
        assert is_gone(light)


class TestBusySessions:
    def test_without_a_terminal_nothing_is_done(self, at: At):
        light = at.up()
        session = at.session("hang")
        for command in ("down", "restart"):
            done = at.qd(command)
            assert done.returncode == Exit.NOT_ALLOWED_NOW
            assert session[:8] in done.stderr
            assert "1 session is busy\nWait for them with --wait" in done.stderr
        assert at.light() == light
        assert at.qd("down", "--force").returncode == Exit.DONE
        assert is_gone(light)

    def test_an_agent_on_somebodys_terminal_is_not_waited_for(self, at: At):
        light = at.up()
        hook = {"session_id": "native", "hook_event_name": "UserPromptSubmit", "cwd": "/", "prompt": "hi"}
        secret = {SECRET: secret_for(read_token(at.place)), "Content-Type": "application/json"}
        urllib.request.urlopen(
            urllib.request.Request(f"{light.address}/ingest/claude", json.dumps(hook).encode(), secret)
        ).close()
        wire = at.api()
        eventually(lambda: [one["phase"] for one in wire.get("/sessions")["sessions"]] == ["streaming"])
        assert at.qd("restart").returncode == Exit.DONE
        assert is_gone(light)

    def test_a_person_is_asked(self, at: At):
        light = at.up()
        at.session("hang")
        assert self.answered(at, "n") == Exit.NOT_ALLOWED_NOW
        assert at.light() == light
        assert self.answered(at, "y") == Exit.DONE
        assert is_gone(light)

    def answered(self, at: At, word: str) -> int:
        ours, theirs = pty.openpty()
        try:
            process = at.begin("down", stdin=theirs)
            os.write(ours, f"{word}\n".encode())
            _, err = process.communicate(timeout=120)
        finally:
            os.close(ours)
            os.close(theirs)
        assert "Stop it?" in err
        return process.returncode

    def test_wait_lets_them_finish(self, at: At):
        at.up()
        session = at.session("sleep 1; background 1; say done")
        done = at.qd("down", "--wait")
        assert done.returncode == Exit.DONE
        assert session[:8] in done.stderr
        at.up()
        events = at.api().get(f"/sessions/{session}/events?since=0&limit=1000")["events"]
        types = [one["type"] for one in events]
        assert types.index("agent_end") < types.index("background_ended") < types.index("session_suspended")

    def test_restart_keeps_the_address_and_the_options(self, at: At):
        light = at.up("--allow-host", "deck.example")
        done = at.qd("restart")
        again = at.light()
        assert done.stdout == f"the server runs at {light.address}\n"
        assert (again.address, again.options) == (light.address, light.options)
        assert again.options["allow_host"] == ["deck.example"]
        assert again.server != light.server

    def test_restart_starts_one_where_none_runs(self, at: At):
        at.environment["QUARTERDECK_PORT"] = "0"
        assert at.qd("restart").returncode == Exit.DONE
        at.light()


class TestThePage:
    def test_the_browser_gets_a_code_that_works_once(self, at: At, tmp_path: Path):
        browser = tmp_path / "browser"
        browser.write_text(f'#!/bin/sh\necho "$1" >> "{tmp_path}/opened"\n', encoding="utf-8")
        browser.chmod(0o700)
        at.environment |= {"DISPLAY": ":77", "BROWSER": f"{browser} %s"}
        assert at.qd("up", "-d", "--port", "0", "--no-open").returncode == Exit.DONE
        assert not (tmp_path / "opened").exists()
        assert at.qd("up", "-d").returncode == Exit.DONE
        eventually((tmp_path / "opened").exists)
        address = (tmp_path / "opened").read_text("utf-8").strip()
        token = read_token(at.place)
        assert token not in address
        status, location, cookie = login(address)
        assert (status, location) == (303, "/")
        assert f"quarterdeck={token};" in cookie
        assert login(address)[0] == 401

    def test_on_a_terminal_it_is_readable_and_ctrl_c_ends_it(self, at: At):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [QD, "up", "--port", "0"],
            env=at.environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        said = b""
        while b"/login?token=" not in said:
            assert select.select([ours], [], [], PATIENCE_S)[0], said
            said += os.read(ours, 4096)
        light = at.light()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == Exit.DONE
        os.close(ours)
        assert is_gone(light)
        assert b"serving address=" in said or b"Quarterdeck runs at" in said


class TestNoTokenIsTold:
    def test_in_no_log_whatever_is_asked(self, at: At):
        light = at.up()
        token = read_token(at.place)
        login(f"{light.address}/login?token={token}")
        login(f"{light.address}/nothing?token={token}")
        host, port = light.address.removeprefix("http://").split(":")
        for line in (f"GET /login?token={token} HTTP/9.9", f"GET / HTTP/1.1\r\nAuthorization: Bearer {token}\r\nHost"):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(f"{line}\r\n\r\n".encode())
                raw.recv(4096)
        assert at.qd("down").returncode == Exit.DONE
        assert token not in at.place.log.read_text("utf-8")
        assert token not in at.place.errors.read_text("utf-8")
        assert all(line.keys() >= {"at", "level", "logger", "message"} for line in at.log())


class TestTheSettings:
    def test_a_broken_file_names_its_line(self, at: At):
        at.place.folder.mkdir(parents=True)
        at.place.config.write_text("port = 0\nhost = \n", encoding="utf-8")
        done = at.qd("up", "-d")
        assert done.returncode == Exit.WRONG_USE
        assert f"{at.place.config}, line 2" in done.stderr

    def test_they_reach_the_server_and_status_shows_their_source(self, at: At):
        at.place.folder.mkdir(parents=True)
        at.place.config.write_text('prot = 1\nallow_host = ["deck.example"]\nport = 0\n', encoding="utf-8")
        done = at.qd("up", "-d")
        assert (done.returncode, "did you mean port?" in done.stderr) == (Exit.DONE, True)
        shown = json.loads(at.qd("status", "--config", "--json").stdout)
        assert shown["settings"]["allow_host"] == {"value": ["deck.example"], "source": "config.toml:2"}
        assert shown["settings"]["stop_grace"] == {"value": 0.3, "source": "QUARTERDECK_STOP_GRACE"}
        assert len(shown["warnings"]) == 1
        assert "config.toml:3" in at.qd("status", "--config").stdout
        request = urllib.request.Request(f"{at.light().address}/healthz", headers={"Host": "deck.example"})
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200


def test_status_imports_nothing_heavy(tmp_path: Path):
    code = (
        "import sys\n"
        "from quarterdeck.cli import main\n"
        "sys.argv = ['qd', 'status']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    environment = {**os.environ, "QUARTERDECK_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    heavy = {
        "msgspec",
        "asyncio",
        "aiohttp",
        "immutables",
        "subprocess",
        "quarterdeck.kernel",
        "quarterdeck.server.app",
    }
    assert "quarterdeck.cli.connect" in done.stderr.split()
    assert not set(done.stderr.split()) & heavy


def test_a_client_follows_a_stream_to_its_end(at: At):
    at.up()
    session = at.client().session(at.session("say hello"))
    types = []
    for block in session.blocks():
        types.append(block.name)
        if block.name == "agent_end":
            assert at.qd("down", "--force").returncode == Exit.DONE
    assert types[:2] == ["open", "session_opened"]
    assert types[-1] == "end"
