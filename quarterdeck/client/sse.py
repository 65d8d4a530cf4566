"""Parse Server-Sent Events. No I/O, and cheap to import."""

from __future__ import annotations

from typing import NamedTuple


class EventBlock(NamedTuple):
    """One block of a stream."""

    name: str
    id: str
    data: bytes


class BlockParser:
    """Split a byte stream into blocks. Keeps at most one incomplete block."""

    def __init__(self) -> None:
        self._incomplete: list[bytes] = []

    def feed(self, data: bytes) -> list[EventBlock]:
        """Return the blocks that these bytes complete. Blocks without data are heartbeats and are dropped."""
        # The blank line that ends a block can be split between two reads.
        if self._incomplete and not (b"\n\n" in data or data.startswith(b"\n")):
            self._incomplete.append(data)
            return []
        *complete, rest = b"".join([*self._incomplete, data]).split(b"\n\n")
        self._incomplete = [rest] if rest else []
        return [block for text in complete if (block := _parse_block(text)) is not None]


def _parse_block(text: bytes) -> EventBlock | None:
    name, block_id, data = "", "", b""
    for line in text.split(b"\n"):
        if line.startswith(b"data: "):
            data += line[6:]
        elif line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"id: "):
            block_id = line[4:].decode()
    return EventBlock(name, block_id, data) if data else None
