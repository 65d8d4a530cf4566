"""Enforce what must hold of every log: each turn is closed once, and each text starts before it grows.

Agents crash, repeat themselves and omit events. `in_order` and `completed` are applied to events before they are
appended: they insert missing starts and ends, and drop ends that would close a turn twice. Everything that they insert
follows from the events themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import process
from quarterdeck.kernel.state import NOT_OPENED
from quarterdeck.kernel.timeline import entry_id
from quarterdeck.kernel.view import View, fold

#: Events that may need another one before or after them, or may have to be dropped.
_CHECKED_EVENTS = frozenset(
    {
        ev.MessageDelta,
        ev.ThinkingDelta,
        ev.AgentStart,
        ev.AgentEnd,
        ev.AgentAbort,
        ev.SessionSuspended,
        ev.SessionArchived,
        ev.SessionFailed,
        ev.ProcessError,
        ev.ProcessExited,
    }
)


def in_order(view: View, bodies: Iterable[Body], at: int = 0) -> list[Body]:
    """Return these bodies as they may be appended to the log of this view."""
    result: list[Body] = []
    for body in bodies:
        for valid in completed(view, body):
            result.append(valid)
            view = fold(view, Event("", view.index + 1, max(at, view.at), "supervisor", valid))
    return result


def completed(view: View, body: Body) -> tuple[Body, ...]:
    """Return this body with what must precede or follow it, or nothing if it must be dropped.

    The view must include every body before this one. Callers that can't fold while they append use `in_order`.
    """
    if type(body) not in _CHECKED_EVENTS:
        return (body,)
    if isinstance(body, ev.MessageDelta | ev.ThinkingDelta):
        return _with_start(view, body)
    # A sub-agent's turn isn't the session's turn.
    if body.agent_path:
        return (body,)
    if isinstance(body, ev.AgentStart):
        return _with_turn_closed_before(view, body)
    if not view.state.turn.is_open:
        return () if _closes_a_turn(body) else (body,)
    closing = _turn_end_for(body)
    return (body,) if closing is None else (body, closing)


def _closes_a_turn(body: Body) -> bool:
    """Return whether this body ends a specific turn.

    An abort without a turn id comes from a user, who may stop a turn that hasn't started.
    """
    return isinstance(body, ev.AgentEnd) or (isinstance(body, ev.AgentAbort) and bool(body.turn_id))


def _with_turn_closed_before(view: View, body: ev.AgentStart) -> tuple[Body, ...]:
    """Close the previous turn first. In an inactive session no turn may be open, so a late start is closed at once."""
    if view.state.lifecycle.value not in (NOT_OPENED, "active"):
        return (body, ev.AgentAbort(reason=f"session is {view.state.lifecycle.value}"))
    if view.state.turn.is_open:
        return (ev.AgentAbort(reason="superseded"), body)
    return (body,)


def _turn_end_for(body: Body) -> Body | None:
    """Return the end of a turn that this body implies.

    The end follows its cause in the log, so that the cause decides which phase is shown.
    """
    if isinstance(body, ev.SessionSuspended | ev.SessionArchived | ev.SessionFailed):
        return ev.AgentAbort(reason=ev.type_of(body))
    if isinstance(body, ev.ProcessError):
        return ev.AgentEnd(outcome="failed")
    if isinstance(body, ev.ProcessExited):
        if body.asked or process.was_stopped(body.code, body.signal):
            return ev.AgentAbort(reason="process_exited")
        return ev.AgentEnd(outcome="completed" if body.code == 0 else "failed")
    return None


def _with_start(view: View, body: ev.MessageDelta | ev.ThinkingDelta) -> tuple[Body, ...]:
    """Insert the missing start of a block. A state may name the start as its cause; the delta may be dropped."""
    if entry_id(body.message_id, body.block) in view.timeline.positions:
        return (body,)
    start = ev.MessageStart if isinstance(body, ev.MessageDelta) else ev.ThinkingStart
    return (
        start(message_id=body.message_id, block=body.block, turn_id=body.turn_id, agent_path=body.agent_path),
        body,
    )
