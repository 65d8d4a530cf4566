"""A command that a tool runs: in a session of its own, heard as it speaks, and ended with everything that it started.

When the command is over, whatever it left behind has a moment for its last words and is then ended too. Its exit is told
only when nothing of it is left.
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
from typing import Any, Literal, TypeVar

from quarterdeck.process.tree import MARK, Process, kin_of, living, signalled

Stream = Literal["stdout", "stderr"]
Hear = Callable[[bytes, Stream], None]
T = TypeVar("T")

_READ = 64 * 1024
#: How long what was left behind may hold the output open before it is ended.
_LAST_WORDS_S = 0.2
#: How long what is silent may take to be gone before it counts as left behind.
_MOMENT_S = 0.2
_SWEEPS, _SWEEP_PAUSE_S = 300, 0.01
#: After SIGKILL only what the kernel holds stays; for that nobody waits for ever.
_KILL_S = 1.0


class Child:
    """Start one with `Child.start(...)`, on the loop. OSError and ValueError when the system will not run it."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, hear: Hear, *, is_alone: bool) -> None:
        loop = asyncio.get_running_loop()
        self._process = process
        self._mark = mark
        self._loop = loop
        self._silent = asyncio.Event()
        self._open: dict[int, Any] = {}
        self._seen: set[Process] = set()
        self._ending: asyncio.Task[None] | None = None
        #: Its exit code (minus the signal's number), when nothing of it is left.
        self.exited: asyncio.Future[int] = loop.create_future()
        #: How many processes it had left behind.
        self.left_behind = 0
        self._is_alone = is_alone
        self._hurried = False
        self._unwatch: Callable[[], None] = _nothing
        self._listen(process.stdout, "stdout", hear)
        self._listen(process.stderr, "stderr", hear)

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        hear: Hear,
        pass_fds: Sequence[int] = (),
        *,
        is_alone: bool = False,
    ) -> Child:
        """`is_alone`: it is a program that starts no others, and nobody needs to look for them."""
        mark = secrets.token_hex(8)
        outer = environment.get(MARK)
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**environment, MARK: f"{outer}.{mark}" if outer else mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        child = cls(process, mark, hear, is_alone=is_alone)
        try:
            child._unwatch = _watched(process, child._on_end)
        except OSError:  # there is no descriptor left to watch it by: it ends as if it had never begun
            child._discard()
            raise
        return child

    def _discard(self) -> None:
        """At once, and waiting for it: what is killed does not take long."""
        if self._ending is None:
            self._unwatch()
            self._signal_all(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_S)
        self._close_all()

    # --- listening

    def _listen(self, pipe: Any, stream: Stream, hear: Hear) -> None:
        descriptor = pipe.fileno()
        os.set_blocking(descriptor, False)
        self._open[descriptor] = pipe

        def readable() -> None:
            try:
                data = os.read(descriptor, _READ)
            except BlockingIOError:
                return
            if data:
                hear(data, stream)
            else:
                self._close(descriptor)

        self._loop.add_reader(descriptor, readable)

    def _close(self, descriptor: int) -> None:
        pipe = self._open.pop(descriptor, None)
        if pipe is not None:
            self._loop.remove_reader(descriptor)
            pipe.close()
        if not self._open:
            self._silent.set()

    def _close_all(self) -> None:
        for descriptor in [*self._open]:
            self._close(descriptor)

    # --- the end

    def _on_end(self) -> None:
        """It has ended and was not fetched yet, so its number is still its own."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._settled())

    async def _settled(self) -> None:
        try:
            if self._kin():
                await self._silent_within(0 if self._hurried else _LAST_WORDS_S)
                left = await self._staying()
                self.left_behind = len(left)
                await self._swept(left)
            self._process.wait()
            await self._silent_within(_LAST_WORDS_S)
        finally:
            code = self._process.wait()
            self._close_all()
        if not self.exited.done():
            self.exited.set_result(code)

    async def _staying(self) -> set[Process]:
        """Who is left behind, and not only about to end: a process closes its pipes before it is gone, and the inner one of
        bubblewrap outlives the outer one by a moment."""
        until = self._loop.time() + _MOMENT_S
        while (left := self._kin()) and not self._hurried and self._loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_SWEEP_PAUSE_S)
        return left

    async def _silent_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._silent.wait(), seconds)

    async def _swept(self, found: set[Process]) -> None:
        """Until nothing is left, also of what was forked meanwhile."""
        self._seen |= found
        for _ in range(_SWEEPS):
            self._seen = living(self._seen) | self._kin()
            if not self._seen:
                return
            signalled(self._seen, signal.SIGKILL)
            await asyncio.sleep(_SWEEP_PAUSE_S)

    async def end(self, grace: float) -> int:
        """Ends it and all of its kin, gently first: a program may want to take its lock files away. Its exit code."""
        self._hurried = True
        try:
            if self._ending is None:
                # who is found now is remembered: when its parents are gone nothing else may tell whose it was
                self._signal_all(signal.SIGTERM)
                await asyncio.wait([self.exited], timeout=grace)
            if self._ending is None:
                self._signal_all(signal.SIGKILL)
            return await asyncio.shield(self.exited)
        except asyncio.CancelledError:  # the loop itself is being closed and waits for nobody
            self._discard()
            raise

    def _kin(self) -> set[Process]:
        return set() if self._is_alone else kin_of(self._process.pid, self._mark)

    def _signal_all(self, number: signal.Signals) -> None:
        self._seen |= self._kin()
        self._kill_group(number)
        signalled(self._seen, number)

    def _kill_group(self, number: signal.Signals) -> None:
        """Only before its leader is fetched: after that the number may be somebody else's."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Awaits it however often the caller is cancelled meanwhile: something that was begun has to be cleared away."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


def _watched(process: subprocess.Popen[bytes], ended: Callable[[], None]) -> Callable[[], None]:
    """Calls back when it has ended and before it is fetched; what stops the watching is given back. Without descriptors of
    processes (macOS) a thread waits."""
    loop = asyncio.get_running_loop()
    if not hasattr(os, "pidfd_open"):
        threading.Thread(target=_wait, args=(process, loop, ended), daemon=True).start()
        return _nothing
    descriptor = os.pidfd_open(process.pid)

    def unwatch() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)

    def readable() -> None:
        unwatch()
        ended()

    loop.add_reader(descriptor, readable)
    return unwatch


def _nothing() -> None:
    pass


def _wait(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # at once: a group that has members keeps its number
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested any more
        loop.call_soon_threadsafe(ended)
