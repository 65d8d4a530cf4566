"""The three pipes of an agent process: what comes out is cut into pieces and bounded, what goes in never blocks."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import IO, TypeAlias

import msgspec

from quarterdeck.events import Json
from quarterdeck.harness.base import Signal
from quarterdeck.harness.lines import LineBuffer, Piece

Hear: TypeAlias = Callable[[Signal], None]

#: No agent means a longer line than this. One that never ends must not fill the memory of everybody else's deck.
LINE_LIMIT = 32 << 20
#: What may wait for an agent that does not read. One write is always taken whole, so a large image passes.
WRITE_LIMIT = 4 << 20
#: How many lines of standard error explain an end, and how much of each.
LAST_LINES, LAST_WIDTH = 20, 500


class Output(asyncio.Protocol):
    """One output of the agent, cut into pieces."""

    def __init__(self, source: str, hear: Hear) -> None:
        self._source = source
        self._hear = hear
        self._lines = LineBuffer()
        self._begun: list[bytes] = []
        self._length = 0
        self._skips = False
        self._transport: asyncio.ReadTransport | None = None
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self, stream: IO[bytes]) -> None:
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, stream)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Only whole lines go on; the begun one is kept in pieces, because joining it each time would cost its square."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._begin(data)
            return
        whole, rest = self._whole(data[:cut]), data[cut:]
        self._begun, self._length, self._skips = [], 0, False
        if rest:
            self._begin(rest)
        self._tell(self._lines.feed(whole))

    def _whole(self, data: bytes) -> bytes:
        """These lines with what was begun of the first; without the first if that was too long."""
        if self._skips:
            return data[data.find(b"\n") + 1 :]
        return b"".join([*self._begun, data]) if self._begun else data

    def _begin(self, data: bytes) -> None:
        if self._skips:
            return
        self._begun.append(data)
        self._length += len(data)
        if self._length > LINE_LIMIT:
            self._begun, self._skips = [], True
            text = f"a line of more than {LINE_LIMIT >> 20} MiB on the agent's {self._source} was left out"
            self._hear(Signal("proc", {"event": "note", "warning": text}))

    def _tell(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self._source == "stderr":
                self.last.append(_shown(piece)[:LAST_WIDTH])
            self._hear(Signal(self._source, piece))

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(self._lines.feed(b"".join(self._begun)))
        self._begun = []
        self._tell(self._lines.flush())
        if not self.ended.done():
            self.ended.set_result(None)


def _shown(piece: Piece) -> str:
    return piece if isinstance(piece, str) else encoded(piece).decode(errors="replace").rstrip()


class Input(asyncio.BaseProtocol):
    """Standard input. What the agent does not read waits here, up to a limit. Its end is no error: the exit tells it."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None

    async def connect(self, stream: IO[bytes]) -> None:
        self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, stream)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting(self) -> int:
        """How many bytes the agent has not read yet, beyond what the kernel holds for it."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> bool:
        """All of it or nothing; nothing when the agent is gone or so far behind that more is pointless."""
        if self._transport is None or not self.is_open or self.waiting > WRITE_LIMIT:
            return False
        self._transport.write(data)
        return True

    def close(self) -> None:
        """After what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Nobody reads it any more, but an orphan may hold it open. Twice, or after its end, asyncio would stumble."""
        if self._transport is not None and (self.is_open or self.waiting):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None


def encoded(line: Json) -> bytes:
    """One JSON line. Half a surrogate pair, which an agent may have sent us, goes back as it came: escaped."""
    try:
        return msgspec.json.encode(line) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(line).encode() + b"\n"
