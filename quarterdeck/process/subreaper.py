"""The keeper: the small parent of the server, which stays until nothing that the server started is left.

    python -m quarterdeck.process.subreaper -- COMMAND [ARGUMENT ...]

`qd up` is keeper → server → agents. Every orphan below a child subreaper becomes the child of that subreaper, whatever
group or session it moved to. So when the server is gone, for whatever reason, its agents and their tools are the
keeper's own children, and it ends them. When the keeper is gone, a pipe that only it held open ends, and the server
stops by itself (`lifeline`). When both are gone, the next start finds by the nonces what was left, and ends that
(`end_left_over_of`).

A signal goes to a process that was recognised (pid and start time) through a descriptor of that process, so that a pid
which comes again is never hit. The keeper lives as long as the server: nothing heavy may be imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

from quarterdeck.process.identity import Identity, carriers, carriers_of_home, is_alive, ps, start_time

#: Tells the server which of its descriptors ends when the keeper does, as "descriptor:inode".
LIFELINE = "QUARTERDECK_LIFELINE"

#: How long what is left may take to leave after SIGTERM. The server's own stop, which is longer, comes before this.
GRACE_S = 2.0
#: After SIGKILL only what the kernel holds or what belongs to another user stays; for that we do not wait for ever.
_KILL_S = 5.0
#: Two SIGINTs within this are one press: a terminal and a wrapper such as `uv run` both pass the same one on.
_ONE_PRESS_S = 0.3

_PR_SET_CHILD_SUBREAPER = 36
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Python ignores these two, and a command that we start should not.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
_NOT_FOUND, _NOT_RUNNABLE = 127, 126

_HAS_CHILDREN_FILES = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


# --- the keeper


def keep(argv: Sequence[str], environment: Mapping[str, str] | None = None, grace: float = GRACE_S) -> int:
    """Runs the server to its end, then ends all that it left, and gives its exit code as a shell would.

    It takes over the signals of this process, so it belongs to the main thread of a process that does nothing else.
    SIGTERM, SIGINT and SIGHUP go on to the server, each once; a second SIGINT kills the server and what it started.
    """
    become_subreaper()
    strangers = set(_children(os.getpid()))  # a shell that became us by exec may have had jobs of its own
    with _caught_signals() as caught, _held_lifeline(environment) as inherited:
        try:
            server = _spawned(argv, inherited)
        except OSError as error:
            _say(f"cannot start {argv[0]}: {error.strerror}")
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE
        watch = _Watch(server, caught, strangers)
        code = watch.until_exit()
        end_descendants(strangers, 0 if watch.hurried else grace)
    return code


class _Watch:
    """The server's life, as told by the signals that come in. Until it is fetched here, its pid can only be its own."""

    def __init__(self, server: int, caught: int, strangers: set[int]) -> None:
        self._server = server
        self._caught = caught
        self._strangers = strangers
        self._passed_on: dict[int, float] = {}
        self.hurried = False

    def until_exit(self) -> int:
        while True:
            for number in dict.fromkeys(os.read(self._caught, 256)):
                if number != signal.SIGCHLD:
                    self._pass_on(number)
            self._strangers -= reap_adopted({self._server})
            pid, status = os.waitpid(self._server, os.WNOHANG)
            if pid:
                return _shell_code(status)

    def _pass_on(self, number: int) -> None:
        now = time.monotonic()
        if number not in self._passed_on:
            self._passed_on[number] = now
            os.kill(self._server, number)
        elif number == signal.SIGINT and now - self._passed_on[number] > _ONE_PRESS_S:
            self.hurried = True
            os.kill(self._server, signal.SIGKILL)


