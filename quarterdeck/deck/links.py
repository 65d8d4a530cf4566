"""Where a path leads, for rules: most paths have no link on the way, and that is found out quickly."""

from __future__ import annotations

import os
from stat import S_ISLNK


def resolved(path: str) -> str:
    """What `os.path.realpath` says, which takes three times as long: for each name it takes the path apart and joins it.
    What may have to be taken apart is left to it."""
    if path[:1] != "/" or "//" in path or "/." in path or path[-1:] == "/":
        return os.path.realpath(path)
    end = 0
    while end != len(path):
        end = path.find("/", end + 1)
        if end < 0:
            end = len(path)
        try:
            is_link = S_ISLNK(os.lstat(path[:end]).st_mode)
        except FileNotFoundError:
            return path  # nothing is below it, and so no link
        except OSError:
            is_link = True  # it may be
        if is_link:
            return os.path.realpath(path)
    return path
