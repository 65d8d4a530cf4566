"""One agent process: spawned in a group of its own, spoken to by lines, and ended so that nothing of it is left.

The order of a stop is the protocol's own farewell, end of input, SIGTERM, and when the grace is over the kill of its group.
Each step is taken only if the one before did not end the process. However it ends, by us or by itself, everything that
the launch left is ended too, in whatever group it hides, before the exit is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping

from quarterdeck.deck.agents.pipes import Hear, Input, Output, encoded
from quarterdeck.deck.validation import NoSuchFolder
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json
from quarterdeck.harness.base import Signal
from quarterdeck.harness.driver import NotInstalled, Spawn
from quarterdeck.process import subreaper
from quarterdeck.process.identity import NONCE, Identity, is_alive, members, start_time

#: How long the stages of a stop may take, in shares of the grace: after the farewell, the end of input, and SIGTERM.
_SHARES = (0.1, 0.2, 0.7)
#: How long after the exit we wait for the last words in the pipe, which an orphan may hold open.
_LAST_WORDS_S = 0.5
#: After SIGKILL only what the kernel holds stays; for that nobody waits for ever.
_KILL_S = 5.0
_SWEEPS, _SWEEP_PAUSE_S = 200, 0.01


class CannotStart(QuarterdeckError):
    """The agent's program is there, and the system will not run it."""

    code = "cannot_start_agent"

    def __init__(self, program: str, why: str) -> None:
        super().__init__(f"{program} cannot be started: {why}", "Try to run it in a shell.")


class AgentProcess:
    """Start one with `await AgentProcess.start(...)`. Everything that comes from it is heard as signals, the exit last."""

    def __init__(self, child: subprocess.Popen[bytes], nonce: str, hear: Hear) -> None:
        loop = asyncio.get_running_loop()
        self._child = child
        self._hear = hear
        self._stdin = Input()
        self._stdout = Output("stdout", hear)
        self._stderr = Output("stderr", hear)
        self.identity = Identity(child.pid, start_time(child.pid) or 0, nonce)
        #: Its exit code (minus the signal's number), when everything of it was heard and nothing of it is left.
        self.exited: asyncio.Future[int] = loop.create_future()
        self.stop_asked = False
        self._gone = asyncio.Event()
        self._below: list[Identity] = []
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, spawn: Spawn, cwd: str, environment: Mapping[str, str], nonce: str, hear: Hear
    ) -> AgentProcess:
        """Spawns it. NotInstalled, NoSuchFolder or CannotStart when that is not possible; then nothing is left of it."""
        merged = {**environment, **spawn.environment, NONCE: nonce}
        try:
            child = _spawned(spawn, cwd, merged)
        except (OSError, ValueError) as error:
            raise _refusal(error, spawn.argv[0], cwd, merged) from error
        process = cls(child, nonce, hear)
        try:
            _when_ended(child, process._on_end)
        except OSError as error:
            process._discard()
            raise CannotStart(spawn.argv[0], error.strerror or str(error)) from error
        # not to be cancelled in the middle: then nobody would know whose the descriptors are (uvloop closes them itself)
        connecting = asyncio.ensure_future(process._connect())
        try:
            await asyncio.shield(connecting)
        except BaseException:
            await asyncio.wait([connecting])
            process.kill()
            await asyncio.wait([process.exited])
            raise
        return process

    async def _connect(self) -> None:
        self._hear(Signal("proc", {"event": "start", "pid": self._child.pid}))
        streams = self._child.stdin, self._child.stdout, self._child.stderr
        for pipe, stream in zip((self._stdin, self._stdout, self._stderr), streams):
            assert stream is not None
            await pipe.connect(stream)

    def _discard(self) -> None:
        """There is no descriptor left to watch it by: it ends as if it had never begun."""
        self.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()

    # --- speaking and listening

    def write(self, lines: list[Json]) -> bool:
        """Each as one JSON line, all of them or none. False when it was not taken: the process is gone, which its exit
        tells, or it has not read what it was told for so long that more would only pile up. Never blocks."""
        if lines and not self._stdin.write(b"".join(map(encoded, lines))):
            return False
        for line in lines:
            self._hear(Signal("stdin", line))
        return True

    @property
    def unread(self) -> int:
        """How many bytes wait for the agent to read them."""
        return self._stdin.waiting

    def pause(self) -> None:
        """Nothing is read until `resume`: an agent that says much has to wait. After its end a pipe's worth still comes."""
        if not self._gone.is_set():
            self._stdout.pause()
            self._stderr.pause()

    def resume(self) -> None:
        self._stdout.resume()
        self._stderr.resume()

    @property
    def last_words(self) -> tuple[str, ...]:
        """The last lines of standard error: why it ended, if it said so."""
        return tuple(self._stderr.last)

    # --- the end

    def _on_end(self) -> None:
        """It has ended and was not fetched yet, so its number, and that of its group, are still its own."""
        self._below += members(self._child.pid)
        self._kill_group(signal.SIGKILL)
        self._child.wait()
        self._gone.set()
        self._ending = asyncio.get_running_loop().create_task(self._settled(self._child.returncode))

    async def _settled(self, code: int) -> None:
        try:
            self._stdin.abort()
            await self._swept()
            self.resume()
            await asyncio.wait([self._stdout.ended, self._stderr.ended], timeout=_LAST_WORDS_S)
            self._stdout.close()
            self._stderr.close()
            self._hear(Signal("proc", {"event": "exit", "code": code}))
        finally:
            self.exited.set_result(code)

    async def stop(self, farewell: list[Json], grace: float) -> bool:
        """Ends it, gently first; True when the process and everything that it started are gone and its exit is told.
        False if the kernel will not let go of it."""
        if self.exited.done():
            return True
        self.stop_asked = True
        if not self._gone.is_set():
            self._below = subreaper.launched((self.identity.nonce,))
            self._hear(Signal("proc", {"event": "signal", "signal": int(signal.SIGTERM)}))
            await self._ended_by_stages(farewell, grace)
        return bool((await asyncio.wait([self.exited], timeout=_KILL_S))[0])

    async def _ended_by_stages(self, farewell: list[Json], grace: float) -> None:
        for stage, share in zip((lambda: self._say(farewell), self._close_input, self._terminate), _SHARES):
            if stage() and await self._gone_within(grace * share):
                return
        self._kill_group(signal.SIGKILL)

    def _say(self, farewell: list[Json]) -> bool:
        return bool(farewell) and self.write(farewell)

    def _close_input(self) -> bool:
        if self._stdin.is_open:
            self._stdin.close()
            self._hear(Signal("proc", {"event": "stdin_closed"}))
        return True

    def _terminate(self) -> bool:
        self._kill_group(signal.SIGTERM)
        return True

    def kill(self) -> None:
        """At once."""
        self.stop_asked = True
        self._below = subreaper.launched((self.identity.nonce,))
        self._kill_group(signal.SIGKILL)
        self.sweep()

    def sweep(self) -> bool:
        """Whatever the launch left anywhere is killed, each through a descriptor of exactly that process; whether there
        was anything. What has neither the nonce nor its parent any more was seen in the group, or when the stop began."""
        found = {*subreaper.launched((self.identity.nonce,)), *filter(is_alive, self._below)}
        subreaper.kill(found)
        return bool(found)

    async def _swept(self) -> None:
        """Until nothing is left, also of what was forked meanwhile. Nobody tells us when those end who are not ours."""
        for _ in range(_SWEEPS):
            if not self.sweep():
                return
            await asyncio.sleep(_SWEEP_PAUSE_S)

    async def _gone_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)
        return self._gone.is_set()

    def _kill_group(self, number: signal.Signals) -> None:
        """Only before its leader is fetched: after that the number may be somebody else's."""
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)


