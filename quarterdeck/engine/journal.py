"""Record what a built-in agent does, and deliver it to the agent's subscribers.

The journal keeps the agent's state and its conversations up to date with every event that the agent writes. A
`SessionWriter` numbers the events and appends them to the log; subscribers get them when they are durable. Without a log,
subscribers get every event at once, and only a short buffer of past events is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.engine.conversation import EMPTY as NO_CONVERSATION
from quarterdeck.engine.conversation import Conversation, fold_conversation
from quarterdeck.engine.errors import AgentDown
from quarterdeck.engine.subscription import Subscription
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import DELTAS, Body, Event, Origin
from quarterdeck.kernel import activity
from quarterdeck.kernel.state import State
from quarterdeck.log.base import NEW, Appender, CatalogueRow, Fence, Log
from quarterdeck.log.session_writer import SessionWriter, is_final
from quarterdeck.log.tail import TAIL, Follower, Tail

Path: TypeAlias = tuple[str, ...]


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Journal:
    """The events of one session, as its agent writes them."""

    __slots__ = (
        "_buffer",
        "_closing_error",
        "_is_closed",
        "_is_compacting",
        "_log",
        "_tail",
        "_writer",
        "conversations",
        "has_log",
        "on_lost",
        "session_id",
    )

    def __init__(
        self,
        session_id: str,
        appender: Appender | None = None,
        log: Log | None = None,
        *,
        buffer: int = 0,
        fence: Fence = NEW,
    ) -> None:
        """Write events to `appender`, and read past events for late subscribers from `log`.

        Both are the same object, unless the appender is the deck's pipe, which can't be read. Without an appender, the last
        `buffer` events are kept for late subscribers.
        """
        self.session_id = session_id
        #: Whether the events are stored anywhere, so that the session can be resumed.
        self.has_log = appender is not None
        #: Called when another process has taken over the session.
        self.on_lost: Callable[[QuarterdeckError], None] | None = None
        #: By agent path: the main agent's conversation, and one for every running sub-agent.
        self.conversations: dict[Path, Conversation] = {(): NO_CONVERSATION}
        self._tail: Tail[int] | None = None
        self._is_closed = False
        self._closing_error: AgentDown | None = None
        self._buffer = buffer if appender is None else 0
        self._log = log
        self._is_compacting = False
        self._writer = SessionWriter(appender, session_id, self, fence=fence, clock=now_ms, has_timeline=False)

    @property
    def state(self) -> State:
        """The session's state with everything written so far."""
        return self._writer.view.state

    @property
    def index(self) -> int:
        """The index of the newest event."""
        return self._writer.view.index

    @property
    def conversation(self) -> Conversation:
        """The main agent's conversation."""
        return self.conversations[()]

    @property
    def published(self) -> int:
        """The index of the newest event that subscribers may have seen."""
        return self._writer.durable_view.index

    # --- writing

    def restore(self, event: Event) -> None:
        """Fold an event that is already in the log."""
        self._writer.restore(event)
        self._update_conversation(event.body)

    def write(self, bodies: Iterable[Body], origin: Origin = "engine") -> None:
        """Record what just happened, and the activity that follows from it."""
        bodies = tuple(bodies)
        if not bodies:
            return
        self._writer.write(bodies, origin)
        moved = [body for body in bodies if type(body) not in DELTAS]
        for body in moved:
            self._update_conversation(body)
        if moved and (state_change := self._changed_activity()) is not None:
            self._writer.write((state_change,), "engine")

    async def flush(self) -> None:
        """Wait until everything written so far is durable and published.

        Raises:
            QuarterdeckError: the log refused. The events stay pending and are retried.
        """
        await self._writer.flush()

    def _update_conversation(self, body: Body) -> None:
        conversation = self.conversations.get(body.agent_path)
        if conversation is not None:
            self.conversations[body.agent_path] = fold_conversation(conversation, body)
        if not body.agent_path and isinstance(body, ev.CompactStart | ev.CompactEnd):
            self._is_compacting = isinstance(body, ev.CompactStart)

    def _changed_activity(self) -> Body | None:
        """Return the event for the agent's current activity, or None if it didn't change.

        The engine knows what it is doing, so unlike a translator it needs neither guesses nor delays.
        """
        state = self.state
        if state.process.value != "up":
            return None
        name = activity_of(state, self._is_compacting)
        if name == state.activity.value:
            return None
        return ev.StateChange(state=_NAMES[name][0], sub=_NAMES[name][1], turn_id=state.turn.id or None)  # type: ignore[arg-type]

    # --- what the writer reports

    def on_durable(self, events: Sequence[Event], row: CatalogueRow | None) -> None:
        """Deliver events to the subscribers."""
        if self._buffer and self._tail is None:
            self._tail = self._create_tail(events[0].index - 1)
        if self._tail is not None:
            self._tail.publish(events)

    def on_log_error(self, error: QuarterdeckError | None) -> None:
        """End the agent if the log will never accept its events again."""
        if error is not None and is_final(error) and self.on_lost is not None:
            self.on_lost(error)

    # --- subscribers

    def subscribe(self, since: int | None, types: frozenset[str] | None) -> Subscription:
        """Return a subscription to all events after the index `since`, or to those from now on."""
        if self._tail is None:
            self._tail = self._create_tail(self.published)
            if self._is_closed:
                self._tail.end(self._closing_error)
        position = self.published if since is None else min(since, self.published)
        log = self._log
        if log is not None:
            follower = Follower(self._tail, position, lambda index: log.read(self.session_id, index))
        else:
            # Past events that are no longer buffered are gone.
            oldest = max(self._tail.floor, self.published - self._buffer)
            follower = Follower(self._tail, max(position, oldest))
        return Subscription(follower, types)

    def _create_tail(self, head: int) -> Tail[int]:
        # Create the tail when it is first needed: an agent without subscribers doesn't need one.
        return Tail(lambda event: event.index, head, self._buffer if self._log is None else TAIL)

    def close(self, error: QuarterdeckError | None = None) -> None:
        """End all subscriptions once they have delivered everything. With an error, they raise `AgentDown`."""
        self._is_closed, self._closing_error = True, None if error is None else AgentDown(error)
        if self._tail is not None:
            self._tail.end(self._closing_error)


_NAMES = {name: activity.split(name) for name in activity.STATES}


def activity_of(state: State, is_compacting: bool) -> str:
    """Return the activity (`idle`, `active/thinking`, …) of an agent in this state."""
    if not state.turn.is_open:
        return "idle"
    if any(not gate.path and gate.kind != "dialog" for gate in state.gates.open):
        return activity.WAITING
    if is_compacting:
        return activity.COMPACTING
    return activity.TOOL_USE if state.run.value == "executing_tools" else activity.THINKING
