"""The one that reads: a read-only connection on a thread of its own, so that long histories block nobody.

A session's events lie in two places: rows, and packs of deltas whose whole is not told yet. They are merged by index (or,
over all sessions, by cursor) inside one read transaction, so that a reader sees one moment.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import merge
from pathlib import Path
from typing import Any, cast

from quarterdeck.events import Event, Origin, decode_body
from quarterdeck.log.base import CatalogueRow, NoSuchSession
from quarterdeck.log.deltas import DELTA_TYPES
from quarterdeck.log.sqlite.connection import Store, refusals
from quarterdeck.log.sqlite.journal import Piece, unpacked
from quarterdeck.log.sqlite.writer import cursor_text

#: Above every cursor.
_ALL = 2**63 - 1


class Reader:
    """All reads. Every method runs on the reader's thread."""

    def __init__(self, path: Path) -> None:
        self._store = Store(path, read_only=True)

    @property
    def store(self) -> Store:
        """The connection, for whoever reads more than events."""
        return self._store

    def probed(self) -> int:
        """What the last probe of the writer left."""
        with refusals():
            return self._store.one("probed")

    def read(self, session_id: str, since: int, limit: int, types: Collection[str] | None) -> list[Event]:
        """One session's events above `since`."""
        with refusals(), self._store.moment():
            place = self._store.rows("place_of_session", (session_id,))
            if not place:
                raise NoSuchSession(session_id)
            number = int(place[0][0])
            rows = self._store.events("read_session", (number, since), limit, types)
            after = self._store.one("cursor_at", (number, since)) if _may_grow(types) else 0
            pieces = self._pieces(after, rows, limit, types)
        stored = [_event(session_id, *row) for row in rows]
        growing = [
            _event_of_piece(session_id, piece) for piece in pieces if piece.session == number and piece.index > since
        ]
        return list(merge(stored, _chosen(growing, types), key=lambda event: event.index))[:limit]

    def read_all(self, since: int, limit: int, types: Collection[str] | None) -> list[Event]:
        """All sessions' events after a cursor, and the last words about those that were deleted."""
        with refusals(), self._store.moment():
            rows = self._store.events("read_all", (since,), limit, types)
            words = self._store.events("read_tombstones", (since,), limit, types)
            pieces = self._pieces(since, rows, limit, types)
            names = dict(self._store.rows("session_ids")) if pieces else {}
        stored = [_event(row[1], row[0], *row[2:]) for row in rows]
        last = [_event(row[1], row[0], *row[2:]) for row in words]
        growing = [_event_of_piece(str(names[piece.session]), piece) for piece in pieces if piece.cursor > since]
        return list(merge(stored, last, _chosen(growing, types), key=lambda event: event.cursor))[:limit]

    def _pieces(
        self, after: int, rows: list[tuple[Any, ...]], limit: int, types: Collection[str] | None
    ) -> list[Piece]:
        """The deltas among these rows, and those behind them if they are the last."""
        if not _may_grow(types):
            return []
        before = rows[-1][0] if len(rows) == limit and rows else _ALL
        packs = self._store.rows("deltas_between", (after, before))
        return [piece for _, blob in packs for piece in unpacked(blob)]

    def pieces(self) -> list[Piece]:
        """Every delta that is kept."""
        return [piece for _, blob in self._store.rows("deltas") for piece in unpacked(blob)]

    def sessions(self) -> list[tuple[CatalogueRow, int, bytes, int]]:
        """The catalogue: row, last index, view, index of the view."""
        with refusals():
            return [_stored(found) for found in self._store.rows("sessions")]

    def session(self, session_id: str) -> tuple[CatalogueRow, int, bytes, int]:
        """One session of the catalogue."""
        with refusals():
            found = self._store.rows("session", (session_id,))
        if not found:
            raise NoSuchSession(session_id)
        return _stored(found[0])

    def close(self) -> None:
        self._store.close()


def _may_grow(types: Collection[str] | None) -> bool:
    return types is None or not DELTA_TYPES.isdisjoint(types)


def _event(session_id: str, cursor: int, index: int, at: int, origin: str, body: bytes) -> Event:
    decoded, raw = decode_body(body)
    return Event(session_id, index, at, cast(Origin, origin), decoded, cursor_text(cursor), raw)


def _event_of_piece(session_id: str, piece: Piece) -> Event:
    return _event(session_id, piece.cursor, piece.index, piece.at, piece.origin, piece.body)


def _chosen(events: list[Event], types: Collection[str] | None) -> list[Event]:
    return events if types is None else [event for event in events if event.type in types]


def _stored(found: Any) -> tuple[CatalogueRow, int, bytes, int]:
    row = CatalogueRow(
        session_id=found[0],
        agent=found[1],
        agent_version=found[2],
        cwd=found[3],
        repo=found[4],
        name=found[5],
        status=found[6],
        end_reason=found[7],
        supports_resume=bool(found[8]),
        resume_data=found[9],
        pinned=bool(found[10]),
        created_at=found[11],
        last_active_at=found[12],
        last_gate_number=found[13],
    )
    return row, found[14], found[15], found[16]
