"""Load the SQL from its files: named queries and numbered migrations."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from importlib.resources import files

#: Event types with indexes of their own (migrations 0002 and 0004).
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

#: Value of the column `is_rare` by event type. All other types have NULL.
RARE_MARKS: dict[str, int] = dict.fromkeys(RARE, 1)

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\w+\}")
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")


@cache
def queries() -> dict[str, str]:
    """Return all queries by name."""
    parts = _NAME.split((files("quarterdeck.log.sqlite") / "queries.sql").read_text(encoding="utf-8"))
    return {name: _strip_comments(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _strip_comments(body: str) -> str:
    return "\n".join(line for line in body.strip().splitlines() if not line.startswith("--"))


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Return all migrations in order, as (version after it, SQL)."""
    scripts: list[tuple[int, str]] = []
    for file in (files("quarterdeck.log.sqlite") / "migrations").iterdir():
        match = _MIGRATION.match(file.name)
        if match:
            scripts.append((int(match[1]), file.read_text(encoding="utf-8")))
    return tuple(sorted(scripts))


def newest_version() -> int:
    """Return the store version that this release writes."""
    return migrations()[-1][0]


def typed(name: str, types: Collection[str] | None) -> str:
    """Return a named query, restricted to events of these types. If all of them are rare, it uses their index."""
    is_rare = bool(types) and RARE_MARKS.keys() >= frozenset(types)
    replacements = {
        "{types}": "" if types is None else f"AND type IN ({', '.join('?' * len(types))})",
        "{is_rare}": "AND is_rare = 1" if is_rare else "",
        "{index}": "INDEXED BY event_rare" if is_rare else "",
        "{rare}": ", ".join(map(repr, RARE)),
    }
    return _PLACEHOLDER.sub(lambda match: replacements[match[0]], queries()[name])
