"""Write to a store: one transaction for each group of appends. Everything here runs on the writer's thread.

An append that is refused, for example because its fence is old, doesn't affect the others of its group: it is refused before
anything of it is written. If the store itself fails, the whole group fails and nothing of it is in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import apsw
from msgspec.structs import replace

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, decode_body, encode_body
from quarterdeck.log.base import (
    NEW,
    Append,
    CatalogueRow,
    Fence,
    LogUnavailable,
    NoSuchSession,
    Receipt,
    StaleFence,
)
from quarterdeck.log.deltas import RESTATING, delta_target, is_delta, restated_target
from quarterdeck.log.sqlite.connection import StoreConnection, translate_errors, unavailable
from quarterdeck.log.sqlite.delta_packs import DeltaPacks, PackedDelta, Part, decode_pack, encode_pack
from quarterdeck.log.sqlite.sql import RARE_MARKS

Outcome: TypeAlias = Receipt | Exception
_EventRow: TypeAlias = tuple[int, int, int, int, str, str, bytes, int | None]

#: The write-ahead log is checkpointed when it has this many pages.
_CHECKPOINT_PAGES = 1000
_CURSOR_DIGITS = 20
#: After this many events, the last index of every session is written to its row (see migration 0003).
SETTLE_EVERY = 1000


class _SessionPosition:
    """A session's number in the store, and the index of its newest event."""

    __slots__ = ("last_index", "number")

    def __init__(self, number: int, last_index: int) -> None:
        self.number = number
        self.last_index = last_index


class _Group:
    """What one transaction writes, collected before it is written, and what to undo in memory if it fails."""

    def __init__(self, cursor: int) -> None:
        self.first_cursor = cursor
        self.rows: list[_EventRow] = []
        self.deltas: list[PackedDelta] = []
        #: The part of each delta, in the same order.
        self.parts: list[Part] = []
        #: Parts that are restated, with the index of the restating event. Deltas after that index start anew.
        self.restated: dict[Part, int] = {}
        #: Sessions whose position moved, with their last index before, and sessions that are new.
        self.moved: list[tuple[_SessionPosition, int]] = []
        self.added: list[str] = []


