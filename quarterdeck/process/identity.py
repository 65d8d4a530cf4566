"""Identify processes by pid, start time and the nonce in their environment.

A pid alone doesn't identify a process, because the kernel reuses pids. The start time tells two owners of one pid apart. The
nonce finds all processes of one launch, even after they moved to another session or were adopted by another parent.

A nonce is `HOME.RANDOM`. The first half is the same for all launches of one deck's home, so the deck finds everything
that an earlier run left behind without a stored list.

The subreaper process imports this module and lives as long as the server, so nothing large may be imported here: no asyncio,
subprocess, pathlib or msgspec at module level.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

#: Name of the environment variable that holds the nonce. Every process of a launch inherits it. It proves descent, not
#: identity: two processes of one launch have the same nonce.
NONCE_VARIABLE = "QUARTERDECK_NONCE"

_PROC = "/proc"
_HAS_PROC = os.path.exists("/proc/self/stat")

# Positions in /proc/PID/stat, counted after the closing parenthesis of the command name. The name itself may contain spaces
# and parentheses, so the line can't be split from the left.
_STATE_FIELD, _PARENT_FIELD, _SESSION_FIELD, _START_FIELD = 0, 1, 3, 19


class Identity(NamedTuple):
    """One process, distinguished from every other process that has or will have its pid.

    A plain tuple, because the subreaper must stay small.
    """

    pid: int
    #: When the kernel started the process, in the kernel's own unit (clock ticks since boot; seconds without /proc).
    started_at: int
    nonce: str = ""


class ProcessStat(NamedTuple):
    """The fields of /proc/PID/stat that the process library uses."""

    parent: int
    session: int
    started_at: int
    #: False for a zombie: a process that has exited but whose exit code wasn't collected yet.
    is_alive: bool


# ------------------------------------------------------------------------------------------------------ nonces


def launch_nonce(home_id: str, random: str) -> str:
    """Return the nonce for one launch from this home.

    Raises:
        ValueError: the home id is empty or contains a dot.
    """
    return _home_prefix(home_id) + random


def _home_prefix(home_id: str) -> str:
    # The prefix ends with the only dot before the random half, so no home's prefix can be the start of another's.
    if not home_id or "." in home_id:
        raise ValueError(f"a home id must not be empty or contain a dot: {home_id!r}")
    return f"{home_id}."


# ------------------------------------------------------------------------------------------------- one process


def start_time(pid: int) -> int | None:
    """Return when the kernel started this process, or None if it has exited."""
    if not _HAS_PROC:
        return process_table().get(pid, (0, None))[1]
    stat = read_stat(pid)
    return stat.started_at if stat is not None and stat.is_alive else None


def is_alive(identity: Identity) -> bool:
    """Return whether exactly this process is still running. A zombie isn't."""
    return start_time(identity.pid) == identity.started_at


def read_stat(pid: int) -> ProcessStat | None:
    """Read /proc/PID/stat. Return None if there is no such process, or no /proc."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _START_FIELD:
        return None
    return ProcessStat(
        parent=int(fields[_PARENT_FIELD]),
        session=int(fields[_SESSION_FIELD]),
        started_at=int(fields[_START_FIELD]),
        is_alive=fields[_STATE_FIELD] not in b"ZX",
    )


def read_variable(pid: int, variable: str) -> str:
    """Return an environment variable of another process, as it was when the process started.

    Returns "" if the variable isn't set, the process is gone, or it belongs to another user.
    """
    prefix = f"{variable}=".encode()
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return ""
    return next((entry[len(prefix) :].decode(errors="replace") for entry in entries if entry.startswith(prefix)), "")


# ------------------------------------------------------------------------------------------ processes by nonce


def list_pids() -> Iterator[int]:
    """List all processes. Empty where there is no /proc: macOS doesn't show other processes' environments anyway."""
    if _HAS_PROC:
        for entry in os.scandir(_PROC):
            if entry.name.isdecimal():
                yield int(entry.name)


def find_by_nonce(nonces: Collection[str]) -> list[Identity]:
    """Find the processes that carry one of these nonces, in one pass over all processes."""
    return _find_marked(nonces.__contains__)


def find_by_home(home_id: str) -> list[Identity]:
    """Find the processes that carry the nonce of any launch from this home.

    Raises:
        ValueError: the home id is empty or contains a dot.
    """
    prefix = _home_prefix(home_id)
    return _find_marked(lambda nonce: nonce.startswith(prefix))


def _find_marked(matches: Callable[[str], bool]) -> list[Identity]:
    identities = (_marked_identity(pid) for pid in list_pids() if pid != os.getpid())
    return [identity for identity in identities if identity is not None and matches(identity.nonce)]


def _marked_identity(pid: int) -> Identity | None:
    # Hardly any process has a nonce, so read only the environment for the others.
    if not read_variable(pid, NONCE_VARIABLE):
        return None
    # Read the nonce again between two equal start times. Otherwise a pid that changed its owner between the reads would
    # combine the nonce of one process with the start time of another.
    started_at = start_time(pid)
    nonce = read_variable(pid, NONCE_VARIABLE)
    if started_at is None or not nonce or start_time(pid) != started_at:
        return None
    return Identity(pid, started_at, nonce)


# ----------------------------------------------------------------------------------------- without /proc (macOS)
# Untested on macOS: written from the manual page of ps and exercised only with Linux's ps.


def process_table() -> dict[int, tuple[int, int | None]]:
    """Return parent and start time of every process, as `ps` shows them.

    The start time is None for a zombie. `ps` reports whole seconds only.
    """
    import subprocess

    command = ["ps", "-axo", "pid=,ppid=,stat=,lstart="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}) as child:
        rows = [line.split(None, 3) for line in child.communicate()[0].splitlines()]
    return {
        int(pid): (int(parent), None if state.startswith("Z") else _parse_start(started))
        for pid, parent, state, started in rows
        if int(pid) != child.pid
    }


def _parse_start(started: str) -> int:
    return int(time.mktime(time.strptime(" ".join(started.split()), "%a %b %d %H:%M:%S %Y")))
