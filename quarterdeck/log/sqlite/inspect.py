"""A store looked at from outside: by somebody who does not own it, while a deck may be writing to it.

Nothing here takes the ownership. A look is a read transaction; a rewritten projection is a short write transaction that
reads again what it writes from.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.log.base import CatalogueRow, NewerLog
from quarterdeck.log.sqlite.connection import Store, refusals
from quarterdeck.log.sqlite.reader import Reader
from quarterdeck.log.sqlite.sql import newest_version, typed
from quarterdeck.log.sqlite.writer import row_values

_PAGE = 5_000


class NoSuchStore(QuarterdeckError):
    """There is no file."""

    code = "no_such_store"

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no store at {path}", "Set QUARTERDECK_HOME, or start a deck with `qd up` first.")


class OlderLog(QuarterdeckError):
    """The store was written by an older release."""

    code = "older_log"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"the store has version {found}, this release needs {known}", "Run `qd db migrate` first.")


class Inspection:
    """One store, opened for reading."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise NoSuchStore(path)
        self.path = path
        self._reader = Reader(path)
        self._store = self._reader.store

    def close(self) -> None:
        self._reader.close()

    @property
    def version(self) -> int:
        with refusals():
            return self._store.version()

    def must_be_current(self) -> None:
        """NewerLog, OlderLog."""
        found, known = self.version, newest_version()
        if found > known:
            raise NewerLog(found, known)
        if found < known:
            raise OlderLog(found, known)

    @contextmanager
    def moment(self) -> Generator[None]:
        """Everything inside it is of one moment."""
        with refusals(), self._store.moment():
            yield

    def damages(self, told: Callable[[], None] | None = None) -> list[str]:
        """What SQLite itself finds wrong with the file: pages, indexes, constraints, rows that point nowhere."""
        self._store.on_progress(told)
        try:
            found = [str(row[0]) for row in self._store.rows_of("PRAGMA integrity_check")]
            lost = [f"{row[0]} row {row[1]} points nowhere" for row in self._store.rows_of("PRAGMA foreign_key_check")]
        except apsw.Error as error:
            return [str(error)]
        finally:
            self._store.on_progress(None)
        return [*(one for one in found if one != "ok"), *lost]

    def session_ids(self) -> list[str]:
        with refusals():
            return [str(name) for _, name in self._store.rows("session_ids")]

    def counts(self) -> tuple[int, int, int]:
        """Sessions, events, and the newest cursor."""
        with self.moment():
            return self._store.one("count_sessions"), self._store.one("count_events"), self._store.one("last_cursor")

    def stored(self, session_id: str) -> tuple[CatalogueRow, int, bytes, int]:
        """CatalogueRow, last index, view, index of the view."""
        return self._reader.session(session_id)

    def events(self, session_id: str) -> Iterator[Event]:
        """All of them, page by page."""
        since, page = 0, self._reader.read(session_id, 0, _PAGE, None)
        while page:
            yield from page
            since = page[-1].index
            page = self._reader.read(session_id, since, _PAGE, None) if len(page) == _PAGE else []

    def strays(self) -> list[str]:
        """Deltas that belong to no session, or lie beyond its end; events that whoever looks for their type would miss."""
        with self.moment():
            ends = dict(self._store.rows("last_indexes"))
            pieces = self._reader.pieces()
            missed = self._store.rows_of(typed("wrongly_marked", None))
        lost = [piece.cursor for piece in pieces if piece.index > ends.get(piece.session, 0)]
        return [
            *(f"a delta at cursor {cursor} belongs to no session's event" for cursor in lost),
            *(f"the event at cursor {cursor} is not marked as its type is" for (cursor,) in missed),
        ]

    def copy_to(self, path: Path, told: Callable[[int, int], None]) -> None:
        """An exact copy as of now."""
        with refusals():
            self._store.copy_to(path, told)


def rewritten(
    path: Path, session_id: str, folded: Callable[[Inspection], tuple[CatalogueRow, bytes, int, int]]
) -> None:
    """Writes the projections of one session again. `folded` reads the events while nobody else can write."""
    store, look = Store(path), Inspection(path)
    try:
        with refusals(), store.transaction:
            row, view, view_index, last_index = folded(look)
            number = int(store.rows("place_of_session", (session_id,))[0][0])
            store.rows("update_row", (*row_values(row), number))
            store.rows("update_view", (last_index, view, view_index, number))
    finally:
        look.close()
        store.close()


def migrated(path: Path, told: Callable[[int, int], None]) -> tuple[int, int]:
    """Brings a store to the newest version, step by step; returns from where to where. NoSuchStore, NewerLog."""
    if not path.exists():
        raise NoSuchStore(path)
    store = Store(path)
    try:
        with refusals():
            before, known = store.version(), newest_version()
            if before > known:
                raise NewerLog(before, known)
            for version in range(before + 1, known + 1):
                store.migrate(upto=version)
                told(version - before, known - before)
            return before, known
    finally:
        store.close()
