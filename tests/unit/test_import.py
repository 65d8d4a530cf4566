"""Test importing a table of the five-state model: its one-time migration, and its rows as our sessions."""

from __future__ import annotations

import asyncio
import fcntl
import json
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

from quarterdeck.cli.app import app
from quarterdeck.cli.exits import Exit
from quarterdeck.kernel.view import fold_all
from quarterdeck.log.base import StoredSession
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.five_states import migrate
from tests.conformance.marks import case

SCHEMA = """
CREATE TABLE Repo (id TEXT PRIMARY KEY, name TEXT, repoPath TEXT);
CREATE TABLE AgentSession (
    id TEXT PRIMARY KEY, repoId TEXT REFERENCES Repo (id), status TEXT NOT NULL, agentType TEXT DEFAULT 'gemini-cli',
    agentVersion TEXT DEFAULT '0.11.3', supportsResume BOOLEAN DEFAULT 0, resumeData TEXT,
    lastActiveAt DATETIME, createdAt DATETIME, updatedAt DATETIME
);
INSERT INTO Repo VALUES ('r1', 'portal', '/src/portal');
"""
FIVE = ("active", "completed", "cancelled", "suspended", "error")
BECOMES = {
    "active": "active",
    "completed": "active",
    "cancelled": "archived",
    "suspended": "suspended",
    "error": "error",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Create a table with one row in each of the five states, and one that is already archived."""
    path = tmp_path / "portal.db"
    connection = apsw.Connection(str(path))
    connection.execute(SCHEMA).fetchall()
    for number, status in enumerate((*FIVE, "archived"), 1):
        connection.execute(
            "INSERT INTO AgentSession (id, repoId, status, lastActiveAt, createdAt) VALUES (?, 'r1', ?, ?, ?)",
            (f"id-{status}", status, 2_000 + number, 1_000 + number),
        ).fetchall()
    connection.close()
    return path


def changed(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement).fetchall()
    connection.close()


def statuses(connection: apsw.Connection) -> dict[str, str]:
    return {str(name): str(status) for name, status in connection.execute("SELECT id, status FROM AgentSession")}


def qd(folder: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["db", *args], prog_name="qd", env={"QUARTERDECK_HOME": str(folder)})


def stored(folder: Path) -> dict[str, StoredSession]:
    async def work() -> dict[str, StoredSession]:
        log = await SqliteLog.open(folder / "quarterdeck.db")
        found = {one.row.session_id: one for one in await log.sessions()}
        for name, one in found.items():
            view = fold_all(await log.read(name))
            assert view.state.lifecycle.value == one.row.status
            assert (view.state.process.value, view.state.turn.is_open) == ("none", False)
        await log.close()
        return found

    return asyncio.run(work())


@pytest.mark.parametrize(
    "status",
    [
        pytest.param("completed", marks=case("2-050")),
        pytest.param("cancelled", marks=case("2-051")),
        pytest.param("active", marks=case("2-052")),
        pytest.param("suspended", marks=case("2-052")),
        pytest.param("error", marks=case("2-052")),
    ],
)
def test_the_migration_and_the_import_give_this_status(old: Path, tmp_path: Path, status: str) -> None:
    connection = apsw.Connection(str(old))
    migrate(connection)
    assert statuses(connection)[f"id-{status}"] == BECOMES[status]
    connection.close()
    assert qd(tmp_path / "deck", "import", str(old)).exit_code == Exit.DONE
    assert stored(tmp_path / "deck")[f"id-{status}"].row.status == BECOMES[status]


@case("2-022", "2-053")
def test_the_migration_touches_former_statuses_only_and_once(old: Path) -> None:
    connection = apsw.Connection(str(old))
    assert migrate(connection) == 2
    after = statuses(connection)
    assert not {"completed", "cancelled"} & set(after.values())
    assert migrate(connection) == 0
    assert statuses(connection) == after
    connection.close()


@case("2-022")
def test_the_import_keeps_no_former_status_and_is_done_once(old: Path, tmp_path: Path) -> None:
    before = old.read_bytes()
    done = qd(tmp_path / "deck", "import", str(old))
    assert (done.exit_code, done.stdout) == (Exit.DONE, "6 sessions imported, 0 were already here\n")
    assert old.read_bytes() == before
    first = stored(tmp_path / "deck")
    assert {one.row.status for one in first.values()} == {"active", "suspended", "archived", "error"}
    again = qd(tmp_path / "deck", "import", str(old))
    assert (again.exit_code, again.stdout) == (Exit.DONE, "0 sessions imported, 6 were already here\n")
    assert [(one.row, one.last_index) for one in stored(tmp_path / "deck").values()] == [
        (one.row, one.last_index) for one in first.values()
    ]
    assert qd(tmp_path / "deck", "check").exit_code == Exit.DONE


def test_a_row_brings_all_that_it_says(old: Path, tmp_path: Path) -> None:
    data = json.dumps({"sessionId": "native-7", "name": "My fix"})
    changed(old, f"UPDATE AgentSession SET supportsResume = 1, resumeData = '{data}' WHERE id = 'id-suspended'")
    assert qd(tmp_path, "import", str(old)).exit_code == Exit.DONE
    row = stored(tmp_path)["id-suspended"].row
    assert (row.agent, row.agent_version, row.cwd, row.name) == ("gemini", "0.11.3", "/src/portal", "My fix")
    assert (row.created_at, row.last_active_at) == (1_004, 2_004)
    assert (row.supports_resume, row.resume_data) == (True, "native-7")


def test_end_reasons(old: Path, tmp_path: Path) -> None:
    assert qd(tmp_path, "import", str(old)).exit_code == Exit.DONE
    found = {name: one.row.end_reason for name, one in stored(tmp_path).items()}
    assert found["id-cancelled"] == "cancelled"
    assert found["id-archived"] == "archived"
    assert found["id-completed"] is None


@pytest.mark.parametrize(
    ("created", "milliseconds"),
    [("'2025-11-01T12:00:00.000Z'", 1_761_998_400_000), ("'2025-11-01 12:00:00'", 1_761_998_400_000), ("NULL", 0)],
)
def test_times_in_every_form(old: Path, tmp_path: Path, created: str, milliseconds: int) -> None:
    changed(old, f"UPDATE AgentSession SET createdAt = {created} WHERE id = 'id-active'")
    assert qd(tmp_path, "import", str(old)).exit_code == Exit.DONE
    assert stored(tmp_path)["id-active"].row.created_at == milliseconds


def test_resume_data_that_is_no_object_says_nothing(old: Path, tmp_path: Path) -> None:
    changed(old, "UPDATE AgentSession SET resumeData = '[1' WHERE id = 'id-active'")
    assert qd(tmp_path, "import", str(old)).exit_code == Exit.DONE
    assert stored(tmp_path)["id-active"].row.resume_data is None


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE AgentSession SET status = 'sleeping' WHERE id = 'id-error'",
            "'sleeping' isn't one of the five statuses",
        ),
        ("UPDATE AgentSession SET createdAt = 'yesterday' WHERE id = 'id-error'", "'yesterday' isn't a valid time"),
        ("UPDATE AgentSession SET createdAt = '1912-06-23' WHERE id = 'id-error'", "before 1970"),
        ("UPDATE AgentSession SET id = '' WHERE id = 'id-error'", "no id"),
        ("ALTER TABLE AgentSession RENAME COLUMN status TO state", "no column status"),
        ("UPDATE AgentSession SET createdAt = 9e999 WHERE id = 'id-error'", "inf isn't a valid time"),
        ("UPDATE AgentSession SET createdAt = 9223372036854775807 WHERE id = 'id-error'", "isn't a valid time"),
        ("UPDATE AgentSession SET id = '..' WHERE id = 'id-error'", "its id must be printable"),
        ("UPDATE AgentSession SET id = '../../home' WHERE id = 'id-error'", "its id must be printable"),
        ("UPDATE AgentSession SET id = 'a' || char(0) WHERE id = 'id-error'", "its id must be printable"),
        ("UPDATE AgentSession SET id = hex(zeroblob(101)) WHERE id = 'id-error'", "its id must be printable"),
        ("UPDATE AgentSession SET id = x'ff' WHERE id = 'id-error'", "its id is binary"),
        ("UPDATE AgentSession SET id = CAST(x'61ff' AS TEXT) WHERE id = 'id-error'", "isn't valid UTF-8"),
        ("UPDATE Repo SET repoPath = '/a' || char(0)", "NUL"),
    ],
)
def test_a_row_that_cannot_be_a_session_stops_all(old: Path, tmp_path: Path, statement: str, said: str) -> None:
    changed(old, statement)
    done = qd(tmp_path / "deck", "import", str(old))
    assert done.exit_code == Exit.FAILED
    assert said in done.stderr
    assert "Nothing was imported" in done.stderr
    assert not (tmp_path / "deck").exists()


def test_folders_of_another_kind_say_nothing(old: Path, tmp_path: Path) -> None:
    changed(old, "ALTER TABLE Repo RENAME COLUMN repoPath TO place")
    assert qd(tmp_path / "deck", "import", str(old)).exit_code == Exit.DONE
    assert {one.row.cwd for one in stored(tmp_path / "deck").values()} == {""}


def test_an_id_that_stands_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    changed(
        path, "CREATE TABLE AgentSession (id, status); INSERT INTO AgentSession VALUES ('a', 'active'), ('a', 'error')"
    )
    assert "the same id" in qd(tmp_path / "deck", "import", str(path)).stderr


def test_what_is_not_there(old: Path, tmp_path: Path) -> None:
    missing = qd(tmp_path, "import", str(tmp_path / "nothing.db"))
    assert (missing.exit_code, "there is no file" in missing.stderr) == (Exit.NO_SUCH_THING, True)
    table = qd(tmp_path, "import", str(old), "--table", "Sessions")
    assert (table.exit_code, "Its tables: Repo, AgentSession." in table.stderr) == (Exit.NO_SUCH_THING, True)
    (tmp_path / "letter").write_text("dear aunt" * 300)
    letter = qd(tmp_path, "import", str(tmp_path / "letter"))
    assert (letter.exit_code, "isn't a SQLite file" in letter.stderr) == (Exit.WRONG_USE, True)


def test_a_table_of_another_name(old: Path, tmp_path: Path) -> None:
    changed(old, 'ALTER TABLE AgentSession RENAME TO "my ""sessions"""')
    done = qd(tmp_path / "deck", "import", str(old), "--table", 'my "sessions"')
    assert (done.exit_code, len(stored(tmp_path / "deck"))) == (Exit.DONE, 6)


def test_a_running_deck_is_left_alone(old: Path, tmp_path: Path) -> None:
    with open(tmp_path / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert qd(tmp_path, "import", str(old)).exit_code == Exit.NOT_ALLOWED_NOW
    assert not (tmp_path / "quarterdeck.db").exists()
