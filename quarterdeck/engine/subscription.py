"""Listeners of one agent. Each has a place in the stream of events, and what came since lies there for it by reference.

With a log a listener that lags is simply behind, and reads from the log until it has caught up. Without one it keeps what it
has not read yet; nobody else does. An abandoned listener is collected like any other object.

When the agent is stopped the iteration ends. When the agent dies instead, the listener gets everything there is, and then
AgentDown, once.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from msgspec import to_builtins
from msgspec.structs import replace

from quarterdeck.engine.errors import AgentDown
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, SubAgentEvent

Read: TypeAlias = Callable[[int], Awaitable[Sequence[Event]]]

#: More slices than this are not kept for a listener that can read them from the log.
_SLICES = 1000
_WRAPPED = "sub_agent_event"


def child_of(call_id: str, number: int) -> str:
    """The name of the sub-agent that works for a call."""
    return f"{call_id}~{number}"


def call_of(child: str) -> str:
    """And back."""
    return child.rpartition("~")[0]


class Subscriptions:
    """All listeners of an agent."""

    __slots__ = ("_all", "closed", "error", "published", "waiting")

    def __init__(self) -> None:
        self._all: list[weakref.ref[Subscription]] = []
        self.closed = False
        self.error: QuarterdeckError | None = None
        self.published = 0
        #: Held for as long as they wait: a task that nobody else holds would be collected with its listener.
        self.waiting: set[Subscription] = set()

    def opened(
        self,
        position: int,
        types: frozenset[str] | None,
        kept: Sequence[Event],
        read: Read | None = None,
        behind: bool = False,
    ) -> Subscription:
        self.published = max(self.published, position)
        one = Subscription(self, position, types, read, behind)
        if kept:
            one.push(kept)
        self._all.append(weakref.ref(one))
        return one

    def push(self, events: Sequence[Event]) -> None:
        self.published = events[-1].index
        gone = False
        for reference in self._all:
            one = reference()
            if one is None:
                gone = True
            else:
                one.push(events)
        if gone:
            self._all = [reference for reference in self._all if reference() is not None]

    def close(self, error: QuarterdeckError | None) -> None:
        self.closed, self.error = True, error
        for one in tuple(self.waiting):
            one.wake()

    def leave(self, one: Subscription) -> None:
        self._all = [reference for reference in self._all if reference() not in (one, None)]


class Subscription:
    """An asynchronous iterator of events."""

    __slots__ = (
        "__weakref__",
        "_all",
        "_at",
        "_behind",
        "_ended",
        "_now",
        "_read",
        "_slices",
        "_types",
        "_waiter",
    )

    def __init__(
        self, listeners: Subscriptions, position: int, types: frozenset[str] | None, read: Read | None, behind: bool
    ) -> None:
        self._all = listeners
        self._at = position
        self._types = types
        self._read = read
        self._behind = behind
        self._slices: deque[Sequence[Event]] = deque()
        self._now: Iterator[Event] = iter(())
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def push(self, events: Sequence[Event]) -> None:
        """More was published."""
        if not self._behind:
            self._slices.append(events)
            if self._read is not None and len(self._slices) > _SLICES:
                self._slices.clear()
                self._behind = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while True:
            for event in self._now:
                if self._types is None:
                    return event
                if (shown := self._shown(event, self._types)) is not None:
                    return shown
            await self._more()

    async def aclose(self) -> None:
        """It listens no more."""
        self._ended = True
        self._slices.clear()
        self._now = iter(())
        self._all.leave(self)
        self.wake()

    def _shown(self, event: Event, types: frozenset[str]) -> Event | None:
        """The event if it is wanted. What a sub-agent did is shown wrapped, and only to those who name that."""
        body = event.body
        if not body.agent_path:
            return event if event.type in types else None
        if _WRAPPED not in types:
            return None
        child = body.agent_path[-1]
        wrapped = SubAgentEvent(call_id=call_of(child), child_sid=child, event=to_builtins(body), turn_id=body.turn_id)
        return replace(event, body=wrapped)

    async def _more(self) -> None:
        """The next slice; StopAsyncIteration, AgentDown."""
        if self._ended:
            raise StopAsyncIteration
        if self._behind:
            await self._catch_up()
        elif self._slices:
            self._take(self._slices.popleft())
        elif self._all.closed:
            self._ended = True
            if self._all.error is not None:
                raise AgentDown(self._all.error)
            raise StopAsyncIteration
        else:
            await self._wait()

    def _take(self, events: Sequence[Event]) -> None:
        """These are next. What is durable can be read before it is published, and then comes twice."""
        first = self._at
        self._now = iter(events if events[0].index > first else [one for one in events if one.index > first])
        self._at = max(events[-1].index, first)

    async def _catch_up(self) -> None:
        assert self._read is not None
        published = self._all.published
        events = await self._read(self._at)
        if events:
            self._take(events)
            return
        # nothing is left there: what was published meanwhile is in the log too, so look again unless nothing was
        self._at = max(self._at, published)
        if self._all.published == published:
            self._behind = False

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._all.waiting.add(self)
        try:
            await waiter
        finally:
            self._waiter = None
            self._all.waiting.discard(self)
