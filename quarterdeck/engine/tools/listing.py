"""ls and glob."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from typing import Annotated

from msgspec import Meta

from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.engine.tools.paths import PathRefused, folder_at, located, readable
from quarterdeck.engine.tools.pattern import Glob, TooManyBraces
from quarterdeck.engine.tools.threads import in_thread
from quarterdeck.engine.tools.walk import walked_from

#: How many entries a search looks at.
_LOOKED_AT = 500_000

Limit = Annotated[int, Meta(ge=1, le=10_000)]


# --- ls


@tool
async def ls(context: ToolContext, path: str = ".", limit: Limit = 1_000) -> Outcome:
    """Lists a folder: folders end with a slash, files show their size in bytes, links show where they lead.

    Args:
        path: which folder, relative to the working directory
        limit: how many entries to show at most
    """
    return await in_thread(_list, path, context, limit)


def _list(path: str, context: ToolContext, limit: int) -> Outcome:
    place = located(path, context)
    with folder_at(place) as folder:
        names = sorted(os.listdir(folder))
        lines = [line for name in names[:limit] if (line := _entry(folder, name))]
    if len(names) > limit:
        lines.append(f"[{limit} of {len(names)} entries]")
    return Outcome("\n".join(lines) or "[the folder is empty]")


def _entry(folder: int, name: str) -> str:
    """Nothing when it is gone by now."""
    with contextlib.suppress(OSError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return f"{readable(name)}/"
        if stat.S_ISLNK(found.st_mode):
            return f"{readable(name)} -> {readable(os.readlink(name, dir_fd=folder))}"
        return f"{readable(name)}  {found.st_size}"
    return ""


# --- glob


@tool
async def glob(
    pattern: Annotated[str, Meta(min_length=1)],
    context: ToolContext,
    path: str = ".",
    limit: Limit = 1_000,
    include_ignored: bool = False,
) -> Outcome:
    """Finds files by their names. What .gitignore names, and .git itself, is left out.

    Args:
        pattern: such as *.py for a name in any folder, or src/**/test_*.{js,ts} for a path
        path: the folder to look in, relative to the working directory
        limit: how many files to show at most
        include_ignored: also what .gitignore names
    """
    stop = threading.Event()
    try:
        return await in_thread(_glob, pattern, path, context, limit, include_ignored, stop)
    finally:
        stop.set()


def _glob(
    pattern: str, path: str, context: ToolContext, limit: int, include_ignored: bool, stop: threading.Event
) -> Outcome:
    place = located(path, context)
    try:
        wanted = Glob(pattern)
    except TooManyBraces as error:
        raise PathRefused(f"argument pattern: {error}", "Use a simpler one.") from None
    found, looked_at, more = list[str](), 0, ""
    with folder_at(place._replace(parts=())) as root, folder_at(place):
        for one in walked_from(root, place.parts, all_of_them=include_ignored):
            looked_at += 1
            if stop.is_set() or looked_at > _LOOKED_AT or len(found) >= limit:
                more = f"[only the first {len(found)}; narrow the pattern]"
                break
            if not one.is_folder and wanted.matches(one.parts):
                found.append(readable(place.named(one.path)))
    return Outcome("\n".join([*found, more] if more else found) or "[no file fits]")
