"""Find the processes that descend from a process or a launch, signal exactly those, and end them.

Descendants are found in three ways, because each one alone can be escaped:

- by parent: works until a parent exits and its children are adopted by init or a subreaper;
- by session: works until a process calls setsid();
- by an environment variable that every descendant inherits: works unless a process clears its environment.

Every signal goes through a pidfd that was opened first and compared with the start time afterwards, so a reused pid is never
hit. Without pidfds and /proc (macOS) a child's tree can't be found and its process group is all that can be ended.

The subreaper process imports this module, so nothing large may be imported here (see `identity`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable

from quarterdeck.process.identity import (
    Identity,
    find_by_home,
    find_by_nonce,
    is_alive,
    list_pids,
    process_table,
    read_stat,
    read_variable,
    start_time,
)

#: Environment variable that marks everything one tool call starts. Its value is the call's random mark. A call that runs
#: inside another call appends its own mark after a dot, so the outer call still finds it.
CALL_VARIABLE = "_QUARTERDECK_CALL"

#: How long processes may take to exit after SIGTERM.
DEFAULT_GRACE_S = 2.0
#: How long to wait after SIGKILL. Only processes in an uninterruptible system call, or of another user, stay longer.
KILL_WAIT_S = 5.0

_HAS_CHILDREN_FILES = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


# ------------------------------------------------------------------------------------------------------ finding


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, zombies included.

    The kernel's list is exact only for the calling process itself. For others it is a snapshot that may miss a child that
    forks or exits at the same moment.
    """
    if not _HAS_CHILDREN_FILES:
        return [child for child, (parent, _) in process_table().items() if parent == pid]
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    return children


def find_tree(root: Identity, variable: str, value: str) -> set[Identity]:
    """Find all living descendants of a process, without the process itself.

    Includes its session, the processes whose environment has `value` in `variable`, and everything below any of those.

    Call this only while the root process is running or a zombie. After it was reaped, its pid may be the session id of an
    unrelated process. Without /proc (macOS) nothing is found.
    """
    if not _HAS_CHILDREN_FILES:
        return set()
    related: dict[int, Identity] = {}
    for pid in list_pids():
        stat = read_stat(pid)
        # Skip processes that are older than the root. Most are, and that saves reading their environment.
        if stat is None or not stat.is_alive or stat.started_at < root.started_at or pid in (root.pid, os.getpid()):
            continue
        if stat.session == root.pid or _has_mark(pid, variable, value):
            related[pid] = Identity(pid, stat.started_at, root.nonce)
    for ancestor in [root, *related.values()]:
        _add_descendants(ancestor, related)
    related.pop(root.pid, None)
    related.pop(os.getpid(), None)
    return set(related.values())


def _has_mark(pid: int, variable: str, value: str) -> bool:
    current = read_variable(pid, variable)
    return current == value or value in current.split(".")


def find_descendants(excluded_children: Collection[int] = ()) -> list[Identity]:
    """Find all living descendants of this process, except these children and everything below them."""
    descendants: list[Identity] = []
    pending = [pid for pid in children_of(os.getpid()) if pid not in excluded_children]
    while pending:
        pid = pending.pop()
        pending += children_of(pid)
        if (started_at := start_time(pid)) is not None:
            descendants.append(Identity(pid, started_at))
    return descendants


def find_launched(nonces: Collection[str]) -> list[Identity]:
    """Find every process of these launches, and descendants of those that removed the nonce from their environment.

    Finds nothing where other processes' environments can't be read (macOS).
    """
    return _with_descendants(find_by_nonce(nonces))


def find_leftovers(nonces: Collection[str]) -> list[Identity]:
    """Find what earlier launches with these nonces left running.

    Never includes this process, its ancestors or its own descendants: `qd up` may itself be typed into an agent's shell, and
    then this process carries a nonce of the same home.
    """
    return _without_relatives(find_launched(frozenset(nonces)))


def find_leftovers_of_home(home_id: str) -> list[Identity]:
    """Find what any earlier launch from this home left running; see `find_leftovers`."""
    return _without_relatives(_with_descendants(find_by_home(home_id)))


def _with_descendants(roots: list[Identity]) -> list[Identity]:
    identities = {root.pid: root for root in roots}
    for root in roots:
        _add_descendants(root, identities)
    return list(identities.values())


def _add_descendants(root: Identity, identities: dict[int, Identity]) -> None:
    pending = children_of(root.pid)
    while pending:
        pid = pending.pop()
        started_at = start_time(pid)
        # A child is never older than its ancestor. An older one means that the ancestor's pid was reused.
        if pid not in identities and started_at is not None and started_at >= root.started_at:
            identities[pid] = Identity(pid, started_at, root.nonce)
            pending += children_of(pid)


def _without_relatives(identities: list[Identity]) -> list[Identity]:
    if not identities:
        return []
    relatives = {descendant.pid for descendant in find_descendants()}
    pid = os.getpid()
    while pid > 0:
        relatives.add(pid)
        stat = read_stat(pid)
        pid = stat.parent if stat is not None else 0
    return [identity for identity in identities if identity.pid not in relatives]


