"""Keep a log in memory: the behaviour of a store without a disk, for tests and for agents that need no durability."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection

from msgspec.structs import replace

from quarterdeck.events import Event, SessionDeleted
from quarterdeck.log.base import (
    NEW,
    PAGE,
    START,
    Append,
    CatalogueRow,
    Cursor,
    Fence,
    LogUnavailable,
    NoSuchSession,
    Receipt,
    StaleFence,
    StoredSession,
)
from quarterdeck.log.deltas import delta_target, is_delta, restated_target

#: Restated deltas are dropped once this many texts of a session were restated. Dropping scans all events, so not each time.
_DROP_EVERY = 64


class _Session:
    def __init__(self, row: CatalogueRow, snapshot: bytes) -> None:
        self.row = row
        self.snapshot = snapshot
        self.snapshot_index = 0
        self.last_index = 0
        self.events: list[Event] = []
        #: Texts that were restated since deltas were last dropped, each with the index of the event that restated it.
        self.restated: dict[str, int] = {}


class MemoryLog:
    """A log in lists. With `keep_deltas`, restated deltas are never dropped."""

    def __init__(self, keep_deltas: bool = False) -> None:
        self._sessions: dict[str, _Session] = {}
        self._all: list[Event] = []
        self._last_cursor = 0
        self._is_closed = False
        self._keep_deltas = keep_deltas

    # --- writing

    async def append(self, append: Append) -> Receipt:
        receipt = self._write(append)
        # Acknowledge in a later pass of the loop, as a store does: callers must not depend on an immediate answer.
        await asyncio.sleep(0)
        return receipt

    def _write(self, append: Append) -> Receipt:
        self._check_open()
        session = self._find_for_append(append)
        events = tuple(
            replace(event, cursor=_cursor(self._last_cursor + n)) for n, event in enumerate(append.events, 1)
        )
        self._last_cursor += len(events)
        session.last_index = events[-1].index
        if append.row is not None:
            session.row = append.row
        if append.snapshot is not None:
            session.snapshot, session.snapshot_index = append.snapshot, session.last_index
        session.events.extend(events)
        self._all.extend(events)
        if not self._keep_deltas:
            self._note_restated(session, events)
        return Receipt(str(session.last_index), events)

    def _find_for_append(self, append: Append) -> _Session:
        session = self._sessions.get(append.session_id)
        fence = NEW if session is None else str(session.last_index)
        if append.fence != fence:
            raise NoSuchSession(append.session_id) if session is None else StaleFence(append.session_id)
        if not append.events:
            raise LogUnavailable("an append needs events", "This is a bug in the caller.")
        if session is None:
            if append.row is None or append.snapshot is None:
                raise LogUnavailable("the first append needs a row and a snapshot", "This is a bug in the caller.")
            session = self._sessions[append.session_id] = _Session(append.row, append.snapshot)
        return session

    def _note_restated(self, session: _Session, events: tuple[Event, ...]) -> None:
        for event in events:
            target = restated_target(event.body)
            if target is not None:
                session.restated[target] = event.index
        if len(session.restated) >= _DROP_EVERY:
            self._drop_restated(session)

    def _drop_restated(self, session: _Session) -> None:
        """Drop the deltas of texts that were restated after them."""
        restated, session.restated = session.restated, {}

        def is_restated(event: Event) -> bool:
            return is_delta(event.body) and event.index <= restated.get(delta_target(event.body), 0)

        session_id = session.row.session_id
        session.events = [event for event in session.events if not is_restated(event)]
        self._all = [event for event in self._all if event.session_id != session_id or not is_restated(event)]

    async def delete(
        self, session_id: str, fence: Fence, event: Event, on_durable: Callable[[Receipt], None] | None = None
    ) -> Receipt:
        if str(self._find(session_id).last_index) != fence:
            raise StaleFence(session_id)
        del self._sessions[session_id]
        self._last_cursor += 1
        deleted = replace(event, cursor=_cursor(self._last_cursor))
        # Deletions of earlier sessions with the same id stay, too.
        self._all = [
            stored for stored in self._all if stored.session_id != session_id or isinstance(stored.body, SessionDeleted)
        ]
        self._all.append(deleted)
        receipt = Receipt(NEW, (deleted,))
        if on_durable is not None:
            on_durable(receipt)
        return receipt

    # --- reading

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        session = self._find(session_id)
        if session.restated:
            self._drop_restated(session)
        start = bisect_right(session.events, since, key=lambda event: event.index)
        return _select(session.events[start:], limit, types)

    async def read_all(
        self, since: Cursor = START, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        self._check_open()
        for session in self._sessions.values():
            if session.restated:
                self._drop_restated(session)
        start = bisect_right(self._all, since, key=lambda event: event.cursor)
        return _select(self._all[start:], limit, types)

    async def sessions(self) -> list[StoredSession]:
        self._check_open()
        return [_stored(session) for session in self._sessions.values()]

    async def session(self, session_id: str) -> StoredSession:
        return _stored(self._find(session_id))

    async def last_cursor(self) -> Cursor:
        self._check_open()
        return _cursor(self._last_cursor) if self._last_cursor else START

    async def probe(self) -> None:
        self._check_open()

    # --- opening and closing

    async def close(self) -> None:
        self._is_closed = True

    def reopen(self) -> None:
        """Accept reads and appends again, as a store does that is opened a second time."""
        self._is_closed = False

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogUnavailable("it is closed", "Open the log again.")

    def _find(self, session_id: str) -> _Session:
        self._check_open()
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuchSession(session_id)
        return session


def _cursor(number: int) -> Cursor:
    return f"{number:020d}"


def _select(events: list[Event], limit: int, types: Collection[str] | None) -> list[Event]:
    selected = events if types is None else [event for event in events if event.type in types]
    return selected[:limit]


def _stored(session: _Session) -> StoredSession:
    return StoredSession(
        session.row, session.last_index, session.snapshot, session.snapshot_index, str(session.last_index)
    )
