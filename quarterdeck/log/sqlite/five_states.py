"""Read session tables of the five-state model from another program's SQLite file, which is never changed.

The table is copied into memory, migrated to four states there, and read row by row.
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
#: A session's id becomes part of file names and addresses.
_MAX_ID_LENGTH = 200
_REPO_COLUMNS = ("id", "repoPath")
_NAME_A_FILE = "Name the SQLite file that holds the sessions."
#: The end of the year 9999. A later time is a mistake, and all events after it would have to be as late.
_MAX_MS = 253_402_300_799_999


# --- errors


class NoSuchFile(QuarterdeckError):
    code = "no_such_file"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is a folder" if path.is_dir() else f"there is no file {path}", _NAME_A_FILE)


class NotSqlite(QuarterdeckError):
    code = "not_sqlite"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} isn't a SQLite file", _NAME_A_FILE)


class ImportUnreadable(QuarterdeckError):
    """SQLite can't read the whole file. Nothing was imported."""

    code = "import_unreadable"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} can't be read: {reason}", "Nothing was imported. Pass a copy that SQLite can read.")


class NoSuchTable(QuarterdeckError):
    code = "no_such_table"

    def __init__(self, table: str, tables: tuple[str, ...]) -> None:
        names = ", ".join(tables) or "none"
        super().__init__(f"the file has no table {table}", f"Choose one with --table. Its tables: {names}.")


class InvalidImport(QuarterdeckError):
    """A row can't be imported as a session. Nothing was imported."""

    code = "invalid_import"

    def __init__(self, row: str, problem: str) -> None:
        super().__init__(f"row {row}: {problem}", "Nothing was imported. Fix that row or delete it.")


# --- reading a file


class OldSession(Struct, frozen=True):
    """A row after the migration to four states."""

    id: str
    status: str
    #: The status before the migration.
    former_status: str
    created_at: int
    last_active_at: int
    agent: str
    agent_version: str
    cwd: str
    supports_resume: bool
    resume_data: str
    #: Everything that the row held, except binary values.
    columns: dict[str, Any]


def read_old_sessions(path: Path, table: str = TABLE) -> list[OldSession]:
    """Read all rows of a session table, ordered by creation time.

    Raises:
        NoSuchFile: the file doesn't exist.
        NotSqlite: the file isn't a SQLite file.
        NoSuchTable: the file has no such table.
        ImportUnreadable: SQLite can't read the whole file.
        InvalidImport: a row can't be imported.
    """
    if not path.is_file():
        raise NoSuchFile(path)
    with _translate_errors(path):
        memory = _copy_to_memory(path, table)
        former = {str(row_id): str(status) for row_id, status in memory.execute(f"SELECT id, status FROM {TABLE}")}
        migrate(memory)
        rows = _read_dicts(memory, f"SELECT * FROM {TABLE}")
        folders = dict(memory.execute("SELECT id, repoPath FROM Repo"))
        memory.close()
    sessions = [_read_session(row, former, folders) for row in rows]
    _check_unique(sessions)
    return sorted(sessions, key=lambda session: (session.created_at, session.id))


@contextmanager
def _translate_errors(path: Path) -> Generator[None]:
    """Raise SQLite's errors as errors about this file, not about our own log."""
    try:
        yield
    except apsw.NotADBError:
        raise NotSqlite(path) from None
    except apsw.Error as error:
        raise ImportUnreadable(path, str(error)) from error
    except UnicodeDecodeError as error:
        # SQLite stores any bytes as text.
        raise InvalidImport("?", f"{error.object!r:.100} isn't valid UTF-8") from None


def migrate(connection: _Connection) -> int:
    """Migrate the table to four states. Return how many rows were changed."""
    sql = (files("quarterdeck.log.sqlite") / "five_to_four_states.sql").read_text(encoding="utf-8")
    before = connection.total_changes()
    connection.execute(sql).fetchall()
    return connection.total_changes() - before


