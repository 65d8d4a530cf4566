"""Server-sent events, read from bytes that may be cut anywhere. Only what the services send as `data` matters here."""

from __future__ import annotations

#: More than this without an end is no event.
LONGEST = 1 << 26


class TooLong(ValueError):
    """An event that does not end."""


class Events:
    """One stream. `feed` gives the data of every event that is whole by now; `close` that of a last one without its end."""

    __slots__ = ("_after_return", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False

    def feed(self, piece: bytes) -> list[bytes]:
        """TooLong."""
        if self._after_return or b"\r" in piece:
            piece = self._plain(piece)
        whole = self._rest + piece if self._rest else piece
        end = whole.rfind(b"\n\n")
        if end < 0:
            self._rest = whole
            if len(whole) > LONGEST:
                raise TooLong
            return []
        self._rest = whole[end + 2 :]
        found: list[bytes] = []
        for block in whole[:end].split(b"\n\n"):
            # nearly every event is one line of data, or its name and one line of data
            if block[:6] == b"data: " and b"\n" not in block and len(block) > 6:
                found.append(block[6:])
            elif (data := _data(block)) is not None:
                found.append(data)
        return found

    def close(self) -> list[bytes]:
        """Some servers forget the empty line at the very end. Whoever decodes this finds out whether it was whole."""
        rest, self._rest = self._rest, b""
        data = _data(rest)
        return [] if data is None else [data]

    def _plain(self, piece: bytes) -> bytes:
        """Lines may end with \\r\\n or \\r as well. A \\r at the end of a piece may have its \\n in the next one."""
        if self._after_return and piece[:1] == b"\n":
            piece = piece[1:]
        if piece:
            self._after_return = piece[-1:] == b"\r"
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(block: bytes) -> bytes | None:
    """The lines of data, joined; None for a comment, a mere name, or data with nothing in it, which keeps lines open."""
    lines = block.split(b"\n")
    found = [line[6:] if line[5:6] == b" " else line[5:] for line in lines if line[:5] == b"data:"]
    return b"\n".join(found) or None
