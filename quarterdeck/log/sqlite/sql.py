"""The SQL: named queries and numbered migrations, read from their files once."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from importlib.resources import files

#: The types that have indexes of their own (migrations 0002 and 0004).
RARE = (
    "command_receipt",
    "owner_changed",
    "process_exited",
    "process_starting",
    "session_archived",
    "session_failed",
    "session_opened",
    "session_resumed",
    "session_suspended",
    "view_refolded",
)

#: What stands in the column; nothing for all others.
RARE_MARKS: dict[str, int] = dict.fromkeys(RARE, 1)

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PART = re.compile(r"\{\w+\}")
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")


@cache
def queries() -> dict[str, str]:
    """The queries by name."""
    parts = _NAME.split((files("quarterdeck.log.sqlite") / "queries.sql").read_text(encoding="utf-8"))
    return {name: _without_comments(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _without_comments(body: str) -> str:
    return "\n".join(line for line in body.strip().splitlines() if not line.startswith("--"))


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """The migrations in order, as (version that they lead to, SQL)."""
    found: list[tuple[int, str]] = []
    for file in (files("quarterdeck.log.sqlite") / "migrations").iterdir():
        match = _MIGRATION.match(file.name)
        if match:
            found.append((int(match[1]), file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def newest_version() -> int:
    """The version that this release writes."""
    return migrations()[-1][0]


def typed(name: str, types: Collection[str] | None) -> str:
    """A named query for events of these types only; rare ones are found by their index."""
    is_rare = bool(types) and RARE_MARKS.keys() >= frozenset(types)
    parts = {
        "{types}": "" if types is None else f"AND type IN ({', '.join('?' * len(types))})",
        "{is_rare}": "AND is_rare = 1" if is_rare else "",
        "{index}": "INDEXED BY event_rare" if is_rare else "",
        "{rare}": ", ".join(map(repr, RARE)),
    }
    return _PART.sub(lambda part: parts[part[0]], queries()[name])
