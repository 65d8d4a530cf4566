"""List all sessions: those in memory with their live view, all others with what the log holds of them.

Frequent requests cost the same with ten sessions and with ten thousand: the order is kept sorted, counts are kept up to
date, and a snapshot is decoded only for a session that is shown.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from quarterdeck.kernel import lifecycle, session_list
from quarterdeck.kernel.session_list import Badge, Filter, Page
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import Summary, summary
from quarterdeck.kernel.view import View
from quarterdeck.log.base import CatalogueRow, LogUnavailable, NoSuchSession, StoredSession
from quarterdeck.log.rows import catalogue_row, decode_snapshot, state_from_row

_COUNTED = frozenset(lifecycle.MACHINE.flags["counted"])


class LiveViews(Protocol):
    """The sessions in memory, as far as the catalogue needs them."""

    def durable_view(self, session_id: str) -> View | None:
        """Return the durable view of a session in memory, or None."""
        ...

    def durable_ids(self) -> list[str]:
        """Return the ids of the sessions in memory that have at least one durable event."""
        ...


class Catalogue:
    """Rows, order and counts of all sessions of a deck."""

    def __init__(self, stored: Iterable[StoredSession], live: LiveViews) -> None:
        self._live = live
        self._stored = {session.row.session_id: session for session in stored}
        self._rows = {session_id: session.row for session_id, session in self._stored.items()}
        self._order = sorted((row.created_at, session_id) for session_id, row in self._rows.items())
        self._counts = Counter(row.status for row in self._rows.values())
        #: Summaries of evicted sessions that need a person. Sessions in memory are asked themselves.
        self._needing_attention: dict[str, Summary] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    # --- rows

    @property
    def last_gate_number(self) -> int:
        """Highest gate number of any session, as far as the rows know."""
        return max((row.last_gate_number for row in self._rows.values()), default=0)

    def ids(self) -> list[str]:
        """Return all session ids, newest first."""
        return [session_id for _, session_id in reversed(self._order)]

    def rows(self) -> Iterator[CatalogueRow]:
        """Yield the rows of all sessions as they are now."""
        return map(self._row, self._rows)

    def _row(self, session_id: str) -> CatalogueRow:
        # In an open turn, the stored row is a little behind the live view.
        view = self._live.durable_view(session_id)
        return self._rows[session_id] if view is None else catalogue_row(view.state)

    def update_row(self, row: CatalogueRow) -> None:
        """Add a row, or replace it."""
        previous = self._rows.get(row.session_id)
        if previous is None:
            insort(self._order, (row.created_at, row.session_id))
        else:
            self._counts[previous.status] -= 1
        self._rows[row.session_id] = row
        self._counts[row.status] += 1

    def remove(self, session_id: str) -> None:
        """Remove a session that was deleted."""
        row = self._rows.pop(session_id)
        self._counts[row.status] -= 1
        del self._order[bisect_left(self._order, (row.created_at, session_id))]
        self._stored.pop(session_id, None)
        self._needing_attention.pop(session_id, None)

    # --- sessions that aren't in memory

    def stored(self, session_id: str) -> StoredSession:
        """Return what the log held when the session last left memory.

        Raises:
            NoSuchSession: there is none with this id.
        """
        stored = self._stored.get(session_id)
        if stored is None:
            raise NoSuchSession(session_id)
        return stored

    def on_evicted(self, stored: StoredSession) -> None:
        """Show a session from what the log holds: it left memory."""
        session_id = stored.row.session_id
        self._stored[session_id] = stored
        self._needing_attention.pop(session_id, None)
        shown = self.summary(session_id)
        if shown.attention is not None:
            self._needing_attention[session_id] = shown

    def on_loaded(self, session_id: str) -> None:
        """Show a session's live view from now on: it was loaded into memory."""
        self._needing_attention.pop(session_id, None)

    # --- views and lists

    def view(self, session_id: str) -> View:
        """Return a session's view. Only sessions in memory have a timeline.

        Raises:
            NoSuchSession: there is none with this id.
        """
        live = self._live.durable_view(session_id)
        if live is not None:
            return live
        stored = self.stored(session_id)
        # The session isn't in a turn, so events after the snapshot didn't change the state.
        return View(stored.last_index, stored.row.last_active_at, _decode_state(stored))

    def summary(self, session_id: str) -> Summary:
        """Return a session as the list shows it."""
        return summary(self.view(session_id))

    def page(self, query: Filter, now: int, limit: int = session_list.PAGE, cursor: str = "") -> Page:
        """Return one page of the list, newest first.

        Only the views of sessions on the page are read, plus those that a text search has to look into.
        """
        summaries: list[Summary] = []
        for session_id in self._newest_from(cursor):
            if len(summaries) > limit:
                break
            if _may_match(self._rows[session_id], query):
                shown = self.summary(session_id)
                if session_list.matches(shown, query):
                    summaries.append(shown)
        next_cursor = session_list.cursor_of(summaries[limit - 1]) if len(summaries) > limit else None
        return Page(tuple(summaries[:limit]), next_cursor, self.badge(now))

    def _newest_from(self, cursor: str) -> Iterator[str]:
        after = session_list.position_of(cursor)
        end = len(self._order) if after is None else bisect_left(self._order, after)
        return (self._order[position][1] for position in range(end - 1, -1, -1))

    def badge(self, now: int) -> Badge:
        """Return how many sessions there are and how many need a person."""
        return Badge(sum(self._counts[status] for status in _COUNTED), len(self.needing_attention(now)))

    def needing_attention(self, now: int) -> list[Summary]:
        """Return the sessions that need a person, the most urgent first."""
        live = [self.summary(session_id) for session_id in self._live.durable_ids()]
        return session_list.needing([*self._needing_attention.values(), *live], now)

    def expired_ids(self, now: int) -> list[str]:
        """Return the sessions that the daily clean-up deletes."""
        return [
            session_id
            for session_id, row in self._rows.items()
            if lifecycle.is_expired(row.status, row.last_active_at, row.supports_resume, now)
        ]


def _decode_state(stored: StoredSession) -> State:
    """Decode the snapshot, or build a state from the row that shows the error.

    One unreadable session must not break the list. Loading it into memory folds its events instead.
    """
    try:
        return decode_snapshot(stored.snapshot)
    except LogUnavailable as error:
        return state_from_row(stored.row, error)


def _may_match(row: CatalogueRow, query: Filter) -> bool:
    """Return False if the row alone rules the session out."""
    if query.status:
        if row.status not in query.status:
            return False
    elif not session_list.is_listed(row.status, query.archived):
        return False
    return not (query.agent and row.agent != query.agent) and not (query.cwd and row.cwd != query.cwd)
