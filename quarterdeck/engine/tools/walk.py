"""List the files below a folder that a search looks at: glob patterns, .gitignore rules, and a walk that can't escape.

The patterns and rules are pure. The walk opens every folder from its parent's descriptor and never follows links, so it
can't be led out of the folder. `.git` is always skipped.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Parts = Sequence[str]

#: Most patterns that one pattern with braces may expand to.
_BRACE_LIMIT = 200
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
#: Each level of the walk keeps a descriptor open.
_DEPTH_LIMIT = 100
_GITIGNORE_LIMIT = 1_000_000


# --------------------------------------------------------------------------------------------------------- patterns


class TooManyBraces(ValueError):
    """A pattern whose braces expand to too many patterns."""


class Pattern:
    """One path pattern: `*` and `?` within a name, `**` for any number of folders, `[a-z]`.

    A pattern is matched one folder at a time, so `**` costs no more than the length of the path.
    """

    def __init__(self, text: str) -> None:
        names = [name for name in text.split("/") if name not in ("", ".")]
        if names and names[-1] == "**":
            names.append("*")  # Everything in the folder, but not the folder itself.
        # fnmatch negates with [!…] only; shells and git also accept [^…].
        self._steps = [
            None if name == "**" else re.compile(fnmatch.translate(name.replace("[^", "[!"))) for name in names
        ]

    def matches(self, parts: Parts) -> bool:
        """Return whether the whole path matches."""
        # As in matching one star in a word, only the last `**` ever has to be tried again.
        at = step = 0
        retry: tuple[int, int] | None = None
        while at < len(parts):
            if step < len(self._steps) and self._steps[step] is None:
                retry = (at, step)
                step += 1
            elif step < len(self._steps) and (name := self._steps[step]) and name.match(parts[at]):
                at, step = at + 1, step + 1
            elif retry is not None:
                retry = (retry[0] + 1, retry[1])
                at, step = retry[0], retry[1] + 1
            else:
                return False
        return step == len(self._steps)


def expand_braces(text: str) -> list[str]:
    """Expand `a.{b,c}` to `a.b` and `a.c`.

    Raises:
        TooManyBraces: there would be more than 200 patterns.
    """
    expanded: list[str] = []
    pending = [text]
    while pending:
        pattern = pending.pop()
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
        if braces is None:
            expanded.append(pattern)
        else:
            before, after = pattern[: braces.start()], pattern[braces.end() :]
            pending += [before + middle + after for middle in braces[1].split(",")]
        if len(expanded) + len(pending) > _BRACE_LIMIT:
            raise TooManyBraces(f"{text[:80]} expands to more than {_BRACE_LIMIT} patterns")
    return list(dict.fromkeys(expanded))


class Glob:
    """A pattern as a person types it. Without a slash it matches a name in any folder, with one the whole path.

    Raises:
        TooManyBraces: the braces expand to too many patterns.
    """

    def __init__(self, text: str) -> None:
        self._patterns = [Pattern(part if "/" in part else f"**/{part}") for part in expand_braces(text)]

    def matches(self, parts: Parts) -> bool:
        return any(pattern.matches(parts) for pattern in self._patterns)


# ------------------------------------------------------------------------------------------------------- .gitignore


class IgnoreRule(NamedTuple):
    """One line of a .gitignore."""

    pattern: Pattern
    #: The line starts with `!`: the path is included after all.
    is_negated: bool
    only_folders: bool


def parse_gitignore(text: str) -> list[IgnoreRule]:
    """Parse the lines of one .gitignore. Paths are relative to its folder."""
    return [rule for line in text.splitlines() if (rule := _parse_rule(line)) is not None]


def _parse_rule(line: str) -> IgnoreRule | None:
    line = re.sub(r"(?<!\\)\s+$", "", line)
    if not line or line.startswith("#"):
        return None
    is_negated = line.startswith("!")
    line = line[1:] if is_negated else line
    line = re.sub(r"\\([#! \\])", r"\1", line)
    only_folders = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    pattern = Pattern(line if "/" in line else f"**/{line}")
    return IgnoreRule(pattern, is_negated, only_folders)


class IgnoreRules:
    """The rules that apply in one folder: its own .gitignore, and those of the folders above it."""

    def __init__(self, above: IgnoreRules | None, name: str, text: str) -> None:
        self._above = above
        self._name = name
        self._rules = parse_gitignore(text)[::-1]

    def ignores(self, parts: Parts, *, is_folder: bool) -> bool:
        """Return whether a path, relative to the folder, is ignored. The last matching rule of the nearest file wins."""
        folder: IgnoreRules | None = self
        relative = list(parts)
        while folder is not None:
            for rule in folder._rules:
                if (is_folder or not rule.only_folders) and rule.pattern.matches(relative):
                    return not rule.is_negated
            relative.insert(0, folder._name)
            folder = folder._above
        return False


# ---------------------------------------------------------------------------------------------------------- walking


class Entry(NamedTuple):
    """One file or folder."""

    parts: tuple[str, ...]
    #: Descriptor of the parent folder. It is open only until the next entry is requested.
    parent: int
    is_folder: bool

    @property
    def path(self) -> str:
        return "/".join(self.parts)


def walk(
    descriptor: int,
    *,
    name: str = "",
    parts: tuple[str, ...] = (),
    above: IgnoreRules | None = None,
    include_ignored: bool = False,
) -> Iterator[Entry]:
    """Yield everything below a folder, sorted by name. What can't be opened, or has vanished, is skipped.

    Args:
        descriptor: the folder
        name: the folder's own name, for rules of the folders above it
        parts: prefix for the paths of the entries
        above: rules of the folder above
        include_ignored: don't apply .gitignore files
    """
    rules = None if include_ignored else _read_rules(descriptor, name, above)
    for entry, is_folder in _list_folder(descriptor):
        if entry == ".git" or (rules is not None and rules.ignores((entry,), is_folder=is_folder)):
            continue
        yield Entry((*parts, entry), descriptor, is_folder)
        if not is_folder or len(parts) >= _DEPTH_LIMIT:
            continue
        try:
            below = os.open(entry, _FOLDER_FLAGS, dir_fd=descriptor)
        except OSError:
            continue
        try:
            yield from walk(below, name=entry, parts=(*parts, entry), above=rules, include_ignored=include_ignored)
        finally:
            os.close(below)


def walk_below(root: int, parts: tuple[str, ...], *, include_ignored: bool = False) -> Iterator[Entry]:
    """Walk a folder below the root. The .gitignore files of the folders on the way apply in it too.

    Raises:
        OSError: the folder can't be opened.
    """
    rules: IgnoreRules | None = None
    descriptors = [os.dup(root)]
    try:
        for at, part in enumerate(parts):
            rules = None if include_ignored else _read_rules(descriptors[-1], parts[at - 1] if at else "", rules)
            descriptors.append(os.open(part, _FOLDER_FLAGS, dir_fd=descriptors[-1]))
        name = parts[-1] if parts else ""
        yield from walk(descriptors[-1], name=name, above=rules, include_ignored=include_ignored)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def read_regular_file(parent: int, name: str, limit: int) -> bytes | None:
    """Return the content of a file. Return None if it isn't a regular file, is longer than the limit, or can't be read."""
    try:
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=parent)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        try:
            return file.read(limit)
        except OSError:
            return None


def _list_folder(descriptor: int) -> list[tuple[str, bool]]:
    try:
        with os.scandir(descriptor) as entries:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError:
        return []


def _read_rules(descriptor: int, name: str, above: IgnoreRules | None) -> IgnoreRules:
    text = read_regular_file(descriptor, ".gitignore", _GITIGNORE_LIMIT) or b""
    return IgnoreRules(above, name, text.decode("utf-8", "replace"))