# --- spawning and watching


def _spawned(spawn: Spawn, cwd: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """subprocess's own spawn is a millisecond; the loop's one forks, which costs ten in a process of our size."""
    return subprocess.Popen(
        spawn.argv,
        cwd=cwd,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _refusal(error: OSError | ValueError, program: str, cwd: str, environment: Mapping[str, str]) -> QuarterdeckError:
    """What the system's number means to a person."""
    if isinstance(error, ValueError):
        return CannotStart(program, f"its arguments or its environment cannot be passed on: {error}")
    if not os.path.isdir(cwd):
        return NoSuchFolder(cwd)
    if not os.access(cwd, os.X_OK):
        return CannotStart(program, f"the folder {cwd} cannot be entered")
    if isinstance(error, FileNotFoundError) and not _is_there(program, cwd, environment):
        return NotInstalled(os.path.basename(program), program)
    if isinstance(error, FileNotFoundError):
        return CannotStart(program, "the interpreter that its first line names is not there")
    return CannotStart(program, error.strerror or str(error))


def _is_there(program: str, cwd: str, environment: Mapping[str, str]) -> bool:
    if os.sep in program:
        return os.path.exists(os.path.join(cwd, program))
    return shutil.which(program, path=environment.get("PATH")) is not None


def _when_ended(child: subprocess.Popen[bytes], ended: Callable[[], None]) -> None:
    """Calls back when it has ended and before it is fetched. A descriptor of the process becomes readable then: no
    thread waits, nothing polls. Where there are none (macOS), a thread waits."""
    loop = asyncio.get_running_loop()
    if not hasattr(os, "pidfd_open"):
        threading.Thread(target=_wait, args=(child, loop, ended), daemon=True).start()
        return
    descriptor = os.pidfd_open(child.pid)

    def readable() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        ended()

    loop.add_reader(descriptor, readable)


def _wait(child: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    else:
        child.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # at once: a group that has members keeps its number
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested any more
        loop.call_soon_threadsafe(ended)
