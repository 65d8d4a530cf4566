"""Tell which deltas a log may drop: those of a message, tool call or shell command that a later event restates.

A *target* names what a delta is a piece of, such as `message m1`. Events of the types in `RESTATING` carry the whole
content of a target, so the target's earlier deltas are no longer needed.
"""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import DELTAS, NAMES, Body

#: Event type → the kind of target that it restates, and the field that holds the target's id.
_RESTATING_FIELDS: dict[type[Body], tuple[str, str]] = {
    ev.ResponseComplete: ("message", "message_id"),
    ev.MessageAborted: ("message", "message_id"),
    ev.ToolExecutionEnd: ("call", "call_id"),
    ev.ToolBlocked: ("call", "call_id"),
    ev.ToolKilled: ("call", "call_id"),
    ev.ToolSkippedForSteering: ("call", "call_id"),
    ev.BashEnd: ("bash", "bash_id"),
}
#: Names of the event types that restate a target, and of the deltas.
RESTATING = frozenset(NAMES[kind] for kind in _RESTATING_FIELDS)
DELTA_TYPES = frozenset(NAMES[kind] for kind in DELTAS)


def is_delta(body: Body) -> bool:
    """Return whether the log may drop this event one day."""
    return type(body) in DELTAS


def delta_target(body: Body) -> str:
    """Return what a delta is a piece of."""
    if isinstance(body, ev.ToolExecutionOutput):
        return f"call {body.call_id}"
    if isinstance(body, ev.BashOutput):
        return f"bash {body.bash_id}"
    assert isinstance(body, ev.MessageDelta | ev.ThinkingDelta)
    return f"message {body.message_id}"


def restated_target(body: Body) -> str | None:
    """Return the target that an event restates, or None if it restates none."""
    restating = _RESTATING_FIELDS.get(type(body))
    if restating is None:
        return None
    kind, field = restating
    return f"{kind} {getattr(body, field)}"
