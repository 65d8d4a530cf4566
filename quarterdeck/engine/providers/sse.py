"""Server-sent events, read from bytes that may be cut anywhere. Only what the services send as `data` matters here."""

from __future__ import annotations

#: More than this without an end is no event.
LONGEST = 1 << 26
_NEWLINE, _SPACE = 10, 32


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
        return _quickly(whole[: end + 2])

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


def _quickly(events: bytes) -> list[bytes]:
    """Nearly every event has one line of data, the last of its lines. Cutting there takes half the time."""
    found: list[bytes] = []
    for piece in (b"\n" + events).split(b"\ndata:")[1:]:
        end = piece.find(b"\n")
        # an empty line must follow, of which the cut has taken the end if data follows on that
        if end < 2 or (end + 1 != len(piece) and piece[end + 1] != _NEWLINE):
            return _carefully(events)
        found.append(piece[1:end] if piece[0] == _SPACE else piece[:end])
    return found


def _carefully(events: bytes) -> list[bytes]:
    return [data for block in events.split(b"\n\n") if (data := _data(block)) is not None]


def _data(block: bytes) -> bytes | None:
    """The lines of data, joined; None for a comment, a mere name, or data with nothing in it, which keeps lines open."""
    lines = block.split(b"\n")
    found = [line[6:] if line[5:6] == b" " else line[5:] for line in lines if line[:5] == b"data:"]
    return b"\n".join(found) or None
