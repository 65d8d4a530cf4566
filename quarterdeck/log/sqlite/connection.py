"""Open SQLite connections with our settings, migrate stores, and translate SQLite's errors.

This is the only module that touches apsw directly, because apsw's types are loose.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from quarterdeck.log.base import LogUnavailable, NewerLog
from quarterdeck.log.sqlite.sql import migrations, newest_version, queries, typed

Values: TypeAlias = Sequence[str | int | bytes | None]

#: How long to wait for another process that has the store locked.
_BUSY_MS = 5000
#: Name, value to set, and value to expect. SQLite silently ignores settings it can't apply, so each is read back.
_PRAGMAS = (
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", 2),
    ("foreign_keys", "ON", 1),
    # SQLite would checkpoint as part of a commit, which then takes a hundred times as long. The writer checkpoints between
    # commits instead.
    ("wal_autocheckpoint", "0", 0),
)


class StoreConnection:
    """A connection to a store, with named queries."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        """Open the file, and create it unless `read_only` is set.

        Raises:
            LogUnavailable: the file can't be opened, or its file system doesn't support WAL.
        """
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        self._sql = queries()
        #: Pages in the write-ahead log after our last commit.
        self.wal_pages = 0
        self._busy_deadline = 0.0
        if not read_only:
            _create_private(path)
        with translate_errors():
            self._connection: Any = apsw.Connection(str(path), flags=flags)
            try:
                self._connection.set_busy_handler(self._wait_for_lock)
                if not read_only:
                    for name, value, expected in _PRAGMAS:
                        self._set_pragma(name, value, expected)
                    # After the pragmas, because wal_autocheckpoint replaces the hook.
                    self._connection.set_wal_hook(self._note_wal_pages)
            except BaseException:
                self._connection.close()
                raise

    def _set_pragma(self, name: str, value: str, expected: object) -> None:
        self.execute(f"PRAGMA {name} = {value}")
        actual = self._connection.pragma(name)
        if actual != expected:
            raise LogUnavailable(
                f"{name} is {actual}, not {expected}",
                "Move the store to a file system that supports SQLite's WAL mode.",
            )

    def _note_wal_pages(self, _connection: object, _database: str, pages: int) -> int:
        self.wal_pages = pages
        return apsw.SQLITE_OK

    def _wait_for_lock(self, attempts: int) -> bool:
        """Wait a little because another process has the store locked. Return False to give up."""
        now = time.monotonic()
        if attempts == 0:
            self._busy_deadline = now + _BUSY_MS / 1000
        remaining = self._busy_deadline - now
        if remaining <= 0:
            return False
        time.sleep(min(remaining, 0.001 * (1 + attempts), 0.05))
        return True

    def close(self) -> None:
        self._connection.close()

    # --- queries

    def rows(self, name: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Run a named query and return all rows."""
        return self.execute(self._sql[name], values)

    def execute(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Run SQL, possibly several statements, and return all rows."""
        return self._connection.execute(sql, values).fetchall()

    def number(self, name: str, values: Values = ()) -> int:
        """Run a named query that returns one number."""
        return int(self.rows(name, values)[0][0])

    def run_many(self, name: str, values: Iterable[Values]) -> None:
        """Run a named statement once for each of these values."""
        self._connection.executemany(self._sql[name], values)

    def events(self, name: str, after: Values, limit: int, types: Collection[str] | None) -> list[tuple[Any, ...]]:
        """Run a named query for events after a position, of these types only."""
        return self.execute(typed(name, types), (*after, *(types or ()), limit))

    def data_version(self) -> int:
        """Return a number that changes with every commit, ours or another process's. It is cheaper than any query."""
        return self._connection.data_version()

    # --- transactions

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Commit everything inside together. Everything is durable after the block, or nothing if it raises."""
        if self._connection.in_transaction:
            # A broken disk can make a rollback fail. Roll back what is left of the last transaction first.
            self.execute("ROLLBACK")
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # Don't let a failing rollback hide the reason. A full disk makes SQLite roll back by itself.
            with suppress(apsw.Error):
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")
            raise

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Let all reads inside see the same state of the store. Inside another snapshot, join that one."""
        if self._connection.in_transaction:
            yield
            return
        self.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self.execute("COMMIT")

    # --- maintenance

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the file, as far as no other process reads it."""
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def set_progress(self, report: Callable[[], None] | None, steps: int = 200_000) -> None:
        """Call `report` after every so many of SQLite's steps while a long statement runs."""
        self._connection.set_progress_handler(None if report is None else lambda: report() or False, steps)

    def copy_to(self, path: Path, report: Callable[[int, int], None], pages: int = 2_000) -> None:
        """Copy the store as it is now to another file, while others may write. `report` gets pages done and in all."""
        target: Any = apsw.Connection(str(path))
        try:
            with self.snapshot():
                # A transaction sees the state at its first read, so read something now.
                self.execute("SELECT count(*) FROM sqlite_schema")
                with target.backup("main", self._connection, "main") as backup:
                    while not backup.done:
                        backup.step(pages)
                        report(backup.page_count - backup.remaining, backup.page_count)
            # Leave one file, not three. Opening the copy as a store sets WAL again.
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            target.close()

    def version(self) -> int:
        """Return the version of the store, or 0 if it is empty."""
        return int(self._connection.pragma("user_version"))

    def migrate(self, upto: int | None = None) -> int:
        """Migrate the store to a version, by default the newest, with one transaction per version.

        Returns:
            the number of migrations that were applied.

        Raises:
            NewerLog: a newer release wrote the store. It wasn't changed.
        """
        version, newest = self.version(), newest_version()
        if version > newest:
            raise NewerLog(version, newest)
        steps = [(number, sql) for number, sql in migrations() if version < number <= (upto or newest)]
        for number, sql in steps:
            with self.transaction():
                self.execute(sql)
                self.execute(f"PRAGMA user_version = {number}")
        return len(steps)


def _create_private(path: Path) -> None:
    """Create a missing store so that only its user can read it. SQLite's other files get the same mode.

    An existing file isn't opened: closing it would drop the locks that SQLite has on it. SQLite reports what is wrong.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


# --- errors


@contextmanager
def translate_errors() -> Generator[None]:
    """Raise SQLite's errors as `LogUnavailable`."""
    try:
        yield
    except apsw.Error as error:
        raise unavailable(error) from error


#: SQLite's error, what it means, and what to do about it.
_MEANINGS: tuple[tuple[type[apsw.Error], str, str], ...] = (
    (apsw.FullError, "the disk is full", "Free some space; the next append succeeds then."),
    (apsw.ReadOnlyError, "the file or its folder is read-only", "Make both writable for this user."),
    (apsw.BusyError, "another program holds the store locked", "Find it with `fuser` on the file, and stop it."),
    (apsw.LockedError, "another program holds the store locked", "Find it with `fuser` on the file, and stop it."),
    (
        apsw.CantOpenError,
        "the file can't be opened",
        "Create its folder, and make it writable. A read-only disk can't hold a store.",
    ),
    (apsw.CorruptError, "the file is damaged", "Run `qd db check`, then restore a backup."),
    (
        apsw.NotADBError,
        "the file is not a Quarterdeck store",
        "Set QUARTERDECK_HOME to another folder, or move the file away.",
    ),
    (apsw.IOError, "the disk reports an error", "Check the disk, its quota and the system's log."),
)
_NOTHING_LOST = "No acknowledged event is lost."


def unavailable(error: apsw.Error) -> LogUnavailable:
    """Return SQLite's error as one that a person can act on."""
    for kind, meaning, hint in _MEANINGS:
        if isinstance(error, kind):
            return LogUnavailable(f"{meaning} ({error})", f"{hint} {_NOTHING_LOST}")
    return LogUnavailable(f"SQLite failed ({error})", _NOTHING_LOST)
