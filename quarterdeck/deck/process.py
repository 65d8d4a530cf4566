"""One agent process: spawned in a group of its own, spoken to by lines, and ended so that nothing of it is left.

The order of a stop is the protocol's own farewell, end of input, SIGTERM, and after the grace the kill of everything that
the launch left, in whatever group it hides. Each step is taken only if the one before did not end the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import IO, TypeAlias

import msgspec

from quarterdeck.deck.identity import NONCE, Identity, descendants_of_launch, start_time
from quarterdeck.events import Json
from quarterdeck.harness.base import Signal
from quarterdeck.harness.drive import Spawn
from quarterdeck.harness.lines import LineBuffer

Hear: TypeAlias = Callable[[Signal], None]

#: How long after the exit we wait for the last words in the pipe, which an orphan may hold open.
_LAST_WORDS_S = 0.5


class _Pipe(asyncio.Protocol):
    """One output of the agent, cut into pieces."""

    def __init__(self, source: str, hear: Hear) -> None:
        self._source = source
        self._hear = hear
        self._lines = LineBuffer()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        for piece in self._lines.feed(data):
            self._hear(Signal(self._source, piece))

    def connection_lost(self, exc: Exception | None) -> None:
        for piece in self._lines.flush():
            self._hear(Signal(self._source, piece))
        if not self.ended.done():
            self.ended.set_result(None)


class AgentProcess:
    """Start one with `await AgentProcess.start(...)`. Everything that comes from it is heard as signals, the exit last."""

    def __init__(self, child: subprocess.Popen[bytes], nonce: str, hear: Hear) -> None:
        self._child = child
        self._hear = hear
        self._pipes: list[_Pipe] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.WriteTransport | None = None
        self.identity = Identity(child.pid, start_time(child.pid) or 0, nonce)
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.stop_asked = False
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, spawn: Spawn, cwd: str, environment: Mapping[str, str], nonce: str, hear: Hear
    ) -> AgentProcess:
        """Spawns it. OSError when the program or the folder is not there."""
        child = _spawned(spawn, cwd, {**environment, **spawn.environment, NONCE: nonce})
        process = cls(child, nonce, hear)
        await process._connect()
        return process

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._child.stdin is not None
        self._hear(Signal("proc", {"event": "start", "pid": self._child.pid}))
        for source, stream in (("stdout", self._child.stdout), ("stderr", self._child.stderr)):
            await self._listen(source, stream)
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._child.stdin)
        self._stdin = transport
        self._watch_exit(loop)

    async def _listen(self, source: str, stream: IO[bytes] | None) -> None:
        assert stream is not None
        pipe = _Pipe(source, self._hear)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pipe, stream)
        self._pipes.append(pipe)
        self._transports.append(transport)

    def _watch_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """A descriptor of the process becomes readable when it ends: no thread waits, nothing polls."""
        descriptor = os.pidfd_open(self._child.pid)

        def ended() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            self._ending = loop.create_task(self._on_exit())

        loop.add_reader(descriptor, ended)

    async def _on_exit(self) -> None:
        code = self._child.wait()
        await asyncio.wait([pipe.ended for pipe in self._pipes], timeout=_LAST_WORDS_S)
        for transport in self._transports:
            transport.close()
        if self._stdin is not None:
            self._stdin.close()
        self._hear(Signal("proc", {"event": "exit", "code": code}))
        self.exited.set_result(code)

    def write(self, lines: list[Json]) -> None:
        """Each as one JSON line. What is written to a process that is gone is lost, and its exit says so."""
        if self._stdin is None or self._stdin.is_closing():
            return
        for line in lines:
            self._hear(Signal("stdin", line))
            self._stdin.write(msgspec.json.encode(line) + b"\n")

    async def stop(self, farewell: list[Json], grace: float) -> None:
        """Ends it, gently first. Returns when the process and everything that it started are gone."""
        self.stop_asked = True
        self._hear(Signal("proc", {"event": "signal", "signal": 15}))
        self.write(farewell)
        if self._stdin is not None:
            self._stdin.close()
        if not await self._gone_within(grace / 5):
            self._kill_group(signal.SIGTERM)
            if not await self._gone_within(grace):
                self._kill_group(signal.SIGKILL)
        await asyncio.wait([self.exited])
        self.sweep()

    def kill(self) -> None:
        """At once."""
        self.stop_asked = True
        self._kill_group(signal.SIGKILL)
        self.sweep()

    def sweep(self) -> None:
        """Whatever the launch left anywhere is ended."""
        for pid in descendants_of_launch(self.identity.nonce):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    async def _gone_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self.exited], timeout=seconds)
        return bool(done)

    def _kill_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


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
