"""Read from a store, over a read-only connection. Everything here runs on the reader's thread.

A session's events are in two tables: `event`, and `delta` with the packs of deltas that nothing restates yet. Both are read
in one transaction, so they are of the same moment, and then merged by index or by cursor.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import merge
from pathlib import Path
from typing import Any, TypeAlias, cast

from quarterdeck.events import Event, Origin, decode_body
from quarterdeck.log.base import CatalogueRow, NoSuchSession
from quarterdeck.log.deltas import DELTA_TYPES
from quarterdeck.log.sqlite.connection import StoreConnection, translate_errors
from quarterdeck.log.sqlite.delta_packs import PackedDelta, decode_pack
from quarterdeck.log.sqlite.writer import cursor_text

#: A session's row, the index of its last event, its snapshot, and the index of the snapshot.
StoredColumns: TypeAlias = tuple[CatalogueRow, int, bytes, int]

_MAX_CURSOR = 2**63 - 1


class StoreReader:
    """Reads events and the catalogue. All methods raise `LogUnavailable` if the store can't be read."""

    def __init__(self, path: Path) -> None:
        self.store = StoreConnection(path, read_only=True)

    def close(self) -> None:
        self.store.close()

    def last_probe(self) -> int:
        """Return the value that the writer's last probe committed."""
        with translate_errors():
            return self.store.number("probed")

    def read(self, session_id: str, since: int, limit: int, types: Collection[str] | None) -> list[Event]:
        """Return events of one session with an index above `since`.

        Raises:
            NoSuchSession: the store has no session with this id.
        """
        with translate_errors(), self.store.snapshot():
            position = self.store.rows("place_of_session", (session_id,))
            if not position:
                raise NoSuchSession(session_id)
            number = int(position[0][0])
            rows = self.store.events("read_session", (number, since), limit, types)
            after = self.store.number("cursor_at", (number, since)) if _may_hold_deltas(types) else 0
            deltas = self._deltas_between(after, rows, limit, types)
        stored = [_event(session_id, *row) for row in rows]
        growing = [
            _delta_event(session_id, delta) for delta in deltas if delta.session == number and delta.index > since
        ]
        return list(merge(stored, _of_types(growing, types), key=lambda event: event.index))[:limit]

    def read_all(self, since: int, limit: int, types: Collection[str] | None) -> list[Event]:
        """Return events of all sessions after a cursor, and the last events of deleted sessions."""
        with translate_errors(), self.store.snapshot():
            rows = self.store.events("read_all", (since,), limit, types)
            tombstones = self.store.events("read_tombstones", (since,), limit, types)
            deltas = self._deltas_between(since, rows, limit, types)
            session_ids = dict(self.store.rows("session_ids")) if deltas else {}
        stored = [_event(row[1], row[0], *row[2:]) for row in rows]
        deleted = [_event(row[1], row[0], *row[2:]) for row in tombstones]
        growing = [_delta_event(str(session_ids[delta.session]), delta) for delta in deltas if delta.cursor > since]
        return list(merge(stored, deleted, _of_types(growing, types), key=lambda event: event.cursor))[:limit]

    def _deltas_between(
        self, after: int, rows: list[tuple[Any, ...]], limit: int, types: Collection[str] | None
    ) -> list[PackedDelta]:
        """Return the deltas among these rows, and those behind the last row if there are no more rows."""
        if not _may_hold_deltas(types):
            return []
        before = rows[-1][0] if len(rows) == limit and rows else _MAX_CURSOR
        packs = self.store.rows("deltas_between", (after, before))
        return [delta for _, pack in packs for delta in decode_pack(pack)]

    def all_deltas(self) -> list[PackedDelta]:
        """Return every delta in the store."""
        return [delta for _, pack in self.store.rows("deltas") for delta in decode_pack(pack)]

    def sessions(self) -> list[StoredColumns]:
        """Return the whole catalogue."""
        with translate_errors():
            return [_stored_columns(row) for row in self.store.rows("sessions")]

    def session(self, session_id: str) -> StoredColumns:
        """Return one session of the catalogue.

        Raises:
            NoSuchSession: the store has no session with this id.
        """
        with translate_errors():
            rows = self.store.rows("session", (session_id,))
        if not rows:
            raise NoSuchSession(session_id)
        return _stored_columns(rows[0])


def _may_hold_deltas(types: Collection[str] | None) -> bool:
    return types is None or not DELTA_TYPES.isdisjoint(types)


def _event(session_id: str, cursor: int, index: int, at: int, origin: str, data: bytes) -> Event:
    body, raw = decode_body(data)
    return Event(session_id, index, at, cast(Origin, origin), body, cursor_text(cursor), raw)


def _delta_event(session_id: str, delta: PackedDelta) -> Event:
    return _event(session_id, delta.cursor, delta.index, delta.at, delta.origin, delta.body)


def _of_types(events: list[Event], types: Collection[str] | None) -> list[Event]:
    return events if types is None else [event for event in events if event.type in types]


def _stored_columns(columns: Any) -> StoredColumns:
    row = CatalogueRow(
        session_id=columns[0],
        agent=columns[1],
        agent_version=columns[2],
        cwd=columns[3],
        repo=columns[4],
        name=columns[5],
        status=columns[6],
        end_reason=columns[7],
        supports_resume=bool(columns[8]),
        resume_data=columns[9],
        pinned=bool(columns[10]),
        created_at=columns[11],
        last_active_at=columns[12],
        last_gate_number=columns[13],
    )
    return row, columns[14], columns[15], columns[16]
