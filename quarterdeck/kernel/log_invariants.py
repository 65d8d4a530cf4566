"""What must hold of a log whatever an agent says: every turn is closed once, every text begins before it grows.

Agents crash in the middle, repeat themselves and leave things out. `in_order` stands between whoever produces events and
the log: it takes what they say and gives what may be written, with the missing closings and beginnings put in. It adds
only what follows from the events themselves and drops only what would be said twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import lifecycle, process
from quarterdeck.kernel.state import NOT_OPENED
from quarterdeck.kernel.timeline import entry_id
from quarterdeck.kernel.view import View, fold

#: All others stand as they are said.
_GROWING = frozenset({ev.MessageDelta, ev.ThinkingDelta})
_OF_TURNS = frozenset(
    {
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
    """These bodies as they may be appended to the log that gave this view."""
    written: list[Body] = []
    for body in bodies:
        for one in completed(view, body):
            written.append(one)
            view = fold(view, Event("", view.index + 1, max(at, view.at), "supervisor", one))
    return written


def completed(view: View, body: Body) -> tuple[Body, ...]:
    """This body with what must stand before or after it; whoever folds as they write needs no more than this."""
    kind = type(body)
    if kind in _GROWING:
        return _begun_first(view, body)
    if kind not in _OF_TURNS or body.agent_path:
        return (body,)
    if isinstance(body, ev.AgentStart):
        return _started(view, body)
    if not view.state.turn.is_open:
        return () if _closes(body) else (body,)
    closing = _closing(body)
    return (body,) if closing is None else (body, closing)


def _closes(body: Body) -> bool:
    """Whether this is the end of a turn. An abort that names none is a person's, who may stop what has not begun."""
    return isinstance(body, ev.AgentEnd) or (isinstance(body, ev.AgentAbort) and bool(body.turn_id))


def _started(view: View, body: ev.AgentStart) -> tuple[Body, ...]:
    """The turn before this one is closed first. In a session at rest none can be open: a late start is closed at once."""
    if view.state.lifecycle.value not in (NOT_OPENED, lifecycle.MACHINE.initial):
        return (body, ev.AgentAbort(reason=f"session is {view.state.lifecycle.value}"))
    if view.state.turn.is_open:
        return (ev.AgentAbort(reason="superseded"), body)
    return (body,)


def _closing(body: Body) -> Body | None:
    """What closes a turn that ends without a word. It follows its cause, so that the cause decides what is shown."""
    if isinstance(body, ev.SessionSuspended | ev.SessionArchived | ev.SessionFailed):
        return ev.AgentAbort(reason=ev.type_of(body))
    if isinstance(body, ev.ProcessError):
        return ev.AgentEnd(outcome="failed")
    if isinstance(body, ev.ProcessExited):
        if body.asked or process.was_stopped(body.code, body.signal):
            return ev.AgentAbort(reason="process_exited")
        return ev.AgentEnd(outcome="completed" if body.code == 0 else "failed")
    return None


def _begun_first(view: View, body: Body) -> tuple[Body, ...]:
    """No delta without its start: a state may cite the start as its cause, the delta may be dropped."""
    assert isinstance(body, ev.MessageDelta | ev.ThinkingDelta)
    if entry_id(body.message_id, body.block) in view.timeline.places:
        return (body,)
    start = ev.MessageStart if isinstance(body, ev.MessageDelta) else ev.ThinkingStart
    begun = start(message_id=body.message_id, block=body.block, turn_id=body.turn_id, agent_path=body.agent_path)
    return (begun, body)
