"""Which deltas may be dropped: those whose whole was restated by a durable event."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import DELTAS, NAMES, Body

#: The types of all events that may tell a whole, and their names.
RESTATING_TYPES: frozenset[type[Body]] = frozenset(
    {
        ev.ResponseComplete,
        ev.MessageAborted,
        ev.ToolExecutionEnd,
        ev.ToolBlocked,
        ev.ToolKilled,
        ev.ToolSkippedForSteering,
        ev.BashEnd,
    }
)
RESTATING = frozenset(NAMES[kind] for kind in RESTATING_TYPES)
DELTA_TYPES = frozenset(NAMES[kind] for kind in DELTAS)


def is_delta(body: Body) -> bool:
    """Whether the log may ever drop this event."""
    return type(body) in DELTAS


def growing(body: Body) -> str:
    """What a delta is a piece of: a message, a call, a shell command."""
    if isinstance(body, ev.ToolExecutionOutput):
        return f"call {body.call_id}"
    if isinstance(body, ev.BashOutput):
        return f"bash {body.bash_id}"
    assert isinstance(body, ev.MessageDelta | ev.ThinkingDelta)
    return f"message {body.message_id}"


def restated(body: Body) -> str | None:
    """What this event tells as a whole, if it does."""
    if isinstance(body, ev.ResponseComplete | ev.MessageAborted):
        return f"message {body.message_id}"
    if isinstance(body, ev.ToolExecutionEnd | ev.ToolBlocked | ev.ToolKilled | ev.ToolSkippedForSteering):
        return f"call {body.call_id}"
    if isinstance(body, ev.BashEnd):
        return f"bash {body.bash_id}"
    return None
