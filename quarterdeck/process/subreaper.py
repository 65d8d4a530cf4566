"""Run the server under a small parent process that ends everything the server leaves behind.

    python -m quarterdeck.process.subreaper -- COMMAND [ARGUMENT ...]

`qd up` runs three levels: subreaper, server, agents. The kernel gives every orphan below a child subreaper to that subreaper
as a child, whatever process group or session it moved to. So there are three cases:

- The server exits or is killed: its agents and their tools become children of the subreaper, which ends them.
- The subreaper is killed: a pipe that only it held open closes, and the server stops by itself (`take_lifeline`).
- Both are killed: the next start finds the leftovers by their nonces and ends them (`tree.end_leftovers_of_home`).

This process lives as long as the server, so nothing large may be imported here: no asyncio, subprocess, pathlib or msgspec.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import sys
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

from quarterdeck.process.identity import Identity, is_alive
from quarterdeck.process.tree import DEFAULT_GRACE_S, KILL_WAIT_S, children_of, end_processes, find_descendants

#: Tells the server which of its descriptors closes when the subreaper dies, as "descriptor:inode".
LIFELINE = "QUARTERDECK_LIFELINE"

#: Two SIGINTs within this time are one key press: a terminal and a wrapper such as `uv run` both deliver the same Ctrl-C.
_SAME_PRESS_S = 0.3

_PR_SET_CHILD_SUBREAPER = 36
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Python ignores these two signals, and a child would inherit that.
_RESTORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
_EXIT_NOT_FOUND, _EXIT_NOT_EXECUTABLE = 127, 126


# ------------------------------------------------------------------------------------------- running the server


def run_server(
    argv: Sequence[str], environment: Mapping[str, str] | None = None, grace: float = DEFAULT_GRACE_S
) -> int:
    """Run the server until it exits, then end all its leftovers. Return its exit code the way a shell would.

    Takes over this process's signal handlers, so call it on the main thread of a process that does nothing else. SIGTERM,
    SIGINT and SIGHUP are forwarded to the server once each. A second SIGINT kills the server and everything it started.
    """
    become_subreaper()
    # A shell that became this process by exec may have background jobs. They are our children, but not ours to end.
    foreign_children = set(children_of(os.getpid()))
    with _received_signals() as signal_pipe, _open_lifeline(environment) as server_environment:
        try:
            server_pid = _spawn(argv, server_environment)
        except OSError as error:
            _print_error(f"cannot start {argv[0]}: {error.strerror}")
            return _EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else _EXIT_NOT_EXECUTABLE
        monitor = _ServerMonitor(server_pid, signal_pipe, foreign_children)
        code = monitor.wait_for_exit()
        end_descendants(foreign_children, 0 if monitor.was_killed else grace)
    return code


class _ServerMonitor:
    """Forward signals to the server and reap adopted processes until the server exits.

    The server's pid can't be reused while this runs, because only this class reaps it.
    """

    def __init__(self, server_pid: int, signal_pipe: int, foreign_children: set[int]) -> None:
        self._server_pid = server_pid
        self._signal_pipe = signal_pipe
        self._foreign_children = foreign_children
        self._forwarded_at: dict[int, float] = {}
        #: Whether a second SIGINT killed the server.
        self.was_killed = False

    def wait_for_exit(self) -> int:
        while True:
            for number in dict.fromkeys(os.read(self._signal_pipe, 256)):
                if number != signal.SIGCHLD:
                    self._forward(number)
            self._foreign_children -= reap_adopted({self._server_pid})
            pid, status = os.waitpid(self._server_pid, os.WNOHANG)
            if pid:
                return _shell_exit_code(status)

    def _forward(self, number: int) -> None:
        now = time.monotonic()
        if number not in self._forwarded_at:
            self._forwarded_at[number] = now
            os.kill(self._server_pid, number)
        elif number == signal.SIGINT and now - self._forwarded_at[number] > _SAME_PRESS_S:
            self.was_killed = True
            os.kill(self._server_pid, signal.SIGKILL)


def _shell_exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _spawn(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    # In its own process group, so a Ctrl-C in the terminal reaches the server only once: forwarded by us.
    return os.posix_spawnp(argv[0], list(argv), environment, setpgroup=0, setsigdef=_RESTORED_SIGNALS)


@contextlib.contextmanager
def _received_signals() -> Generator[int]:
    """Return a descriptor from which the numbers of received signals can be read.

    Signals are written to a pipe (set_wakeup_fd), so none is lost between looking and waiting. A signal that the parent
    ignores, as `nohup` does with SIGHUP, stays ignored.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    numbers = [n for n in _FORWARDED_SIGNALS if signal.getsignal(n) != signal.SIG_IGN] + [signal.SIGCHLD]
    for number in numbers:
        signal.signal(number, _ignore_signal)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        # Ignore further signals: nothing is left to stop, and a last impatient Ctrl-C must not change the exit code.
        for number in numbers:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
        os.close(reader)
        os.close(writer)


