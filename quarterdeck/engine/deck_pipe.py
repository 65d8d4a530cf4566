"""The deck on the other end of the pipes: for an agent in a process of its own it is the log.

Everything that the agent writes goes out as JSON lines, one for each batch of events. Behind what is more than words in
pieces comes `{"keep": N}`, and the deck answers `{"op": "kept", "n": N}` when all of it is durable; only then does the agent
go on to what depends on it. So no call runs that the log does not know of. What only a deck may say (that a session opens,
that a text waits) it says itself, so that is left out.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO

from quarterdeck import events as ev
from quarterdeck.errors import MalformedEvent
from quarterdeck.events import DELTAS, Body, Event, encode_body
from quarterdeck.log.base import PAGE, Append, LogUnavailable, Receipt, Told

#: What the deck knows before the agent does, and has in its log.
_ITS_OWN = (
    ev.SessionOpened,
    ev.SessionResumed,
    ev.SessionSuspended,
    ev.TurnRestored,
    ev.PromptQueued,
    ev.SettingChanged,
)
#: One line holds the whole history of a session that goes on.
_LONGEST_LINE = 1 << 30


class DeckLog(asyncio.BaseProtocol):
    """Writes to one pipe. As a log it keeps nothing that could be read back: the deck does."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, tuple[Told, Receipt]] = {}
        self._number = 0
        self._is_leaving = False
        self._closed = asyncio.Event()

    @classmethod
    async def on(cls, stream: IO[bytes]) -> DeckLog:
        log = cls()
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: log, stream)
        log._transport = transport
        return log

    def say(self, *bodies: Body) -> None:
        """Beside the conversation: what is not part of the agent's own log."""
        self._write(bodies)

    # --- the log's port, as far as an agent uses it

    def submit(self, append: Append, told: Told) -> None:
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            loop.call_soon(told, None, LogUnavailable("the deck is gone"))
            return
        self._write(event.body for event in append.events)
        receipt = Receipt(append.fence, append.events)
        if self._is_leaving or all(type(event.body) in DELTAS for event in append.events):
            loop.call_soon(told, receipt, None)
            return
        self._number += 1
        self._waiting[self._number] = (told, receipt)
        self._transport.write(b'{"keep":%d}\n' % self._number)

    def kept(self, number: object) -> None:
        """The deck has it, and whatever came before it."""
        if isinstance(number, int):
            for one in [one for one in self._waiting if one <= number]:
                told, receipt = self._waiting.pop(one)
                told(receipt, None)

    def leave(self) -> None:
        """Nobody answers any more: what is said from here on is said, and that is all."""
        self._is_leaving = True
        self.kept(self._number)

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        return []

    def _write(self, bodies: Iterable[Body]) -> None:
        data = b"".join(map(_line, batches(body for body in bodies if not isinstance(body, _ITS_OWN))))
        if data and self._transport is not None:
            self._transport.write(data)

    # --- the pipe

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed.set()
        waiting, self._waiting = self._waiting, {}
        for told, _ in waiting.values():
            told(None, LogUnavailable("the deck is gone"))

    async def close(self) -> None:
        """What was said is out."""
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()


def batches(bodies: Iterable[Body]) -> Iterator[list[Body]]:
    """What belongs together: the owners agree at the end of a batch and not before. A new activity is always such an end;
    what comes until then may as well be told in one piece."""
    batch: list[Body] = []
    for body in bodies:
        batch.append(body)
        if type(body) is ev.StateChange:
            yield batch
            batch = []
    if batch:
        yield batch


def _line(batch: Sequence[Body]) -> bytes:
    """One event as it is, several as a list."""
    told = [_told(body) for body in batch]
    return (told[0] if len(told) == 1 else b'{"events":[' + b",".join(told) + b"]}") + b"\n"


def _told(body: Body) -> bytes:
    try:
        return encode_body(body)
    except MalformedEvent as error:  # a tool gave what JSON cannot say
        return encode_body(ev.Notice(text=f"an event could not be told: {error.message}", level="error"))


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Our standard input and output, for nobody else: whatever a plugin or a library prints goes to standard error, and
    no process that a tool starts has them."""
    reader, writer = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout.flush()
    os.dup2(2, 1)
    return reader, writer


async def lines_of(stream: IO[bytes]) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    return reader
