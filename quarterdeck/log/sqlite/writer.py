"""The one that writes: a connection of its own, on a thread of its own, one transaction per commit group.

Everything here runs on the writer's thread, or on the loop's while that one is at rest. A group is all appends that arrived
while the last commit was under way. An append that is refused (an old fence) does not harm the others of its group: it is
refused before anything of it is written. A failure of the store fails the whole group, and nothing of it is in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import apsw
from msgspec.structs import replace

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import DELTAS, NAMES, Event, decode_body, encode_body, type_of
from quarterdeck.log.base import NEW, Append, CatalogueRow, Fence, LogUnavailable, NoSuchSession, Receipt, StaleFence
from quarterdeck.log.deltas import RESTATING, delta_target, restated_target
from quarterdeck.log.sqlite.connection import Store, refusals, unavailable
from quarterdeck.log.sqlite.journal import Journal, Piece, packed, unpacked
from quarterdeck.log.sqlite.room import PAGES, make_room
from quarterdeck.log.sqlite.sql import RARE_MARKS

Outcome: TypeAlias = Receipt | QuarterdeckError
_EventRow: TypeAlias = tuple[int, int, int, int, str, str, bytes, int | None]


#: A write-ahead log of so many pages is folded: there is room left for what is committed before it is.
_LONG = PAGES - 100
#: SQLite counts the pages that it wrote up to here, and then from nothing again.
_COUNTED = 0x7FFF_FFFF
#: What is committed at once holds not more bytes than these, nor drops more packs of deltas.
_LIGHT = 64 * 1024
_FEW_PACKS = 64
#: Cursors are texts that sort as the numbers do.
CURSOR_DIGITS = 20
#: After so many events the last index of each session is written to its row again.
SETTLE_EVERY = 1000


class _Kind(NamedTuple):
    """What there is to know of a type of events, found at once."""

    name: str
    mark: int | None = None
    is_delta: bool = False
    is_whole: bool = False


_KINDS = {kind: _Kind(name, RARE_MARKS.get(name), kind in DELTAS, name in RESTATING) for kind, name in NAMES.items()}


class _TooMuch(Exception):
    """More than the loop may wait for."""


class _Place:
    """Where a session stands in the store."""

    __slots__ = ("last_index", "number")

    def __init__(self, number: int, last_index: int) -> None:
        self.number = number
        self.last_index = last_index


class _Group:
    """What one transaction writes, gathered before it is written; and how to forget it if it cannot be."""

    __slots__ = ("added", "cursor", "moved", "parts", "pieces", "rows", "told")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.moved: list[tuple[_Place, int]] = []
        self.added: list[str] = []
        self.rows: list[_EventRow] = []
        self.pieces: list[Piece] = []
        self.parts: list[tuple[int, str]] = []
        #: Each whole that is told, and at which index: a piece that comes after it begins anew.
        self.told: dict[tuple[int, str], int] = {}


class Writer:
    """Opens the store for writing, takes its ownership, and commits groups."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = Store(path)
        self._places: dict[str, _Place] = {}
        self._journal = Journal()
        #: What the store counted after our last commit.
        self._changes = -1
        #: Whether the write-ahead log is to be folded into the file.
        self.is_long = False
        #: Whether nothing may take long now.
        self._is_hasty = False
        #: How many pages had been written when the log was last folded.
        self._folded = 0
        try:
            with refusals():
                self._store.migrate()
                with self._store.transaction:
                    self.epoch, self._settled = self._store.one("take_epoch"), self._settle()
                packs = [(int(cursor), blob) for cursor, blob in self._store.rows("deltas")]
                # a pack is named after its first piece, and the newest event may be its last
                newest = unpacked(packs[-1][1])[-1].cursor if packs else 0
                self._cursor = max(self._store.one("last_cursor"), newest)
                last = self._journal.load(packs)
                self._journal.tell(self._told_since(last))
                self._drop_left_over([cursor for cursor, _ in packs if not self._journal.holds(cursor)])
        except QuarterdeckError:
            self._store.close()
            raise

    def _drop_left_over(self, packs: list[int]) -> None:
        """Packs of which everything is restated: nobody else would find them again."""
        if packs:
            with self._store.transaction:
                self._store.rows("keep_cursor", (self._cursor,))
                self._drop(packs)

    def make_room(self) -> None:
        """So that the first commits cost no more than the later ones. While nobody else can write: a log may be opened by
        two, and zeros over what the other one has just appended would be the end of it."""
        self.fold()  # what a process that was killed has left
        with suppress(apsw.Error), self._store.transaction:
            make_room(self._path)

    def fence_at(self, last_index: int) -> Fence:
        """The fence of a session whose newest event has this index."""
        return f"{self.epoch}.{last_index}"

    @property
    def last_cursor(self) -> int:
        return self._cursor

    def commit(self, appends: list[Append]) -> list[Outcome]:
        """One transaction. Raises LogUnavailable when nothing of it could be written."""
        store, group = self._store, _Group(self._cursor)
        try:
            with store.transaction:
                # another process may have taken the store; while nobody else commits nobody can have
                if store.changes() != self._changes and store.one("epoch") != self.epoch:
                    return [StaleFence(append.session_id) for append in appends]
                outcomes = [self._gathered(append, group) for append in appends]
                self._write(group)
                is_settled = self._cursor - self._settled >= SETTLE_EVERY
                settled = self._settle() if is_settled else self._settled
        except apsw.ConstraintError as error:
            self._undo(group)
            return [unavailable(error)] if len(appends) == 1 else self._one_by_one(appends)
        except Exception as error:
            self._undo(group)
            if isinstance(error, apsw.Error):
                raise unavailable(error) from error
            raise
        except BaseException:  # a person's Ctrl-C, on the loop's own thread
            self._doubt()
            raise
        self._changes, self._settled = store.changes(), settled
        self._remember(group)
        return outcomes

    def commit_at_once(self, appends: list[Append]) -> list[Outcome] | None:
        """The same, without waiting for anybody: None when another program holds the store locked, or when it is much, and
        then nothing of it was written."""
        self._is_hasty, self._store.is_patient = True, False
        try:
            return self.commit(appends)
        except _TooMuch:
            return None
        except LogUnavailable as error:
            if isinstance(error.__cause__, apsw.BusyError):
                return None
            raise
        finally:
            self._is_hasty, self._store.is_patient = False, True

    def fold(self) -> None:
        """One that cannot be folded now, be it for want of room or because somebody reads it, is as good as it was."""
        self._folded, self.is_long = self._store.pages(), False
        with suppress(apsw.Error):
            self._store.fold()

    def _is_overtaken(self) -> bool:
        """Another process took the store. While nobody else commits nobody can have: only then is the epoch read."""
        return self._store.changes() != self._changes and self._store.one("epoch") != self.epoch

    def _settle(self) -> int:
        self._store.run("settle_indexes", ())
        return self._store.one("settle_cursor")

    def _one_by_one(self, appends: list[Append]) -> list[Outcome]:
        """One of them holds an impossible row; its company must not suffer for it."""
        return [self._alone(append) for append in appends]

    def _alone(self, append: Append) -> Outcome:
        """A store that refuses now has taken others before, who must not be told that it did not."""
        try:
            return self.commit([append])[0]
        except LogUnavailable as error:
            return error

    def _undo(self, group: _Group) -> None:
        """The file was rolled back by SQLite; what we know of it must follow."""
        self._cursor = group.cursor
        for place, last_index in group.moved:
            place.last_index = last_index
        for session_id in group.added:
            self._places.pop(session_id, None)

    def _doubt(self) -> None:
        """Nobody knows whether the file has it. So it is asked again where each session stands, and the cursors that were
        given are not given again."""
        self._places.clear()

    def _told_since(self, last: dict[tuple[int, str], int]) -> set[tuple[int, str]]:
        """Wholes that were told while others of their pack still grew: nobody will tell them again."""
        told: set[tuple[int, str]] = set()
        for session in {session for session, _ in last}:
            first = min(index for (one, _), index in last.items() if one == session)
            for _, index, _, _, body in self._store.events("read_session", (session, first), -1, RESTATING):
                part = (session, restated_target(decode_body(body)[0]) or "")
                if index > last.get(part, index):
                    told.add(part)
        return told

    def _remember(self, group: _Group) -> None:
        if group.told:
            self._journal.tell(group.told.keys())
        if group.pieces:
            self._journal.add(group.pieces[0].cursor, group.parts)
        self._look()

    def _look(self) -> None:
        self.is_long = (self._store.pages() - self._folded) & _COUNTED >= _LONG

    def delete(self, session_id: str, fence: Fence, event: Event) -> Receipt:
        """The session, all of its events and its pieces in the packs; only the last word about it stays."""
        place = self._place(session_id)
        if place is None:
            raise NoSuchSession(session_id)
        if self.fence_at(place.last_index) != fence:
            raise StaleFence(session_id)
        body, cursor = encode_body(event.body, event.raw), self._cursor + 1
        values = (cursor, session_id, event.index, event.at, event.origin, event.type, body)
        with refusals(), self._store.transaction:
            if self._is_overtaken():
                raise StaleFence(session_id)
            self._forget_pieces(place.number)
            self._store.rows("delete_session", (place.number,))
            self._store.rows("insert_tombstone", values)
        self._cursor = cursor
        self._journal.forget(place.number)
        self._places.pop(session_id, None)
        self._look()
        return Receipt(NEW, (replace(event, cursor=cursor_text(cursor)),))

    def _forget_pieces(self, number: int) -> None:
        """Also from packs that others share: SQLite gives the session's number to another one. A pack that holds nothing
        more but what is restated goes as a whole."""
        dropped = self._journal.droppable(self._journal.parts_of(number))
        self._drop(dropped)
        for cursor in self._journal.packs_with(number).difference(dropped):
            [(blob,)] = self._store.rows("delta", (cursor,))
            kept = [piece for piece in unpacked(blob) if piece.session != number]
            self._store.run("update_delta", (packed(kept), cursor))

    def probe(self) -> int:
        """One small commit, as durable as any; what it left, for a reader to find."""
        with refusals(), self._store.transaction:
            if self._is_overtaken():
                raise LogUnavailable("another process owns it now", "End this one: the other has the store.")
            return self._store.one("probe")

    def close(self) -> None:
        """Folds the write-ahead log into the file and lets go of it."""
        self._store.close()

    # --- one group

    def _gathered(self, append: Append, group: _Group) -> Outcome:
        place = self._places.get(append.session_id) or self._place(append.session_id)
        if append.fence != (NEW if place is None else f"{self.epoch}.{place.last_index}"):
            return StaleFence(append.session_id) if place is not None else NoSuchSession(append.session_id)
        if not append.events or (place is None and (append.row is None or append.snapshot is None)):
            return LogUnavailable("an append needs events, the first one its row and view", "This is a defect.")
        try:
            bodies = [encode_body(event.body, event.raw) for event in append.events]
        except QuarterdeckError as error:
            return error
        if self._is_hasty and sum(map(len, bodies)) + len(append.snapshot or b"") > _LIGHT:
            raise _TooMuch
        last = append.events[-1].index
        if place is None:
            place = self._places[append.session_id] = self._inserted(append, last)
            group.added.append(append.session_id)
        else:
            group.moved.append((place, place.last_index))
            if append.row is not None or append.snapshot is not None or type(append.events[-1].body) in DELTAS:
                self._updated(append, place, last)
        written = self._entered(append.events, bodies, place.number, group)
        place.last_index = last
        return Receipt(f"{self.epoch}.{last}", written)

    def _entered(self, events: Sequence[Event], bodies: list[bytes], number: int, group: _Group) -> tuple[Event, ...]:
        """In the group, each with its cursor."""
        cursor = self._cursor
        written: list[Event] = []
        for event, data in zip(events, bodies, strict=True):
            cursor += 1
            body, index, at, origin = event.body, event.index, event.at, event.origin
            kind = _KINDS.get(type(body)) or _Kind(type_of(body))
            if kind.is_delta:
                group.parts.append((number, delta_target(body)))
                group.pieces.append(Piece(cursor, number, index, at, origin, data))
            else:
                if kind.is_whole:
                    group.told[number, restated_target(body) or ""] = index
                group.rows.append((cursor, number, index, at, origin, kind.name, data, kind.mark))
            written.append(
                Event(event.session_id, index, at, origin, body, str(cursor).zfill(CURSOR_DIGITS), event.raw)
            )
        self._cursor = cursor
        return tuple(written)

    def _inserted(self, append: Append, last: int) -> _Place:
        assert append.row is not None
        values = (append.row.session_id, *row_values(append.row), last, append.snapshot, last)
        number = self._store.rows("insert_session", values)[0][0]
        return _Place(int(number), last)

    def _updated(self, append: Append, place: _Place, last: int) -> None:
        if append.row is not None:
            self._store.run("update_row", (*row_values(append.row), place.number))
        if append.snapshot is not None:
            self._store.run("update_view", (last, append.snapshot, last, place.number))
        elif type(append.events[-1].body) in DELTAS:
            self._store.run("update_index", (last, place.number))

    def _write(self, group: _Group) -> None:
        if len(group.rows) == 1:
            self._store.run("insert_event", group.rows[0])
        else:
            self._store.many("insert_event", group.rows)
        if group.told:
            self._drop_told(group)
        if group.pieces:
            first = group.pieces[0].cursor
            self._store.rows("insert_delta", (first, packed(group.pieces)))

    def _drop_told(self, group: _Group) -> None:
        """Deltas that are restated now. A text that began and was restated in one group leaves none at all."""
        before, told = len(group.pieces), group.told
        if before:
            both = zip(group.pieces, group.parts, strict=True)
            kept = [(piece, part) for piece, part in both if piece.index > told.get(part, 0)]
            group.pieces, group.parts = [piece for piece, _ in kept], [part for _, part in kept]
        dropped = self._journal.droppable(told.keys())
        if self._is_hasty and len(dropped) > _FEW_PACKS:
            raise _TooMuch
        if dropped or len(group.pieces) < before:
            # the newest cursor may have been a delta's; it must never be given again
            self._store.rows("keep_cursor", (self._cursor,))
        self._drop(dropped)

    def _drop(self, packs: list[int]) -> None:
        self._store.many("delete_delta", [(cursor,) for cursor in packs])

    def _place(self, session_id: str) -> _Place | None:
        place = self._places.get(session_id)
        if place is None:
            found = self._store.rows("place_of_session", (session_id,))
            if found:
                place = self._places[session_id] = _Place(int(found[0][0]), int(found[0][1]))
        return place


def cursor_text(cursor: int) -> str:
    """A cursor as clients see it: texts that sort as the numbers do."""
    return str(cursor).zfill(CURSOR_DIGITS)


def row_values(row: CatalogueRow) -> tuple[str | int | None, ...]:
    """The columns of the catalogue, in the order of the queries."""
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
