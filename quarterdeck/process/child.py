"""Run one child process on the event loop and end it together with everything it started.

The child gets its own session and a mark in its environment, so its descendants can be found wherever they move (`tree`).
When the child exits, its leftover descendants are ended too. `Child.exited` resolves after that, when all output was
delivered and nothing of the child is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import IO, Any, Literal, TypeVar

from quarterdeck.process.identity import NONCE_VARIABLE, Identity, is_alive, start_time
from quarterdeck.process.tree import CALL_VARIABLE, find_tree, kill_processes, signal_processes

Stream = Literal["stdout", "stderr"]
#: Receives output as it arrives. Each stream ends with one empty chunk.
OnOutput = Callable[[bytes, Stream], None]
T = TypeVar("T")

#: How long descendants that outlive a tool's command may keep its output open before they are ended. Also how long silent
#: ones may take to exit before they count as left behind: a process closes its pipes a moment before it is gone, and
#: the inner process of bubblewrap outlives the outer one by a moment.
DEFAULT_LINGER_S = 0.2
#: How much may wait for a child that doesn't read its input. One write is always accepted whole, so a large image passes.
INPUT_LIMIT = 4 << 20

_READ_SIZE = 64 * 1024
#: How long to read remaining output after the whole tree has ended. Only a process that couldn't be found (it changed its
#: session, lost its parent and cleared its environment) can still hold the pipe open then.
_DRAIN_S = 0.5
#: Ending a tree is repeated, because a process may fork between the search and its end.
_SWEEPS, _SWEEP_PAUSE_S = 300, 0.01
#: How long to block for a killed process when the event loop itself is shutting down.
_KILL_WAIT_S = 1.0


class Child:
    """One child process, its pipes and its descendants. Create it with `Child.spawn`.

    There are two moments: `process_exited` is set when the process itself has exited, and `exited` resolves to its exit code
    when its descendants were ended and all output was delivered. Between the two the process is a zombie: it isn't reaped
    until its tree was searched, because afterwards its pid could belong to another process.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], mark: tuple[str, str], on_output: OnOutput, linger: float | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._mark = mark
        self._on_output = on_output
        self._linger = linger
        self._readers: dict[int, tuple[IO[bytes], Stream]] = {}
        self._is_paused = False
        self._output_closed = asyncio.Event()
        #: Set when the child is being ended: nothing waits for leftover descendants any more.
        self._hurry = asyncio.Event()
        #: Descendants seen so far. One that lost its parent and its mark can't be found again, so they are remembered.
        self._seen: set[Identity] = set()
        self._finishing: asyncio.Task[None] | None = None
        self._stop_watching: Callable[[], None] = _do_nothing
        self._has_descendants = True

        nonce = mark[1] if mark[0] == NONCE_VARIABLE else ""
        self.identity = Identity(process.pid, start_time(process.pid) or 0, nonce)
        self.input: ChildInput | None = ChildInput(process.stdin, self._loop) if process.stdin is not None else None
        #: Set when the process itself has exited. Descendants and unread output may still be there.
        self.process_exited = asyncio.Event()
        #: Resolves to the exit code (negative: minus the signal number) when nothing of the child is left.
        self.exited: asyncio.Future[int] = self._loop.create_future()
        #: How many descendants had to be ended after the process exited by itself.
        self.left_behind = 0

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        on_output: OnOutput,
        *,
        nonce: str = "",
        has_input: bool = False,
        merge_output: bool = False,
        pass_fds: Sequence[int] = (),
        linger: float | None = DEFAULT_LINGER_S,
        has_descendants: bool = True,
    ) -> Child:
        """Start a process. Call it on the event loop's thread.

        Args:
            argv: the program and its arguments
            cwd: the working directory
            environment: the whole environment; the mark is added to it
            on_output: called with every chunk of output
            nonce: marks the process and its descendants as one launch of a deck; without it, as one tool call
            has_input: connect standard input (`Child.input`); otherwise it is empty
            merge_output: deliver standard error as standard output, in the order in which both were written
            pass_fds: descriptors that the child inherits
            linger: how long descendants may outlive the process before they are ended; None to wait until they close the
                output, and to leave them running after that
            has_descendants: False for a program that starts no other programs, to save searching for them

        Raises:
            OSError: the system can't run the program.
            ValueError: the arguments or the environment can't be passed on (a NUL byte, for example).
        """
        mark = (NONCE_VARIABLE, nonce) if nonce else (CALL_VARIABLE, secrets.token_hex(8))
        outer_mark = "" if nonce else environment.get(CALL_VARIABLE, "")
        # subprocess.Popen uses vfork and takes about a millisecond. The event loop's own spawn functions pass a preexec_fn,
        # which forces a fork: about ten times slower in a process with as much memory as the server.
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**environment, mark[0]: f"{outer_mark}.{mark[1]}" if outer_mark else mark[1]},
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge_output else subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        child = cls(process, mark, on_output, linger)
        child._has_descendants = has_descendants
        child._read_from(process.stdout, "stdout")
        child._read_from(process.stderr, "stderr")
        try:
            child._stop_watching = _watch_exit(process, child._handle_exit)
        except OSError:  # No descriptor is left to watch the process with.
            child._kill_and_reap()
            raise
        return child

    # ------------------------------------------------------------------------------------------------ reading

    def pause_reading(self) -> None:
        """Stop reading output, so a child that writes a lot has to wait. Has no effect after the process has exited."""
        if not self._is_paused and not self.process_exited.is_set():
            self._is_paused = True
            for descriptor in self._readers:
                self._loop.remove_reader(descriptor)

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            for descriptor in self._readers:
                self._loop.add_reader(descriptor, self._read, descriptor)

    def _read_from(self, pipe: IO[bytes] | None, stream: Stream) -> None:
        if pipe is None:
            return
        descriptor = pipe.fileno()
        os.set_blocking(descriptor, False)
        self._readers[descriptor] = (pipe, stream)
        self._loop.add_reader(descriptor, self._read, descriptor)

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            return
        if data:
            self._on_output(data, self._readers[descriptor][1])
        else:
            self._close_reader(descriptor)

    def _close_reader(self, descriptor: int) -> None:
        if descriptor in self._readers:
            self._loop.remove_reader(descriptor)
            pipe, stream = self._readers.pop(descriptor)
            pipe.close()
            if not self._readers:
                self._output_closed.set()
            self._on_output(b"", stream)

    def _close_pipes(self) -> None:
        if self.input is not None:
            self.input.discard()
        for descriptor in [*self._readers]:
            self._close_reader(descriptor)

    # ------------------------------------------------------------------------------------------------- ending

    async def end(self, grace: float) -> int:
        """End the process and its descendants: SIGTERM to all, and SIGKILL after the grace. Return the exit code.

        SIGTERM comes first so that programs can remove their lock files.
        """
        self._hurry.set()
        try:
            if not self.process_exited.is_set():
                self.signal_tree(signal.SIGTERM)
                await asyncio.wait([self.exited], timeout=grace)
            if not self.process_exited.is_set():
                self.signal_tree(signal.SIGKILL)
            return await asyncio.shield(self.exited)
        except asyncio.CancelledError:
            # The event loop is closing and won't run anything later, so block here.
            self._kill_and_reap()
            raise

    def kill(self) -> None:
        """Send SIGKILL to the process and its descendants. `exited` resolves soon after."""
        self._hurry.set()
        self.signal_tree(signal.SIGKILL)

    def remember_tree(self) -> None:
        """Record the present descendants, so they are ended even if they can't be found later."""
        self._seen |= self._find_tree()

    def signal_tree(self, number: signal.Signals) -> None:
        """Send a signal to the process group and to every descendant."""
        self.remember_tree()
        self.signal_group(number)
        signal_processes(self._seen, number)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process group only."""
        # After the leader was reaped, the group's number may belong to other processes.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def wait_process_exited(self, seconds: float) -> bool:
        """Wait until the process itself has exited, at most so long. Return whether it has."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process_exited.wait(), seconds)
        return self.process_exited.is_set()

    def _handle_exit(self) -> None:
        if self._finishing is None:
            self.process_exited.set()
            # A child that exits while reading is paused must still deliver what is in its pipes.
            self.resume_reading()
            self._finishing = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        """End leftover descendants, read the remaining output and reap the process."""
        try:
            if self.input is not None:
                self.input.discard()
            if self._linger is None and await self._is_output_closed_unhurried():
                self._process.wait()
                return
            if self._find_tree():
                await self._wait_output_closed(0 if self._hurry.is_set() else self._linger or 0)
                leftovers = await self._wait_for_leftovers()
                self.left_behind = len(leftovers)
                self._seen |= leftovers
            # This is all that can be ended where descendants can't be found (macOS).
            self.signal_group(signal.SIGKILL)
            if self._seen:
                await self._kill_tree()
            self._process.wait()
            await self._wait_output_closed(_DRAIN_S)
        finally:
            code = self._process.wait()
            try:
                self._close_pipes()
            finally:
                # Resolve even if on_output raises, or everything that waits for the exit would hang.
                if not self.exited.done():
                    self.exited.set_result(code)

    async def _is_output_closed_unhurried(self) -> bool:
        """Wait until the output is closed. Return False if the child is to be ended before that."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._output_closed, self._hurry)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for waiting in waits:
            waiting.cancel()
        return not self._hurry.is_set()

    async def _wait_for_leftovers(self) -> set[Identity]:
        """Return the descendants that are still there after the linger time, or at once if the child is being ended."""
        deadline = self._loop.time() + (self._linger or 0)
        while (leftovers := self._find_tree()) and not self._hurry.is_set() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_SWEEP_PAUSE_S)
        return leftovers

    async def _wait_output_closed(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._output_closed.wait(), seconds)

    async def _kill_tree(self) -> None:
        """Kill all descendants, including those forked meanwhile. Nothing reports their exit, so search again."""
        for _ in range(_SWEEPS):
            self._seen = {identity for identity in self._seen if is_alive(identity)} | self._find_tree()
            if not self._seen:
                return
            kill_processes(self._seen)
            await asyncio.sleep(_SWEEP_PAUSE_S)

    def _kill_and_reap(self) -> None:
        """Kill everything and block until the process is reaped."""
        if self._finishing is None:
            self._stop_watching()
            self.signal_tree(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_WAIT_S)
        self._close_pipes()

    def _find_tree(self) -> set[Identity]:
        # After the process was reaped, its pid may belong to another process.
        if not self._has_descendants or self._process.returncode is not None:
            return set()
        return find_tree(self.identity, *self._mark)


class ChildInput:
    """The standard input of a child. Writing never blocks; what the child hasn't read waits here, up to a limit.

    A broken pipe isn't reported as an error: the child's exit reports it. Check `is_open` after a write if the child may
    close its input without exiting.
    """

    def __init__(self, pipe: IO[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._pipe = pipe
        self._descriptor = pipe.fileno()
        self._loop = loop
        self._buffer = bytearray()
        self._is_waiting = False
        #: False after `close`, or when the child has closed its end.
        self.is_open = True
        os.set_blocking(self._descriptor, False)

    @property
    def unread(self) -> int:
        """Number of bytes that the child hasn't read, without those in the kernel's pipe buffer."""
        return len(self._buffer)

    def write(self, data: bytes) -> bool:
        """Write all of the data or nothing.

        Returns False if the input is closed, or if the child has left so much unread that more would only pile up.
        """
        if not self.is_open or len(self._buffer) > INPUT_LIMIT:
            return False
        self._buffer += data
        if not self._is_waiting:
            self._flush()
        # Return True even if the pipe broke just now. The child is most likely exiting, and its exit is about to be
        # reported: returning False would blame a living child that doesn't read, depending on which comes first.
        return True

    def close(self) -> None:
        """Close the input after everything buffered was written."""
        self.is_open = False
        if not self._buffer:
            self.discard()

    def discard(self) -> None:
        """Close the input at once and drop what is buffered."""
        self.is_open = False
        self._buffer.clear()
        if not self._pipe.closed:
            if self._is_waiting:
                self._loop.remove_writer(self._descriptor)
            self._pipe.close()

    def _flush(self) -> None:
        try:
            del self._buffer[: os.write(self._descriptor, self._buffer)]
        except BlockingIOError:
            pass
        except OSError:
            self.discard()
            return
        if self._buffer and not self._is_waiting:
            self._is_waiting = True
            self._loop.add_writer(self._descriptor, self._flush)
        elif not self._buffer and self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._descriptor)
        if not self._buffer and not self.is_open:
            self.discard()


async def finish_uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end however often the caller is cancelled meanwhile, because what it cleans up must not be left."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


# ------------------------------------------------------------------------------------------------ watching for exit


def _watch_exit(process: subprocess.Popen[bytes], on_exit: Callable[[], None]) -> Callable[[], None]:
    """Call `on_exit` on the event loop when the process has exited, before it is reaped. Return a function to stop watching.

    A pidfd becomes readable when its process exits, so no thread waits and nothing polls. Without pidfds (macOS) a thread
    waits.
    """
    loop = asyncio.get_running_loop()
    if not hasattr(os, "pidfd_open"):
        threading.Thread(target=_wait_in_thread, args=(process, loop, on_exit), daemon=True).start()
        return _do_nothing
    descriptor = os.pidfd_open(process.pid)

    def stop_watching() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)

    def handle_exit() -> None:
        stop_watching()
        on_exit()

    loop.add_reader(descriptor, handle_exit)
    return stop_watching


def _wait_in_thread(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]
) -> None:
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # It was killed and reaped by the loop's thread.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()
        # Kill the group at once: it keeps its number while it has members, and only a moment longer.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(on_exit)


def _do_nothing() -> None:
    pass
