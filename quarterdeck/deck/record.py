"""One session's record: the only way into its log.

What happened is put in order, numbered and folded at once, so that the next decision sees it; it becomes durable with the
next append, and is published to readers only then. At most one append of a session is under way: what comes meanwhile
joins the next one, so a flood of deltas shares its commits without anybody waiting for company. Whoever needs to know
awaits `settled`.

If the store refuses, nothing that was not acknowledged is true: the record goes back to its last durable view, every
waiting caller gets the error, and the session can go on as soon as the store does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Event, Origin
from quarterdeck.kernel.order import in_order
from quarterdeck.kernel.state import State
from quarterdeck.kernel.view import View, fold
from quarterdeck.log.base import NEW, Append, Fence, Log, Row

#: How many events may pass before the small view is stored again, if nothing else asks for it.
SNAPSHOT_EVERY = 256

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(State).decode


def packed(state: State) -> bytes:
    """The small view as the log keeps it."""
    return _pack(state)


def unpacked(view: bytes) -> State:
    """And back."""
    return _unpack(view)


def row_of(view: View) -> Row:
    """The catalogue's row of this session."""
    state, profile = view.state, view.state.profile
    return Row(
        id=profile.id,
        agent=profile.agent,
        status=state.lifecycle.value,
        created_at=profile.created_at,
        last_active_at=state.last_active_at,
        agent_version=profile.agent_version,
        cwd=profile.cwd,
        repo=profile.repo.root if profile.repo is not None else "",
        name=profile.name,
        end_reason=profile.end_reason,
        supports_resume=profile.resumable,
        resume_data=profile.native_session_id or None,
        pinned=profile.pinned,
    )


class Record:
    """A session's view with everything that was said, and what of it is durable."""

    def __init__(
        self,
        log: Log,
        publish: Callable[[Sequence[Event]], None],
        session_id: str,
        view: View | None = None,
        fence: Fence = NEW,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self._log = log
        self._publish = publish
        self._clock = clock
        self._fence = fence
        self._pending: list[Event] = []
        #: Told when the append under way, or the one after it, is durable. Made only if somebody waits.
        self._current: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._append: asyncio.Task[None] | None = None
        self._row: Row | None = None
        self._stored_at = 0
        self._stored: State | None = None
        self.session_id = session_id
        self.view = view or View()
        self.durable = self.view

    def write(self, bodies: Iterable[Body], origin: Origin) -> None:
        """These happened, now. The view shows them at once; readers see them when they are durable."""
        at = max(self._clock(), self.view.at)
        for body in in_order(self.view, bodies, at):
            event = Event(self.session_id, self.view.index + 1, at, origin, body)
            self.view = fold(self.view, event)
            self._pending.append(event)
        if self._pending and self._append is None:
            self._append = asyncio.get_running_loop().create_task(self._append_all())

    async def settled(self) -> None:
        """Returns when everything written so far is durable and published; raises what the store said if it is not."""
        if self._pending:
            self._next = self._next or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next)
        elif self._append is not None:
            self._current = self._current or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._current)

    async def _append_all(self) -> None:
        while self._pending:
            events, self._pending = tuple(self._pending), []
            self._current, self._next = self._next, None
            view = self.view
            try:
                receipt = await self._log.append(self._unit(events, view))
            except QuarterdeckError as error:
                self._go_back(error)
                return
            self._fence, self.durable = receipt.fence, view
            self._publish(receipt.events)
            if self._current is not None:
                self._current.set_result(None)
                self._current = None
        self._append = None

    def _unit(self, events: tuple[Event, ...], view: View) -> Append:
        row = row_of(view)
        changed_row = None if row == self._row else row
        snapshot = self._snapshot(view, changed_row is not None)
        self._row = row
        return Append(session_id=self.session_id, events=events, fence=self._fence, row=changed_row, view=snapshot)

    def _snapshot(self, view: View, row_changed: bool) -> bytes | None:
        """The small view, when it says something that the stored one does not and it is worth a write."""
        due = row_changed or view.index - self._stored_at >= SNAPSHOT_EVERY or not view.state.turn.is_open
        if view.state is self._stored or not due:
            return None
        self._stored, self._stored_at = view.state, view.index
        return packed(view.state)

    def _go_back(self, error: QuarterdeckError) -> None:
        self.view = self.durable
        self._pending.clear()
        self._append = None
        self._row, self._stored, self._stored_at = None, None, 0
        waiting = (self._current, self._next)
        self._current = self._next = None
        for one in waiting:
            if one is not None:
                one.set_exception(error)
                one.exception()  # looked at: a caller that left must not make it look lost
