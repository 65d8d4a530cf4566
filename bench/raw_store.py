"""Provide the floor for the log benchmarks: the same tables, written by bare apsw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from bench.measure import Work
from quarterdeck.events import Body, encode_body, type_of
from quarterdeck.log.sqlite.sql import migrations

EventRow: TypeAlias = tuple[int, int, int, int, str, str, bytes]
INSERT = "INSERT INTO event (cursor, session, position, at, origin, type, body) VALUES (?, ?, ?, ?, ?, ?, ?)"


def open_store(path: Path, sessions: int) -> Any:
    """Open a store with our tables and settings, and with this many sessions."""
    connection: Any = apsw.Connection(str(path))
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    for version, sql in migrations():
        connection.execute(f"{sql}; PRAGMA user_version = {version}").fetchall()
    connection.execute("BEGIN").fetchall()
    for number in range(1, sessions + 1):
        connection.execute(
            "INSERT INTO session (number, id, agent, status, created_at, last_active_at, last_index, view, view_index) "
            "VALUES (?, ?, 'bench', 'active', 1, 1, 1, x'00', 1)",
            (number, f"s{number}"),
        ).fetchall()
    connection.execute("COMMIT").fetchall()
    return connection


def insert_work(path: Path, tape: Sequence[Body], sessions: int, batch: int) -> Work:
    """Insert every event of the tape into each session, one row each, `batch` rows in a transaction."""
    connection = open_store(path, sessions)
    bodies = [("stream", type_of(body), encode_body(body)) for body in tape]
    cursors, turns = count(1), count()

    def run() -> None:
        first = next(turns) * len(bodies) + 1
        rows: list[EventRow] = []
        for position, (origin, name, body) in enumerate(bodies, first):
            for number in range(1, sessions + 1):
                rows.append((next(cursors), number, position, 1, origin, name, body))
                if len(rows) == batch:
                    _commit(connection, rows)
                    rows = []
        if rows:
            _commit(connection, rows)

    return Work(run, len(bodies) * sessions)


def commit_work(path: Path, body: Body, times: int) -> Work:
    """Insert one row in a transaction of its own, this many times."""
    connection = open_store(path, 1)
    data, name = encode_body(body), type_of(body)
    positions = count(1)

    def run() -> None:
        for _ in range(times):
            position = next(positions)
            _commit(connection, [(position, 1, position, 1, "stream", name, data)])

    return Work(run, times)


def _commit(connection: Any, rows: list[EventRow]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")
