"""Classify why a turn failed from Claude Code's own error names and texts."""

from __future__ import annotations

from quarterdeck.events import FailureKind
from quarterdeck.harness.claude import tables
from quarterdeck.harness.failures import failure_kind

#: Epoch times below this are seconds, others milliseconds.
_MILLISECONDS_FROM = 100_000_000_000
_LATEST = 10_000_000_000_000


def failure_kind_of(text: str, status: int = 0, *names: str) -> FailureKind:
    """Return the kind of a failure from its text, HTTP status and error names.

    The text is looked at first, because limits of a plan and an empty balance show only there.
    """
    message = text.removeprefix(tables.API_ERROR)
    lower = message[:2000].lower()
    for kind, words in tables.FAILURE_WORDS:
        if any(word in lower for word in words):
            return kind
    for name in names:
        if name in tables.FAILURES:
            return tables.FAILURES[name]
    if status == 404:
        return "invalid_model"
    return failure_kind(message, status)


def reset_time_in(text: str) -> int | None:
    """Return when a limit ends, in milliseconds since the epoch, if the text says it after a bar."""
    _, bar, tail = text.rpartition("|")
    return epoch_ms(int(tail)) if bar and tail.isdecimal() and len(tail) < 16 else None


def epoch_ms(value: object) -> int | None:
    """Return a time that is given in seconds or milliseconds since the epoch as milliseconds, None if it isn't one."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _LATEST:
        return None
    return int(value) if value >= _MILLISECONDS_FROM else int(value * 1000)
