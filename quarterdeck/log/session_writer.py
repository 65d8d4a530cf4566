"""One session's record: the only way into its log.

What happened is put in order, numbered and folded at once, so that the next decision sees it; it becomes durable with the
next append, and is published to readers only then. At most one append of a session is under way: what comes meanwhile
joins the next one, so a flood of deltas shares its commits without anybody waiting for company.

There are two ways in. A *fact* (`write`) came from the agent: it happened, whether or not the disk has room for it, so
it is kept and tried again until the store takes it. A *wish* (`commit`) came from a person: its caller waits, and if the
store refuses, the wish never was: the caller gets the error and the view shows nothing of it.

A fact may be patient: it waits for company, but not for long and not when anybody else is in a hurry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import AgentAbort, Body, Event, Origin
from quarterdeck.kernel.log_invariants import completed
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Timeline
from quarterdeck.kernel.view import View, fold
from quarterdeck.log.base import NEW, Append, Fence, Log, LogUnavailable, NoSuchSession, Receipt, Row, StaleFence
from quarterdeck.log.counters import Tally
from quarterdeck.log.rows import packed, row_of

#: How many events may pass before the small view is stored again, if nothing else asks for it.
SNAPSHOT_EVERY = 256
#: How long a refused fact waits before it is tried again, at first and at most.
RETRY_S = (0.25, 5.0)
#: How long a patient fact waits for others. Many in one commit cost a third of one by one.
PATIENCE_S = 0.005

log = logging.getLogger("quarterdeck.log")


class _Wish:
    """A part of what is to be appended that somebody waits for: from `start` to `end` among the events."""

    __slots__ = ("done", "end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grant(self) -> None:
        """It is durable."""
        if not self.done.done():
            self.done.set_result(None)

    def refuse(self, error: QuarterdeckError) -> None:
        """It never was."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # looked at: a caller that left must not make it look lost


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
        on_trouble: Callable[[QuarterdeckError | None], None] = lambda _: None,
        on_row: Callable[[Row], None] = lambda _: None,
        tally: Tally | None = None,
        last_gate: int = 0,
    ) -> None:
        self._log = log
        self._publish = publish
        self._clock = clock
        self._on_trouble = on_trouble
        self._on_row = on_row
        self._tally = tally or Tally()
        self._fence = fence
        self._pending: list[Event] = []
        self._wishes: list[_Wish] = []
        #: What is to follow once everything that was written before it is durable.
        self._followers: list[Callable[[], object]] = []
        self._is_appending = False
        #: Whether something waits that is not patient.
        self._is_hurried = False
        self._company: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._pause = RETRY_S[0]
        #: The row as the log has it, and the state that it was last made from.
        self._row: Row | None = None
        self._told: State | None = None
        self._stored_at = 0
        self._stored: State | None = None
        self.session_id = session_id
        #: The highest number that a gate of this session had: none may come again, and the state forgets old decisions.
        self.last_gate = last_gate
        self.view = view or View()
        self.durable = self.view
        #: What the store said when it last refused; None while it works.
        self.trouble: QuarterdeckError | None = None

    @property
    def fence(self) -> Fence:
        """What the log gave for the last append."""
        return self._fence

    @property
    def is_settled(self) -> bool:
        """Whether everything written so far is durable."""
        return not self._is_appending and not self._pending

    def write(self, bodies: Iterable[Body], origin: Origin, is_patient: bool = False) -> None:
        """These happened, now. The view shows them at once; readers see them when they are durable."""
        self._add(bodies, origin, max(self._clock(), self.view.at))
        if not is_patient:
            self._is_hurried = True
        if self._is_appending or self._retry is not None:
            return
        if self._is_hurried:
            self._begin()
        else:
            self._wait_for_company()

    def when_kept(self, follows: Callable[[], object]) -> None:
        """This follows when everything written so far is durable; a store that refuses is tried again until it is. It never
        follows when the session is not ours any more."""
        self._followers.append(follows)
        if self._retry is None:
            self._begin()

    async def commit(self, bodies: Iterable[Body], origin: Origin) -> None:
        """These are wanted, now. Returns when they are durable and published; raises if the store refuses them, and
        then they never were."""
        start = len(self._pending)
        self._add(bodies, origin, max(self._clock(), self.view.at))
        await self._wished(start)

    async def settled(self) -> None:
        """Returns when everything written so far is durable and published; raises what the store said if it is not."""
        if self._is_appending or self._pending:
            await self._wished(len(self._pending))

    def adopt(self, timeline: Timeline) -> None:
        """The conversation as it was read from the log to its end."""
        assert self.is_settled, "what is not in the log yet would be missing"
        self.view = self.durable = replace(self.view, timeline=timeline)

    def _wished(self, start: int) -> asyncio.Future[None]:
        """What was added from there on is waited for. A future of its own: a caller that gives up undoes nothing that others
        wait for."""
        wish = _Wish(start, len(self._pending))
        self._wishes.append(wish)
        if not self._is_appending:
            self._begin()
        return wish.done

    def _add(self, bodies: Iterable[Body], origin: Origin, at: int) -> None:
        view, pending, session_id = self.view, self._pending, self.session_id
        for body in bodies:
            for one in completed(view, body):
                event = Event(session_id, view.index + 1, at, origin, one)
                view = fold(view, event)
                pending.append(event)
        self.view = view

    def _wait_for_company(self) -> None:
        if self._company is None:
            self._company = asyncio.get_running_loop().call_later(PATIENCE_S, self._begin)

    def _begin(self) -> None:
        if self._retry is not None or self._company is not None:
            self._wait_no_more()
        if not self._is_appending and (self._pending or self._wishes or self._followers):
            self._is_appending = True
            # not at once: what else this pass of the loop writes is one unit with it
            asyncio.get_running_loop().call_soon(self._append)

    def _wait_no_more(self) -> None:
        for timer in (self._retry, self._company):
            if timer is not None:
                timer.cancel()
        self._retry = self._company = None

    def _append(self) -> None:
        """Hands over everything that waits, as one unit."""
        events, self._pending = self._pending, []
        wishes, self._wishes = self._wishes, []
        followers, self._followers = self._followers, []
        self._is_hurried = False
        if not events:
            self._settle(wishes, followers)
            return
        view, unit = self.view, self._unit(tuple(events), self.view)
        began = time.perf_counter()

        def told(receipt: Receipt | None, error: BaseException | None) -> None:
            if receipt is None:
                self._followers = [*followers, *self._followers]
                self._refused(error, events, wishes)
            else:
                self._tally.appended(len(events), time.perf_counter() - began)
                self._taken(receipt, unit, view)
                self._settle(wishes, followers)

        self._log.submit(unit, told)

    def _taken(self, receipt: Receipt, unit: Append, view: View) -> None:
        """It is durable, and published."""
        self._fence, self.durable = receipt.fence, view
        if self._pause != RETRY_S[0]:
            self._works_again()
        if unit.row is not None:
            self._on_row(unit.row)
        self._publish(receipt.events)

    def _settle(self, wishes: list[_Wish], followers: list[Callable[[], object]]) -> None:
        """Told to those who wait; then comes what came meanwhile."""
        for wish in wishes:
            wish.grant()
        for follows in followers:
            self._follow(follows)
        if self._wishes or self._followers or self._is_hurried:
            self._append()
            return
        self._is_appending = False
        if self._pending:
            self._wait_for_company()
        elif self.trouble is not None:
            self._over()

    def _follow(self, follows: Callable[[], object]) -> None:
        """One that fails keeps nobody else from what is durable."""
        try:
            follows()
        except Exception:
            log.exception("what was to follow failed", extra={"session": self.session_id})

    def _refused(self, error: BaseException | None, events: list[Event], wishes: list[_Wish]) -> None:
        self._is_appending = False
        if isinstance(error, QuarterdeckError):
            self._go_back(error, events, wishes)
        elif error is not None:
            self._go_back(LogUnavailable(f"{type(error).__name__}: {error}", "This is a defect."), events, wishes)

    def _unit(self, events: tuple[Event, ...], view: View) -> Append:
        row = snapshot = None
        if view.state is not self._told or view.state is not self._stored:
            is_due = self._is_due(view)
            row, snapshot = self._changed_row(view.state, is_due), self._snapshot(view) if is_due else None
        return Append(session_id=self.session_id, events=events, fence=self._fence, row=row, view=snapshot)

    def _is_due(self, view: View) -> bool:
        """Whether what the log keeps beside the events is brought up to date. In an open turn every event changes something
        of it; whoever comes back to one folds a few events more."""
        return not view.state.turn.is_open or self._fence == NEW or view.index - self._stored_at >= SNAPSHOT_EVERY

    def _changed_row(self, state: State, is_due: bool) -> Row | None:
        """The row, when it says something else than the one that the log has: more than when the session was last active,
        and the number of its last gate, unless it is due."""
        told = self._told
        if state is told:
            return None
        if not is_due and told is not None and state.profile is told.profile and state.lifecycle is told.lifecycle:
            return None
        self._told, row = state, self.row_of(state)
        if row == self._row:
            return None
        self._row = row
        return row

    def row_of(self, state: State) -> Row:
        """The catalogue's row of this session in this state."""
        row = row_of(state)
        return row if row.last_gate >= self.last_gate else replace(row, last_gate=self.last_gate)

    def _snapshot(self, view: View) -> bytes | None:
        """The small view, when it says something that the stored one does not."""
        if view.state is self._stored:
            return None
        self._stored, self._stored_at = view.state, view.index
        return packed(view.state)

    # --- a store that refuses

    def _go_back(self, error: QuarterdeckError, events: list[Event], wishes: list[_Wish]) -> None:
        """Wishes are withdrawn; facts are told again from the last durable view on, and wait for a better time."""
        later = [*wishes, *self._wishes]
        facts = [*_without(events, wishes), *_without(self._pending, self._wishes)]
        self.view, self._pending, self._wishes = self.durable, [], []
        self._row, self._told, self._stored, self._stored_at = None, None, None, 0
        for event in facts:
            if not (isinstance(event.body, AgentAbort) and not self.view.state.turn.is_open):
                # such an abort was put in behind what closed the turn, and so it is again
                self._add((event.body,), event.origin, event.at)
        for wish in later:
            wish.refuse(error)
        if self.trouble is None:
            log.error("the log refuses", extra={"session": self.session_id, "code": error.code, "waiting": len(facts)})
        self.trouble = error
        self._tally.refused += 1
        self._on_trouble(error)
        if is_final(error):
            self._followers.clear()  # what they wait for never comes
        else:
            self._retry = asyncio.get_running_loop().call_later(self._pause, self._try_again)
            self._pause = min(2 * self._pause, RETRY_S[1])

    def _try_again(self) -> None:
        """With nothing to write, the next who has something finds out whether the store works: nobody waits for us."""
        self._retry = None
        if self._pending or self._followers:
            self._begin()
        else:
            self._over()

    def _works_again(self) -> None:
        self._pause = RETRY_S[0]
        self._over()

    def _over(self) -> None:
        """Nothing is refused now."""
        if self.trouble is not None:
            self.trouble = None
            log.info("the log works again", extra={"session": self.session_id})
            self._on_trouble(None)


def is_final(error: QuarterdeckError | None) -> bool:
    """Whether the log will take nothing of this session from here any more: it is somebody else's now, or gone."""
    return isinstance(error, StaleFence | NoSuchSession)


def _without(events: list[Event], wishes: list[_Wish]) -> list[Event]:
    """The events that no wish brought."""
    wished = {place for wish in wishes for place in range(wish.start, wish.end)}
    return [event for place, event in enumerate(events) if place not in wished]
