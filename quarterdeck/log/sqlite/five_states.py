"""Session tables of the five-state model, read from somebody else's SQLite file, which is never changed.

The table is copied into memory, brought to four states there by its one-time migration, and read row by row.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import apsw
from msgspec import Struct

from quarterdeck.errors import QuarterdeckError

#: apsw's own types are loose.
_Connection: TypeAlias = Any

TABLE = "AgentSession"
STATUSES = ("active", "suspended", "archived", "error")
#: A session's id names files of ours, and is a part of addresses.
_ID_LIMIT = 200
_FOLDERS = ("id", "repoPath")
#: The end of the year 9999: whatever is later is no time but a mistake, and all that comes after it would be as late.
_NAME_ONE = "Name the SQLite file that holds the sessions."
_LAST_MS = 253_402_300_799_999


class NoSuchFile(QuarterdeckError):
    code = "no_such_file"

    def __init__(self, path: Path) -> None:
        what = f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        super().__init__(what, _NAME_ONE)


class NotSqlite(QuarterdeckError):
    code = "not_sqlite"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is no SQLite file", _NAME_ONE)


class ImportUnreadable(QuarterdeckError):
    """SQLite cannot read the file to its end. Nothing was imported."""

    code = "import_unreadable"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be read: {why}", "Nothing was imported. Give a copy that SQLite can read.")


class NoSuchTable(QuarterdeckError):
    code = "no_such_table"

    def __init__(self, table: str, tables: tuple[str, ...]) -> None:
        listed = ", ".join(tables) or "none"
        super().__init__(f"the file has no table {table}", f"Choose one with --table. Its tables: {listed}.")


class InvalidImport(QuarterdeckError):
    """A row that cannot be a session. Nothing was imported."""

    code = "invalid_import"

    def __init__(self, row: str, what: str) -> None:
        super().__init__(f"row {row}: {what}", "Nothing was imported. Mend that row, or remove it.")


class OldSession(Struct, frozen=True):
    """A row after the migration; `columns` is everything that stood in it, and `was` its status before."""

    id: str
    status: str
    was: str
    created_at: int
    last_active_at: int
    agent: str
    agent_version: str
    cwd: str
    supports_resume: bool
    resume_data: str
    columns: dict[str, Any]


def old_sessions(path: Path, table: str = TABLE) -> list[OldSession]:
    """All rows, valid every one, in the order of their creation. NoSuchFile, NotSqlite,
    NoSuchTable, ImportUnreadable, InvalidImport."""
    if not path.is_file():
        raise NoSuchFile(path)
    with _theirs(path), _texts():
        memory = _copied(path, table)
        before = {str(name): str(status) for name, status in memory.execute(f"SELECT id, status FROM {TABLE}")}
        migrate(memory)
        rows = _dicts(memory, f"SELECT * FROM {TABLE}")
        folders = dict(memory.execute("SELECT id, repoPath FROM Repo"))
        memory.close()
    found = [_session(row, before, folders) for row in rows]
    return sorted(_each_once(found), key=lambda one: (one.created_at, one.id))


@contextmanager
def _theirs(path: Path) -> Generator[None]:
    """SQLite's complaints are about their file, not about our log."""
    try:
        yield
    except apsw.NotADBError:
        raise NotSqlite(path) from None
    except apsw.Error as error:
        raise ImportUnreadable(path, str(error)) from error


