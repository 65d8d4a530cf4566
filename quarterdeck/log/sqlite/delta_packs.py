"""Pack deltas: all deltas of one commit are one row of the store, which is deleted once all of them are restated.

A pack is named after the cursor of its first delta. A *part* is a session's number and a target (see `log/deltas.py`): what
a delta belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TypeAlias

import msgspec
from msgspec import Struct

from quarterdeck.events import decode_body
from quarterdeck.log.base import LogUnavailable
from quarterdeck.log.deltas import delta_target

Part: TypeAlias = tuple[int, str]


class PackedDelta(Struct, frozen=True, array_like=True, gc=False):
    """One delta as it is stored in a pack."""

    cursor: int
    #: The session's number in the store.
    session: int
    index: int
    at: int
    origin: str
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[PackedDelta]).decode


def encode_pack(deltas: list[PackedDelta]) -> bytes:
    """Encode the deltas of one commit."""
    return _encode(deltas)


def decode_pack(pack: bytes) -> list[PackedDelta]:
    """Decode the deltas of one commit.

    Raises:
        LogUnavailable: the pack is damaged.
    """
    try:
        return _decode(pack)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise LogUnavailable(f"deltas can't be read ({error})", "The file is damaged. Restore a backup.") from None


class DeltaPacks:
    """Remembers which packs still hold a delta that nothing restates, and which sessions have deltas in which pack.

    It is kept in memory and loaded from the store when the store is opened.
    """

    def __init__(self) -> None:
        self._open_parts_in_pack: dict[int, set[Part]] = {}
        self._packs_of_part: dict[Part, list[int]] = {}
        self._sessions_in_pack: dict[int, set[int]] = {}
        self._packs_of_session: dict[int, set[int]] = {}

    def load(self, packs: Iterable[tuple[int, bytes]]) -> dict[Part, int]:
        """Load all packs of a store. Return the index of each part's last delta."""
        last_index: dict[Part, int] = {}
        for cursor, pack in packs:
            deltas = decode_pack(pack)
            parts = [(delta.session, delta_target(decode_body(delta.body)[0])) for delta in deltas]
            self.add(cursor, parts)
            last_index.update(zip(parts, (delta.index for delta in deltas), strict=True))
        return last_index

    def add(self, cursor: int, parts: Iterable[Part]) -> None:
        """Add a pack with deltas of these parts."""
        open_parts = self._open_parts_in_pack.setdefault(cursor, set())
        for part in parts:
            if part not in open_parts:
                open_parts.add(part)
                self._packs_of_part.setdefault(part, []).append(cursor)
        sessions = self._sessions_in_pack[cursor] = {session for session, _ in open_parts}
        for session in sessions:
            self._packs_of_session.setdefault(session, set()).add(cursor)

    def droppable(self, restated: Set[Part]) -> list[int]:
        """Return the packs that can be deleted once these parts are restated.

        This changes nothing: call `mark_restated` after the commit, which may fail.
        """
        packs = {cursor for part in restated for cursor in self._packs_of_part.get(part, ())}
        return [cursor for cursor in packs if self._open_parts_in_pack[cursor] <= restated]

    def mark_restated(self, restated: Set[Part]) -> None:
        """Forget parts that are restated, and packs that hold nothing else."""
        for part in restated:
            for cursor in self._packs_of_part.pop(part, ()):
                self._open_parts_in_pack[cursor].discard(part)
                if not self._open_parts_in_pack[cursor]:
                    del self._open_parts_in_pack[cursor]
                    self._forget_pack(cursor)

    def open_parts(self, session: int) -> set[Part]:
        """Return the parts of a session that aren't restated."""
        packs = self._packs_of_session.get(session, ())
        return {part for cursor in packs for part in self._open_parts_in_pack[cursor] if part[0] == session}

    def is_needed(self, cursor: int) -> bool:
        """Return whether a pack holds a delta that nothing restates."""
        return cursor in self._open_parts_in_pack

    def packs_of(self, session: int) -> set[int]:
        """Return the packs that hold deltas of a session, restated or not."""
        return self._packs_of_session.get(session, set())

    def forget_session(self, session: int) -> None:
        """Forget a session that was deleted with all its deltas."""
        self.mark_restated(self.open_parts(session))
        for cursor in self._packs_of_session.pop(session, ()):
            self._sessions_in_pack[cursor].discard(session)

    def _forget_pack(self, cursor: int) -> None:
        for session in self._sessions_in_pack.pop(cursor):
            packs = self._packs_of_session[session]
            packs.discard(cursor)
            if not packs:
                del self._packs_of_session[session]
