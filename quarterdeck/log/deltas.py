"""Which deltas may be dropped: those whose whole was restated by a durable event."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import DELTAS, NAMES, Body

#: All events that may tell a whole: of what kind, and which of their fields names it.
_WHOLES: dict[type[Body], tuple[str, str]] = {
    ev.ResponseComplete: ("message", "message_id"),
    ev.MessageAborted: ("message", "message_id"),
    ev.ToolExecutionEnd: ("call", "call_id"),
    ev.ToolBlocked: ("call", "call_id"),
    ev.ToolKilled: ("call", "call_id"),
    ev.ToolSkippedForSteering: ("call", "call_id"),
    ev.BashEnd: ("bash", "bash_id"),
}
RESTATING = frozenset(NAMES[kind] for kind in _WHOLES)
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
    whole = _WHOLES.get(type(body))
    return None if whole is None else f"{whole[0]} {getattr(body, whole[1])}"
