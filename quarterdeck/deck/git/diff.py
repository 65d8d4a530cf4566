"""Parse git's output about the difference between two snapshots. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.kernel.profile import Changes

Scope: TypeAlias = Literal["turn", "session"]
Status: TypeAlias = Literal["added", "modified", "deleted", "renamed", "type_changed"]
_STATUS: dict[str, Status] = {"A": "added", "D": "deleted", "R": "renamed", "T": "type_changed"}


class ChangedFile(Struct, frozen=True, kw_only=True):
    """One file that differs between two snapshots."""

    path: str
    status: Status
    #: Lines added and removed. Both are 0 for a binary file.
    added: int = 0
    removed: int = 0
    binary: bool = False
    #: Path before a rename.
    old_path: str = ""


class Diff(Struct, frozen=True, kw_only=True):
    """What changed in the working tree of a session's repository between two snapshots, no matter which program did it."""

    scope: Scope
    #: Id of the first snapshot, and when it was taken.
    base: str
    since: int
    #: True if the second snapshot is the present state because the session is working. Otherwise it was taken at the end of
    #: the last turn.
    live: bool
    #: Other sessions that worked in the same repository meanwhile. Their changes can't be told apart from this session's.
    shared_with: tuple[str, ...]
    #: Counts of all files, even if `files` is truncated.
    total: Changes
    files: tuple[ChangedFile, ...]
    patch: str
    #: True if `files` or `patch` is incomplete.
    truncated: bool


def parse_changed_files(output: bytes) -> list[ChangedFile]:
    """Parse the output of `git diff-tree -r -z --raw --numstat`."""
    parts = iter(output.split(b"\0"))
    statuses: dict[bytes, tuple[Status, bytes]] = {}
    files: list[ChangedFile] = []
    for part in parts:
        if part.startswith(b":"):
            path, status, old_path = _parse_raw(part, parts)
            statuses[path] = status, old_path
        elif part:
            files.append(_parse_numstat(part, parts, statuses))
    return files


def _parse_raw(part: bytes, rest: Iterator[bytes]) -> tuple[bytes, Status, bytes]:
    """Parse `:100644 100644 ID ID M` and the path that follows it. For a rename, the old path comes first."""
    letter = part.rsplit(b" ", 1)[1][:1].decode()
    first = next(rest)
    return (next(rest), "renamed", first) if letter == "R" else (first, _STATUS.get(letter, "modified"), b"")


def _parse_numstat(part: bytes, rest: Iterator[bytes], statuses: dict[bytes, tuple[Status, bytes]]) -> ChangedFile:
    """Parse `added TAB removed TAB path`.

    For a rename the path is empty and two paths follow. A binary file has `-` instead of numbers.
    """
    added, removed, path = part.split(b"\t", 2)
    if not path:
        next(rest)
        path = next(rest)
    status, old_path = statuses.get(path, ("modified", b""))
    is_binary = added == b"-"
    return ChangedFile(
        path=path.decode(errors="replace"),
        status=status,
        added=0 if is_binary else int(added),
        removed=0 if is_binary else int(removed),
        binary=is_binary,
        old_path=old_path.decode(errors="replace"),
    )


def count_changes(files: list[ChangedFile]) -> Changes:
    """Sum up files and lines, as the session list shows them."""
    return Changes(len(files), sum(file.added for file in files), sum(file.removed for file in files))
