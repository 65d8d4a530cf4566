"""Write one session's events: number them, fold them, append them to the log, publish them, and retry if the log fails.

Every event of a session goes through its `SessionWriter`; deck and built-in agent use the same one. An event is numbered
and folded as soon as it is written, so the next decision already sees it in `view`. It becomes durable with the next append
and is published to the listener only then. At most one append of a session is in progress. Events written meanwhile share
the next append, so a flood of deltas costs few commits.

There are two ways to write:

- `write` is for facts: what an agent did has happened, whether or not the disk has room for it. If the log refuses a fact,
  the writer retries until the log accepts it.
- `commit` is for commands: the caller waits. If the log refuses, the command is undone. The caller gets the error, and the
  view shows nothing of the command.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Event, Origin
from quarterdeck.kernel.log_invariants import completed
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Timeline
from quarterdeck.kernel.view import View, fold, stepped
from quarterdeck.log.base import (
    NEW,
    Append,
    Appender,
    CatalogueRow,
    Fence,
    LogUnavailable,
    NoSuchSession,
    Receipt,
    StaleFence,
)
from quarterdeck.log.counters import AppendCounters
from quarterdeck.log.rows import catalogue_row, encode_snapshot

#: In an open turn, the snapshot is stored again after this many events.
SNAPSHOT_EVERY = 256
#: Delay before a refused fact is tried again. It doubles with every failure, up to the maximum.
RETRY_S = 0.25
MAX_RETRY_S = 5.0
#: How long a `Durability.LAZY` event may wait for others to share its commit.
LAZY_S = 0.005

log = logging.getLogger("quarterdeck.log")


class Durability(enum.Enum):
    """How soon a fact has to become durable."""

    #: Append it in the next pass of the event loop.
    EAGER = enum.auto()
    #: Wait up to 5 ms for other events. Use it for events that nothing depends on.
    LAZY = enum.auto()


class WriterListener(Protocol):
    """Follows what a writer makes durable. All methods are called on the event loop and must not block."""

    def on_durable(self, events: Sequence[Event], row: CatalogueRow | None) -> None:
        """Handle events that just became durable, in order. `row` is set if the session's catalogue row changed."""
        ...

    def on_log_error(self, error: QuarterdeckError | None) -> None:
        """Handle an append that the log refused. `error` is None once the log accepts appends again."""
        ...


