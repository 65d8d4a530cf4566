"""A connection as we want it: WAL, FULL, foreign keys on; brought to the newest version, or refused untouched."""

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

_BUSY_MS = 5000
#: What each pragma must say once it is set; SQLite ignores a wrong one in silence, so it is asked.
_PRAGMAS = (
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", 2),
    ("foreign_keys", "ON", 1),
    ("wal_autocheckpoint", "0", 0),
)


class Store:
    """A connection with the few calls that we need; the only place that touches apsw, whose types are loose."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        self._sql = queries()
        #: Whether a program that holds the store locked is waited for.
        self.is_patient = True
        self._gives_up_at = 0.0
        if not read_only:
            _make_private(path)
        with refusals():
            self._connection: Any = apsw.Connection(str(path), flags=flags)
            self._execute = self._connection.execute
            #: Everything inside it becomes durable together, or not at all.
            self.transaction = Transaction(self._connection)
            #: Another number after every commit, ours or somebody else's. Far cheaper than any question in SQL.
            self.changes: Callable[[], int] = self._connection.data_version
            try:
                self._connection.set_busy_handler(self._is_worth_waiting)
                for name, value, expected in () if read_only else _PRAGMAS:
                    self._set_pragma(name, value, expected)
            except BaseException:
                self._connection.close()
                raise

    def rows(self, name: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """All rows of a named query."""
        return self.rows_of(self._sql[name], values)

    def rows_of(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """All rows of a query that was made at run time. Every statement of it is run."""
        return self._connection.execute(sql, values).fetchall()

    def events(self, name: str, place: Values, limit: int, types: Collection[str] | None) -> list[tuple[Any, ...]]:
        """Events after a place, of these types only."""
        return self.rows_of(typed(name, types), (*place, *(types or ()), limit))

    def one(self, name: str, values: Values = ()) -> int:
        """The number that a query answers."""
        return int(self.rows(name, values)[0][0])

    def many(self, name: str, values: Iterable[Values]) -> None:
        """A named statement for each of these."""
        self._connection.executemany(self._sql[name], values)

    def run(self, name: str, values: Values) -> None:
        """A named statement that answers nothing."""
        self._execute(self._sql[name], values)

    def pages(self) -> int:
        """How many pages were written into the write-ahead log since it was opened."""
        return self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]

    def fold(self) -> None:
        """What is in the write-ahead log goes into the file, as far as nobody reads it there; then it is begun anew. SQLite
        would do it by itself, but as a part of some commit, which takes a hundred times as long as any other then."""
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    @contextmanager
    def moment(self) -> Generator[None]:
        """A read transaction: everything inside it sees the same state of the store. One inside another is the other."""
        if self._connection.in_transaction:
            yield
            return
        self.rows_of("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self.rows_of("COMMIT")

    def on_progress(self, told: Callable[[], None] | None, every: int = 200_000) -> None:
        """Calls `told` every so many steps of SQLite while a long statement runs."""
        self._connection.set_progress_handler(None if told is None else lambda: told() or False, every)

    def copy_to(self, path: Path, told: Callable[[int, int], None], pages: int = 2_000) -> None:
        """The store as it is at this moment, page by page, while others write on. `told` hears how far it is."""
        target: Any = apsw.Connection(str(path))
        try:
            with self.moment():
                self.rows_of("SELECT count(*) FROM sqlite_schema")  # the moment begins with the first read
                with target.backup("main", self._connection, "main") as backup:
                    while not backup.done:
                        backup.step(pages)
                        told(backup.page_count - backup.remaining, backup.page_count)
            # one file, not three: whoever opens it as a store sets WAL again
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            target.close()

    def version(self) -> int:
        """The version of the store; 0 when it is empty."""
        return int(self._connection.pragma("user_version"))

    def migrate(self, upto: int | None = None) -> int:
        """Brings the store forward, one transaction per version; returns how many steps it took."""
        found, known = self.version(), newest_version()
        if found > known:
            raise NewerLog(found, known)
        steps = [(version, sql) for version, sql in migrations() if found < version <= (upto or known)]
        for version, sql in steps:
            with self.transaction:
                self.rows_of(sql)
                self.rows_of(f"PRAGMA user_version = {version}")
        return len(steps)

    def close(self) -> None:
        """Lets go of the file."""
        self._connection.close()

    def _is_worth_waiting(self, asked: int) -> bool:
        """Somebody else has it. Asked again and again by SQLite; `asked` says how often it was before."""
        if not self.is_patient:
            return False
        if not asked:
            self._gives_up_at = time.monotonic() + _BUSY_MS / 1000
        left = self._gives_up_at - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, 0.001 * (1 + asked), 0.05))
        return True

    def _set_pragma(self, name: str, value: str, expected: object) -> None:
        self.rows_of(f"PRAGMA {name} = {value}")
        found = self._connection.pragma(name)
        if found != expected:
            raise LogUnavailable(
                f"{name} is {found}, not {expected}", "The file system must support SQLite's WAL mode."
            )


def _make_private(path: Path) -> None:
    """A new store is the user's alone, also in a folder that others may read; SQLite's other files get the same mode. One
    that is there is not touched: to close it would drop the locks that SQLite has on it. What is wrong SQLite tells."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


class Transaction:
    """Not a generator, and without any detour: a lone append pays for every step that is made here."""

    __slots__ = ("_connection", "_execute")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._execute = connection.execute

    def __enter__(self) -> None:
        """A full disk makes SQLite roll back by itself, a broken one cannot: whatever is left of the last one ends here."""
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        self._execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """It is durable when this returns."""
        if kind is not None:
            self._roll_back()
            return
        try:
            self._execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Nothing of it was. Asking a disk that is broken must not hide the reason; it is asked again at the next begin."""
        with suppress(apsw.Error):
            if self._connection.in_transaction:
                self._execute("ROLLBACK")


@contextmanager
def refusals() -> Generator[None]:
    """SQLite's complaints become ours."""
    try:
        yield
    except apsw.Error as error:
        raise unavailable(error) from error


#: SQLite's complaint, in a person's words, and what to do about it.
_WORDS: tuple[tuple[type[apsw.Error], str, str], ...] = (
    (apsw.FullError, "the disk is full", "Free some space; the next append succeeds then."),
    (apsw.ReadOnlyError, "the file or its folder is read-only", "Make both writable for this user."),
    (apsw.BusyError, "another program holds the store locked", "Find it with `fuser` on the file, and end it."),
    (apsw.LockedError, "another program holds the store locked", "Find it with `fuser` on the file, and end it."),
    (
        apsw.CantOpenError,
        "the file cannot be opened",
        "The folder must exist and be writable, which on a read-only disk it is not.",
    ),
    (apsw.CorruptError, "the file is damaged", "Run `qd db check`; then restore a backup."),
    (
        apsw.NotADBError,
        "the file is not a Quarterdeck store",
        "Set QUARTERDECK_HOME to another folder, or move it away.",
    ),
    (apsw.IOError, "the disk reports an error", "Look at the disk, its quota and the system's log."),
)
_LOST_NOTHING = "Nothing acknowledged is lost."


def unavailable(error: apsw.Error) -> LogUnavailable:
    """SQLite's complaint in a person's words."""
    for kind, words, hint in _WORDS:
        if isinstance(error, kind):
            return LogUnavailable(f"{words} ({error})", f"{hint} {_LOST_NOTHING}")
    return LogUnavailable(f"SQLite refused ({error})", _LOST_NOTHING)
