"""Starting the server: one at a time for a home, and no return before it is ready or has said why it is not.

Whoever starts or stops a server holds a lock of the home. The lock and a pipe are handed down to the server, which
unlocks the one and writes one line to the other when it is ready. If it dies before, both end with it. So nobody asks
again and again, and a start whose starter was killed is waited for as well.
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

_TAIL = 2000


class NotStarted(QuarterdeckError):
    """The server did not become ready. Code, message and hint are its own, where it could still say something."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.code = code


class StillLeaving(QuarterdeckError):
    """The server that was told to go has not gone."""

    code = "still_running"

    def __init__(self, light: ServerInfo) -> None:
        super().__init__(f"the server (pid {light.pid}) does not end", "`qd down --force` kills it.")


class HomeNotMade(QuarterdeckError):
    """The home cannot be made or written."""

    code = "home_not_made"

    def __init__(self, place: Home, error: OSError) -> None:
        super().__init__(
            f"{error.filename or place.folder} cannot be written: {error.strerror}",
            "Choose a home that you may write: QUARTERDECK_HOME.",
        )


@contextmanager
def alone(place: Home) -> Generator[int]:
    """Nobody else starts or stops the server of this home meanwhile. Gives the descriptor that holds the lock."""
    try:
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place.starting, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise HomeNotMade(place, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            click.echo("the server is just being started or stopped; waiting …", err=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def is_under_way(place: Home) -> bool:
    """Whether somebody starts or stops the server of this home now."""
    try:
        descriptor = os.open(place.starting, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def running(place: Home) -> ServerInfo | None:
    """The server that runs and will stay; waits for the end of one that leaves. To be called with the lock held."""
    light = server_file.find_server(place)
    while light is not None and light.is_leaving:
        if not wait_until_gone(light.last, light.leaves_within):
            raise StillLeaving(light)
        light = server_file.find_server(place)
    return light


def in_background(place: Home, options: Mapping[str, Any]) -> ServerInfo:
    """A server that runs, started if none does. NotStarted says why it could not."""
    light = server_file.find_server(place)
    if light is not None and not light.is_leaving:
        return light
    with alone(place) as lock:
        return running(place) or started(place, options, lock)


def started(place: Home, options: Mapping[str, Any], lock: int) -> ServerInfo:
    """Returns when it is ready. Its session is its own: no terminal that closes ends it."""
    reader, writer = os.pipe()
    try:
        command = _command(options, writer, lock, is_background=True)
        with open(place.errors, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as errors:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(writer, lock),
                start_new_session=True,
                cwd=_folder(),
                env=_environment(place),
            )
    finally:
        os.close(writer)
    said = _said(reader)
    if said is not None and "error" in said:
        raise NotStarted(**said["error"])
    light = server_file.find_server(place)
    if said is None or light is None:
        raise NotStarted("not_started", "the server ended before it was ready", _last_words(place))
    return light


def in_foreground(
    place: Home, options: Mapping[str, Any], lock: int, announce: Callable[[ServerInfo], None]
) -> NoReturn:
    """This process becomes the keeper. A child tells of the server when it is ready, and leaves.

    The child comes first, so that the keeper knows it for a stranger, and what it opens (a browser) is not ended with
    the server. Why a start failed the server says itself: it has our terminal.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        os.close(lock)
        code = 1
        try:
            said = _said(reader)
            light = server_file.find_server(place)
            if said is not None and "error" not in said and light is not None:
                announce(light)
                sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    os.close(reader)
    for descriptor in (writer, lock):
        os.set_inheritable(descriptor, True)
    os.execve(sys.executable, _command(options, writer, lock, is_background=False), _environment(place))


def _command(options: Mapping[str, Any], ready: int, lock: int, *, is_background: bool) -> list[str]:
    """Without the current folder on the path, where a file may have the name of a module."""
    orders = {"ready": ready, "lock": lock, "is_background": is_background, "options": dict(options)}
    python = [sys.executable, "-P", "-m"]
    return [*python, "quarterdeck.process.subreaper", "--", *python, "quarterdeck.server.main", json.dumps(orders)]


def _environment(place: Home) -> dict[str, str]:
    """An agent's shell may have started us, and its nonce would make the server end with that agent."""
    return {name: value for name, value in os.environ.items() if name != NONCE_VARIABLE} | {
        "QUARTERDECK_HOME": str(place.folder)
    }


def _folder() -> str:
    """Not the current one, which somebody may want to remove or unmount."""
    user = os.path.expanduser("~")
    return user if os.path.isdir(user) else "/"


def _said(reader: int) -> dict[str, Any] | None:
    """The server's one line; None when it ended without a word."""
    with open(reader, "rb") as pipe:
        line = pipe.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _last_words(place: Home) -> str:
    """What is in the file of raw errors, or where to look else."""
    try:
        words = place.errors.read_bytes()[-_TAIL:].decode(errors="replace").strip()
    except OSError:
        words = ""
    return words or f"Its log says more: {place.log}"
