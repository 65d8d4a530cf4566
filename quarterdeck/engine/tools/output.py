"""Collect a command's output: stream it to watchers, shorten it for the model, and store all of it if it is long."""

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

#: How long to collect chunks before reporting them. One event for every few bytes would only be noise.
_BATCH_S = 0.03
#: Folder in the session's store. Large results of other tools are stored there too.
FOLDER = "large_tool_results"


class Limits(Struct, frozen=True, kw_only=True):
    """How much of an output is shown to the model."""

    #: Characters shown from the start and from the end.
    head: int = 15_000
    tail: int = 15_000
    #: Characters streamed while the command runs.
    live: int = 256_000
    #: Bytes after which the command is ended.
    total: int = 64 * 1024 * 1024


class CommandOutput:
    """The output of one command. Feed it with `add`, then call `finish` once."""

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
        self._live = _LiveOutput(context, limits.live)
        #: Number of bytes received.
        self.size = 0
        #: Set when more than `Limits.total` was received.
        self.overflowed = asyncio.Event()
        #: Name of the stored output in the session's store, or "" if all of it is shown.
        self.path = ""

    def add(self, data: bytes, stream: Stream) -> None:
        if self.overflowed.is_set():
            return
        self.size += len(data)
        self._add_raw(data)
        self._add_text(self._decoders[stream].decode(data), stream)
        if self.size > self._limits.total:
            self.overflowed.set()

    def finish(self) -> str:
        """Close the file and return what the model gets to see."""
        for stream in ("stdout", "stderr"):
            self._add_text(self._decoders[stream].decode(b"", final=True), stream)
        self._live.flush()
        if self._file is not None:
            self._file.close()
        tail = "".join(self._tail)
        omitted = max(0, len(tail) - self._limits.tail) + self._length - len(self._head) - len(tail)
        if not omitted:
            self._remove_file()
            return self._head + tail
        return f"{self._head}\n{_omission_note(omitted, self.path)}\n{tail[-self._limits.tail :]}"

    def _add_text(self, text: str, stream: Stream) -> None:
        # Providers and terminals can't handle NUL characters.
        text = text.replace("\0", "�")
        if not text:
            return
        self._live.add(text, stream)
        self._length += len(text)
        room = self._limits.head - len(self._head)
        self._head += text[:room]
        if rest := text[room:]:
            self._tail.append(rest)
            self._tail_length += len(rest)
            while self._tail_length - len(self._tail[0]) >= self._limits.tail:
                self._tail_length -= len(self._tail.popleft())

    def _add_raw(self, data: bytes) -> None:
        # Keep the bytes in memory while the model would see all of them. After that, write them to a file unchanged.
        if self._file is None:
            self._raw.append(data)
            if self.size <= self._limits.head + self._limits.tail:
                return
            self.path, self._file = create_result_file(self._context)
            data = b"".join(self._raw)
            self._raw.clear()
        self._file.write(data)

    def _remove_file(self) -> None:
        # The file was started by the number of bytes. There were fewer characters, and all of them fit after all.
        if self.path:
            (self._context.store / self.path).unlink(missing_ok=True)
            self.path = ""


class _LiveOutput:
    """Report output while it arrives, in batches and up to a limit."""

    def __init__(self, context: ToolContext, room: int) -> None:
        self._context = context
        self._room = room
        self._chunks: list[tuple[str, Stream]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str, stream: Stream) -> None:
        if self._room <= 0:
            return
        self._chunks.append((text[: self._room], stream))
        self._room -= len(text)
        if self._room <= 0:
            self._chunks.append(("\n[live output stops here; the result will have more]\n", stream))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        chunks, self._chunks = self._chunks, []
        while chunks:
            stream = chunks[0][1]
            count = next((at for at, chunk in enumerate(chunks) if chunk[1] != stream), len(chunks))
            self._context.output("".join(text for text, _ in chunks[:count]), stream)
            del chunks[:count]


# --------------------------------------------------------------------------------------------------- large results


def create_result_file(context: ToolContext) -> tuple[str, BinaryIO]:
    """Create a file in the session's store. Return its name there, which `read_file` accepts, and the open file.

    The name is relative to the store, so it stays valid if the store is moved.
    """
    # A model or provider chose the call id, so it may contain anything.
    safe_id = re.sub(r"[^\w-]", "_", context.call_id, flags=re.ASCII)[:60]
    name = f"{FOLDER}/{safe_id}-{secrets.token_hex(4)}.txt"
    path = context.store / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return name, open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def shorten(text: str, context: ToolContext, limits: Limits) -> tuple[str, str]:
    """Cut the middle out of a long text and store all of it. Return the text to show and the name of the stored file.

    A text within the limits is returned unchanged, with "" as the name.
    """
    if len(text) <= limits.head + limits.tail:
        return text, ""
    name, file = create_result_file(context)
    with file:
        file.write(text.encode("utf-8", "replace"))
    tail = text[len(text) - limits.tail :]
    return f"{text[: limits.head]}\n{_omission_note(len(text) - limits.head - limits.tail, name)}\n{tail}", name


def _omission_note(count: int, name: str) -> str:
    return f"[{count} characters omitted; read {name} with read_file to see all of it]"
