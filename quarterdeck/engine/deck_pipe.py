"""Log through the deck: an agent in its own process writes its events to the deck, which appends them to its log.

Events go out on standard output as JSON lines, one line per batch. After a batch that holds more than deltas, the pipe
writes `{"keep": N}`. The deck answers `{"op": "kept", "n": N}` once everything before that line is durable, and only then
does the append return. So no tool runs before the log knows of its call. Some events are only the deck's to write (that a
session was opened, that a message is queued); the deck already has them, so they aren't sent.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from quarterdeck import events as ev
from quarterdeck.errors import MalformedEvent
from quarterdeck.events import DELTAS, Body, encode_body
from quarterdeck.log.base import Append, LogUnavailable, Receipt

#: Events that the deck writes itself.
_WRITTEN_BY_DECK = (
    ev.SessionOpened,
    ev.SessionResumed,
    ev.SessionSuspended,
    ev.TurnRestored,
    ev.PromptQueued,
    ev.SettingChanged,
)
#: The line that restores a session holds its whole history.
_MAX_LINE_BYTES = 1 << 30


class DeckPipe(asyncio.BaseProtocol):
    """An appender whose log is the deck at the other end of a pipe."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        #: Appends that the deck hasn't confirmed yet, by number.
        self._unconfirmed: dict[int, asyncio.Future[None]] = {}
        self._last_number = 0
        self._is_leaving = False
        self._closed = asyncio.Event()

    @classmethod
    async def connect(cls, stream: IO[bytes]) -> DeckPipe:
        """Return a pipe that writes to `stream`."""
        pipe = cls()
        pipe._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: pipe, stream)
        return pipe

    def send(self, *bodies: Body) -> None:
        """Send events that aren't part of the agent's own session log, without waiting for them."""
        self._write(bodies)

    async def append(self, append: Append) -> Receipt:
        """Send events to the deck and wait until the deck has stored them.

        Raises:
            LogUnavailable: the deck closed the pipe.
        """
        if self._transport is None or self._transport.is_closing():
            raise LogUnavailable("the deck closed the pipe")
        self._write(event.body for event in append.events)
        if not self._is_leaving and any(type(event.body) not in DELTAS for event in append.events):
            self._last_number += 1
            self._transport.write(b'{"keep":%d}\n' % self._last_number)
            confirmed = self._unconfirmed[self._last_number] = asyncio.get_running_loop().create_future()
            await confirmed
        # The deck numbers events itself, so neither fences nor cursors cross the pipe.
        return Receipt(append.fence, append.events)

    def confirm(self, number: object) -> None:
        """Resume the appends up to this number: the deck has stored them."""
        if isinstance(number, int):
            for done in [done for done in self._unconfirmed if done <= number]:
                _resolve(self._unconfirmed.pop(done))

    def stop_waiting(self) -> None:
        """Send events without waiting for the deck from now on: it said goodbye and will confirm nothing more."""
        self._is_leaving = True
        self.confirm(self._last_number)

    def _write(self, bodies: Iterable[Body]) -> None:
        lines = [_encode_line(batch) for batch in batches(b for b in bodies if not isinstance(b, _WRITTEN_BY_DECK))]
        if lines and self._transport is not None:
            self._transport.write(b"".join(lines))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all appends that the deck can't confirm any more."""
        self._transport = None
        self._closed.set()
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for future in unconfirmed.values():
            if not future.done():
                future.set_exception(LogUnavailable("the deck closed the pipe"))

    async def close(self) -> None:
        """Close the pipe once everything written to it is sent."""
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def batches(bodies: Iterable[Body]) -> Iterator[list[Body]]:
    """Split events into batches after each `StateChange`.

    The agent writes its new activity last, so a reader that folds a whole batch never sees owners that contradict each
    other.
    """
    batch: list[Body] = []
    for body in bodies:
        batch.append(body)
        if type(body) is ev.StateChange:
            yield batch
            batch = []
    if batch:
        yield batch


def _encode_line(batch: Sequence[Body]) -> bytes:
    """Encode a single event as itself, and several as `{"events": [...]}`."""
    encoded = [_encode(body) for body in batch]
    return (encoded[0] if len(encoded) == 1 else b'{"events":[' + b",".join(encoded) + b"]}") + b"\n"


def _encode(body: Body) -> bytes:
    try:
        return encode_body(body)
    except MalformedEvent as error:
        # A tool can return values that JSON can't represent. Losing one event is better than ending the agent.
        return encode_body(ev.Notice(text=f"an event couldn't be encoded: {error.message}", level="error"))


def take_stdio() -> tuple[IO[bytes], IO[bytes]]:
    """Return standard input and output, and replace both so that nothing else in this process can use them.

    Whatever a plugin or a library prints goes to standard error, and processes that tools start read from /dev/null.
    """
    reader, writer = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    with open(os.devnull, "rb") as devnull:
        os.dup2(devnull.fileno(), 0)
    sys.stdout.flush()
    os.dup2(2, 1)
    return reader, writer


async def read_lines(stream: IO[bytes]) -> asyncio.StreamReader:
    """Return a reader for the lines of `stream`."""
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    return reader
