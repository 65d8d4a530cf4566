"""Deliver one built-in agent's events to its subscribers.

A subscription follows the agent's tail (`log/tail.py`). With a log, a subscriber that lags reads from the log; without one,
the tail keeps what it hasn't read. An abandoned subscription is freed like any other object.

When the agent stops, the iteration ends. When the agent dies, the subscriber gets every event and then `AgentDown`, once.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import to_builtins
from msgspec.structs import replace

from quarterdeck.engine.errors import AgentDown
from quarterdeck.events import Event, SubAgentEvent
from quarterdeck.log.tail import Follower

_WRAPPED = "sub_agent_event"


def child_of(call_id: str, number: int) -> str:
    """Return the name of the sub-agent that works for a tool call."""
    return f"{call_id}~{number}"


def call_of(child: str) -> str:
    """Return the id of the tool call that a sub-agent works for."""
    return child.rpartition("~")[0]


class Subscription:
    """An asynchronous iterator of events."""

    def __init__(self, follower: Follower[int], types: frozenset[str] | None) -> None:
        self._follower = follower
        self._types = types
        self._slice: Iterator[Event] = iter(())
        self._is_closed = False

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """Return the next event.

        Raises:
            AgentDown: the agent died. Raised once, after its last event.
            LogUnavailable: the log can't be read.
        """
        while not self._is_closed:
            for event in self._slice:
                selected = event if self._types is None else self._select(event, self._types)
                if selected is not None:
                    return selected
            try:
                self._slice = iter(await anext(self._follower))
            except BaseException as error:
                # After the end there is no next event, whether the agent stopped or died.
                self._is_closed = isinstance(error, AgentDown | StopAsyncIteration)
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the iteration and free what the subscriber hasn't read."""
        self._is_closed = True
        self._slice = iter(())
        self._follower.close()

    def _select(self, event: Event, types: frozenset[str]) -> Event | None:
        """Return the event if its type was asked for. Events of sub-agents are wrapped, if those were asked for."""
        body = event.body
        if not body.agent_path:
            return event if event.type in types else None
        if _WRAPPED not in types:
            return None
        child = body.agent_path[-1]
        wrapped = SubAgentEvent(call_id=call_of(child), child_sid=child, event=to_builtins(body), turn_id=body.turn_id)
        return replace(event, body=wrapped)
