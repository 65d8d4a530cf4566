"""Run one agent process: exchange JSON lines with it, report what happens as signals, and stop it in stages.

A stop has four stages: the protocol's farewell, end of input, SIGTERM, and SIGKILL when the grace is over. Each stage
is taken only if the process didn't exit after the one before. Whether the deck stops the agent or it exits by itself,
everything it started is ended before the exit is reported (`process.child`).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from quarterdeck.deck.validation import NoSuchFolder
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json
from quarterdeck.harness.base import Signal
from quarterdeck.harness.driver import NotInstalled, Spawn
from quarterdeck.harness.lines import LineBuffer, Piece
from quarterdeck.process.child import Child, Stream

OnSignal: TypeAlias = Callable[[Signal], None]

#: Longest accepted line of output. A line that never ends must not fill the memory of the whole deck.
LINE_LIMIT = 32 << 20
#: How many lines of standard error to remember as the reason for an exit, and how many characters of each.
_REMEMBERED_LINES, _REMEMBERED_WIDTH = 20, 500

#: How the grace of a stop is divided: after the farewell, after the end of input, after SIGTERM.
_FAREWELL_SHARE, _INPUT_SHARE, _TERMINATE_SHARE = 0.1, 0.2, 0.7
#: How long a stop waits for the exit after SIGKILL. A process in an uninterruptible system call can outlast this.
_KILL_WAIT_S = 5.0


class CannotStart(QuarterdeckError):
    """The agent's program exists, but the system can't run it."""

    code = "cannot_start_agent"

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"can't start {program}: {reason}", "Try to run it in a shell.")


# --------------------------------------------------------------------------------------------------- the process


class AgentProcess:
    """An agent's process. Create it with `AgentProcess.start`.

    Everything it writes, everything written to it, and its start and exit are reported as signals. The exit is the last one.
    """

    def __init__(self, child: Child, outputs: Mapping[Stream, _OutputLines], on_signal: OnSignal) -> None:
        self._child = child
        self._outputs = outputs
        self._on_signal = on_signal
        self.identity = child.identity
        #: Resolves to the exit code (negative: minus the signal number) when the exit was reported and nothing is left.
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reporting = asyncio.get_running_loop().create_task(self._report_exit())

    @classmethod
    def start(
        cls, spawn: Spawn, cwd: str, environment: Mapping[str, str], nonce: str, on_signal: OnSignal
    ) -> AgentProcess:
        """Start the process in its own session, with the nonce in its environment.

        Raises:
            NotInstalled: there is no such program.
            NoSuchFolder: the working directory doesn't exist.
            CannotStart: the system can't run the program.
        """
        outputs: dict[Stream, _OutputLines] = {
            "stdout": _OutputLines("stdout", on_signal),
            "stderr": _OutputLines("stderr", on_signal),
        }
        merged = {**environment, **spawn.environment}
        try:
            child = _spawn(spawn, cwd, merged, nonce, lambda data, stream: outputs[stream].feed(data))
        except (OSError, ValueError) as error:
            raise _start_error(error, spawn.argv[0], cwd, merged) from error
        on_signal(Signal("proc", {"event": "start", "pid": child.identity.pid}))
        return cls(child, outputs, on_signal)

    # ------------------------------------------------------------------------------------- writing and reading

    def write(self, lines: list[Json]) -> bool:
        """Write each value as one JSON line, all of them or none. Never blocks.

        Returns False if nothing was written: the input is closed, or the process has left so much unread that more would
        only pile up. A process that exits during the write is reported by its exit only.
        """
        assert self._child.input is not None
        if lines and not self._child.input.write(b"".join(map(_encode_line, lines))):
            return False
        for line in lines:
            self._on_signal(Signal("stdin", line))
        return True

    @property
    def unread(self) -> int:
        """Number of bytes that wait for the agent to read them."""
        return self._child.input.unread if self._child.input is not None else 0

    def pause(self) -> None:
        """Stop reading, so an agent that writes a lot has to wait. What is in its pipes at its exit is still read."""
        self._child.pause_reading()

    def resume(self) -> None:
        self._child.resume_reading()

    @property
    def last_words(self) -> tuple[str, ...]:
        """The last lines of standard error, which usually give the reason for an exit."""
        return tuple(self._outputs["stderr"].remembered)

    # ------------------------------------------------------------------------------------------------- the exit

    async def stop(self, farewell: list[Json], grace: float) -> bool:
        """Stop the process in stages. Return True when it and everything it started are gone and its exit was reported.

        Returns False if the process can't be killed.
        """
        if self.exited.done():
            return True
        if not self._child.process_exited.is_set():
            # Remember the tree now: what lost its parent and its nonce when the agent exits can't be found afterwards.
            self._child.remember_tree()
            self._on_signal(Signal("proc", {"event": "signal", "signal": int(signal.SIGTERM)}))
            await self._stop_in_stages(farewell, grace)
        return bool((await asyncio.wait([self.exited], timeout=_KILL_WAIT_S))[0])

    async def _stop_in_stages(self, farewell: list[Json], grace: float) -> None:
        child = self._child
        assert child.input is not None
        if farewell and self.write(farewell) and await child.wait_process_exited(grace * _FAREWELL_SHARE):
            return
        if child.input.is_open:
            child.input.close()
            self._on_signal(Signal("proc", {"event": "stdin_closed"}))
        if await child.wait_process_exited(grace * _INPUT_SHARE):
            return
        child.signal_group(signal.SIGTERM)
        if await child.wait_process_exited(grace * _TERMINATE_SHARE):
            return
        child.signal_group(signal.SIGKILL)

    def kill(self) -> None:
        """Kill the process and everything it started, without a farewell."""
        self._child.kill()

    async def _report_exit(self) -> None:
        code = await self._child.exited
        try:
            self._on_signal(Signal("proc", {"event": "exit", "code": code}))
        finally:
            self.exited.set_result(code)


# ---------------------------------------------------------------------------------------------------------- lines


class _OutputLines:
    """Cut one output stream into lines and report each as a signal. Lines over the limit are dropped with a warning."""

    def __init__(self, stream: Stream, on_signal: OnSignal) -> None:
        self._stream = stream
        self._on_signal = on_signal
        self._lines = LineBuffer()
        # The start of an unfinished line, in pieces: joining them on every read would take quadratic time for a long line.
        self._unfinished: list[bytes] = []
        self._unfinished_length = 0
        self._is_skipping = False
        #: The last lines, for standard error only.
        self.remembered: deque[str] = deque(maxlen=_REMEMBERED_LINES)

    def feed(self, data: bytes) -> None:
        """Process a chunk of output. An empty chunk is the end of the stream."""
        if not data:
            self._report(self._lines.feed(b"".join(self._unfinished)))
            self._unfinished = []
            self._report(self._lines.flush())
            return
        end = data.rfind(b"\n") + 1
        if not end:
            self._add_unfinished(data)
            return
        complete, rest = self._complete(data[:end]), data[end:]
        self._unfinished, self._unfinished_length, self._is_skipping = [], 0, False
        if rest:
            self._add_unfinished(rest)
        self._report(self._lines.feed(complete))

    def _complete(self, data: bytes) -> bytes:
        """Return these lines with the start of the first one, or without the first one if it was too long."""
        if self._is_skipping:
            return data[data.find(b"\n") + 1 :]
        return b"".join([*self._unfinished, data]) if self._unfinished else data

    def _add_unfinished(self, data: bytes) -> None:
        if self._is_skipping:
            return
        self._unfinished.append(data)
        self._unfinished_length += len(data)
        if self._unfinished_length > LINE_LIMIT:
            self._unfinished, self._is_skipping = [], True
            warning = f"dropped a line of more than {LINE_LIMIT >> 20} MiB on the agent's {self._stream}"
            self._on_signal(Signal("proc", {"event": "note", "warning": warning}))

    def _report(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self._stream == "stderr":
                text = piece if isinstance(piece, str) else _encode_line(piece).decode(errors="replace").rstrip()
                self.remembered.append(text[:_REMEMBERED_WIDTH])
            self._on_signal(Signal(self._stream, piece))


def _encode_line(line: Json) -> bytes:
    """Encode one JSON line. Half a surrogate pair, which an agent may have sent, is sent back escaped."""
    try:
        return msgspec.json.encode(line) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(line).encode() + b"\n"


# ------------------------------------------------------------------------------------------------------- starting


def _spawn(
    spawn: Spawn, cwd: str, environment: Mapping[str, str], nonce: str, on_output: Callable[[bytes, Stream], None]
) -> Child:
    # No linger: when an agent exits, its tools have nothing left to report to.
    return Child.spawn(spawn.argv, cwd, environment, on_output, nonce=nonce, has_input=True, linger=0)


def _start_error(
    error: OSError | ValueError, program: str, cwd: str, environment: Mapping[str, str]
) -> QuarterdeckError:
    if isinstance(error, ValueError):
        return CannotStart(program, f"its arguments or its environment can't be passed on: {error}")
    if not os.path.isdir(cwd):
        return NoSuchFolder(cwd)
    if not os.access(cwd, os.X_OK):
        return CannotStart(program, f"the folder {cwd} can't be entered")
    if isinstance(error, FileNotFoundError) and not _is_installed(program, cwd, environment):
        return NotInstalled(os.path.basename(program), program)
    if isinstance(error, FileNotFoundError):
        return CannotStart(program, "the interpreter in its first line doesn't exist")
    return CannotStart(program, error.strerror or str(error))


def _is_installed(program: str, cwd: str, environment: Mapping[str, str]) -> bool:
    if os.sep in program:
        return os.path.exists(os.path.join(cwd, program))
    return shutil.which(program, path=environment.get("PATH")) is not None
