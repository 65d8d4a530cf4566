"""Session tables of the five-state model, read from somebody else's SQLite file, which is never changed.

The table is copied into memory, brought to four states there by its one-time migration, and read row by row.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import apsw
from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.log.sqlite.connection import refusals

#: apsw's own types are loose.
_Connection: TypeAlias = Any

TABLE = "AgentSession"
STATUSES = ("active", "suspended", "archived", "error")


class NoSuchFile(QuarterdeckError):
    code = "no_such_file"

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no file {path}", "Name the SQLite file that holds the sessions.")


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
    """All rows, valid every one, in the order of their creation. NoSuchFile, NoSuchTable, InvalidImport."""
    if not path.is_file():
        raise NoSuchFile(path)
    with refusals():
        memory = _copied(path, table)
        before = {str(name): str(status) for name, status in memory.execute(f"SELECT id, status FROM {TABLE}")}
        migrate(memory)
        rows = _dicts(memory, f"SELECT * FROM {TABLE}")
        folders = dict(memory.execute("SELECT id, repoPath FROM Repo"))
        memory.close()
    found = [_session(row, before, folders) for row in rows]
    return sorted(_each_once(found), key=lambda one: (one.created_at, one.id))


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
    folders = "SELECT id, repoPath FROM old.Repo" if "Repo" in names else "SELECT NULL AS id, NULL AS repoPath WHERE 0"
    memory.execute(f"CREATE TABLE Repo AS {folders}").fetchall()
    memory.execute("DETACH old").fetchall()
    return memory


def _must_have(memory: _Connection, columns: tuple[str, ...]) -> None:
    found = {str(row[1]) for row in memory.execute(f"PRAGMA table_info({TABLE})")}
    for column in columns:
        if column not in found:
            raise InvalidImport("1", f"the table has no column {column}")


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
    name = str(row["id"] or "")
    if not name:
        raise InvalidImport("?", "it has no id")
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
        cwd=str(folders.get(row.get("repoId")) or ""),
        supports_resume=bool(row.get("supportsResume")),
        resume_data=str(row.get("resumeData") or ""),
        columns={key: value for key, value in row.items() if not isinstance(value, bytes)},
    )


def _agent(name: str) -> str:
    """Their names of agents end with what they are."""
    return name.removesuffix("-cli").removesuffix("-code")


def _time(name: str, value: Any, otherwise: int) -> int:
    """Milliseconds, as a number or as a date in ISO's form; without a zone it is UTC."""
    if value is None:
        return otherwise
    if isinstance(value, int | float) and value >= 0:
        return int(value)
    try:
        when = datetime.fromisoformat(str(value))
        found = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError:
        raise InvalidImport(name, f"{value!r} is no time") from None
    if found < 0:
        raise InvalidImport(name, f"{value!r} is before 1970")
    return found
