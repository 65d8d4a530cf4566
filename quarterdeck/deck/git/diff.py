"""Two snapshots, compared: what git says of them as data. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.kernel.profile import Changes

Scope: TypeAlias = Literal["turn", "session"]
Status: TypeAlias = Literal["added", "modified", "deleted", "renamed", "type_changed"]
_STATUS: dict[str, Status] = {"A": "added", "D": "deleted", "R": "renamed", "T": "type_changed"}


class ChangedFile(Struct, frozen=True, kw_only=True):
    """`added` and `removed` are lines, 0 of a binary file; `old_path` is where a renamed file was."""

    path: str
    status: Status
    added: int = 0
    removed: int = 0
    binary: bool = False
    old_path: str = ""


class Diff(Struct, frozen=True, kw_only=True):
    """What changed in the working tree of a session's repository between two snapshots, whoever changed it.

    `base` names the first, taken at `since`. The second is the present state while the session works (`live`), else the one
    at the end of its last turn. `shared_with` are other sessions that worked in the same repository meanwhile: what is
    theirs cannot be told apart. `total` counts all files; `truncated` says that `files` or `patch` does not have them all.
    """

    scope: Scope
    base: str
    since: int
    live: bool
    shared_with: tuple[str, ...]
    total: Changes
    files: tuple[ChangedFile, ...]
    patch: str
    truncated: bool


def changed_files(said: bytes) -> list[ChangedFile]:
    """What `git diff-tree -r -z --raw --numstat` said."""
    parts = iter(said.split(b"\0"))
    statuses: dict[bytes, tuple[Status, bytes]] = {}
    files: list[ChangedFile] = []
    for part in parts:
        if part.startswith(b":"):
            path, status, old = _raw(part, parts)
            statuses[path] = status, old
        elif part:
            files.append(_counted(part, parts, statuses))
    return files


def _raw(part: bytes, rest: Iterator[bytes]) -> tuple[bytes, Status, bytes]:
    """`:100644 100644 ID ID M`, then the path; of a rename the old path comes first."""
    letter = part.rsplit(b" ", 1)[1][:1].decode()
    first = next(rest)
    return (next(rest), "renamed", first) if letter == "R" else (first, _STATUS.get(letter, "modified"), b"")


def _counted(part: bytes, rest: Iterator[bytes], statuses: dict[bytes, tuple[Status, bytes]]) -> ChangedFile:
    """`added TAB removed TAB path`; of a rename the path is empty and two follow. A binary file has `-` for numbers."""
    added, removed, path = part.split(b"\t", 2)
    if not path:
        next(rest)
        path = next(rest)
    status, old = statuses.get(path, ("modified", b""))
    is_binary = added == b"-"
    return ChangedFile(
        path=path.decode(errors="replace"),
        status=status,
        added=0 if is_binary else int(added),
        removed=0 if is_binary else int(removed),
        binary=is_binary,
        old_path=old.decode(errors="replace"),
    )


def counted(files: list[ChangedFile]) -> Changes:
    """All of them together, as the summary shows it."""
    return Changes(len(files), sum(one.added for one in files), sum(one.removed for one in files))