def _shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _spawned(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """In a group of its own, so that a Ctrl-C of the terminal reaches the server once: through us."""
    return os.posix_spawnp(argv[0], list(argv), environment, setpgroup=0, setsigdef=_RESTORED)


@contextlib.contextmanager
def _caught_signals() -> Generator[int]:
    """A descriptor that yields the numbers of the signals as they come: none is lost between a look and a wait.

    One that we were told to ignore, as `nohup` does, stays ignored. Afterwards all are: nothing is left to be hurried,
    and a last impatient Ctrl-C must not change the exit code.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    numbers = [one for one in _STOPS if signal.getsignal(one) != signal.SIG_IGN] + [signal.SIGCHLD]
    for number in numbers:
        signal.signal(number, _noted)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
        os.close(reader)
        os.close(writer)


def _noted(number: int, frame: object) -> None:
    """The wakeup descriptor has it already; a handler is needed for it to be written there."""
    del number, frame


def _say(text: str) -> None:
    sys.stderr.write(f"quarterdeck: {text}\n")


# --- the lifeline


@contextlib.contextmanager
def _held_lifeline(environment: Mapping[str, str] | None) -> Generator[dict[str, str]]:
    """The server's environment, while this end of the pipe is open. The kernel closes it whatever happens to us.

    Not PDEATHSIG, which is bound to the thread that spawned, and which leaves no time for an orderly end.
    """
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    try:
        yield {**(os.environ if environment is None else environment), LIFELINE: f"{reader}:{os.fstat(reader).st_ino}"}
    finally:
        os.close(reader)
        os.close(writer)


def lifeline() -> int | None:
    """For the server, once, early: a descriptor that becomes readable (end of file) when the keeper has died.

    None without a keeper. The agents get neither the descriptor nor its name, and whoever gets the name nevertheless
    has another file there.
    """
    number, _, inode = os.environ.pop(LIFELINE, "").partition(":")
    try:
        descriptor = int(number)
        found = os.fstat(descriptor)
    except (ValueError, OSError):
        return None
    if not stat.S_ISFIFO(found.st_mode) or str(found.st_ino) != inode:
        return None
    os.set_inheritable(descriptor, False)
    return descriptor


# --- descent


def become_subreaper() -> bool:
    """From now on orphans below us become our children, to be fetched with `reap_adopted`. False where nobody can."""
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def reap_adopted(known: Collection[int]) -> set[int]:
    """Fetches every ended child that is not among the known ones, whose exit codes somebody else waits for.

    Call it on the thread that spawns: a child that was not yet entered among the known would lose its exit code here.
    """
    return {pid for pid in _children(os.getpid()) if pid not in known and _reaped(pid)}


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def descendants(strangers: Collection[int] = ()) -> list[Identity]:
    """Everything alive below this process, but for these children and what is below them."""
    found: list[Identity] = []
    open_ends = [pid for pid in _children(os.getpid()) if pid not in strangers]
    while open_ends:
        pid = open_ends.pop()
        open_ends += _children(pid)
        if (started_at := start_time(pid)) is not None:
            found.append(Identity(pid, started_at, ""))
    return found


def end_descendants(strangers: Collection[int] = (), grace: float = GRACE_S) -> list[Identity]:
    """Ends everything below this process, and fetches it. What could not be ended is said and given back.

    Only an empty list of our own children means that nothing is left: a process that we find dead may have left us its
    children since we looked. One that keeps forking is met by its whole group.
    """
    until = time.monotonic() + grace + _KILL_S
    if _unfetched(strangers):
        end(descendants(strangers), grace)
    while _unfetched(strangers) and time.monotonic() < until:
        rest = descendants(strangers)
        _kill_groups(rest)
        end(rest, grace=0)
        if not rest:  # one is about to be fetched
            time.sleep(0.01)
    left = descendants(strangers)
    if left:
        _say(f"could not end the processes {', '.join(str(one.pid) for one in left)}")
    return left


def _unfetched(strangers: Collection[int]) -> bool:
    reap_adopted(strangers)
    return any(pid not in strangers for pid in _children(os.getpid()))


def _kill_groups(members: Iterable[Identity]) -> None:
    """A session that is not ours was opened below us, and nobody can join one: all its groups are descendants too."""
    for one in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if is_alive(one) and os.getsid(one.pid) != os.getsid(0):
                os.killpg(os.getpgid(one.pid), signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """The ended ones, too. Of this process itself the list is exact; of others it is what could be seen."""
    if not _HAS_CHILDREN_FILES:
        return [child for child, (parent, _) in ps().items() if parent == pid]
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


# --- ending what was recognised


def end(found: Iterable[Identity], grace: float = GRACE_S) -> list[Identity]:
    """SIGTERM, and after the grace SIGKILL, to exactly these processes. Who is still there afterwards comes back.

    Whoever is not (or no longer) the process that the identity names is left alone.
    """
    if not hasattr(os, "pidfd_open"):
        return _end_by_pid(list(found), grace)
    held = {descriptor: one for one in found if (descriptor := _descriptor(one)) is not None}
    try:
        gone: set[int] = set()
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_S)):
            if seconds:
                _send(held.keys() - gone, number)
                gone |= _gone_within(held.keys() - gone, seconds)
        return [one for descriptor, one in held.items() if descriptor not in gone]
    finally:
        for descriptor in held:
            os.close(descriptor)


def _descriptor(one: Identity) -> int | None:
    """Opened first and recognised then: from here on it means this process, whatever becomes of the pid."""
    try:
        descriptor = os.pidfd_open(one.pid)
    except OSError:
        return None
    if is_alive(one):
        return descriptor
    os.close(descriptor)
    return None


def _send(descriptors: Iterable[int], number: signal.Signals) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(descriptor, number)


def _gone_within(descriptors: Collection[int], seconds: float) -> set[int]:
    """Which of them ended; returns as soon as all did."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    gone: set[int] = set()
    until = time.monotonic() + seconds
    while len(gone) < len(descriptors) and (rest := until - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(rest * 1000):
            poll.unregister(descriptor)
            gone.add(descriptor)
    return gone


# --- what was launched, and what a killed keeper left


def kill(found: Iterable[Identity]) -> None:
    """SIGKILL to exactly these processes, without waiting for their end."""
    send(found, signal.SIGKILL)


def send(found: Iterable[Identity], number: signal.Signals) -> None:
    """A signal to exactly these processes, and to nobody who has the pid of one by now."""
    if not hasattr(os, "pidfd_open"):
        _send_by_pid(_still(list(found)), number)
        return
    for one in found:
        if (descriptor := _descriptor(one)) is not None:
            _send((descriptor,), number)
            os.close(descriptor)


def gone_within(one: Identity, seconds: float) -> bool:
    """Waits for the end of this process, at most so long; whether it has ended."""
    if not hasattr(os, "pidfd_open"):
        until = time.monotonic() + seconds
        while _still([one]) and time.monotonic() < until:
            time.sleep(0.05)
        return not _still([one])
    descriptor = _descriptor(one)
    if descriptor is None:
        return True
    try:
        return bool(_gone_within((descriptor,), seconds))
    finally:
        os.close(descriptor)


def launched(nonces: Collection[str]) -> list[Identity]:
    """Every process of these launches, and what is below one, also if it dropped the nonce from its environment."""
    return _with_below(carriers(nonces))


def left_over(nonces: Collection[str]) -> list[Identity]:
    """What earlier launches with these nonces left. Where no environment can be read (macOS) nothing is found, and the
    caller ends the identities of the log with `end`.

    Never this process, what it descends from, or what it started: a `qd up` may itself be typed into an agent's shell.
    """
    return _without_kin(launched(frozenset(nonces)))


def left_over_of(home_id: str) -> list[Identity]:
    """The same of all launches from this home, without any list of them."""
    return _without_kin(_with_below(carriers_of_home(home_id)))


def end_left_over(nonces: Collection[str], grace: float = GRACE_S) -> list[Identity]:
    """Ends them all, also those that were forked meanwhile; what could not be ended comes back."""
    return _end_all(lambda: left_over(nonces), grace)


def end_left_over_of(home_id: str, grace: float = GRACE_S) -> list[Identity]:
    """Ends whatever any launch from this home left. For the start of its deck, before it launches anything itself."""
    return _end_all(lambda: left_over_of(home_id), grace)


def _end_all(find: Callable[[], list[Identity]], grace: float) -> list[Identity]:
    until = time.monotonic() + grace + _KILL_S
    while (found := find()) and time.monotonic() < until:
        end(found, grace)
        grace = 0
    return found


def _with_below(carrying: list[Identity]) -> list[Identity]:
    found = {one.pid: one for one in carrying}
    for one in carrying:
        _add_below(one, found)
    return list(found.values())


def _without_kin(found: list[Identity]) -> list[Identity]:
    kin = _kin() if found else set[int]()
    return [one for one in found if one.pid not in kin]


def _add_below(root: Identity, found: dict[int, Identity]) -> None:
    open_ends = _children(root.pid)
    while open_ends:
        pid = open_ends.pop()
        started_at = start_time(pid)
        if pid not in found and started_at is not None and is_alive(root):
            found[pid] = Identity(pid, started_at, root.nonce)
            open_ends += _children(pid)


def _kin() -> set[int]:
    kin = {one.pid for one in descendants()}
    pid = os.getpid()
    while pid > 0:
        kin.add(pid)
        pid = _parent(pid)
    return kin


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


# --- without /proc (macOS). Untested there: written from the manual pages, exercised only through Linux's `ps`.
# Nobody adopts orphans there, so the keeper finds what is still below it, and the start-up's `end` the rest.


def _end_by_pid(found: list[Identity], grace: float) -> list[Identity]:
    """Like `end`; the leader of a group stands for the group."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_S)):
        until = time.monotonic() + seconds
        _send_by_pid(_still(found), number)
        while _still(found) and time.monotonic() < until:
            time.sleep(0.05)
    return _still(found)


def _send_by_pid(found: Iterable[Identity], number: signal.Signals) -> None:
    for one in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if os.getpgid(one.pid) == one.pid else os.kill)(one.pid, number)


def _still(found: list[Identity]) -> list[Identity]:
    return [one for one in found if start_time(one.pid) == one.started_at]


def main(arguments: Sequence[str]) -> int:
    argv = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not argv:
        _say(
            "keeper: the command to keep is missing: python -m quarterdeck.process.subreaper -- COMMAND [ARGUMENT ...]"
        )
        return 2
    return keep(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
