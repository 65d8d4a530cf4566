"""Start the server: one at a time per home, and return only when it is ready or has said why it isn't.

A process that starts or stops a server holds a lock file of the home. The starter passes the lock and a pipe on to the
server, which releases the lock and writes one line to the pipe when it is ready. If the server dies before that, both
descriptors close with it. So a starter never polls, and another process can also wait for a start whose starter was
killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home
from quarterdeck.process.identity import NONCE_VARIABLE
from quarterdeck.process.tree import wait_until_gone
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo

#: How much of the server's standard error is shown when it failed without a message.
_STDERR_TAIL = 2000


class NotStarted(QuarterdeckError):
    """The server didn't become ready. Code, message and hint are the server's own if it could report them."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.code = code


class StillStopping(QuarterdeckError):
    """The server was asked to stop and still runs."""

    code = "still_running"

    def __init__(self, server: ServerInfo) -> None:
        super().__init__(f"the server (pid {server.pid}) doesn't stop", "Kill it with `qd down --force`.")


class HomeNotWritable(QuarterdeckError):
    """The home folder can't be created or written."""

    code = "home_not_made"

    def __init__(self, home: Home, error: OSError) -> None:
        super().__init__(
            f"{error.filename or home.folder} can't be written: {error.strerror}",
            "Set QUARTERDECK_HOME to a folder that you may write.",
        )


@contextmanager
def start_lock(home: Home) -> Generator[int]:
    """Hold the lock for starting and stopping the server, and yield its file descriptor.

    Raises:
        HomeNotWritable: the lock file can't be created.
    """
    try:
        home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home.starting, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise HomeNotWritable(home, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            click.echo("another command is starting or stopping the server; waiting …", err=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def is_start_locked(home: Home) -> bool:
    """Return whether another process is starting or stopping the server of this home."""
    try:
        descriptor = os.open(home.starting, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def find_lasting_server(home: Home) -> ServerInfo | None:
    """Return the running server, after waiting for one that is stopping. Call it with the lock held.

    Raises:
        StillStopping: the server doesn't stop within its time limit.
    """
    server = server_file.find_server(home)
    while server is not None and server.is_leaving:
        if not wait_until_gone(server.last, server.leaves_within):
            raise StillStopping(server)
        server = server_file.find_server(home)
    return server


def start_in_background(home: Home, options: Mapping[str, Any]) -> ServerInfo:
    """Return the running server, started first if none runs.

    Raises:
        NotStarted: the server didn't become ready.
    """
    server = server_file.find_server(home)
    if server is not None and not server.is_leaving:
        return server
    with start_lock(home) as lock:
        return find_lasting_server(home) or spawn_server(home, options, lock)


def spawn_server(home: Home, options: Mapping[str, Any], lock: int) -> ServerInfo:
    """Start a server in the background and return when it is ready. Call it with the lock held.

    The server gets a session of its own, so that closing a terminal doesn't end it.

    Raises:
        NotStarted: the server didn't become ready.
    """
    reader, writer = os.pipe()
    try:
        command = _server_command(options, writer, lock, is_background=True)
        with open(home.errors, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as errors:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(writer, lock),
                start_new_session=True,
                cwd=_server_folder(),
                env=_server_environment(home),
            )
    finally:
        os.close(writer)
    report = _read_report(reader)
    if report is not None and "error" in report:
        raise NotStarted(**report["error"])
    server = server_file.find_server(home)
    if report is None or server is None:
        raise NotStarted("not_started", "the server exited before it was ready", _read_last_errors(home))
    return server


def run_in_foreground(
    home: Home, options: Mapping[str, Any], lock: int, announce: Callable[[ServerInfo], None]
) -> NoReturn:
    """Replace this process with the server's subreaper. A forked child announces the server when it is ready.

    The fork comes before the exec: so the subreaper doesn't know the child as one of its own, and doesn't end a browser
    that the child opened. The server has our terminal and reports itself why it can't start.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        os.close(lock)
        code = 1
        try:
            report = _read_report(reader)
            server = server_file.find_server(home)
            if report is not None and "error" not in report and server is not None:
                announce(server)
                sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    os.close(reader)
    for descriptor in (writer, lock):
        os.set_inheritable(descriptor, True)
    os.execve(sys.executable, _server_command(options, writer, lock, is_background=False), _server_environment(home))


def _server_command(options: Mapping[str, Any], ready: int, lock: int, *, is_background: bool) -> list[str]:
    # -P keeps the current folder off the module path: a file there may have the name of one of our modules.
    python = [sys.executable, "-P", "-m"]
    orders = {"ready": ready, "lock": lock, "is_background": is_background, "options": dict(options)}
    return [*python, "quarterdeck.process.subreaper", "--", *python, "quarterdeck.server.main", json.dumps(orders)]


def _server_environment(home: Home) -> dict[str, str]:
    # This command may run in an agent's shell. The agent's nonce would make the server end together with that agent.
    inherited = {name: value for name, value in os.environ.items() if name != NONCE_VARIABLE}
    return inherited | {"QUARTERDECK_HOME": str(home.folder)}


def _server_folder() -> str:
    # Not the current folder: the user may want to remove or unmount it while the server runs.
    folder = os.path.expanduser("~")
    return folder if os.path.isdir(folder) else "/"


def _read_report(reader: int) -> dict[str, Any] | None:
    """Read the one line that the server writes when it is ready or has failed. None if it died before."""
    with open(reader, "rb") as pipe:
        line = pipe.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _read_last_errors(home: Home) -> str:
    try:
        text = home.errors.read_bytes()[-_STDERR_TAIL:].decode(errors="replace").strip()
    except OSError:
        text = ""
    return text or f"Look into the server's log: {home.log}"
