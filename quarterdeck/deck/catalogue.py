"""All sessions as the list sees them. Those in use show their live view, all others what the log holds of them.

What is asked often costs the same with ten sessions and with ten thousand: the order is kept sorted, the counts are kept
counted, and a view is decode_snapshot only for a session that is shown.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from quarterdeck.kernel import lifecycle, session_list
from quarterdeck.kernel.session_list import Badge, Filter, Page
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import Summary, summary
from quarterdeck.kernel.view import View
from quarterdeck.log.base import CatalogueRow, LogUnavailable, NoSuchSession, StoredSession
from quarterdeck.log.rows import catalogue_row, decode_snapshot, state_from_row

_COUNTED = frozenset(lifecycle.MACHINE.flags["counted"])


class Catalogue:
    """`live` gives the view of a session that is in use."""

    def __init__(self, stored: Iterable[StoredSession], live: Callable[[str], View | None]) -> None:
        self._live = live
        self._stored = {one.row.session_id: one for one in stored}
        self._rows = {name: one.row for name, one in self._stored.items()}
        self._order = sorted((row.created_at, name) for name, row in self._rows.items())
        self._counts = Counter(row.status for row in self._rows.values())
        #: Sessions at rest that still want a person; those in use are asked themselves.
        self._waiting: dict[str, Summary] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def last_gate(self) -> int:
        """The highest number that a gate had, as far as the rows know."""
        return max((row.last_gate_number for row in self._rows.values()), default=0)

    def ids(self) -> list[str]:
        """Newest first."""
        return [name for _, name in reversed(self._order)]

    def rows(self) -> Iterator[CatalogueRow]:
        return map(self._row, self._rows)

    def _row(self, session_id: str) -> CatalogueRow:
        """In an open turn the log's is a little behind."""
        live = self._live(session_id)
        return self._rows[session_id] if live is None else catalogue_row(live.state)

    def stored(self, session_id: str) -> StoredSession:
        """What the log held when the session was last at rest; NoSuchSession."""
        found = self._stored.get(session_id)
        if found is None:
            raise NoSuchSession(session_id)
        return found

    def listed(self, row: CatalogueRow) -> None:
        """A row is new, or another one now."""
        before = self._rows.get(row.session_id)
        if before is None:
            insort(self._order, (row.created_at, row.session_id))
        else:
            self._counts[before.status] -= 1
        self._rows[row.session_id] = row
        self._counts[row.status] += 1

    def rests(self, stored: StoredSession) -> None:
        """The session is not in use any more."""
        name = stored.row.session_id
        self._stored[name] = stored
        self._waiting.pop(name, None)
        shown = self.summary(name)
        if shown.attention is not None:
            self._waiting[name] = shown

    def wakes(self, session_id: str) -> None:
        """The session is in use."""
        self._waiting.pop(session_id, None)

    def removed(self, session_id: str) -> None:
        """The session is gone."""
        row = self._rows.pop(session_id)
        self._counts[row.status] -= 1
        del self._order[bisect_left(self._order, (row.created_at, session_id))]
        self._stored.pop(session_id, None)
        self._waiting.pop(session_id, None)

    def view(self, session_id: str) -> View:
        """The state; the timeline only of a session that is in use."""
        live = self._live(session_id)
        if live is not None:
            return live
        stored = self.stored(session_id)
        # at rest: whatever came after the stored view did not change it
        return View(stored.last_index, stored.row.last_active_at, _state(stored))

    def summary(self, session_id: str) -> Summary:
        return summary(self.view(session_id))

    def page(
        self, wanted: Filter, in_use: Iterable[str], now: int, limit: int = session_list.PAGE, cursor: str = ""
    ) -> Page:
        """Newest first. Only as many views are read as are shown, plus those that a search must look into."""
        found: list[Summary] = []
        for name in self._newest_from(cursor):
            if len(found) > limit:
                break
            if _may_match(self._rows[name], wanted):
                shown = self.summary(name)
                if session_list.matches(shown, wanted):
                    found.append(shown)
        next_cursor = session_list.cursor_of(found[limit - 1]) if len(found) > limit else None
        return Page(tuple(found[:limit]), next_cursor, self.badge(in_use, now))

    def _newest_from(self, cursor: str) -> Iterator[str]:
        after = session_list.position_of(cursor)
        end = len(self._order) if after is None else bisect_left(self._order, after)
        return (self._order[place][1] for place in range(end - 1, -1, -1))

    def badge(self, in_use: Iterable[str], now: int) -> Badge:
        return Badge(sum(self._counts[status] for status in _COUNTED), len(self.needing(in_use, now)))

    def needing(self, in_use: Iterable[str], now: int) -> list[Summary]:
        """Who wants a person, the most urgent first."""
        return session_list.needing([*self._waiting.values(), *(self.summary(name) for name in in_use)], now)

    def expired(self, now: int) -> list[str]:
        """What the daily clean-up deletes."""
        return [
            name
            for name, row in self._rows.items()
            if lifecycle.is_expired(row.status, row.last_active_at, row.supports_resume, now)
        ]


def _state(stored: StoredSession) -> State:
    """One that cannot be read is shown as such and keeps nobody from the others; whoever uses it has it from its events."""
    try:
        return decode_snapshot(stored.snapshot)
    except LogUnavailable as error:
        return state_from_row(stored.row, error)


def _may_match(row: CatalogueRow, wanted: Filter) -> bool:
    """What the row alone can rule out."""
    if wanted.status:
        if row.status not in wanted.status:
            return False
    elif not session_list.is_listed(row.status, wanted.archived):
        return False
    return not (wanted.agent and row.agent != wanted.agent) and not (wanted.cwd and row.cwd != wanted.cwd)
