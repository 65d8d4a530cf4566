"""Fold events into a session's view, and explain the result.

`fold` takes a view and the next event and returns the next view. The old view stays valid and can be stored, compared
and shown. Folding the same events gives an equal view, from the start or from any snapshot. That is why a state can be
rebuilt after a restart and explained at any time (`why`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import phase
from quarterdeck.kernel.gate import ranked
from quarterdeck.kernel.machine import load_machine
from quarterdeck.kernel.moves import INACTIVE_MOVES, MOVES, SUB_MOVES, Move
from quarterdeck.kernel.narrate import NARRATORS, Narrator, with_decided_cards
from quarterdeck.kernel.state import EMPTY, FOLD_VERSION, NOT_OPENED, OWNERS, Cell, State
from quarterdeck.kernel.timeline import EMPTY as EMPTY_TIMELINE
from quarterdeck.kernel.timeline import Timeline

__all__ = ["FOLD_VERSION", "Cause", "View", "Why", "fold", "fold_all", "reconstructed", "stepped", "why"]


class View(Struct, frozen=True, gc=False):
    """Everything that is known of a session after event `index`."""

    index: int = 0
    at: int = 0
    state: State = EMPTY
    timeline: Timeline = EMPTY_TIMELINE


# ------------------------------------------------------------------------------------------------ folding

#: Events of a turn. In a sub-agent they concern its own turn, and in an inactive session they arrive too late.
_TURN_EVENTS = frozenset(
    {
        ev.AgentStart,
        ev.AgentEnd,
        ev.AgentAbort,
        ev.PromptReceived,
        ev.SteeringApplied,
        ev.SteeringReceived,
        ev.TurnRestored,
    }
)
#: Events of a session or its process. From a sub-agent they must not interrupt the main agent's entries.
_SESSION_EVENTS = frozenset(
    {
        ev.SessionOpened,
        ev.SessionSuspended,
        ev.SessionArchived,
        ev.SessionFailed,
        ev.ProcessError,
        ev.ProcessExited,
    }
)


def _narrators_without(excluded: frozenset[type[Body]]) -> dict[type[Body], Narrator]:
    return {kind: narrate for kind, narrate in NARRATORS.items() if kind not in excluded}


_INACTIVE_NARRATORS = _narrators_without(_TURN_EVENTS)
_SUB_NARRATORS = _narrators_without(_TURN_EVENTS | _SESSION_EVENTS)
#: A sub-agent can neither resume nor rename an inactive session.
_INACTIVE_SUB_MOVES = {kind: move for kind, move in INACTIVE_MOVES.items() if kind in SUB_MOVES}


class _Handlers(NamedTuple):
    """The handlers for one kind of agent in one kind of session."""

    moves: Mapping[type[Body], Move]
    narrators: Mapping[type[Body], Narrator]


_ACTIVE = (NOT_OPENED, "active")
_INACTIVE = ("suspended", "archived", "error")
#: The handlers by lifecycle, for events of the main agent and of sub-agents.
_MAIN_HANDLERS = {
    **dict.fromkeys(_ACTIVE, _Handlers(MOVES, NARRATORS)),
    **dict.fromkeys(_INACTIVE, _Handlers(INACTIVE_MOVES, _INACTIVE_NARRATORS)),
}
_SUB_HANDLERS = {
    **dict.fromkeys(_ACTIVE, _Handlers(SUB_MOVES, _SUB_NARRATORS)),
    **dict.fromkeys(_INACTIVE, _Handlers(_INACTIVE_SUB_MOVES, _SUB_NARRATORS)),
}


def fold(view: View, event: Event) -> View:
    """Return the view after one more event. An event that the view already contains changes nothing."""
    if event.index <= view.index:
        return view
    body, state, timeline = event.body, view.state, view.timeline
    moves, narrators = (_SUB_HANDLERS if body.agent_path else _MAIN_HANDLERS)[state.lifecycle.value]
    move, narrate = moves.get(type(body)), narrators.get(type(body))
    after = state if move is None else move(state, event, body)
    if narrate is not None:
        timeline = narrate(timeline, event, body, state)
    if after.gates is not state.gates:
        timeline = with_decided_cards(timeline, state.gates, after.gates)
    return View(event.index, event.at, after, timeline)


def fold_all(events: Iterable[Event], view: View | None = None) -> View:
    """Return the view after all of these events."""
    current = View() if view is None else view
    for event in events:
        current = fold(current, event)
    return current


def stepped(state: State, event: Event) -> State:
    """Return the state alone after one more event, for callers that need no timeline.

    The caller must pass the events in order: unlike `fold`, this function doesn't skip events it has already seen.
    """
    handlers = _SUB_HANDLERS if event.body.agent_path else _MAIN_HANDLERS
    move = handlers[state.lifecycle.value].moves.get(type(event.body))
    return state if move is None else move(state, event, event.body)


# --------------------------------------------------------------------------------------------- explaining


class Cause(Struct, frozen=True, gc=False):
    """The event that caused a value."""

    index: int
    type: str
    origin: str


class Why(Struct, frozen=True, gc=False):
    """Why an owner has its value. `ends` names the events that would end it."""

    owner: str
    value: str
    since: int
    cause: Cause | None
    ends: tuple[str, ...]


def why(view: View) -> tuple[Why, ...]:
    """Explain the value of every owner, every open gate and all background work."""
    state = view.state
    reasons = [_why(owner, getattr(state, owner)) for owner in OWNERS]
    for gate in ranked(state.gates):
        ends = ("your decision", "the agent moves on", "the turn ends")
        reasons.append(Why("gate", f"{gate.kind} {gate.id}: {gate.title}", gate.requested_at, None, ends))
    for task in state.background:
        ends = ("background_ended", "process_exited")
        reasons.append(Why("background", f"{task.kind} {task.id}: {task.title}", task.since, None, ends))
    return tuple(reasons)


def _why(owner: str, cell: Cell) -> Why:
    cause = Cause(cell.index, cell.type, cell.origin) if cell.index else None
    return Why(owner, cell.value, cell.since, cause, _ends(owner, cell.value))


def _ends(owner: str, value: str) -> tuple[str, ...]:
    if owner == "signal":
        return ("signal_changed",)
    rows = load_machine(owner).explain(value)
    return tuple(dict.fromkeys(f"{row.event} ({row.guard})" if row.guard else row.event for row in rows))


def reconstructed(view: View) -> str:
    """Derive the phase from 000's three sources instead of the fold. Both must give the same result."""
    state = view.state
    gates = ranked(state.gates)
    ask = gates[0].ask if gates else state.base_phase.ask
    status, last_ask = phase.sources(state.phase.value, ask)
    return phase.reconstruct(status, last_ask)
