"""All sessions as a list: what is shown, what is counted, what needs a person (seed 002's filters and badge).

The list shows active and suspended sessions, archived ones on request, failed ones never. The badge counts the same two.
What needs a person is another list: gates first, then failures and finished work that nobody looked at, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from quarterdeck.kernel import lifecycle
from quarterdeck.kernel.phase import Flags, flags
from quarterdeck.kernel.summary import Summary

PAGE = 20
#: Digits of a time in ms; what is longer came from nobody's clock.
_LONGEST_TIME = 20
#: Gates block an agent; failures and finished work only wait to be read.
_BLOCKING = frozenset({"approval", "dialog", "question"})


class Badge(Struct, frozen=True, gc=False):
    """`count` stands beside "Sessions"; `attention` is what the tab's title and icon count."""

    count: int
    attention: int


class Filter(Struct, frozen=True, kw_only=True, gc=False):
    """What the list is asked for. `repo` is a repository's root, `q` a part of the name, folder or last words."""

    status: tuple[str, ...] = ()
    archived: bool = False
    agent: str = ""
    cwd: str = ""
    repo: str = ""
    q: str = ""


class Page(Struct, frozen=True, gc=False):
    """One page of the list, and where the next one begins."""

    sessions: tuple[Summary, ...]
    next_cursor: str | None
    badge: Badge


def is_listed(status: str, archived: bool = False) -> bool:
    """002's rule for the list."""
    return status in lifecycle.MACHINE.flags["listedWithArchived" if archived else "listed"]


def badge(summaries: Iterable[Summary], now: int = 0) -> Badge:
    """002's count, and how many sessions need a person."""
    rows = list(summaries)
    counted = sum(row.lifecycle in lifecycle.MACHINE.flags["counted"] for row in rows)
    return Badge(counted, len(needing(rows, now)))


def needing(summaries: Iterable[Summary], now: int = 0) -> list[Summary]:
    """The sessions that need a person: blocking ones first, then by how long they have waited. Snoozed ones wait."""
    wanted = [row for row in summaries if row.attention is not None and not _is_snoozed(row, now)]
    return sorted(wanted, key=_urgency)


def matches(row: Summary, wanted: Filter) -> bool:
    """Whether the list shows this session. A status that is asked for by name is shown whatever the default hides."""
    if wanted.status:
        if row.lifecycle not in wanted.status:
            return False
    elif not is_listed(row.lifecycle, wanted.archived):
        return False
    if wanted.agent and row.agent != wanted.agent:
        return False
    if wanted.cwd and row.cwd != wanted.cwd:
        return False
    if wanted.repo and (row.repo is None or row.repo.root != wanted.repo):
        return False
    return not wanted.q or _mentions(row, wanted.q.casefold())


def page(summaries: Iterable[Summary], wanted: Filter, limit: int = PAGE, cursor: str = "", now: int = 0) -> Page:
    """Newest first by (created_at, id); a cursor names the last session of the page before."""
    rows = list(summaries)
    shown = sorted((row for row in rows if matches(row, wanted)), key=_newest, reverse=True)
    after = position_of(cursor)
    left = [row for row in shown if after is None or _newest(row) < after]
    more = len(left) > limit
    return Page(tuple(left[:limit]), cursor_of(left[limit - 1]) if more else None, badge(rows, now))


def manager_phase(summaries: Sequence[Summary], selected: str | None) -> tuple[str, Flags]:
    """What the manager shows: the selected session's phase, `idle` ("New Agent") when none is selected."""
    for row in summaries:
        if row.id == selected:
            return row.phase, row.flags
    return "idle", flags("idle")


def _urgency(row: Summary) -> tuple[bool, int, str]:
    assert row.attention is not None
    return row.attention.kind not in _BLOCKING, row.attention.since, row.id


def _is_snoozed(row: Summary, now: int) -> bool:
    return row.snoozed_until is not None and row.snoozed_until > now


def _mentions(row: Summary, text: str) -> bool:
    return any(text in field.casefold() for field in (row.name, row.cwd, row.agent, row.last_text))


def _newest(row: Summary) -> tuple[int, str]:
    return row.created_at, row.id


def cursor_of(row: Summary) -> str:
    """Where the page after this row begins."""
    return f"{row.created_at}.{row.id}"


def position_of(cursor: str) -> tuple[int, str] | None:
    """A cursor that is not one of ours begins at the start."""
    at, _, name = cursor.partition(".")
    return (int(at), name) if at.isdecimal() and len(at) <= _LONGEST_TIME else None
