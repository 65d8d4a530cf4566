"""What a command says: live for whoever watches, its head and tail for the model, all of it in a file if it is much."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import secrets
from collections import deque
from typing import BinaryIO

from msgspec import Struct

from quarterdeck.engine.tools.base import ToolContext
from quarterdeck.process.child import Stream

#: How long pieces are gathered before they are told: an event for every few bytes helps nobody.
_GATHER_S = 0.03
#: Of the session's store; large results of other tools lie there too.
FOLDER = "large_tool_results"


class Limits(Struct, frozen=True, kw_only=True):
    """How much of an output is kept, in characters; `total` in bytes, after which the command is ended."""

    head: int = 15_000
    tail: int = 15_000
    live: int = 256_000
    total: int = 64 * 1024 * 1024


class Collected:
    """The output of one call."""

    def __init__(self, context: ToolContext, limits: Limits) -> None:
        self._context = context
        self._limits = limits
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._head = ""
        self._tail: deque[str] = deque()
        self._tail_length = 0
        self._length = 0
        self._raw: list[bytes] = []
        self._file: BinaryIO | None = None
        self._live = _Live(context, limits.live)
        #: How many bytes came.
        self.size = 0
        #: Set when more came than `total`.
        self.overflowed = asyncio.Event()
        self.path = ""

    def hear(self, data: bytes, stream: Stream) -> None:
        if self.overflowed.is_set():
            return
        self.size += len(data)
        self._keep_raw(data)
        self._keep_text(self._decoders[stream].decode(data), stream)
        if self.size > self._limits.total:
            self.overflowed.set()

    def _keep_text(self, text: str, stream: Stream) -> None:
        # providers and terminals stumble over NUL
        text = text.replace("\0", "�")
        if not text:
            return
        self._live.say(text, stream)
        self._length += len(text)
        room = self._limits.head - len(self._head)
        self._head += text[:room]
        if rest := text[room:]:
            self._tail.append(rest)
            self._tail_length += len(rest)
            while self._tail_length - len(self._tail[0]) >= self._limits.tail:
                self._tail_length -= len(self._tail.popleft())

    def _keep_raw(self, data: bytes) -> None:
        """In memory while the model is shown all of it, then in a file, byte by byte as it came."""
        if self._file is None:
            self._raw.append(data)
            if self.size <= self._limits.head + self._limits.tail:
                return
            self._file = self._opened()
            data = b"".join(self._raw)
            self._raw.clear()
        self._file.write(data)

    def _opened(self) -> BinaryIO:
        self.path, file = stored(self._context)
        return file

    def finish(self) -> str:
        """What the model is told; nothing is held any longer."""
        for stream in ("stdout", "stderr"):
            self._keep_text(self._decoders[stream].decode(b"", final=True), stream)
        self._live.flush()
        if self._file is not None:
            self._file.close()
        tail = "".join(self._tail)
        left_out = max(0, len(tail) - self._limits.tail) + self._length - len(self._head) - len(tail)
        if not left_out:
            self._forget_file()
            return self._head + tail
        return f"{self._head}\n{_left_out(left_out, self.path)}\n{tail[-self._limits.tail :]}"

    def _forget_file(self) -> None:
        """More bytes than characters: nothing was left out after all."""
        if self.path:
            (self._context.store / self.path).unlink(missing_ok=True)
            self.path = ""


class _Live:
    """Tells output while it comes, some at a time, and not without end."""

    def __init__(self, context: ToolContext, room: int) -> None:
        self._context = context
        self._room = room
        self._pieces: list[tuple[str, Stream]] = []
        self._timer: asyncio.TimerHandle | None = None

    def say(self, text: str, stream: Stream) -> None:
        if self._room <= 0:
            return
        self._pieces.append((text[: self._room], stream))
        self._room -= len(text)
        if self._room <= 0:
            self._pieces.append(("\n[more output is not shown while it runs]\n", stream))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pieces, self._pieces = self._pieces, []
        while pieces:
            stream = pieces[0][1]
            count = next((at for at, piece in enumerate(pieces) if piece[1] != stream), len(pieces))
            self._context.output("".join(text for text, _ in pieces[:count]), stream)
            del pieces[:count]


def stored(context: ToolContext) -> tuple[str, BinaryIO]:
    """A new file in the session's store, and its name there, by which `read_file` finds it wherever the store is then.

    The call's id was made up by a model or a provider: it may hold anything.
    """
    plain = re.sub(r"[^\w-]", "_", context.call_id, flags=re.ASCII)[:60]
    name = f"{FOLDER}/{plain}-{secrets.token_hex(4)}.txt"
    path = context.store / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return name, open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def shortened(text: str, context: ToolContext, limits: Limits) -> tuple[str, str]:
    """A text of which the model is shown the two ends, and the name of the whole; as it is, and "", when it is short."""
    if len(text) <= limits.head + limits.tail:
        return text, ""
    name, file = stored(context)
    with file:
        file.write(text.encode("utf-8", "replace"))
    tail = text[len(text) - limits.tail :]
    return f"{text[: limits.head]}\n{_left_out(len(text) - limits.head - limits.tail, name)}\n{tail}", name


def _left_out(count: int, name: str) -> str:
    return f"[{count} characters left out; the whole of it is in {name}, which read_file can read]"
