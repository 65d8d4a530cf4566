"""`GET /folders`: suggest folders for a new session."""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from quarterdeck.deck.validation import is_inside
from quarterdeck.server.route import Call, Table

TABLE = Table()
_LIMIT = 50


class FoldersQuery(Struct, frozen=True, kw_only=True):
    """`q` is the beginning of a path, or a part of the path of a folder that a session worked in."""

    q: Annotated[str, Meta(max_length=400)] = ""


class Folders(Struct, frozen=True):
    """At most 50 paths."""

    folders: tuple[str, ...]


@TABLE.add("GET", "/folders", "Suggest folders to work in", query=FoldersQuery, answer=Folders)
async def folders(call: Call) -> Folders:
    q: str = call.query.q
    if q.startswith(("/", "~")) and "\0" not in q:
        return Folders(tuple(await asyncio.to_thread(_complete, q, call.deck.settings.workspace)))
    rows = sorted(call.deck.rows(), key=lambda row: -row.last_active_at)
    used = dict.fromkeys(row.cwd for row in rows if row.cwd and q.lower() in row.cwd.lower())
    return Folders(tuple(used)[:_LIMIT])


def _complete(start: str, workspace: tuple[str, ...]) -> list[str]:
    """Return the folders in the workspace whose path begins with `start`. Hidden ones only if the dot was typed."""
    parent, prefix = os.path.split(os.path.expanduser(start))
    try:
        with os.scandir(parent) as entries:
            names = sorted(entry.name for entry in entries if entry.name.startswith(prefix) and entry.is_dir())
    except (OSError, ValueError):
        return []
    visible = (name for name in names if prefix.startswith(".") or not name.startswith("."))
    paths = (os.path.join(parent, name) for name in visible if _is_utf8(name))
    return list(islice((path for path in paths if is_inside(path, workspace)), _LIMIT))


def _is_utf8(name: str) -> bool:
    """Return whether JSON can hold a file name. Python maps bytes that aren't UTF-8 to surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)
