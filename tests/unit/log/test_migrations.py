"""Test every migration from the version before it, with rows that the release of that version wrote."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.kernel.view import FOLD_VERSION, fold_all
from quarterdeck.log.rows import catalogue_row, decode_snapshot
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.connection import StoreConnection
from quarterdeck.log.sqlite.sql import newest_version
from quarterdeck.testing.logs import SampleWriter
from tests.unit.log.old_stores import SESSIONS, file_of, restored

VERSIONS = range(1, newest_version() + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_left_a_store(version: int) -> None:
    assert file_of(version).exists(), "run `python -m tests.unit.log.old_stores` once"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_this_version_has_the_tables_that_the_migrations_make(version: int, tmp_path: Path) -> None:
    restored(version, tmp_path / "old.db")
    fresh = StoreConnection(tmp_path / "fresh.db")
    fresh.migrate(upto=version)
    old = StoreConnection(tmp_path / "old.db")
    assert old.version() == fresh.version() == version
    assert _tables(old) == _tables(fresh)
    old.close()
    fresh.close()


def _tables(store: StoreConnection) -> dict[str, list[tuple[object, ...]]]:
    """Return columns and indexes by table. Don't compare `sql`: its spaces differ once a column was added."""
    names = [str(row[0]) for row in store.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'index')")]
    return {
        name: store.execute(f"PRAGMA table_xinfo({name})") + store.execute(f"PRAGMA index_xinfo({name})")
        for name in names
    }


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_step_keeps_every_row(version: int, tmp_path: Path) -> None:
    """Migrate by one version, and check that every column of every row is unchanged."""
    path = tmp_path / "x.db"
    restored(version - 1, path)
    before = _rows(path)
    store = StoreConnection(path)
    assert store.migrate(upto=version) == 1
    assert store.migrate(upto=version) == 0
    assert store.execute("PRAGMA integrity_check") == [("ok",)]
    assert store.execute("PRAGMA foreign_key_check") == []
    store.close()
    after = _rows(path)
    for table, rows in before.items():
        # `meta` may have got another row.
        for old, new in zip(rows, after[table][: len(rows)], strict=True):
            assert old.items() <= new.items()


def _rows(path: Path) -> dict[str, list[dict[str, object]]]:
    connection = apsw.Connection(str(path))
    names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found: dict[str, list[dict[str, object]]] = {}
    for name in names:
        cursor = connection.execute(f"SELECT * FROM {name} ORDER BY rowid")
        found[name] = [dict(zip((one[0] for one in cursor.getdescription()), row, strict=True)) for row in cursor]
    connection.close()
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_store_of_any_version_is_opened_read_and_written(version: int, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    restored(version, path)

    log = await SqliteLog.open(path)
    stored = {one.row.session_id: one for one in await log.sessions()}
    assert stored.keys() == SESSIONS.keys()
    for session_id, one in stored.items():
        events = await log.read(session_id)
        view = fold_all(events)
        known = decode_snapshot(one.snapshot)
        # The deck builds views of an older fold again.
        if known.fold_version == FOLD_VERSION:
            assert known == fold_all(event for event in events if event.index <= one.snapshot_index).state
        # Whether a session can be resumed may be decided differently now.
        same = {"last_gate_number": 0, "supports_resume": False}
        assert replace(one.row, **same) == replace(catalogue_row(view.state), **same)
    assert [event.type for event in await log.read("talk", types={"command_receipt", "process_starting"})] == [
        "command_receipt",
        "process_starting",
    ]
    writing = SampleWriter(log, "growing")
    writing.fence, writing.index = stored["growing"].fence, stored["growing"].last_index
    newest = await log.last_cursor()
    told = await writing.write(ev.MessageAborted(message_id="m1"))
    assert told.events[0].cursor > newest
    assert [event.type for event in await log.read_all(types={"message_delta"})] == []
    await log.close()


def test_a_step_that_fails_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    restored(1, path)
    before = _rows(path)
    broken = "CREATE TABLE half (one INTEGER); UPDATE session SET name = 'changed'; SELECT no_such_function();"
    monkeypatch.setattr("quarterdeck.log.sqlite.connection.migrations", lambda: ((1, ""), (2, broken)))
    store = StoreConnection(path)
    with pytest.raises(apsw.SQLError):
        store.migrate()
    assert store.version() == 1
    store.close()
    assert _rows(path) == before


def test_version_2_finds_the_gates_that_were_opened_before(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    restored(1, path)
    store = StoreConnection(path)
    store.migrate(upto=2)
    found = dict(store.execute("SELECT id, last_gate FROM session"))
    assert found == {"talk": 3, "growing": 12, "archived": 0, "suspended": 0}
    store.close()


def test_gates_that_are_no_numbers_count_for_nothing(tmp_path: Path) -> None:
    """Ignore gate ids that agents chose themselves, which are in the log too."""
    path = tmp_path / "x.db"
    store = StoreConnection(path)
    store.migrate(upto=1)
    store.execute(
        "INSERT INTO session (number, id, agent, status, created_at, last_active_at, last_index, view, view_index) "
        "VALUES (1, 's', 'a', 'active', 1, 1, 4, x'00', 4)"
    )
    names = ("grep", "g", "g5x", "G9", "g2")
    for place, name in enumerate(names, 1):
        body = f'{{"type":"ask_user","question":"?","gate_id":"{name}"}}'.encode()
        store.execute("INSERT INTO event VALUES (?, 1, ?, 1, 'rpc', 'ask_user', ?)", (place, place, body))
    store.migrate(upto=2)
    assert store.execute("SELECT last_gate FROM session") == [(2,)]
    store.close()