class SessionWriter:
    """The only way into one session's log."""

    def __init__(
        self,
        appender: Appender | None,
        session_id: str,
        listener: WriterListener | None = None,
        *,
        view: View | None = None,
        fence: Fence = NEW,
        clock: Callable[[], int] = lambda: 0,
        counters: AppendCounters | None = None,
        last_gate_number: int = 0,
        has_timeline: bool = True,
    ) -> None:
        """Write to a session that is at `view` now.

        `clock` returns the time in milliseconds. Without an appender, events count as durable when they are written. Without
        a timeline, only the state is folded, and the writer doesn't insert what an agent left out (`log_invariants`): the
        built-in agent needs neither.
        """
        self.session_id = session_id
        #: The session with everything written so far.
        self.view = view or View()
        #: The session with everything that is durable. Show clients nothing else.
        self.durable_view = self.view
        #: Highest gate number used in this session. The state forgets old decisions, but a number must never be reused.
        self.last_gate_number = last_gate_number
        #: Why the log refused the last append, or None if it works.
        self.error: QuarterdeckError | None = None
        self._appender = appender
        self._listener = listener
        self._clock = clock
        self._counters = counters or AppendCounters()
        self._has_timeline = has_timeline
        self._fence = fence
        self._pending: list[_Batch] = []
        #: Whether `_pending` holds anything that isn't lazy.
        self._is_urgent = False
        self._append_task: asyncio.Task[None] | None = None
        #: Starts the next append: after `LAZY_S`, or after a refusal when it's time to retry.
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S
        self._cache = _StoredCache()

    # --- writing

    @property
    def fence(self) -> Fence:
        """The fence for the next append."""
        return self._fence

    @property
    def is_durable(self) -> bool:
        """Whether everything written so far is durable."""
        return self._append_task is None and not self._pending

    def write(self, bodies: Iterable[Body], origin: Origin, durability: Durability = Durability.EAGER) -> None:
        """Record facts that happened now.

        The view has them at once. The listener gets them when they are durable; if the log refuses, they are retried.
        """
        self._add(_Batch(tuple(bodies), origin, self._now()))
        if self._appender is None:
            self._publish_unlogged()
            return
        self._is_urgent = self._is_urgent or durability is Durability.EAGER
        # While a retry is scheduled, facts wait for it: one more failing append per event would only cost time.
        if self._append_task is None and self._retry_timer is None:
            if self._is_urgent:
                self._start_append()
            else:
                self._start_lazy_timer()

    async def commit(self, bodies: Iterable[Body], origin: Origin) -> None:
        """Record what a command causes. It is durable and published when this returns.

        A caller that is cancelled meanwhile doesn't undo the command.

        Raises:
            QuarterdeckError: the log refused. The command was undone.
        """
        await self._add_waiter(bodies, origin)

    async def flush(self) -> None:
        """Wait until everything written so far is durable and published.

        Raises:
            QuarterdeckError: the log refused. The facts stay pending and are retried.
        """
        if not self.is_durable:
            await self._add_waiter((), "supervisor")

    def after_durable(self, callback: Callable[[], object]) -> None:
        """Call `callback` once everything written so far is durable, however often the log has to be retried.

        It is never called if the session was lost to another owner or deleted.
        """
        if self._appender is None:
            callback()
            return
        self._pending.append(_Batch(callback=callback))
        self._is_urgent = True
        if self._retry_timer is None:
            self._start_append()

    def restore(self, event: Event) -> None:
        """Fold an event that is already in the log."""
        assert self.is_durable, "the event comes before those that are pending"
        self.view = self.durable_view = self._fold(self.view, event)

    def set_timeline(self, timeline: Timeline) -> None:
        """Complete the view with the timeline that was read from the log to its end."""
        assert self.is_durable, "pending events would be missing from the timeline"
        self.view = self.durable_view = replace(self.view, timeline=timeline)

    def row_for(self, state: State) -> CatalogueRow:
        """Return the catalogue row for this session in this state."""
        row = catalogue_row(state)
        if row.last_gate_number >= self.last_gate_number:
            return row
        return replace(row, last_gate_number=self.last_gate_number)

    def _add_waiter(self, bodies: Iterable[Body], origin: Origin) -> asyncio.Future[None]:
        # Each caller gets its own future, so one that is cancelled takes nothing away from the others.
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bodies = tuple(bodies)
        self._add(_Batch(bodies, origin, self._now() if bodies else self.view.at, waiter=waiter))
        if self._appender is None:
            self._publish_unlogged()
        else:
            self._is_urgent = True
            # A person waits for this, so don't wait for the scheduled retry.
            self._start_append()
        return waiter

    def _now(self) -> int:
        # Times never go back within a session, even if the clock does.
        return max(self._clock(), self.view.at)

    def _add(self, batch: _Batch) -> None:
        """Number and fold a batch and put it at the end of the pending ones."""
        view = self.view
        batch.events = []
        for body in batch.bodies:
            for complete_body in completed(view, body) if self._has_timeline else (body,):
                event = Event(self.session_id, view.index + 1, batch.at, batch.origin, complete_body)
                view = self._fold(view, event)
                batch.events.append(event)
        self.view = view
        self._pending.append(batch)

    def _fold(self, view: View, event: Event) -> View:
        if self._has_timeline:
            return fold(view, event)
        return View(event.index, event.at, stepped(view.state, event))

    def _publish_unlogged(self) -> None:
        """Publish pending events right away: without an appender there is nothing to wait for."""
        batches, self._pending = self._pending, []
        self.durable_view = self.view
        self._notify_durable([event for batch in batches for event in batch.events], None)
        for batch in batches:
            batch.resolve(self.session_id)

    # --- appending

    def _start_append(self) -> None:
        self._stop_timers()
        if self._append_task is None:
            # The task starts in the next pass of the loop, so everything written in this pass is one append.
            self._append_task = asyncio.get_running_loop().create_task(self._append_pending())

    def _start_lazy_timer(self) -> None:
        if self._lazy_timer is None:
            self._lazy_timer = asyncio.get_running_loop().call_later(LAZY_S, self._start_append)

    def _stop_timers(self) -> None:
        for timer in (self._lazy_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._lazy_timer = self._retry_timer = None

    async def _append_pending(self) -> None:
        """Append everything pending, then what was written meanwhile, until nothing urgent is left."""
        assert self._appender is not None
        is_first = True
        while is_first or self._is_urgent:
            is_first = False
            batches, self._pending, self._is_urgent = self._pending, [], False
            events = tuple([event for batch in batches for event in batch.events])
            if events:
                view, append = self.view, self._build_append(events)
                started_at = time.perf_counter()
                try:
                    receipt = await self._appender.append(append)
                except Exception as error:
                    self._append_task = None
                    self._handle_refusal(error, batches)
                    return
                self._counters.add(len(events), time.perf_counter() - started_at)
                self._accept(receipt, append.row, view)
            for batch in batches:
                batch.resolve(self.session_id)
        self._append_task = None
        if self._pending:
            self._start_lazy_timer()
        else:
            self._clear_error()

    def _build_append(self, events: tuple[Event, ...]) -> Append:
        # In an open turn, nearly every event changes the state. Storing the snapshot each time would more than double what
        # is written, so it may lag behind: restoring a session folds the events after its snapshot.
        state = self.view.state
        is_due = (
            not state.turn.is_open
            or self._fence == NEW
            or self.view.index - self._cache.snapshot_index >= SNAPSHOT_EVERY
        )
        row = self._changed_row(state, is_due)
        snapshot = self._changed_snapshot(state) if is_due else None
        return Append(session_id=self.session_id, events=events, fence=self._fence, row=row, snapshot=snapshot)

    def _changed_row(self, state: State, is_due: bool) -> CatalogueRow | None:
        """Return the row if it differs from the stored one.

        In an open turn, changes of only `last_active_at` and `last_gate_number` wait until the snapshot is due: every event
        of a turn would write the row otherwise. Restoring a session computes both again from the events.
        """
        cache = self._cache
        previous = cache.row_state
        if state is previous:
            return None
        if (
            not is_due
            and previous is not None
            and state.profile is previous.profile
            and state.lifecycle is previous.lifecycle
        ):
            return None
        cache.row_state = state
        row = self.row_for(state)
        if row == cache.row:
            return None
        cache.row = row
        return row

    def _changed_snapshot(self, state: State) -> bytes | None:
        if state is self._cache.snapshot_state:
            return None
        self._cache.snapshot_state, self._cache.snapshot_index = state, self.view.index
        return encode_snapshot(state)

    def _accept(self, receipt: Receipt, row: CatalogueRow | None, view: View) -> None:
        """Publish what just became durable."""
        self._fence, self.durable_view = receipt.fence, view
        self._retry_s = RETRY_S
        self._clear_error()
        self._notify_durable(receipt.events, row)

    def _notify_durable(self, events: Sequence[Event], row: CatalogueRow | None) -> None:
        if self._listener is None or not events:
            return
        try:
            self._listener.on_durable(events, row)
        except Exception:
            # The events are durable, so callers that wait for them must still be resumed.
            log.exception("a listener failed on durable events", extra={"session": self.session_id})

    # --- a log that refuses

    def _handle_refusal(self, error: Exception, batches: list[_Batch]) -> None:
        """Undo commands, fold facts again from the last durable view, and schedule a retry."""
        if not isinstance(error, QuarterdeckError):
            error = LogUnavailable(f"{type(error).__name__}: {error}", "This is a bug in the log adapter.")
        refused = [*batches, *self._pending]
        self.view, self._pending, self._is_urgent = self.durable_view, [], False
        # Whether the log stored a row or a snapshot of this append is unknown, so store both with the next one.
        self._cache = _StoredCache()
        for batch in refused:
            if batch.waiter is None:
                self._add(batch)
        for batch in refused:
            batch.fail(error)
        if self.error is None:
            details = {"session": self.session_id, "code": error.code, "waiting": len(self._pending)}
            log.error("the log refuses appends", extra=details)
        self.error = error
        self._counters.refused += 1
        if is_final(error):
            # Callbacks wait for durability that never comes.
            self._pending = [batch for batch in self._pending if batch.callback is None]
        else:
            self._retry_timer = asyncio.get_running_loop().call_later(self._retry_s, self._retry)
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
        self._notify_error(error)

    def _retry(self) -> None:
        self._retry_timer = None
        if self._pending:
            self._start_append()
        else:
            # Only commands were refused, and they were undone. The next one finds out whether the log works again.
            self._clear_error()

    def _clear_error(self) -> None:
        if self.error is None or is_final(self.error):
            return
        self.error = None
        log.info("the log accepts appends again", extra={"session": self.session_id})
        self._notify_error(None)

    def _notify_error(self, error: QuarterdeckError | None) -> None:
        if self._listener is None:
            return
        try:
            self._listener.on_log_error(error)
        except Exception:
            # The writer must go on: other callers wait for their events.
            log.exception("a listener failed on a log error", extra={"session": self.session_id})


class _Batch:
    """What one call of the writer recorded: its bodies, and the events made from them, until they are durable."""

    __slots__ = ("at", "bodies", "callback", "events", "origin", "waiter")

    def __init__(
        self,
        bodies: tuple[Body, ...] = (),
        origin: Origin = "supervisor",
        at: int = 0,
        *,
        waiter: asyncio.Future[None] | None = None,
        callback: Callable[[], object] | None = None,
    ) -> None:
        #: As the caller passed them. After a refusal they are numbered and folded again.
        self.bodies = bodies
        self.origin: Origin = origin
        self.at = at
        self.events: list[Event] = []
        #: Set for commands and flushes. A batch with a waiter is undone if the log refuses it.
        self.waiter = waiter
        self.callback = callback

    def resolve(self, session_id: str) -> None:
        """Report that the batch, and everything before it, is durable."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        if self.callback is not None:
            try:
                self.callback()
            except Exception:
                log.exception("a callback failed after an append", extra={"session": session_id})

    def fail(self, error: QuarterdeckError) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)
            # Retrieve the exception so asyncio doesn't log it if the caller was cancelled.
            self.waiter.exception()


class _StoredCache:
    """What the log stores for the session beside its events, as far as this writer knows."""

    __slots__ = ("row", "row_state", "snapshot_index", "snapshot_state")

    def __init__(self) -> None:
        self.row: CatalogueRow | None = None
        #: The states from which the row and the snapshot were computed, to skip both if the state didn't change.
        self.row_state: State | None = None
        self.snapshot_state: State | None = None
        self.snapshot_index = 0


def is_final(error: QuarterdeckError | None) -> bool:
    """Return whether the log will never accept this writer's appends again: the session has another owner or is gone."""
    return isinstance(error, StaleFence | NoSuchSession)
