"""Server-Sent Events: bytes as they come, into blocks. Pure, and light enough for the command line."""

from __future__ import annotations

from typing import NamedTuple


class Block(NamedTuple):
    """One block of a stream."""

    name: str
    id: str
    data: bytes


class Splitter:
    """It holds no more than one block that is not whole yet."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> list[Block]:
        """The blocks that these bytes complete; what has no data is a heartbeat."""
        # the end of a block may have come in two pieces
        if self._rest and not (b"\n\n" in data or data.startswith(b"\n")):
            self._rest.append(data)
            return []
        *whole, rest = b"".join([*self._rest, data]).split(b"\n\n")
        self._rest = [rest] if rest else []
        return [block for text in whole if (block := _block(text)) is not None]


def _block(text: bytes) -> Block | None:
    name, identifier, data = "", "", b""
    for line in text.split(b"\n"):
        if line.startswith(b"data: "):
            data += line[6:]
        elif line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"id: "):
            identifier = line[4:].decode()
    return Block(name, identifier, data) if data else None
