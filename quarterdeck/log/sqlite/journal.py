"""The deltas of a store: packed by commit group, and dropped group by group once all of a group are restated."""

from __future__ import annotations

from collections.abc import Iterable, Set

import msgspec
from msgspec import Struct

from quarterdeck.events import decode_body
from quarterdeck.log.base import LogUnavailable
from quarterdeck.log.deltas import delta_target


class Piece(Struct, frozen=True, array_like=True, gc=False):
    """One delta as it is packed; `session` is the session's number."""

    cursor: int
    session: int
    index: int
    at: int
    origin: str
    body: bytes


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Piece]).decode


def packed(pieces: list[Piece]) -> bytes:
    """The pieces of a commit group in one blob."""
    return _pack(pieces)


def unpacked(blob: bytes) -> list[Piece]:
    """And back. LogUnavailable when that cannot be."""
    try:
        return _unpack(blob)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise LogUnavailable(f"deltas cannot be read ({error})", "The file is damaged: restore a backup.") from None


class Journal:
    """Which packs still hold a delta that nothing restates, and whose pieces lie in them. Kept in memory, found again from
    the store at start. A pack is named after the cursor of its first piece."""

    def __init__(self) -> None:
        self._open_in_pack: dict[int, set[tuple[int, str]]] = {}
        self._packs_of: dict[tuple[int, str], list[int]] = {}
        self._sessions_in: dict[int, set[int]] = {}
        self._packs_with: dict[int, set[int]] = {}

    def load(self, packs: Iterable[tuple[int, bytes]]) -> dict[tuple[int, str], int]:
        """What a store held when it was opened. Returns the index of the last piece of each whole."""
        last: dict[tuple[int, str], int] = {}
        for cursor, blob in packs:
            pieces = unpacked(blob)
            parts = [(piece.session, delta_target(decode_body(piece.body)[0])) for piece in pieces]
            self.add(cursor, parts)
            last.update(zip(parts, (piece.index for piece in pieces), strict=True))
        return last

    def add(self, cursor: int, parts: Iterable[tuple[int, str]]) -> None:
        """A pack that holds pieces of these (session, whole)."""
        open_parts = self._open_in_pack.setdefault(cursor, set())
        for part in parts:
            if part not in open_parts:
                open_parts.add(part)
                self._packs_of.setdefault(part, []).append(cursor)
        sessions = self._sessions_in[cursor] = {session for session, _ in open_parts}
        for session in sessions:
            self._packs_with.setdefault(session, set()).add(cursor)

    def droppable(self, told: Set[tuple[int, str]]) -> list[int]:
        """The packs that hold nothing more once these wholes are restated. Changes nothing: the commit may fail."""
        packs = {cursor for part in told for cursor in self._packs_of.get(part, ())}
        return [cursor for cursor in packs if self._open_in_pack[cursor] <= told]

    def tell(self, told: Set[tuple[int, str]]) -> None:
        """These wholes are restated, durably."""
        for part in told:
            for cursor in self._packs_of.pop(part, ()):
                self._open_in_pack[cursor].discard(part)
                if not self._open_in_pack[cursor]:
                    del self._open_in_pack[cursor]
                    self._dropped(cursor)

    def parts_of(self, session: int) -> set[tuple[int, str]]:
        """Everything of a session that is not restated."""
        open_parts = (self._open_in_pack[cursor] for cursor in self._packs_with.get(session, ()))
        return {part for parts in open_parts for part in parts if part[0] == session}

    def holds(self, cursor: int) -> bool:
        """Whether this pack is still needed."""
        return cursor in self._open_in_pack

    def packs_with(self, session: int) -> set[int]:
        """The packs that hold a piece of a session, restated or not."""
        return self._packs_with.get(session, set())

    def forget(self, session: int) -> None:
        """The session is gone, durably, and its pieces with it."""
        self.tell(self.parts_of(session))
        for cursor in self._packs_with.pop(session, ()):
            self._sessions_in[cursor].discard(session)

    def _dropped(self, cursor: int) -> None:
        for session in self._sessions_in.pop(cursor):
            packs = self._packs_with[session]
            packs.discard(cursor)
            if not packs:
                del self._packs_with[session]
