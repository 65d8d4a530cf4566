"""The SQL: named queries and numbered migrations, read from their files once."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")


@cache
def queries() -> dict[str, str]:
    """The queries by name."""
    parts = _NAME.split((files("quarterdeck.log.sqlite") / "queries.sql").read_text(encoding="utf-8"))
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


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