@contextmanager
def _texts() -> Generator[None]:
    """SQLite takes whatever bytes it is given for a text; we do not."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidImport("?", f"{error.object!r:.100} is no text in UTF-8") from None


def migrate(connection: _Connection) -> int:
    """The one-time migration; returns how many rows it changed."""
    sql = (files("quarterdeck.log.sqlite") / "five_to_four_states.sql").read_text(encoding="utf-8")
    before = connection.total_changes()
    connection.execute(sql).fetchall()
    return connection.total_changes() - before


def _copied(path: Path, table: str) -> _Connection:
    """The table and its folders in memory, under the names that we know."""
    memory: _Connection = apsw.Connection(":memory:", flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
    memory.execute("ATTACH ? AS old", (f"{path.resolve().as_uri()}?mode=ro",)).fetchall()
    names = tuple(str(row[0]) for row in memory.execute("SELECT name FROM old.sqlite_schema WHERE type = 'table'"))
    if table not in names:
        raise NoSuchTable(table, names)
    quoted = table.replace('"', '""')
    memory.execute(f'CREATE TABLE {TABLE} AS SELECT * FROM old."{quoted}"').fetchall()
    _must_have(memory, ("id", "status"))
    has_folders = _columns(memory, "Repo", "old").issuperset(_FOLDERS)
    folders = "SELECT id, repoPath FROM old.Repo" if has_folders else "SELECT NULL AS id, NULL AS repoPath WHERE 0"
    memory.execute(f"CREATE TABLE Repo AS {folders}").fetchall()
    memory.execute("DETACH old").fetchall()
    return memory


def _must_have(memory: _Connection, columns: tuple[str, ...]) -> None:
    found = _columns(memory, TABLE, "main")
    for column in columns:
        if column not in found:
            raise InvalidImport("1", f"the table has no column {column}")


def _columns(memory: _Connection, table: str, schema: str) -> set[str]:
    """None when there is no such table."""
    return {str(row[1]) for row in memory.execute(f"PRAGMA {schema}.table_info({table})")}


def _dicts(connection: _Connection, query: str) -> list[dict[str, Any]]:
    cursor = connection.execute(query)
    return [dict(zip((one[0] for one in cursor.get_description()), row, strict=True)) for row in cursor]


def _each_once(found: list[OldSession]) -> list[OldSession]:
    seen: set[str] = set()
    for one in found:
        if one.id in seen:
            raise InvalidImport(one.id, "its id stands there twice")
        seen.add(one.id)
    return found


def _session(row: dict[str, Any], before: dict[str, str], folders: dict[Any, Any]) -> OldSession:
    name = _id(row["id"])
    if row["status"] not in STATUSES:
        raise InvalidImport(name, f"{row['status']!r} is no status of the five")
    created = _time(name, row.get("createdAt"), 0)
    return OldSession(
        id=name,
        status=str(row["status"]),
        was=before[name],
        created_at=created,
        last_active_at=max(created, _time(name, row.get("lastActiveAt"), created)),
        agent=_agent(str(row.get("agentType") or "unknown")),
        agent_version=str(row.get("agentVersion") or ""),
        cwd=_cwd(name, folders.get(row.get("repoId"))),
        supports_resume=bool(row.get("supportsResume")),
        resume_data=str(row.get("resumeData") or ""),
        columns={key: value for key, value in row.items() if not isinstance(value, bytes)},
    )


def _id(value: Any) -> str:
    if isinstance(value, bytes):
        raise InvalidImport(repr(value)[:_ID_LIMIT], "its id is no text")
    name = "" if value is None else str(value)
    if not name:
        raise InvalidImport("?", "it has no id")
    if len(name) > _ID_LIMIT or name in (".", "..") or not name.isprintable() or "/" in name or "\\" in name:
        raise InvalidImport(repr(name)[:_ID_LIMIT], f"its id is no name of at most {_ID_LIMIT} characters")
    return name


def _cwd(name: str, value: Any) -> str:
    found = str(value or "")
    if "\0" in found:
        raise InvalidImport(name, "its folder has a NUL character")
    return found


def _agent(name: str) -> str:
    """Their names of agents end with what they are."""
    return name.removesuffix("-cli").removesuffix("-code") or "unknown"


def _time(name: str, value: Any, otherwise: int) -> int:
    """Milliseconds, as a number or as a date in ISO's form; without a zone it is UTC."""
    if value is None:
        return otherwise
    if isinstance(value, int | float) and 0 <= value <= _LAST_MS:
        return int(value)
    try:
        when = datetime.fromisoformat(str(value))
        found = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError:
        raise InvalidImport(name, f"{value!r} is no time") from None
    if found < 0:
        raise InvalidImport(name, f"{value!r} is before 1970")
    return min(found, _LAST_MS)