class StoreWriter:
    """Opens a store for writing, takes its ownership and commits groups of appends."""

    def __init__(self, path: Path) -> None:
        """Open the store, migrate it and take its ownership.

        Raises:
            NewerLog: a newer release wrote the store.
            LogUnavailable: the file can't be opened or written.
        """
        self._store = StoreConnection(path)
        self._positions: dict[str, _SessionPosition] = {}
        self._packs = DeltaPacks()
        #: SQLite's change counter after our last commit.
        self._data_version = -1
        try:
            with translate_errors():
                self._store.migrate()
                with self._store.transaction():
                    # Each process that opens the store for writing takes the next epoch. Fences hold the epoch, so the
                    # previous owner can't write any more.
                    self.epoch = self._store.number("take_epoch")
                    self._settled_cursor = self._settle()
                self._load_packs()
        except QuarterdeckError:
            self._store.close()
            raise

    def _load_packs(self) -> None:
        packs = [(int(cursor), pack) for cursor, pack in self._store.rows("deltas")]
        # A pack is named after its first delta, but the newest event of all may be its last delta.
        newest = decode_pack(packs[-1][1])[-1].cursor if packs else 0
        self._cursor = max(self._store.number("last_cursor"), newest)
        last_indexes = self._packs.load(packs)
        self._packs.mark_restated(self._find_restated(last_indexes))
        # Drop packs that are completely restated. Nothing else would ever find them.
        unneeded = [cursor for cursor, _ in packs if not self._packs.is_needed(cursor)]
        if unneeded:
            with self._store.transaction():
                self._store.rows("keep_cursor", (self._cursor,))
                self._delete_packs(unneeded)

    def _find_restated(self, last_indexes: dict[Part, int]) -> set[Part]:
        """Return the parts that were restated while other parts of their pack weren't, so the pack stayed."""
        restated: set[Part] = set()
        for session in {session for session, _ in last_indexes}:
            first = min(index for (number, _), index in last_indexes.items() if number == session)
            for _, index, _, _, body in self._store.events("read_session", (session, first), -1, RESTATING):
                part = (session, restated_target(decode_body(body)[0]) or "")
                if index > last_indexes.get(part, index):
                    restated.add(part)
        return restated

    @property
    def last_cursor(self) -> int:
        return self._cursor

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the write-ahead log is long enough to be copied into the file."""
        return self._store.wal_pages >= _CHECKPOINT_PAGES

    def fence_at(self, last_index: int) -> Fence:
        """Return the fence of a session whose newest event has this index."""
        return f"{self.epoch}.{last_index}"

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the file.

        If that fails, because the disk is full or another process reads, nothing is lost: the next checkpoint tries again.
        """
        self._store.wal_pages = 0
        with suppress(apsw.Error):
            self._store.checkpoint()

    def close(self) -> None:
        """Close the file. SQLite checkpoints the write-ahead log if no other process has the file open."""
        self._store.close()

    # --- committing a group

    def commit(self, appends: list[Append]) -> list[Outcome]:
        """Commit appends in one transaction. Return a receipt or an error for each.

        Raises:
            LogUnavailable: the store failed. Nothing was written.
        """
        group = _Group(self._cursor)
        try:
            with self._store.transaction():
                if self._has_new_owner():
                    return [StaleFence(append.session_id) for append in appends]
                outcomes: list[Outcome] = [self._add(append, group) for append in appends]
                self._write(group)
                settled_cursor = self._settled_cursor
                if self._cursor - settled_cursor >= SETTLE_EVERY:
                    settled_cursor = self._settle()
        except apsw.ConstraintError as error:
            self._undo(group)
            if len(appends) == 1:
                return [unavailable(error)]
            # One append has an impossible row, which must not fail the others: commit each in its own transaction.
            return [self._commit_one(append) for append in appends]
        except Exception as error:
            self._undo(group)
            if isinstance(error, apsw.Error):
                raise unavailable(error) from error
            raise
        self._data_version, self._settled_cursor = self._store.data_version(), settled_cursor
        self._packs.mark_restated(group.restated.keys())
        if group.deltas:
            self._packs.add(group.deltas[0].cursor, group.parts)
        return outcomes

    def _commit_one(self, append: Append) -> Outcome:
        try:
            return self.commit([append])[0]
        except LogUnavailable as error:
            # Return it: appends that were committed before this one must get their receipts.
            return error

    def _undo(self, group: _Group) -> None:
        """Restore what is known in memory, after SQLite rolled back the file."""
        self._cursor = group.first_cursor
        for position, last_index in group.moved:
            position.last_index = last_index
        for session_id in group.added:
            self._positions.pop(session_id, None)

    def _has_new_owner(self) -> bool:
        """Return whether another process took the store. The epoch is read only if another process has committed."""
        return self._store.data_version() != self._data_version and self._store.number("epoch") != self.epoch

    def _settle(self) -> int:
        self._store.rows("settle_indexes")
        return self._store.number("settle_cursor")

    def _add(self, append: Append, group: _Group) -> Outcome:
        """Check an append, update its session's row, and collect its events in the group."""
        position = self._position(append.session_id)
        if append.fence != (NEW if position is None else self.fence_at(position.last_index)):
            return NoSuchSession(append.session_id) if position is None else StaleFence(append.session_id)
        if not append.events:
            return LogUnavailable("an append needs events", "This is a bug in the caller.")
        try:
            bodies = [encode_body(event.body, event.raw) for event in append.events]
        except QuarterdeckError as error:
            return error
        if position is None:
            if append.row is None or append.snapshot is None:
                return LogUnavailable("the first append needs a row and a snapshot", "This is a bug in the caller.")
            position = self._insert_session(append, append.row, append.snapshot)
            group.added.append(append.session_id)
        else:
            group.moved.append((position, position.last_index))
            self._update_session(append, position.number)
        events = self._collect(append.events, bodies, position.number, group)
        position.last_index = append.events[-1].index
        return Receipt(self.fence_at(position.last_index), events)

    def _insert_session(self, append: Append, row: CatalogueRow, snapshot: bytes) -> _SessionPosition:
        last = append.events[-1].index
        number = self._store.number("insert_session", (row.session_id, *row_values(row), last, snapshot, last))
        position = self._positions[append.session_id] = _SessionPosition(number, last)
        return position

    def _update_session(self, append: Append, number: int) -> None:
        last = append.events[-1]
        if append.row is not None:
            self._store.rows("update_row", (*row_values(append.row), number))
        if append.snapshot is not None:
            self._store.rows("update_view", (last.index, append.snapshot, last.index, number))
        elif is_delta(last.body):
            # A delta has no row of its own and can be dropped, so the session's row must remember its index.
            self._store.rows("update_index", (last.index, number))

    def _collect(self, events: Sequence[Event], bodies: list[bytes], number: int, group: _Group) -> tuple[Event, ...]:
        """Give each event a cursor and add it to the group."""
        written: list[Event] = []
        for event, data in zip(events, bodies, strict=True):
            self._cursor += 1
            if is_delta(event.body):
                group.deltas.append(PackedDelta(self._cursor, number, event.index, event.at, event.origin, data))
                group.parts.append((number, delta_target(event.body)))
            else:
                name = event.type
                mark = RARE_MARKS.get(name)
                group.rows.append((self._cursor, number, event.index, event.at, event.origin, name, data, mark))
                target = restated_target(event.body)
                if target is not None:
                    group.restated[number, target] = event.index
            written.append(replace(event, cursor=cursor_text(self._cursor)))
        return tuple(written)

    def _write(self, group: _Group) -> None:
        self._store.run_many("insert_event", group.rows)
        if group.restated:
            self._drop_restated(group)
        if group.deltas:
            self._store.rows("insert_delta", (group.deltas[0].cursor, encode_pack(group.deltas)))

    def _drop_restated(self, group: _Group) -> None:
        """Drop deltas that this group restates. A text that begins and ends in one group leaves none in the store."""
        pairs = [
            (delta, part)
            for delta, part in zip(group.deltas, group.parts, strict=True)
            if delta.index > group.restated.get(part, 0)
        ]
        unneeded = self._packs.droppable(group.restated.keys())
        if unneeded or len(pairs) < len(group.deltas):
            # The newest cursor may belong to a dropped delta. It must never be used again.
            self._store.rows("keep_cursor", (self._cursor,))
            group.deltas, group.parts = [delta for delta, _ in pairs], [part for _, part in pairs]
            self._delete_packs(unneeded)

    def _delete_packs(self, cursors: list[int]) -> None:
        self._store.run_many("delete_delta", [(cursor,) for cursor in cursors])

    def _position(self, session_id: str) -> _SessionPosition | None:
        position = self._positions.get(session_id)
        if position is None:
            rows = self._store.rows("place_of_session", (session_id,))
            if rows:
                position = self._positions[session_id] = _SessionPosition(int(rows[0][0]), int(rows[0][1]))
        return position

    # --- deleting, probing

    def delete(self, session_id: str, fence: Fence, event: Event) -> Receipt:
        """Delete a session with its events and deltas. Only `event` stays.

        Raises:
            NoSuchSession: the store has no session with this id.
            StaleFence: another owner wrote to the session.
            LogUnavailable: the store failed. Nothing was deleted.
        """
        position = self._position(session_id)
        if position is None:
            raise NoSuchSession(session_id)
        if self.fence_at(position.last_index) != fence:
            raise StaleFence(session_id)
        cursor = self._cursor + 1
        body = encode_body(event.body, event.raw)
        with translate_errors(), self._store.transaction():
            if self._has_new_owner():
                raise StaleFence(session_id)
            self._delete_deltas(position.number)
            self._store.rows("delete_session", (position.number,))
            values = (cursor, session_id, event.index, event.at, event.origin, event.type, body)
            self._store.rows("insert_tombstone", values)
        self._cursor = cursor
        self._packs.forget_session(position.number)
        self._positions.pop(session_id, None)
        return Receipt(NEW, (replace(event, cursor=cursor_text(cursor)),))

    def _delete_deltas(self, number: int) -> None:
        """Delete a session's deltas, also from packs that it shares with other sessions.

        SQLite reuses the number of a deleted session, so a delta that stayed would belong to another session later.
        """
        unneeded = self._packs.droppable(self._packs.open_parts(number))
        self._delete_packs(unneeded)
        for cursor in self._packs.packs_of(number).difference(unneeded):
            [(pack,)] = self._store.rows("delta", (cursor,))
            others = [delta for delta in decode_pack(pack) if delta.session != number]
            self._store.rows("update_delta", (encode_pack(others), cursor))

    def probe(self) -> int:
        """Commit a small change, as durable as any. Return the value that a reader must find then.

        Raises:
            LogUnavailable: the store can't be written, or another process owns it.
        """
        with translate_errors(), self._store.transaction():
            if self._has_new_owner():
                raise LogUnavailable(
                    "another process owns the store now", "Stop this process. The other one has the store."
                )
            return self._store.number("probe")


def cursor_text(cursor: int) -> str:
    """Return a cursor as clients see it: padded, so that texts sort in the same order as numbers."""
    return str(cursor).zfill(_CURSOR_DIGITS)


def row_values(row: CatalogueRow) -> tuple[str | int | None, ...]:
    """Return the columns of a catalogue row, without its id, in the order of the queries."""
    return (
        row.agent,
        row.agent_version,
        row.cwd,
        row.repo,
        row.name,
        row.status,
        row.end_reason,
        int(row.supports_resume),
        row.resume_data,
        int(row.pinned),
        row.created_at,
        row.last_active_at,
        row.last_gate_number,
    )