def _copy_to_memory(path: Path, table: str) -> _Connection:
    """Copy the table and the folders of its repositories, under the names that the migration expects."""
    memory: _Connection = apsw.Connection(":memory:", flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
    memory.execute("ATTACH ? AS old", (f"{path.resolve().as_uri()}?mode=ro",)).fetchall()
    tables = tuple(str(row[0]) for row in memory.execute("SELECT name FROM old.sqlite_schema WHERE type = 'table'"))
    if table not in tables:
        raise NoSuchTable(table, tables)
    quoted = table.replace('"', '""')
    memory.execute(f'CREATE TABLE {TABLE} AS SELECT * FROM old."{quoted}"').fetchall()
    columns = _columns(memory, TABLE, "main")
    for column in ("id", "status"):
        if column not in columns:
            raise InvalidImport("1", f"the table has no column {column}")
    has_folders = _columns(memory, "Repo", "old").issuperset(_REPO_COLUMNS)
    folders = "SELECT id, repoPath FROM old.Repo" if has_folders else "SELECT NULL AS id, NULL AS repoPath WHERE 0"
    memory.execute(f"CREATE TABLE Repo AS {folders}").fetchall()
    memory.execute("DETACH old").fetchall()
    return memory


def _columns(memory: _Connection, table: str, schema: str) -> set[str]:
    """Return the names of a table's columns, empty if there is no such table."""
    return {str(row[1]) for row in memory.execute(f"PRAGMA {schema}.table_info({table})")}


def _read_dicts(connection: _Connection, query: str) -> list[dict[str, Any]]:
    cursor = connection.execute(query)
    return [dict(zip((column[0] for column in cursor.get_description()), row, strict=True)) for row in cursor]


# --- reading a row


def _read_session(row: dict[str, Any], former: dict[str, str], folders: dict[Any, Any]) -> OldSession:
    session_id = _read_id(row["id"])
    if row["status"] not in STATUSES:
        raise InvalidImport(session_id, f"{row['status']!r} isn't one of the five statuses")
    created_at = _read_time(session_id, row.get("createdAt"), 0)
    return OldSession(
        id=session_id,
        status=str(row["status"]),
        former_status=former[session_id],
        created_at=created_at,
        last_active_at=max(created_at, _read_time(session_id, row.get("lastActiveAt"), created_at)),
        agent=_agent_name(str(row.get("agentType") or "unknown")),
        agent_version=str(row.get("agentVersion") or ""),
        cwd=_read_folder(session_id, folders.get(row.get("repoId"))),
        supports_resume=bool(row.get("supportsResume")),
        resume_data=str(row.get("resumeData") or ""),
        columns={key: value for key, value in row.items() if not isinstance(value, bytes)},
    )


def _check_unique(sessions: list[OldSession]) -> None:
    seen: set[str] = set()
    for session in sessions:
        if session.id in seen:
            raise InvalidImport(session.id, "another row has the same id")
        seen.add(session.id)


def _read_id(value: Any) -> str:
    if isinstance(value, bytes):
        raise InvalidImport(repr(value)[:_MAX_ID_LENGTH], "its id is binary, not text")
    session_id = "" if value is None else str(value)
    if not session_id:
        raise InvalidImport("?", "it has no id")
    is_path = session_id in (".", "..") or "/" in session_id or "\\" in session_id
    if is_path or len(session_id) > _MAX_ID_LENGTH or not session_id.isprintable():
        problem = f"its id must be printable, without slashes, and at most {_MAX_ID_LENGTH} characters long"
        raise InvalidImport(repr(session_id)[:_MAX_ID_LENGTH], problem)
    return session_id


def _read_folder(session_id: str, value: Any) -> str:
    folder = str(value or "")
    if "\0" in folder:
        raise InvalidImport(session_id, "its folder has a NUL character")
    return folder


def _agent_name(name: str) -> str:
    """Return our name of an agent. Theirs end with `-cli` or `-code`."""
    return name.removesuffix("-cli").removesuffix("-code") or "unknown"


def _read_time(session_id: str, value: Any, default: int) -> int:
    """Return a time in milliseconds, from a number or an ISO date. A date without a time zone is UTC."""
    if value is None:
        return default
    if isinstance(value, int | float) and 0 <= value <= _MAX_MS:
        return int(value)
    try:
        date = datetime.fromisoformat(str(value))
        milliseconds = int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError:
        raise InvalidImport(session_id, f"{value!r} isn't a valid time") from None
    if milliseconds < 0:
        raise InvalidImport(session_id, f"{value!r} is before 1970")
    return min(milliseconds, _MAX_MS)
