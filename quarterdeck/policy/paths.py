"""Match paths with the patterns of rules.

A path has two forms: as written, joined to the session's folder and normalized; and as the file system resolves it, with
links followed. This module doesn't access the file system: the caller supplies `Workspace.resolve`, normally
`os.path.realpath`. Rules that allow look at the resolved form, because that is the file which is really used. Rules that
deny look at both.

A pattern is absolute, under `~/`, or relative to the repository. `*` and `?` match within a name, `**` matches any number
of folders.

- In a rule that allows, no wildcard matches a name that starts with a dot, as in a shell. `.env`, `.git` and `.ssh` have
  to be named.
- In a rule that denies, wildcards match dots, case is ignored, and everything below a matching folder matches too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct


class Workspace(Struct, frozen=True, gc=False):
    """Where a request is made: the session, its folder and repository, and the user's home."""

    session_id: str = ""
    cwd: str = ""
    repo: str = ""
    home: str = ""
    resolve: Callable[[str], str] = posixpath.normpath

    @property
    def root(self) -> str:
        """The base of relative patterns, and the key of rules "in repo". Without a repository it is the folder."""
        return normal(self.repo or self.cwd) if self.repo or self.cwd else ""


# ------------------------------------------------------------------------------------------ forms of a path

_INVALID_CHARACTERS = re.compile(r"[\0\ud800-\udfff]")


def is_name(path: str) -> bool:
    """Return whether a file can have this name. Never pass any other string to the file system: it would raise."""
    return _INVALID_CHARACTERS.search(path) is None


def normal(path: str) -> str:
    """Normalize a path: remove `.`, `..`, and doubled and trailing slashes."""
    normalized = posixpath.normpath(path)
    return normalized[1:] if normalized.startswith("//") else normalized


def written(workspace: Workspace, path: str) -> str:
    """Return the absolute path as it was written."""
    if workspace.home and (path == "~" or path.startswith("~/")):
        path = workspace.home + path[1:]
    return path if path.startswith("/") else posixpath.join(workspace.cwd, path)


def resolved(workspace: Workspace, path: str) -> str:
    """Return the absolute path with links followed. It isn't normalized first: `link/..` isn't the link's parent."""
    return normal(workspace.resolve(written(workspace, path)))


def below(path: str, folder: str) -> bool:
    """Return whether a normalized path is the folder or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_inside(workspace: Workspace, path: str) -> bool:
    """Return whether a path stays in the session's folder, as written and as resolved."""
    if not workspace.cwd or not is_name(path) or (path.startswith("~") and not _is_known_home(workspace, path)):
        return False
    is_written_inside = below(normal(written(workspace, path)), normal(workspace.cwd))
    return is_written_inside and below(resolved(workspace, path), resolved(workspace, "."))


def _is_known_home(workspace: Workspace, path: str) -> bool:
    """Return whether we know what a leading `~` means. `~ann/x` is another user's home, at an unknown location."""
    return bool(workspace.home) and path[1:2] in ("", "/")


# ------------------------------------------------------------------------------------------- rules that allow


def covers(pattern: str, workspace: Workspace, path: str) -> bool:
    """Return whether the pattern of an allowing rule covers this path."""
    if not is_name(path) or not workspace.cwd:
        return False
    if not _is_absolute(pattern):
        base = normal(workspace.resolve(workspace.root))
        names = _names_below(resolved(workspace, path), base)
        return is_inside(workspace, path) and names is not None and _match(_names(pattern), names, _matches_visible)
    full = _expanded(pattern, workspace)
    return full is not None and _match(_names(full), _names(resolved(workspace, path)), _matches_visible)


def folder_pattern(workspace: Workspace, path: str) -> str:
    """Return the pattern that "always" means for a path.

    That is the files of its folder, or the path itself if it is hidden or outside the session's folder.
    """
    full = resolved(workspace, path)
    base = normal(workspace.resolve(workspace.root)) if workspace.root else ""
    names = _names_below(full, base) if base else None
    if names is None or not names or not is_inside(workspace, path):
        return escaped(full)
    last = names[-1] if names[-1].startswith(".") else ""
    return posixpath.join(*(escaped(name) for name in names[:-1]), escaped(last) or "*")


