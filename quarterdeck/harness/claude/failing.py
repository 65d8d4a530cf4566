"""Why a turn failed, from Claude Code's own words for it."""

from __future__ import annotations

from quarterdeck.events import FailureKind
from quarterdeck.harness.claude import tables
from quarterdeck.harness.failures import failure_kind

#: Epoch seconds and milliseconds are told apart by their size.
_MILLISECONDS = 100_000_000_000
_LATEST = 10_000_000_000_000


def kind_of(text: str, status: int = 0, *names: str) -> FailureKind:
    """The kind of a failure. A limit of the plan and a balance are known by their text alone, so that is looked at first."""
    bare = text.removeprefix(tables.API_ERROR)
    lower = bare[:2000].lower()
    for kind, words in tables.FAILURE_WORDS:
        if any(word in lower for word in words):
            return kind
    for name in names:
        if name in tables.FAILURES:
            return tables.FAILURES[name]
    if status == 404:
        return "invalid_model"
    return failure_kind(bare, status)


def resets_in(text: str) -> int | None:
    """When a limit ends, in ms since the epoch: some texts say it after a bar."""
    _, bar, tail = text.rpartition("|")
    return moment(int(tail)) if bar and tail.isdecimal() and len(tail) < 16 else None


def moment(value: object) -> int | None:
    """A time that Claude Code gives in seconds or milliseconds, in ms; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _LATEST:
        return None
    return int(value) if value >= _MILLISECONDS else int(value * 1000)
