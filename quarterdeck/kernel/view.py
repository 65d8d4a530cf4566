"""A session as it is after some event: every owner folded together, with the cause of each.

`fold` is the one way forward. It takes a view and the next event and gives the next view; the old one stays as it was and
can be kept, compared and shown. Folding the same events again gives an equal view, from the start or from any snapshot:
that is what makes a state rebuildable after a restart and explainable at any time (`why`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import NAMES, Body, Event, Unknown
from quarterdeck.kernel import machines, phase
from quarterdeck.kernel.gate import ranked
from quarterdeck.kernel.moves import AT_REST, MOVES, SUB_MOVES, Move
from quarterdeck.kernel.narrate import TELLERS, Teller, settle_cards
from quarterdeck.kernel.state import EMPTY, FOLD_VERSION, OWNERS, Cell, State
from quarterdeck.kernel.timeline import EMPTY as EMPTY_TIMELINE
from quarterdeck.kernel.timeline import Timeline

__all__ = ["FOLD_VERSION", "Cause", "View", "Why", "fold", "fold_all", "reconstructed", "stepped", "why"]


class View(Struct, frozen=True, gc=False):
    """Everything that is known of a session after event `index`."""

    index: int = 0
    at: int = 0
    state: State = EMPTY
    timeline: Timeline = EMPTY_TIMELINE


#: Events of a turn that a sub-agent has too: there they are not the session's.
_TURN_EVENTS = (
    ev.AgentStart,
    ev.AgentEnd,
    ev.AgentAbort,
    ev.PromptReceived,
    ev.SteeringApplied,
    ev.SteeringReceived,
    ev.TurnRestored,
)
_QUIET_TELLERS: dict[type[Body], Teller] = {kind: tell for kind, tell in TELLERS.items() if kind not in _TURN_EVENTS}
#: Events of a whole session or of its process: what a sub-agent says of its own must not cut the main agent off.
_SESSION_EVENTS = (
    ev.SessionOpened,
    ev.SessionSuspended,
    ev.SessionArchived,
    ev.SessionFailed,
    ev.ProcessError,
    ev.ProcessExited,
)
_SUB_TELLERS = {kind: tell for kind, tell in _QUIET_TELLERS.items() if kind not in _SESSION_EVENTS}
#: A child's word neither resumes nor renames a session at rest.
_SUB_AT_REST: dict[type[Body], Move] = {kind: move for kind, move in AT_REST.items() if kind in SUB_MOVES}

#: event type → what it moves, and how it is told; for every type there is, so that it can be looked up without a default.
_Plan: TypeAlias = dict[type[Body], tuple[Move | None, Teller | None]]


def _plan(moves: dict[type[Body], Move], tellers: dict[type[Body], Teller]) -> _Plan:
    return {kind: (moves.get(kind), tellers.get(kind)) for kind in (*NAMES, Unknown)}


def _by_lifecycle(in_use: _Plan, resting: _Plan) -> dict[str, _Plan]:
    return {"none": in_use, "active": in_use, "suspended": resting, "archived": resting, "error": resting}


#: By lifecycle: the plan for the main agent, and the one for its sub-agents.
_PLANS = _by_lifecycle(_plan(MOVES, TELLERS), _plan(AT_REST, _QUIET_TELLERS))
_SUB_PLANS = _by_lifecycle(_plan(SUB_MOVES, _SUB_TELLERS), _plan(_SUB_AT_REST, _SUB_TELLERS))


def fold(view: View, event: Event) -> View:
    """The view after one more event. An event that the view has seen already changes nothing."""
    if event.index <= view.index:
        return view
    body, state, timeline = event.body, view.state, view.timeline
    plans = _SUB_PLANS if body.agent_path else _PLANS
    move, tell = plans[state.lifecycle.value][type(body)]
    after = state if move is None else move(state, event, body)
    if tell is not None:
        timeline = tell(timeline, event, body, state)
    if after.gates is not state.gates:
        timeline = settle_cards(timeline, state.gates, after.gates)
    return View(event.index, event.at, after, timeline)


def stepped(state: State, event: Event) -> State:
    """The state alone after one more event, for whoever has no use for a timeline. The caller keeps the order."""
    plans = _SUB_PLANS if event.body.agent_path else _PLANS
    move, _ = plans[state.lifecycle.value][type(event.body)]
    return state if move is None else move(state, event, event.body)


def fold_all(events: Iterable[Event], view: View | None = None) -> View:
    """The view after all of these."""
    current = View() if view is None else view
    for event in events:
        current = fold(current, event)
    return current


class Cause(Struct, frozen=True, gc=False):
    """The event that brought a value."""

    index: int
    type: str
    origin: str


class Why(Struct, frozen=True, gc=False):
    """Why an owner shows what it shows. `ends` names the events that would end it."""

    owner: str
    value: str
    since: int
    cause: Cause | None
    ends: tuple[str, ...]


def why(view: View) -> tuple[Why, ...]:
    """The evidence for every owner, gates and background work included."""
    state = view.state
    reasons = [_why(owner, getattr(state, owner)) for owner in OWNERS]
    for one in ranked(state.gates):
        ends = ("your decision", "the agent moves on", "the turn ends")
        reasons.append(Why("gate", f"{one.kind} {one.id}: {one.title}", one.requested_at, None, ends))
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
    rows = machines.load(owner).explain(value)
    return tuple(dict.fromkeys(f"{row.event} ({row.guard})" if row.guard else row.event for row in rows))


def reconstructed(view: View) -> str:
    """The phase by 000's three sources instead of by the fold; the two must agree."""
    state = view.state
    gates = ranked(state.gates)
    ask = gates[0].ask if gates else state.beneath.ask
    status, last_ask = phase.sources(state.phase.value, ask)
    return phase.reconstruct(status, last_ask)
