"""Run `qd` as a process with a home of the test's own, and stop everything it started afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from quarterdeck.cli.connect import read_token
from quarterdeck.client.json_api import JsonApi
from quarterdeck.client.sync_client import Client
from quarterdeck.deck.deck import home_id
from quarterdeck.home import Home
from quarterdeck.process.identity import Identity, find_by_home, is_alive
from quarterdeck.process.tree import end_leftovers_of_home, end_processes
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo

QD = str(Path(sys.executable).with_name("qd"))
PATIENCE_S = 45


class At:
    """A home, and `qd` for it."""

    def __init__(self, folder: Path) -> None:
        self.place = Home(folder / "home")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("QUARTERDECK_", "AGENT_"))
        }
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
            environment.pop(name, None)
        # Don't wait five seconds for an agent that doesn't exit.
        self.environment = {**environment, "QUARTERDECK_HOME": str(self.place.folder), "QUARTERDECK_STOP_GRACE": "0.3"}
        # Don't run the user's login shell: its files may have side effects, and a test may kill it halfway.
        self.environment["QUARTERDECK_ENVIRONMENT"] = "server"
        self.seen: list[ServerInfo] = []
        self.apis: list[JsonApi] = []

    def begin(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([QD, *args], **{"env": self.environment, **pipes, **options})

    def qd(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        with self.begin(*args, **options) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def up(self, *args: str) -> ServerInfo:
        """Start the server in the background on a free port."""
        done = self.qd("up", "-d", "--port", "0", *args)
        assert done.returncode == 0, done.stderr
        return self.light()

    def light(self) -> ServerInfo:
        info = server_file.find_server(self.place)
        assert info is not None
        self.seen.append(info)
        return info

    def api(self) -> JsonApi:
        api = JsonApi(
            self.light().address, read_token(self.place), timeout_s=PATIENCE_S, tls_cert=self.light().tls_cert
        )
        self.apis.append(api)
        return api

    def client(self) -> Client:
        return Client(self.light().address, read_token(self.place), tls_cert=self.light().tls_cert)

    def session(self, prompt: str) -> str:
        """Start a session of the scripted agent and return its id."""
        body = {"agent": "test", "prompt": prompt, "cwd": str(self.place.folder)}
        return str(self.api().post("/sessions", body)["id"])

    def agents(self) -> list[Identity]:
        return find_by_home(home_id(self.place.folder.resolve()))

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.place.log.read_text("utf-8").splitlines()]

    def clean(self) -> None:
        for api in self.apis:
            api.close()
        running = server_file.find_server(self.place)
        for info in [*self.seen, *([running] if running else [])]:
            end_processes([process for process in (info.keeper, info.server) if process is not None], grace=0)
        end_leftovers_of_home(home_id(self.place.folder.resolve()), grace=0)


@contextmanager
def home_at(folder: Path) -> Generator[At]:
    at = At(folder)
    try:
        yield at
    finally:
        at.clean()


def eventually(holds: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "the condition never became true"
        time.sleep(0.02)


def read_until(process: subprocess.Popen[str], stream: IO[str] | None, words: str) -> str:
    """Read lines until one contains these words. Kill the process and fail if that takes too long."""
    assert stream is not None
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    seen = ""
    try:
        while words not in seen:
            line = stream.readline()
            assert line, f"no {words!r} in {seen!r}"
            seen += line
    finally:
        watchdog.cancel()
    return seen


def is_gone(light: ServerInfo) -> bool:
    return not is_alive(light.server) and (light.keeper is None or not is_alive(light.keeper))