# ---------------------------------------------------------------------------------------------------- signalling


def signal_processes(identities: Iterable[Identity], number: signal.Signals) -> None:
    """Send a signal to exactly these processes. Processes that have exited, or belong to another user, are skipped."""
    if not hasattr(os, "pidfd_open"):
        _signal_by_pid(_still_alive(identities), number)
        return
    for identity in identities:
        if (descriptor := _open_pidfd(identity)) is not None:
            _signal_pidfds((descriptor,), number)
            os.close(descriptor)


def kill_processes(identities: Iterable[Identity]) -> None:
    """Send SIGKILL to exactly these processes, without waiting for their exit."""
    signal_processes(identities, signal.SIGKILL)


def wait_until_gone(identity: Identity, seconds: float) -> bool:
    """Block until this process has exited, at most so long. Return whether it has."""
    if not hasattr(os, "pidfd_open"):
        deadline = time.monotonic() + seconds
        while is_alive(identity) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not is_alive(identity)
    descriptor = _open_pidfd(identity)
    if descriptor is None:
        return True
    try:
        return bool(_wait_for_pidfds((descriptor,), seconds))
    finally:
        os.close(descriptor)


def end_processes(identities: Iterable[Identity], grace: float = DEFAULT_GRACE_S) -> list[Identity]:
    """Send SIGTERM to exactly these processes, and SIGKILL after the grace. Blocks until they have exited.

    With a grace of 0, send SIGKILL at once. Returns the processes that are still there afterwards.
    """
    if not hasattr(os, "pidfd_open"):
        return _end_by_pid(list(identities), grace)
    pidfds = {fd: identity for identity in identities if (fd := _open_pidfd(identity)) is not None}
    try:
        exited: set[int] = set()
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_WAIT_S)):
            if seconds:
                _signal_pidfds(pidfds.keys() - exited, number)
                exited |= _wait_for_pidfds(pidfds.keys() - exited, seconds)
        return [identity for descriptor, identity in pidfds.items() if descriptor not in exited]
    finally:
        for descriptor in pidfds:
            os.close(descriptor)


def end_leftovers(nonces: Collection[str], grace: float = DEFAULT_GRACE_S) -> list[Identity]:
    """End what earlier launches with these nonces left running. Returns the processes that couldn't be ended."""
    return _end_repeatedly(lambda: find_leftovers(nonces), grace)


def end_leftovers_of_home(home_id: str, grace: float = DEFAULT_GRACE_S) -> list[Identity]:
    """End what any launch from this home left running. Returns the processes that couldn't be ended.

    Call this when a deck starts, before it launches anything itself.
    """
    return _end_repeatedly(lambda: find_leftovers_of_home(home_id), grace)


def _end_repeatedly(find: Callable[[], list[Identity]], grace: float) -> list[Identity]:
    # Search again after every round: a process may have forked between the search and its end.
    deadline = time.monotonic() + grace + KILL_WAIT_S
    while (identities := find()) and time.monotonic() < deadline:
        end_processes(identities, grace)
        grace = 0
    return identities


# -------------------------------------------------------------------------------------------------------- pidfds


def _open_pidfd(identity: Identity) -> int | None:
    # Open first, compare afterwards: once the descriptor is open it means one process, whatever happens to the pid.
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return None
    if is_alive(identity):
        return descriptor
    os.close(descriptor)
    return None


def _signal_pidfds(descriptors: Iterable[int], number: signal.Signals) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(descriptor, number)


def _wait_for_pidfds(descriptors: Collection[int], seconds: float) -> set[int]:
    """Wait until all of these processes have exited, at most so long. Return the descriptors of those that have."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    exited: set[int] = set()
    deadline = time.monotonic() + seconds
    while len(exited) < len(descriptors) and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(remaining * 1000):
            poll.unregister(descriptor)
            exited.add(descriptor)
    return exited


# -------------------------------------------------------------------------------------- without pidfds (macOS)
# Untested on macOS: written from the manual pages and exercised only with Linux's ps.


def _end_by_pid(identities: list[Identity], grace: float) -> list[Identity]:
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_WAIT_S)):
        deadline = time.monotonic() + seconds
        _signal_by_pid(_still_alive(identities), number)
        while _still_alive(identities) and time.monotonic() < deadline:
            time.sleep(0.05)
    return _still_alive(identities)


def _signal_by_pid(identities: Iterable[Identity], number: signal.Signals) -> None:
    for identity in identities:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Signal the whole group of a group leader: its descendants can't be found one by one here.
            is_group_leader = os.getpgid(identity.pid) == identity.pid
            (os.killpg if is_group_leader else os.kill)(identity.pid, number)


def _still_alive(identities: Iterable[Identity]) -> list[Identity]:
    return [identity for identity in identities if is_alive(identity)]
