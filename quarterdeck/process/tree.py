"""Everything that a command started: found by descent, by its session, and by a mark in the environment.

A child that opened a session of its own is found while its parents live; one whose parents are gone by the mark that it
inherited. A signal goes through a descriptor of exactly that process, so that a pid which comes again is never hit.
Without /proc (macOS) nothing is found here, and the process group is all that can be ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Inherited by all that a call starts. Its value names the call, and the calls that this one runs in.
MARK = "_QUARTERDECK_CALL"

#: Of /proc/PID/stat, counted after the command's closing parenthesis.
_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19


class Process(NamedTuple):
    """One process, for ever: the start time tells two owners of one pid apart."""

    pid: int
    started_at: int


def kin_of(root: int, mark: str) -> set[Process]:
    """Who lives of the session and the descendants of `root`, and who carries the mark. Not `root` itself."""
    stats = dict(_stats())
    if root in stats:  # who is older is no kin: most are, and need not be looked at
        begin = int(stats[root][_START])
        stats = {pid: fields for pid, fields in stats.items() if int(fields[_START]) >= begin}
    related = _below(root, stats) | {pid for pid, fields in stats.items() if int(fields[_SESSION]) == root}
    related |= {pid for pid in stats.keys() - related if _carries(pid, mark)}
    related -= {root, os.getpid()}
    alive = (pid for pid in related if pid in stats and stats[pid][_STATE] not in b"ZX")
    return {Process(pid, int(stats[pid][_START])) for pid in alive}


def living(found: Iterable[Process]) -> set[Process]:
    """Those that have not ended."""
    return {one for one in found if _is_alive(one)}


def signalled(found: Iterable[Process], number: signal.Signals) -> None:
    """Sends it to exactly these."""
    for one in found:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(one.pid)
            try:
                if _is_alive(one):
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def _below(root: int, stats: dict[int, list[bytes]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    found: set[int] = set()
    open_ends = [root]
    while open_ends:
        for child in children.get(open_ends.pop(), ()):
            if child not in found:
                found.add(child)
                open_ends.append(child)
    return found


def _stats() -> Iterator[tuple[int, list[bytes]]]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdecimal() and (fields := _stat(int(name))):
            yield int(name), fields


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _is_alive(one: Process) -> bool:
    fields = _stat(one.pid)
    return bool(fields) and int(fields[_START]) == one.started_at and fields[_STATE] not in b"ZX"


def _carries(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            lines = file.read().split(b"\0")
    except OSError:
        return False
    begin, value = f"{MARK}=".encode(), mark.encode()
    return any(line.startswith(begin) and value in line for line in lines)
