"""What the agent says, on its way to the log and to whoever listens.

`write` numbers, folds and hands on. The state and the conversation show it at once; with a log it becomes durable with the
next append, and is published only then. At most one append is under way: what comes meanwhile joins the next one. Without
a log nothing is kept but a short ring, and everything is published at once.

What an agent did is a fact, whether or not the disk has room: a store that refuses is tried again, and whoever waits for
durability (`settled`) meets its error meanwhile. A store that another one owns now ends the agent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.engine.conversation import EMPTY as NO_CONVERSATION
from quarterdeck.engine.conversation import Conversation, fold_conversation
from quarterdeck.engine.subscription import Subscription, Subscriptions
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import DELTAS, Body, Event, Origin
from quarterdeck.kernel import activity
from quarterdeck.kernel.state import EMPTY, State
from quarterdeck.kernel.view import stepped
from quarterdeck.log.base import NEW, Append, Fence, Log, LogUnavailable, NoSuchSession, Receipt, Row, StaleFence
from quarterdeck.log.rows import packed, row_of

Path: TypeAlias = tuple[str, ...]

#: How many events may pass before the small view is stored again, if nothing else asks for it.
_SNAPSHOT_EVERY = 256
_RETRY_S = (0.25, 5.0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Journal:
    """One session's events, as its agent writes them."""

    __slots__ = (
        "_appending",
        "_buffer",
        "_compacting",
        "_fence",
        "_log",
        "_on_lost",
        "_pause",
        "_pending",
        "_row",
        "_scheduled",
        "_snapshot_at",
        "_waiters",
        "at",
        "conversations",
        "index",
        "ring",
        "session_id",
        "state",
        "subscriptions",
    )

    def __init__(
        self,
        session_id: str,
        log: Log | None = None,
        *,
        buffer: int = 0,
        fence: Fence = NEW,
    ) -> None:
        self.session_id = session_id
        self.state: State = EMPTY
        self.index = 0
        self.at = 0
        #: By agent path: the main agent's, and one for every sub-agent at work.
        self.conversations: dict[Path, Conversation] = {(): NO_CONVERSATION}
        self.subscriptions: Subscriptions | None = None
        self.ring: deque[Event] | None = None
        self._buffer = buffer if log is None else 0
        self._log = log
        self._fence = fence
        self._on_lost: Callable[[QuarterdeckError], None] | None = None
        self._pending: list[Event] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._appending = False
        self._scheduled: asyncio.Handle | None = None
        self._pause = _RETRY_S[0]
        self._row: Row | None = None
        self._snapshot_at = 0
        self._compacting = False

    @property
    def has_log(self) -> bool:
        return self._log is not None

    @property
    def conversation(self) -> Conversation:
        """The main agent's."""
        return self.conversations[()]

    @property
    def published(self) -> int:
        """The last index that listeners may have seen."""
        return self._pending[0].index - 1 if self._pending else self.index

    def on_lost(self, told: Callable[[QuarterdeckError], None]) -> None:
        """Who is told when another one owns the log."""
        self._on_lost = told

    def restore(self, event: Event) -> None:
        """An event that the log holds already."""
        self.index, self.at = event.index, event.at
        self.state = stepped(self.state, event)
        self._converse(event.body)

    def write(self, bodies: Iterable[Body], origin: Origin = "engine") -> None:
        """These happened, now, as one batch; the activity that follows from them closes it."""
        at = self.at = max(now_ms(), self.at)
        session_id, index = self.session_id, self.index
        events: list[Event] = []
        moves = False
        for body in bodies:
            index += 1
            event = Event(session_id, index, at, origin, body)
            events.append(event)
            if type(body) not in DELTAS:
                moves = True
                self.state = stepped(self.state, event)
                self._converse(body)
        if moves and (told := self._activity()) is not None:
            index += 1
            event = Event(session_id, index, at, "engine", told)
            events.append(event)
            self.state = stepped(self.state, event)
        self.index = index
        if events:
            self._hand_on(events)

    def _converse(self, body: Body) -> None:
        conversation = self.conversations.get(body.agent_path)
        if conversation is not None:
            self.conversations[body.agent_path] = fold_conversation(conversation, body)
        if type(body) is ev.CompactStart or type(body) is ev.CompactEnd:
            self._compacting = type(body) is ev.CompactStart and not body.agent_path

    def _activity(self) -> Body | None:
        """003's state where it is another one now. The engine knows itself, so there is nothing to guess or to debounce."""
        state = self.state
        if state.process.value != "up":
            return None
        wanted = activity_of(state, self._compacting)
        if wanted == state.activity.value:
            return None
        return ev.StateChange(state=_NAMES[wanted][0], sub=_NAMES[wanted][1], turn_id=state.turn.id or None)  # type: ignore[arg-type]

    # --- to the log, and to listeners

    def _hand_on(self, events: list[Event]) -> None:
        if self._log is None:
            self._publish(events)
            return
        self._pending.extend(events)
        if not self._appending:
            self._appending = True
            # not at once: what else this pass of the loop writes is one unit with it
            self._scheduled = asyncio.get_running_loop().call_soon(self._append)

    def flush(self) -> None:
        """What is written must not wait for company: in a busy loop a pass takes its time."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._append()

    def _append(self) -> None:
        assert self._log is not None
        self._scheduled = None
        if not self._pending:
            self._appending = False
            return
        events = tuple(self._pending)
        self._log.submit(self._unit(events), lambda receipt, error: self._told(len(events), receipt, error))

    def _unit(self, events: tuple[Event, ...]) -> Append:
        row = row_of(self.state)
        changed = None if row == self._row else row
        due = changed is not None or self.index - self._snapshot_at >= _SNAPSHOT_EVERY or not self.state.turn.is_open
        view = packed(self.state) if due else None
        self._row = row
        if due:
            self._snapshot_at = self.index
        return Append(session_id=self.session_id, events=events, fence=self._fence, row=changed, view=view)

    def _told(self, count: int, receipt: Receipt | None, error: BaseException | None) -> None:
        if receipt is None:
            self._refused(error)
            return
        self._fence, self._pause = receipt.fence, _RETRY_S[0]
        del self._pending[:count]
        self._publish(receipt.events)
        durable, waiters = receipt.events[-1].index, self._waiters
        self._waiters = [one for one in waiters if one[0] > durable]
        for index, waiter in waiters:
            if index <= durable and not waiter.done():
                waiter.set_result(None)
        self._append()

    def _refused(self, error: BaseException | None) -> None:
        waiters, self._waiters = self._waiters, []
        self._row, self._snapshot_at = None, 0
        known = error if isinstance(error, QuarterdeckError) else LogUnavailable(f"{type(error).__name__}: {error}")
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(known)
                waiter.exception()  # looked at: a caller that left must not make it look lost
        if isinstance(known, StaleFence | NoSuchSession):
            if self._on_lost is not None:
                self._on_lost(known)
            return
        asyncio.get_running_loop().call_later(self._pause, self._append)
        self._pause = min(2 * self._pause, _RETRY_S[1])

    async def settled(self) -> None:
        """Returns when everything written so far is durable and published; raises what the store said if it is not."""
        if not self._pending:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self.index, waiter))
        await waiter

    def _publish(self, events: Sequence[Event]) -> None:
        if self._buffer:
            if self.ring is None:
                self.ring = deque(maxlen=self._buffer)
            self.ring.extend(events)
        if self.subscriptions is not None:
            self.subscriptions.push(events)

    def subscribe(self, since: int | None, types: frozenset[str] | None) -> Subscription:
        """A listener from here on, or from an index that it has seen."""
        if self.subscriptions is None:
            self.subscriptions = Subscriptions()
        log, session_id = self._log, self.session_id
        if log is None:
            kept = [one for one in self.ring or () if since is not None and one.index > since]
            return self.subscriptions.opened(kept[0].index - 1 if kept else self.published, types, kept)
        behind = since is not None and since < self.published

        async def read(position: int) -> Sequence[Event]:
            return await log.read(session_id, position)

        return self.subscriptions.opened(
            since if behind and since is not None else self.published, types, (), read, behind
        )

    def close(self, error: QuarterdeckError | None = None) -> None:
        """Nothing more comes; listeners hear of it when they have read what there is."""
        if self.subscriptions is not None:
            self.subscriptions.close(error)


_NAMES = {name: activity.split(name) for name in activity.STATES}


def activity_of(state: State, compacting: bool) -> str:
    """What 003 calls it, from what the owners say."""
    if not state.turn.is_open:
        return "idle"
    for one in state.gates.open:
        if not one.path and one.kind != "dialog":
            return activity.WAITING
    if compacting:
        return activity.COMPACTING
    return activity.TOOL_USE if state.run.value == "executing_tools" else activity.THINKING
