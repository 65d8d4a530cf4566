"""Inspect and repair a store without owning it, possibly while a deck writes to it.

Reading uses one read transaction. Repairing uses a short write transaction that reads the events again before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.log.base import CatalogueRow, NewerLog
from quarterdeck.log.sqlite.connection import StoreConnection, translate_errors
from quarterdeck.log.sqlite.reader import StoredColumns, StoreReader
from quarterdeck.log.sqlite.sql import newest_version, typed
from quarterdeck.log.sqlite.writer import row_values

_PAGE = 5_000


class NoSuchStore(QuarterdeckError):
    """The file doesn't exist."""

    code = "no_such_store"

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no store at {path}", "Set QUARTERDECK_HOME, or start a deck with `qd up` first.")


class OlderLog(QuarterdeckError):
    """The store was written by an older release and wasn't migrated yet."""

    code = "older_log"

    def __init__(self, version: int, newest: int) -> None:
        super().__init__(f"the store has version {version}, this release needs {newest}", "Run `qd db migrate` first.")


class Inspection:
    """A store, opened for reading. All methods raise `LogUnavailable` if the store can't be read."""

    def __init__(self, path: Path) -> None:
        """Open the store.

        Raises:
            NoSuchStore: the file doesn't exist.
        """
        if not path.exists():
            raise NoSuchStore(path)
        self.path = path
        self._reader = StoreReader(path)
        self._store = self._reader.store

    def close(self) -> None:
        self._reader.close()

    @property
    def version(self) -> int:
        with translate_errors():
            return self._store.version()

    def require_current_version(self) -> None:
        """Check that this release can read the store.

        Raises:
            NewerLog: a newer release wrote it.
            OlderLog: it must be migrated first.
        """
        version, newest = self.version, newest_version()
        if version > newest:
            raise NewerLog(version, newest)
        if version < newest:
            raise OlderLog(version, newest)

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Let all reads inside see the same state of the store."""
        with translate_errors(), self._store.snapshot():
            yield

    def integrity_errors(self, report: Callable[[], None] | None = None) -> list[str]:
        """Return what SQLite finds wrong with the file: pages, indexes, constraints, foreign keys."""
        self._store.set_progress(report)
        try:
            problems = [str(row[0]) for row in self._store.execute("PRAGMA integrity_check")]
            dangling = self._store.execute("PRAGMA foreign_key_check")
        except apsw.Error as error:
            return [str(error)]
        finally:
            self._store.set_progress(None)
        broken = [f"{row[0]} row {row[1]} refers to a missing row" for row in dangling]
        return [*(problem for problem in problems if problem != "ok"), *broken]

    def session_ids(self) -> list[str]:
        with translate_errors():
            return [str(session_id) for _, session_id in self._store.rows("session_ids")]

    def counts(self) -> tuple[int, int, int]:
        """Return the number of sessions, the number of events, and the newest cursor."""
        with self.snapshot():
            sessions, events = self._store.number("count_sessions"), self._store.number("count_events")
            return sessions, events, self._store.number("last_cursor")

    def stored(self, session_id: str) -> StoredColumns:
        """Return a session's row, last index, snapshot and snapshot index.

        Raises:
            NoSuchSession: the store has no session with this id.
        """
        return self._reader.session(session_id)

    def events(self, session_id: str) -> Iterator[Event]:
        """Yield all events of a session."""
        since = 0
        while page := self._reader.read(session_id, since, _PAGE, None):
            yield from page
            since = page[-1].index
            if len(page) < _PAGE:
                return

    def strays(self) -> list[str]:
        """Return a line for each delta without a session, and for each event that its index doesn't list."""
        with self.snapshot():
            last_indexes = dict(self._store.rows("last_indexes"))
            deltas = self._reader.all_deltas()
            unlisted = self._store.execute(typed("wrongly_marked", None))
        stray = [delta.cursor for delta in deltas if delta.index > last_indexes.get(delta.session, 0)]
        return [
            *(f"the delta at cursor {cursor} belongs to no session" for cursor in stray),
            *(f"the event at cursor {cursor} has a wrong is_rare mark" for (cursor,) in unlisted),
        ]

    def copy_to(self, path: Path, report: Callable[[int, int], None]) -> None:
        """Write an exact copy of the store as it is now. `report` gets pages done and in all."""
        with translate_errors():
            self._store.copy_to(path, report)


def rewrite_projections(
    path: Path, session_id: str, compute: Callable[[Inspection], tuple[CatalogueRow, bytes, int, int]]
) -> None:
    """Replace one session's row and snapshot.

    `compute` returns the row, the snapshot, its index and the last index. It runs inside the write transaction, so the
    events that it reads can't change meanwhile.

    Raises:
        LogUnavailable: the store can't be written.
    """
    store, inspection = StoreConnection(path), Inspection(path)
    try:
        with translate_errors(), store.transaction():
            row, snapshot, snapshot_index, last_index = compute(inspection)
            number = int(store.rows("place_of_session", (session_id,))[0][0])
            store.rows("update_row", (*row_values(row), number))
            store.rows("update_view", (last_index, snapshot, snapshot_index, number))
    finally:
        inspection.close()
        store.close()


def migrate_store(path: Path, report: Callable[[int, int], None]) -> tuple[int, int]:
    """Migrate a store to the newest version. `report` gets the number of migrations done and in all.

    Returns:
        the version before and the version after.

    Raises:
        NoSuchStore: the file doesn't exist.
        NewerLog: a newer release wrote the store.
        LogUnavailable: the store can't be written.
    """
    if not path.exists():
        raise NoSuchStore(path)
    store = StoreConnection(path)
    try:
        with translate_errors():
            before, newest = store.version(), newest_version()
            if before > newest:
                raise NewerLog(before, newest)
            for version in range(before + 1, newest + 1):
                store.migrate(upto=version)
                report(version - before, newest - before)
            return before, newest
    finally:
        store.close()
