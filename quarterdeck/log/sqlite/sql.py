"""The SQL: named queries and numbered migrations, read from their files once."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from importlib.resources import files

#: The types that have indexes of their own (migration 0002).
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

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
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
    rare = bool(types) and frozenset(types) <= frozenset(RARE)
    condition = "" if types is None else f"AND type IN ({', '.join('?' * len(types))})"
    if rare:
        condition += f" AND type IN ({', '.join(repr(one) for one in RARE)})"
    return queries()[name].replace("{types}", condition).replace("{rare}", "INDEXED BY event_rare" if rare else "")
