"""Paths: where a session is, what a pattern covers, and every name that a file goes by.

A path has two forms: as it was written, joined to the session's folder and with `.` and `..` taken out; and as the file
system resolves it, links followed. Nothing here touches the file system: `Place.resolve` is given (the deck gives what
`os.path.realpath` says). What allows looks at the resolved form, because that is the file that is touched; what denies looks
at both.

A pattern is absolute, under `~/`, or relative to the repository. `*` and `?` stay within a name, `**` is any number of
folders. When it allows, no wildcard matches a name that begins with a dot, as in a shell: `.env`, `.git` and `.ssh` have
to be named. When it denies, wildcards match dots, capitals do not matter, and what lies below a match matches too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from msgspec import Struct


class Place(Struct, frozen=True, gc=False):
    """Where a request is made."""

    session_id: str = ""
    cwd: str = ""
    repo: str = ""
    home: str = ""
    resolve: Callable[[str], str] = posixpath.normpath

    @property
    def root(self) -> str:
        """What patterns are relative to, and the key of rules "in repo"; a folder without a repository is its own."""
        return normal(self.repo or self.cwd) if self.repo or self.cwd else ""


_NO_NAME = re.compile(r"[\0\ud800-\udfff]")


def is_name(path: str) -> bool:
    """Whether a file could be called so; a file system must not even be asked about anything else."""
    return _NO_NAME.search(path) is None


@lru_cache(4096)
def normal(path: str) -> str:
    """Without `.`, `..`, doubled and trailing slashes. The same few paths are asked about all the time."""
    found = posixpath.normpath(path)
    return found[1:] if found.startswith("//") else found


def written(place: Place, path: str) -> str:
    """Absolute, as it was written."""
    if place.home and (path == "~" or path.startswith("~/")):
        path = place.home + path[1:]
    return path if path.startswith("/") else posixpath.join(place.cwd, path)


def resolved(place: Place, path: str) -> str:
    """Absolute, links followed. The raw path is resolved, because `link/..` is not where it seems."""
    return normal(place.resolve(written(place, path)))


def below(path: str, folder: str) -> bool:
    """Whether a normal path is the folder, or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_inside(place: Place, path: str) -> bool:
    """Whether a path stays in the session's folder, as written and as resolved."""
    if not place.cwd or _NO_NAME.search(path) or (path[:1] == "~" and not _is_home_known(place, path)):
        return False
    raw = written(place, path)
    as_written = normal(raw)
    if not below(as_written, normal(place.cwd)):
        return False
    full = normal(place.resolve(raw))
    # without any link on the way the folder has none either, and need not be asked about
    return full == as_written or below(full, resolved(place, "."))


def _is_home_known(place: Place, path: str) -> bool:
    """Of a path that begins with `~`. `~ann/x` is somebody's home too, and we do not know where."""
    return bool(place.home) and path[1:2] in ("", "/")


def covers(pattern: str, place: Place, path: str) -> bool:
    """Whether a pattern that allows covers this path."""
    if not is_name(path) or not place.cwd:
        return False
    if not _is_absolute(pattern):
        base = normal(place.resolve(place.root))
        names = _names_below(resolved(place, path), base)
        return is_inside(place, path) and names is not None and _match(_names(pattern), names, _allowed_name)
    full = _expanded(pattern, place)
    return full is not None and _match(_names(full), _names(resolved(place, path)), _allowed_name)


def spelled(place: Place, paths: Iterable[str]) -> set[tuple[str, ...]]:
    """Every name that these paths go by, as written and as resolved, taken apart and without capitals.

    A long command line has thousands of words that may be paths, and a list of rules asks about each of them: so the file
    system is asked once, here, and `touches` only compares.
    """
    named = {path for path in paths if is_name(path)}
    forms = {normal(written(place, path)) for path in named} | {resolved(place, path) for path in named}
    return {tuple(_names(form.casefold())) for form in forms}


def touches(pattern: str, place: Place, spelled: Iterable[Sequence[str]]) -> bool:
    """Whether a pattern that denies means one of these paths, or a folder that it is in."""
    wanted = [_below_too(_names(full.casefold())) for full in _anchored(pattern, place)]
    return any(_begins(one, names) for one in wanted for names in spelled)


def _anchored(pattern: str, place: Place) -> list[str]:
    if _is_absolute(pattern):
        full = _expanded(pattern, place)
        return [] if full is None else [full]
    roots = {place.root, normal(place.resolve(place.root))} if place.root else set[str]()
    found = [posixpath.join(_escaped(root), pattern) for root in roots]
    return [*found, f"/{pattern}"] if pattern.startswith("**/") else found


def _below_too(wanted: list[str]) -> list[str]:
    """What is below is meant, and so the folder itself."""
    return wanted[:-1] if wanted and wanted[-1] == "**" else wanted


def _begins(wanted: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the first of the names are what the pattern says."""
    if "**" not in wanted:
        return len(names) >= len(wanted) and all(map(fnmatchcase, names, wanted))
    return any(_match(list(wanted), list(names[:end]), fnmatchcase) for end in range(len(names) + 1))


def _is_absolute(pattern: str) -> bool:
    return pattern.startswith(("/", "~/")) or pattern == "~"


def _expanded(pattern: str, place: Place) -> str | None:
    if not pattern.startswith("~"):
        return pattern
    return _escaped(normal(place.home)) + pattern[1:] if place.home else None


def _escaped(text: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in text)


def folder_pattern(place: Place, path: str) -> str:
    """What "always" means for a path: the files of its folder; itself, if it is hidden or outside of the session."""
    full = resolved(place, path)
    base = normal(place.resolve(place.root)) if place.root else ""
    names = _names_below(full, base) if base else None
    if names is None or not names or not is_inside(place, path):
        return _escaped(full)
    last = names[-1] if names[-1].startswith(".") else ""
    return posixpath.join(*(_escaped(name) for name in names[:-1]), _escaped(last) or "*")


def common_pattern(place: Place, paths: Sequence[str]) -> str:
    """One pattern for several paths: the folder of all, or the narrowest folder that holds all of them."""
    if not all(map(is_name, paths)):
        return ""
    patterns = {folder_pattern(place, path) for path in paths}
    if len(patterns) == 1:
        return patterns.pop()
    if any(pattern.startswith("/") for pattern in patterns):
        return ""
    folder = posixpath.commonpath([posixpath.dirname(pattern) for pattern in patterns])
    return posixpath.join(folder, "**")


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _names_below(path: str, base: str) -> list[str] | None:
    return _names(path)[len(_names(base)) :] if below(path, base) else None


def _allowed_name(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) and (not name.startswith(".") or pattern.startswith("."))


def _match(pattern: list[str], names: list[str], is_named: Callable[[str, str], bool]) -> bool:
    """Whether the names are what the pattern says, all of them. `reached` are the places in the pattern that fit so far."""
    reached = _past_any(pattern, {0})
    for name in names:
        step: set[int] = set()
        for at in reached:
            if at < len(pattern) and pattern[at] == "**":
                if is_named(name, "*"):
                    step.add(at)
            elif at < len(pattern) and is_named(name, pattern[at]):
                step.add(at + 1)
        reached = _past_any(pattern, step)
    return len(pattern) in reached


def _past_any(pattern: list[str], reached: set[int]) -> set[int]:
    """`**` may also be no folder at all."""
    found = set(reached)
    for at in sorted(reached):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            found.add(at)
    return found