def _ignore_signal(number: int, frame: object) -> None:
    # The wakeup descriptor has the number already, but Python only writes there if a handler is installed.
    del number, frame


def _print_error(text: str) -> None:
    sys.stderr.write(f"quarterdeck: {text}\n")


# -------------------------------------------------------------------------------------------------- the lifeline


@contextlib.contextmanager
def _open_lifeline(environment: Mapping[str, str] | None) -> Generator[dict[str, str]]:
    """Open the lifeline pipe and return the server's environment. The kernel closes the pipe however this process ends.

    PDEATHSIG isn't an alternative: it fires when the thread that spawned the child exits, not the process, and it leaves the
    server no time for an orderly stop.
    """
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    try:
        yield {**(os.environ if environment is None else environment), LIFELINE: f"{reader}:{os.fstat(reader).st_ino}"}
    finally:
        os.close(reader)
        os.close(writer)


def take_lifeline() -> int | None:
    """Return a descriptor that becomes readable (end of file) when the subreaper dies, or None without a subreaper.

    Call it once, early in the server. It removes the variable and makes the descriptor non-inheritable, so agents get
    neither. If a process inherits the variable anyway, the inode shows that its descriptor is another file.
    """
    number, _, inode = os.environ.pop(LIFELINE, "").partition(":")
    try:
        descriptor = int(number)
        status = os.fstat(descriptor)
    except (ValueError, OSError):
        return None
    if not stat.S_ISFIFO(status.st_mode) or str(status.st_ino) != inode:
        return None
    os.set_inheritable(descriptor, False)
    return descriptor


# --------------------------------------------------------------------------------------- adopting and reaping


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process from now on. Reap them with `reap_adopted`.

    Returns False on systems without child subreapers (anything but Linux).
    """
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def reap_adopted(known_children: Collection[int]) -> set[int]:
    """Reap every exited child except the known ones, whose exit codes other code waits for. Return the reaped pids.

    Never use waitpid(-1) for this: it would take the exit codes of known children too. For the same reason, call this on the
    thread that spawns: a child that isn't yet among the known ones would lose its exit code here.
    """
    return {pid for pid in children_of(os.getpid()) if pid not in known_children and _reap(pid)}


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def end_descendants(foreign_children: Collection[int] = (), grace: float = DEFAULT_GRACE_S) -> list[Identity]:
    """End and reap everything below this process, except these children. Return the processes that couldn't be ended.

    Only an empty list of our own children proves that nothing is left: a process that looks dead may have given us its
    children since we looked.
    """
    deadline = time.monotonic() + grace + KILL_WAIT_S
    if _has_children(foreign_children):
        end_processes(find_descendants(foreign_children), grace)
    while _has_children(foreign_children) and time.monotonic() < deadline:
        remaining = find_descendants(foreign_children)
        # A process that forks as fast as its children are killed is only caught by killing its whole group.
        _kill_groups(remaining)
        end_processes(remaining, grace=0)
        if not remaining:  # A zombie that can be reaped in a moment.
            time.sleep(0.01)
    remaining = find_descendants(foreign_children)
    if remaining:
        _print_error(f"could not end the processes {', '.join(str(identity.pid) for identity in remaining)}")
    return remaining


def _has_children(foreign_children: Collection[int]) -> bool:
    reap_adopted(foreign_children)
    return any(pid not in foreign_children for pid in children_of(os.getpid()))


def _kill_groups(identities: Iterable[Identity]) -> None:
    # A session that isn't ours was opened by a descendant, and processes can't join a session from outside. So every
    # group in it consists of descendants only.
    for identity in identities:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if is_alive(identity) and os.getsid(identity.pid) != os.getsid(0):
                os.killpg(os.getpgid(identity.pid), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    argv = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not argv:
        _print_error("the command is missing: python -m quarterdeck.process.subreaper -- COMMAND [ARGUMENT ...]")
        return 2
    return run_server(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
