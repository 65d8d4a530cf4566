"""Who a process is: its pid, its start time, and the nonce that we put into its environment.

A pid alone is nobody: it comes again. The start time tells two owners of one pid apart, and the nonce finds whatever a
launch left behind, also what moved to another session or was adopted by somebody else. A nonce is `HOME.RANDOM`: the
first half is the same for all launches of one deck's home, so that its next start finds them without any list.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

#: Every process of a launch inherits it. It is evidence of descent, never by itself of identity.
NONCE = "QUARTERDECK_NONCE"

_PROC = "/proc"
_HAS_PROC = os.path.exists("/proc/self/stat")
#: Fields 5 and 22 of /proc/PID/stat, counted after the command's closing parenthesis.
_GROUP_FIELD, _START_FIELD = 2, 19


class Identity(NamedTuple):
    """One process, for ever. A plain tuple, and this module imports next to nothing, because the keeper lives on it."""

    pid: int
    started_at: int
    nonce: str


# --- nonces


def launch_nonce(home_id: str, random: str) -> str:
    """The nonce of one launch from this home."""
    return _home_prefix(home_id) + random


def _home_prefix(home_id: str) -> str:
    """Ends with the only dot that may precede the random half, so that no home's prefix begins another's."""
    if not home_id or "." in home_id:
        raise ValueError(f"a home id is not empty and has no dot: {home_id!r}")
    return f"{home_id}."


# --- one process


def start_time(pid: int) -> int | None:
    """When the kernel started this process, in its own unit; None when it is gone."""
    if not _HAS_PROC:
        return ps().get(pid, (0, None))[1]
    fields = _stat(pid)
    return int(fields[_START_FIELD]) if fields else None


def _stat(pid: int) -> list[bytes]:
    """What follows the command in /proc/PID/stat; nothing when it has ended, also when its exit code is still to be
    fetched (a zombie)."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return fields if fields and fields[0] not in b"ZX" else []


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still runs."""
    return start_time(identity.pid) == identity.started_at


# --- all processes of a launch


def descendants_of_launch(nonce: str) -> list[int]:
    """Every process that carries the nonce of a launch, wherever it went."""
    return [one.pid for one in carriers((nonce,))]


def carriers(nonces: Collection[str]) -> list[Identity]:
    """Who carries one of these nonces, in one pass over all processes, however many nonces there are."""
    return _carriers(nonces.__contains__)


def carriers_of_home(home_id: str) -> list[Identity]:
    """Who carries the nonce of any launch from this home."""
    prefix = _home_prefix(home_id)
    return _carriers(lambda nonce: nonce.startswith(prefix))


def members(group: int) -> list[Identity]:
    """Who is in this process group."""
    found = ((pid, _stat(pid)) for pid in _pids())
    return [
        Identity(pid, int(fields[_START_FIELD]), "")
        for pid, fields in found
        if fields and int(fields[_GROUP_FIELD]) == group
    ]


def _carriers(matches: Callable[[str], bool]) -> list[Identity]:
    return [one for pid in _pids() if pid != os.getpid() and (one := _marked(pid)) and matches(one.nonce)]


def _marked(pid: int) -> Identity | None:
    """Both halves of the same process: a pid that changed its owner between the two readings is nobody.

    Hardly any process is marked, so one reading has to be enough for the others.
    """
    if not _nonce_in(pid):
        return None
    started_at = start_time(pid)
    nonce = _nonce_in(pid)
    if started_at is None or not nonce or start_time(pid) != started_at:
        return None
    return Identity(pid, started_at, nonce.decode(errors="replace"))


def _nonce_in(pid: int) -> bytes:
    mark = f"{NONCE}=".encode()
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            lines = file.read().split(b"\0")
    except OSError:
        return b""
    return next((line[len(mark) :] for line in lines if line.startswith(mark)), b"")


def _pids() -> Iterator[int]:
    """None where there is no /proc: macOS shows no environment of others."""
    if _HAS_PROC:
        for entry in os.scandir(_PROC):
            if entry.name.isdecimal():
                yield int(entry.name)


# --- without /proc (macOS). Untested there: written from the manual page, exercised only through Linux's `ps`.


def ps() -> dict[int, tuple[int, int | None]]:
    """Parent and start time of every process, None when it has ended. `ps` knows whole seconds only."""
    import subprocess

    command = ["ps", "-axo", "pid=,ppid=,stat=,lstart="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}) as child:
        rows = [line.split(None, 3) for line in child.communicate()[0].splitlines()]
    return {
        int(pid): (int(parent), None if state.startswith("Z") else _seconds(started))
        for pid, parent, state, started in rows
        if int(pid) != child.pid
    }


def _seconds(started: str) -> int:
    return int(time.mktime(time.strptime(" ".join(started.split()), "%a %b %d %H:%M:%S %Y")))
