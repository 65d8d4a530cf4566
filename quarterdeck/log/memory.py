"""The log in memory: the same behaviour without a disk, for tests and for the library without a store."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection

from msgspec.structs import replace

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, SessionDeleted
from quarterdeck.log.base import (
    NEW,
    PAGE,
    START,
    Append,
    Cursor,
    Fence,
    LogUnavailable,
    NoSuchSession,
    Receipt,
    Row,
    StaleFence,
    Stored,
    Told,
    unheard,
)
from quarterdeck.log.deltas import growing, is_delta, restated

#: So many wholes may have been told before the deltas of all of them are dropped.
_WHOLES = 64


class _Session:
    def __init__(self, row: Row, view: bytes) -> None:
        self.row = row
        self.view = view
        self.view_index = 0
        self.last_index = 0
        self.events: list[Event] = []
        #: What was told as a whole since deltas were last dropped, each with the index of who told it.
        self.told: dict[str, int] = {}


class MemoryLog:
    """Everything in lists. `keep_deltas` keeps what a store would drop, which some tests want to see."""

    def __init__(self, keep_deltas: bool = False) -> None:
        self._sessions: dict[str, _Session] = {}
        self._all: list[Event] = []
        self._count = 0
        self._closed = False
        self._keep_deltas = keep_deltas
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, append: Append, told: Told) -> None:
        loop = asyncio.get_running_loop()
        if type(self).append is not MemoryLog.append:
            # somebody made a log of their own of it, which may have to wait
            task = loop.create_task(self._submitted(append, told))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        # told later all the same: nobody is called back while they are still asking
        later = loop.call_soon
        try:
            receipt = self._write(append)
        except QuarterdeckError as error:
            later(told, None, error)
        else:
            later(told, receipt, None)

    async def _submitted(self, append: Append, told: Told) -> None:
        try:
            receipt = await self.append(append)
        except QuarterdeckError as error:
            told(None, error)
        else:
            told(receipt, None)

    async def append(self, append: Append) -> Receipt:
        return self._write(append)

    def _write(self, append: Append) -> Receipt:
        self._refuse_if_closed()
        session = self._fenced(append)
        # not `replace` nor a call for each, which is four times as slow, and this is done for every event
        written = tuple(
            [
                Event(one.session_id, one.index, one.at, one.origin, one.body, f"{count:020d}", one.raw)
                for count, one in enumerate(append.events, self._count + 1)
            ]
        )
        self._count += len(written)
        if append.row is not None:
            session.row = append.row
        if append.view is not None:
            session.view, session.view_index = append.view, append.events[-1].index
        session.last_index = append.events[-1].index
        self._keep(session, written)
        return Receipt(str(session.last_index), written)

    def _fenced(self, append: Append) -> _Session:
        session = self._sessions.get(append.session_id)
        if (NEW if session is None else str(session.last_index)) != append.fence:
            raise NoSuchSession(append.session_id) if session is None else StaleFence(append.session_id)
        if not append.events or (session is None and (append.row is None or append.view is None)):
            raise LogUnavailable("an append needs events, the first one its row and view", "This is a defect.")
        if session is None:
            assert append.row is not None
            assert append.view is not None
            session = self._sessions[append.session_id] = _Session(append.row, append.view)
        return session

    def _numbered(self, event: Event) -> Event:
        self._count += 1
        return replace(event, cursor=f"{self._count:020d}")

    def _keep(self, session: _Session, written: tuple[Event, ...]) -> None:
        session.events.extend(written)
        self._all.extend(written)
        if self._keep_deltas:
            return
        for event in written:
            if (whole := restated(event.body)) is not None:
                session.told[whole] = event.index
        if len(session.told) >= _WHOLES:
            self._drop_told(session)

    def _drop_told(self, session: _Session) -> None:
        """Drops the deltas whose whole was told. Not at once: it looks at everything, and many wholes are one look."""
        told, session.told = session.told, {}
        name = session.row.id
        session.events = [event for event in session.events if not _is_told(event, told)]
        self._all = [event for event in self._all if event.session_id != name or not _is_told(event, told)]

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        session = self._find(session_id)
        if session.told:
            self._drop_told(session)
        events = session.events
        start = bisect_right(events, since, key=lambda event: event.index)
        return _page(events[start:], limit, types)

    async def read_all(
        self, since: Cursor = START, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        self._refuse_if_closed()
        for session in self._sessions.values():
            if session.told:
                self._drop_told(session)
        start = bisect_right(self._all, since, key=lambda event: event.cursor)
        return _page(self._all[start:], limit, types)

    async def sessions(self) -> list[Stored]:
        self._refuse_if_closed()
        return [_stored(session) for session in self._sessions.values()]

    async def session(self, session_id: str) -> Stored:
        return _stored(self._find(session_id))

    async def delete(
        self, session_id: str, fence: Fence, event: Event, told: Callable[[Receipt], None] = unheard
    ) -> Receipt:
        self._refuse_if_closed()
        if str(self._find(session_id).last_index) != fence:
            raise StaleFence(session_id)
        del self._sessions[session_id]
        word = self._numbered(event)
        self._all = [one for one in self._all if one.session_id != session_id or _is_last_word(one)]
        self._all.append(word)
        receipt = Receipt(NEW, (word,))
        told(receipt)
        return receipt

    async def last_cursor(self) -> Cursor:
        self._refuse_if_closed()
        return f"{self._count:020d}" if self._count else START

    async def probe(self) -> None:
        self._refuse_if_closed()

    async def close(self) -> None:
        self._closed = True

    def reopen(self) -> None:
        """What opening a store again is to the other adapters."""
        self._closed = False

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise LogUnavailable("it is closed", "Open the log again.")

    def _find(self, session_id: str) -> _Session:
        self._refuse_if_closed()
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuchSession(session_id)
        return session


def _is_told(event: Event, told: dict[str, int]) -> bool:
    """Whether it is a piece of something that was told as a whole after it."""
    return is_delta(event.body) and event.index <= told.get(growing(event.body), 0)


def _is_last_word(event: Event) -> bool:
    return isinstance(event.body, SessionDeleted)


def _page(events: list[Event], limit: int, types: Collection[str] | None) -> list[Event]:
    chosen = events if types is None else [event for event in events if event.type in types]
    return chosen[:limit]


def _stored(session: _Session) -> Stored:
    return Stored(session.row, session.last_index, session.view, session.view_index, str(session.last_index))
