"""Who a process is: its pid, its start time, and the nonce that we put into its environment.

A pid alone is nobody: it comes again. The start time tells two owners of one pid apart, and the nonce finds whatever a
launch left behind, also what moved to another session or was adopted by somebody else.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

#: Every process of a launch inherits it. It is evidence of descent, never by itself of identity.
NONCE = "QUARTERDECK_NONCE"

_PROC = "/proc"
#: Field 22 of /proc/PID/stat, counted after the command's closing parenthesis.
_START_FIELD = 19


class Identity(NamedTuple):
    """One process, for ever. A plain tuple, and this module imports next to nothing, because the keeper lives on it."""

    pid: int
    started_at: int
    nonce: str


def start_time(pid: int) -> int | None:
    """When the kernel started this process, in clock ticks since boot; None when it is gone."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    # a zombie has ended; only its exit code is still to be fetched
    return None if fields[0] == b"Z" else int(fields[_START_FIELD])


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still runs."""
    return start_time(identity.pid) == identity.started_at


def descendants_of_launch(nonce: str) -> list[int]:
    """Every process that carries the nonce of a launch, wherever it went."""
    mark = f"{NONCE}={nonce}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and mark in _environment(pid)]


def carriers(nonces: Collection[str]) -> list[Identity]:
    """Who carries one of these nonces, in one pass over all processes, however many nonces there are."""
    return [one for pid in _pids() if pid != os.getpid() and (one := _marked(pid)) and one.nonce in nonces]


def _marked(pid: int) -> Identity | None:
    """Both halves of the same process: a pid that changed its owner between the two readings is nobody."""
    started_at = start_time(pid)
    mark = f"{NONCE}=".encode()
    nonce = next((line[len(mark) :] for line in _environment(pid) if line.startswith(mark)), b"")
    if started_at is None or not nonce or start_time(pid) != started_at:
        return None
    return Identity(pid, started_at, nonce.decode(errors="replace"))


def _pids() -> Iterator[int]:
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal():
            yield int(entry.name)


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
