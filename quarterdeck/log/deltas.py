"""Which deltas may be dropped: those whose whole was restated by a durable event."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import DELTAS, NAMES, Body

#: All events that may tell a whole: of what kind, and which of their fields names it.
WHOLES: dict[type[Body], tuple[str, str]] = {
    ev.ResponseComplete: ("message", "message_id"),
    ev.MessageAborted: ("message", "message_id"),
    ev.ToolExecutionEnd: ("call", "call_id"),
    ev.ToolBlocked: ("call", "call_id"),
    ev.ToolKilled: ("call", "call_id"),
    ev.ToolSkippedForSteering: ("call", "call_id"),
    ev.BashEnd: ("bash", "bash_id"),
}
RESTATING = frozenset(NAMES[kind] for kind in WHOLES)
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


def whole_of(body: Body) -> str:
    """What an event that is one of `WHOLES` tells as a whole."""
    kind, field = WHOLES[type(body)]
    return f"{kind} {getattr(body, field)}"


def restated(body: Body) -> str | None:
    """The same of any event; None for one that tells no whole."""
    return whole_of(body) if type(body) in WHOLES else None
