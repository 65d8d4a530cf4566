"""Patterns of paths: what `glob` takes, and the lines of a .gitignore. Pure.

A pattern is matched one folder at a time, so that `**` costs no more than the length of the path, whatever it is.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import NamedTuple

Parts = Sequence[str]

#: How many patterns one with braces may become.
_BRACES = 200


class TooManyBraces(ValueError):
    """One pattern that stands for more than anybody means."""


class Pattern:
    """One path pattern: `*` and `?` within a name, `**` for any number of folders, `[a-z]`."""

    def __init__(self, text: str) -> None:
        names = [name for name in text.split("/") if name not in ("", ".")]
        if names and names[-1] == "**":
            names.append("*")  # everything in it, and not the folder itself
        self._steps = [None if name == "**" else re.compile(fnmatch.translate(_posix(name))) for name in names]

    def matches(self, parts: Parts) -> bool:
        """Whether the whole path fits. As with one star in a word, only the last `**` ever has to be tried again."""
        at = step = 0
        again: tuple[int, int] | None = None
        while at < len(parts):
            if step < len(self._steps) and self._steps[step] is None:
                again = (at, step)
                step += 1
            elif step < len(self._steps) and (one := self._steps[step]) and one.match(parts[at]):
                at, step = at + 1, step + 1
            elif again is not None:
                again = (again[0] + 1, again[1])
                at, step = again[0], again[1] + 1
            else:
                return False
        return step == len(self._steps)


def _posix(name: str) -> str:
    return name.replace("[^", "[!")


def alternatives(text: str) -> list[str]:
    """`a.{b,c}` is `a.b` and `a.c`. TooManyBraces."""
    found: list[str] = []
    open_ends = [text]
    while open_ends:
        one = open_ends.pop()
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", one)
        if braces is None:
            found.append(one)
        else:
            open_ends += [one[: braces.start()] + middle + one[braces.end() :] for middle in braces[1].split(",")]
        if len(found) + len(open_ends) > _BRACES:
            raise TooManyBraces(f"{text[:80]} stands for too many patterns")
    return list(dict.fromkeys(found))


class Glob:
    """A pattern as people type it. Without a slash it means a name in any folder, with one the whole path."""

    def __init__(self, text: str) -> None:
        self._patterns = [Pattern(one if "/" in one else f"**/{one}") for one in alternatives(text)]

    def matches(self, parts: Parts) -> bool:
        return any(one.matches(parts) for one in self._patterns)


# --- .gitignore


class Rule(NamedTuple):
    pattern: Pattern
    is_kept: bool
    only_folders: bool


def rules_of(text: str) -> list[Rule]:
    """The lines of one .gitignore; paths are seen from the folder in which it lies."""
    return [rule for line in text.splitlines() if (rule := _rule(line)) is not None]


def _rule(line: str) -> Rule | None:
    line = re.sub(r"(?<!\\)\s+$", "", line)
    if not line or line.startswith("#"):
        return None
    is_kept = line.startswith("!")
    line = line[1:] if is_kept else line
    line = re.sub(r"\\([#! \\])", r"\1", line)
    only_folders = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    pattern = Pattern(line if "/" in line else f"**/{line}")
    return Rule(pattern, is_kept, only_folders)


class Ignored:
    """The rules that hold in one folder: its own, which win, and those of the folders above it."""

    def __init__(self, above: Ignored | None, name: str, text: str) -> None:
        self._above = above
        self._name = name
        self._rules = rules_of(text)[::-1]

    def holds(self, parts: Parts, *, is_folder: bool) -> bool:
        """Whether this path, seen from the folder, is to be left out. The last rule that fits decides."""
        folder: Ignored | None = self
        seen = list(parts)
        while folder is not None:
            for rule in folder._rules:
                if (is_folder or not rule.only_folders) and rule.pattern.matches(seen):
                    return not rule.is_kept
            seen.insert(0, folder._name)
            folder = folder._above
        return False