def common_pattern(workspace: Workspace, paths: Sequence[str]) -> str:
    """Return one pattern for several paths: their folder, or the narrowest folder that contains all of them.

    Return an empty pattern if there is none.
    """
    if not all(map(is_name, paths)):
        return ""
    patterns = {folder_pattern(workspace, path) for path in paths}
    if len(patterns) == 1:
        return patterns.pop()
    if any(pattern.startswith("/") for pattern in patterns):
        return ""
    folder = posixpath.commonpath([posixpath.dirname(pattern) for pattern in patterns])
    return posixpath.join(folder, "**")


# -------------------------------------------------------------------------------------------- rules that deny


def spellings(workspace: Workspace, paths: Iterable[str]) -> set[tuple[str, ...]]:
    """Return every name of these paths, as written and as resolved, split into parts and case-folded.

    A long command line has thousands of words that may be paths, and each rule is compared with all of them. So the file
    system is queried once, here, and `touches` only compares.
    """
    valid = {path for path in paths if is_name(path)}
    forms = {normal(written(workspace, path)) for path in valid} | {resolved(workspace, path) for path in valid}
    return {tuple(_names(form.casefold())) for form in forms}


def touches(pattern: str, workspace: Workspace, spellings: Iterable[Sequence[str]]) -> bool:
    """Return whether the pattern of a denying rule matches one of these paths or a folder that contains it."""
    anchored = [_without_trailing_any(_names(full.casefold())) for full in _anchored(pattern, workspace)]
    return any(_matches_start(parts, names) for parts in anchored for names in spellings)


def _anchored(pattern: str, workspace: Workspace) -> list[str]:
    """Return the absolute forms of a pattern."""
    if _is_absolute(pattern):
        full = _expanded(pattern, workspace)
        return [] if full is None else [full]
    roots = {workspace.root, normal(workspace.resolve(workspace.root))} if workspace.root else set[str]()
    anchored = [posixpath.join(escaped(root), pattern) for root in roots]
    return [*anchored, f"/{pattern}"] if pattern.startswith("**/") else anchored


def _without_trailing_any(parts: list[str]) -> list[str]:
    """Remove a trailing `**`: a rule that denies everything below a folder also denies the folder."""
    return parts[:-1] if parts and parts[-1] == "**" else parts


def _matches_start(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether the pattern matches the path or one of its parent folders."""
    if "**" not in parts:
        return len(names) >= len(parts) and all(map(fnmatchcase, names, parts))
    return any(_match(list(parts), list(names[:end]), fnmatchcase) for end in range(len(names) + 1))


# --------------------------------------------------------------------------------------------------- patterns


def escaped(text: str) -> str:
    """Escape a literal text, so that as a pattern it matches only itself."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def _is_absolute(pattern: str) -> bool:
    return pattern.startswith(("/", "~/")) or pattern == "~"


def _expanded(pattern: str, workspace: Workspace) -> str | None:
    """Expand a leading `~`. Return None if the home is unknown."""
    if not pattern.startswith("~"):
        return pattern
    return escaped(normal(workspace.home)) + pattern[1:] if workspace.home else None


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _names_below(path: str, base: str) -> list[str] | None:
    return _names(path)[len(_names(base)) :] if below(path, base) else None


def _matches_visible(name: str, pattern: str) -> bool:
    """Match a name as a shell does: a wildcard doesn't match a leading dot."""
    return fnmatchcase(name, pattern) and (not name.startswith(".") or pattern.startswith("."))


def _match(pattern: list[str], names: list[str], matches_name: Callable[[str, str], bool]) -> bool:
    """Return whether the pattern matches all of the names.

    `reached` contains every position in the pattern that the names so far can lead to, so a pattern with several `**`
    takes no exponential time.
    """
    reached = _with_empty_any(pattern, {0})
    for name in names:
        step: set[int] = set()
        for position in reached:
            if position < len(pattern) and pattern[position] == "**":
                if matches_name(name, "*"):
                    step.add(position)
            elif position < len(pattern) and matches_name(name, pattern[position]):
                step.add(position + 1)
        reached = _with_empty_any(pattern, step)
    return len(pattern) in reached


def _with_empty_any(pattern: list[str], reached: set[int]) -> set[int]:
    """Add the positions after each `**`, because it may also match no folder at all."""
    result = set(reached)
    for position in sorted(reached):
        while position < len(pattern) and pattern[position] == "**":
            position += 1
            result.add(position)
    return result
