"""All files below a folder, without ever leaving it: folders are opened from their parent's descriptor, links are not
followed, and what .gitignore names is left out. `.git` always is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from quarterdeck.engine.tools.pattern import Ignored

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
#: Every level holds a descriptor.
_DEEPEST = 100
_IGNORE_LIMIT = 1_000_000


class Found(NamedTuple):
    """One entry; `parent` is open while it is handed out, and only then."""

    parts: tuple[str, ...]
    parent: int
    is_folder: bool

    @property
    def path(self) -> str:
        return "/".join(self.parts)


def walked(
    descriptor: int,
    *,
    name: str = "",
    parts: tuple[str, ...] = (),
    above: Ignored | None = None,
    all_of_them: bool = False,
) -> Iterator[Found]:
    """Everything below, in the order of the names. What cannot be opened, or is gone by now, is passed over.

    `name` is the folder's own; `above` are the rules of the folders that it lies in.
    """
    rules = None if all_of_them else _rules_in(descriptor, name, above)
    for entry, is_folder in _entries(descriptor):
        if entry == ".git" or (rules is not None and rules.holds((entry,), is_folder=is_folder)):
            continue
        yield Found((*parts, entry), descriptor, is_folder)
        if not is_folder or len(parts) >= _DEEPEST:
            continue
        try:
            below = os.open(entry, _FOLDER, dir_fd=descriptor)
        except OSError:
            continue
        try:
            yield from walked(below, name=entry, parts=(*parts, entry), above=rules, all_of_them=all_of_them)
        finally:
            os.close(below)


def walked_from(root: int, parts: tuple[str, ...], *, all_of_them: bool = False) -> Iterator[Found]:
    """The same of a folder below the root; the rules on the way there hold in it too. OSError when it is not there."""
    rules: Ignored | None = None
    held = [os.dup(root)]
    try:
        for at, part in enumerate(parts):
            rules = None if all_of_them else _rules_in(held[-1], parts[at - 1] if at else "", rules)
            held.append(os.open(part, _FOLDER, dir_fd=held[-1]))
        yield from walked(held[-1], name=parts[-1] if parts else "", above=rules, all_of_them=all_of_them)
    finally:
        for descriptor in held:
            os.close(descriptor)


def read_below(parent: int, name: str, limit: int) -> bytes | None:
    """The content of a regular file, or None when it is none, or longer."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=parent)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            return None
        try:
            return file.read(limit)
        except OSError:
            return None


def _entries(descriptor: int) -> list[tuple[str, bool]]:
    try:
        with os.scandir(descriptor) as entries:
            return sorted((one.name, one.is_dir(follow_symlinks=False)) for one in entries)
    except OSError:
        return []


def _rules_in(descriptor: int, name: str, above: Ignored | None) -> Ignored:
    text = read_below(descriptor, ".gitignore", _IGNORE_LIMIT) or b""
    return Ignored(above, name, text.decode("utf-8", "replace"))
