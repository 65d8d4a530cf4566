"""Filter, page and count the list of sessions (seed 002's filters and badge).

The list contains active and suspended sessions, archived ones on request, and failed ones never. The badge counts active
and suspended sessions. The sessions that need attention are a separate list: open gates first, then unread failures and
finished work, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from quarterdeck.kernel import lifecycle
from quarterdeck.kernel.phase import Flags, flags
from quarterdeck.kernel.summary import Summary

PAGE = 20
#: Longest plausible time in a cursor, in digits of milliseconds. Python refuses to parse arbitrarily long integers.
_MAX_TIME_DIGITS = 20
#: Gates block an agent. Failures and finished work only wait to be read.
_BLOCKING = frozenset({"approval", "dialog", "question"})


class Badge(Struct, frozen=True, gc=False):
    """`count` is the number beside "Sessions"; `attention` is the number in the page's title and icon."""

    count: int
    attention: int


class Filter(Struct, frozen=True, kw_only=True, gc=False):
    """Which sessions to list. `repo` is a repository's root; `q` matches the name, folder, agent and last text."""

    status: tuple[str, ...] = ()
    archived: bool = False
    agent: str = ""
    cwd: str = ""
    repo: str = ""
    q: str = ""


class Page(Struct, frozen=True, gc=False):
    """One page of the list, and the cursor of the next one."""

    sessions: tuple[Summary, ...]
    next_cursor: str | None
    badge: Badge


def is_listed(status: str, archived: bool = False) -> bool:
    """Apply 002's rule for the list."""
    return status in lifecycle.MACHINE.flags["listedWithArchived" if archived else "listed"]


def badge(summaries: Iterable[Summary], now: int = 0) -> Badge:
    rows = list(summaries)
    count = sum(row.lifecycle in lifecycle.MACHINE.flags["counted"] for row in rows)
    return Badge(count, len(needing(rows, now)))


def needing(summaries: Iterable[Summary], now: int = 0) -> list[Summary]:
    """Return the sessions that need attention and aren't snoozed: blocking ones first, then the longest waiting."""
    rows = [row for row in summaries if row.attention is not None and not _is_snoozed(row, now)]
    return sorted(rows, key=_urgency)


def matches(row: Summary, query: Filter) -> bool:
    """Return whether the list contains this session. A requested status overrides the default exclusions."""
    if query.status:
        if row.lifecycle not in query.status:
            return False
    elif not is_listed(row.lifecycle, query.archived):
        return False
    if query.agent and row.agent != query.agent:
        return False
    if query.cwd and row.cwd != query.cwd:
        return False
    if query.repo and (row.repo is None or row.repo.root != query.repo):
        return False
    return not query.q or _mentions(row, query.q.casefold())


def page(summaries: Iterable[Summary], query: Filter, limit: int = PAGE, cursor: str = "", now: int = 0) -> Page:
    """Return one page, newest first by (created_at, id). The cursor names the last session of the previous page."""
    rows = list(summaries)
    matching = sorted((row for row in rows if matches(row, query)), key=_newest, reverse=True)
    after = position_of(cursor)
    remaining = [row for row in matching if after is None or _newest(row) < after]
    has_more = len(remaining) > limit
    return Page(tuple(remaining[:limit]), cursor_of(remaining[limit - 1]) if has_more else None, badge(rows, now))


def manager_phase(summaries: Sequence[Summary], selected: str | None) -> tuple[str, Flags]:
    """Return the phase and flags of the selected session, or those of `idle` ("New Agent") if none is selected."""
    for row in summaries:
        if row.id == selected:
            return row.phase, row.flags
    return "idle", flags("idle")


def cursor_of(row: Summary) -> str:
    """Return the cursor of the page that starts after this row."""
    return f"{row.created_at}.{row.id}"


def position_of(cursor: str) -> tuple[int, str] | None:
    """Parse a cursor. An invalid one is None, which means the first page."""
    at, _, session_id = cursor.partition(".")
    return (int(at), session_id) if at.isdecimal() and len(at) <= _MAX_TIME_DIGITS else None


def _urgency(row: Summary) -> tuple[bool, int, str]:
    assert row.attention is not None
    return row.attention.kind not in _BLOCKING, row.attention.since, row.id


def _is_snoozed(row: Summary, now: int) -> bool:
    return row.snoozed_until is not None and row.snoozed_until > now


def _mentions(row: Summary, text: str) -> bool:
    return any(text in field.casefold() for field in (row.name, row.cwd, row.agent, row.last_text))


def _newest(row: Summary) -> tuple[int, str]:
    return row.created_at, row.id
