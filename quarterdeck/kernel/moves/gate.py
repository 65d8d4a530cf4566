"""Handle events that open and close gates."""

from __future__ import annotations

from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import gate, run
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.moves.base import (
    MOVES,
    SUB_MOVES,
    gates_closed_where,
    held_guard,
    is_any_call_running,
    moved,
    on,
    resume_guard,
    turn_guard,
    updated,
)
from quarterdeck.kernel.state import State

_Resolved: TypeAlias = ev.ApprovalResolved | ev.UserResponded | ev.DialogResolved


# ------------------------------------------------------------------------------------------------ opening


def _with_gate(state: State, event: Event) -> Gates:
    return gate.opened(state.gates, gate.gate_of(event))


@on(ev.ApprovalRequired)
def approval_required(state: State, event: Event, _body: ev.ApprovalRequired) -> State:
    gates = _with_gate(state, event)
    guard = "beside" if is_any_call_running(state.turn, gates) else "alone"
    run_after = moved(run.MACHINE, state.run, event, guard)
    return updated(state, event, gates=gates, run=run_after, last_active_at=event.at)


@on(ev.AskUser)
def ask_user(state: State, event: Event, _body: ev.AskUser) -> State:
    """Open a question. The tool that asks it runs until it is answered, so the run executes tools."""
    run_after = moved(run.MACHINE, state.run, event, turn_guard(state.turn))
    return updated(state, event, gates=_with_gate(state, event), run=run_after, last_active_at=event.at)


@on(ev.DialogRequired)
def dialog_required(state: State, event: Event, _body: ev.DialogRequired) -> State:
    return updated(state, event, gates=_with_gate(state, event), last_active_at=event.at)


@on(ev.ApprovalRequired, ev.AskUser, ev.DialogRequired, to=(SUB_MOVES,))
def sub_agent_asked(state: State, event: Event, _body: Body) -> State:
    return updated(state, event, gates=_with_gate(state, event), last_active_at=event.at)


# ------------------------------------------------------------------------------------------------ closing


def _without_gate(state: State, event: Event, kind: gate.Kind, body: _Resolved) -> Gates | None:
    """Close the gate that a decision refers to. Return None if it isn't open."""
    decided = gate.find(state.gates, body.gate_id, body.ref, kind)
    if decided is None:
        return None
    rule = body.rule if isinstance(body, ev.ApprovalResolved) else ""
    return gate.closed(state.gates, decided, body.status, event.at, body.by, rule)


@on(ev.ApprovalResolved)
def approval_resolved(state: State, event: Event, body: ev.ApprovalResolved) -> State:
    gates = _without_gate(state, event, "approval", body)
    if gates is None:
        return state
    run_after = moved(run.MACHINE, state.run, event, resume_guard(state.turn, gates))
    return updated(state, event, gates=gates, run=run_after, last_active_at=event.at)


@on(ev.UserResponded)
def user_responded(state: State, event: Event, body: ev.UserResponded) -> State:
    """Close a question. If the tool that asked it was the only one running beside an approval, the turn is held now."""
    gates = _without_gate(state, event, "question", body)
    if gates is None:
        return state
    run_after = moved(run.MACHINE, state.run, event, held_guard(state.turn, gates))
    return updated(state, event, gates=gates, run=run_after, last_active_at=event.at)


@on(ev.DialogResolved, to=(MOVES, SUB_MOVES))
def dialog_resolved(state: State, event: Event, body: ev.DialogResolved) -> State:
    return _closed_beside_run(state, event, _without_gate(state, event, "dialog", body))


@on(ev.ApprovalResolved, to=(SUB_MOVES,))
def sub_agent_approval_resolved(state: State, event: Event, body: ev.ApprovalResolved) -> State:
    return _closed_beside_run(state, event, _without_gate(state, event, "approval", body))


@on(ev.UserResponded, to=(SUB_MOVES,))
def sub_agent_question_answered(state: State, event: Event, body: ev.UserResponded) -> State:
    return _closed_beside_run(state, event, _without_gate(state, event, "question", body))


def _closed_beside_run(state: State, event: Event, gates: Gates | None) -> State:
    return state if gates is None else updated(state, event, gates=gates, last_active_at=event.at)


@on(ev.RequestStart, ev.AgentEnd, ev.AgentAbort, to=(SUB_MOVES,))
def sub_agent_moved_on(state: State, event: Event, body: Body) -> State:
    """Close the gates of a sub-agent that continued or ended: they were answered, or are no longer needed."""
    return gates_closed_where(state, event, lambda gate: gate.path == body.agent_path, "answered_elsewhere")


@on(ev.SubagentEnd, to=(MOVES, SUB_MOVES))
def subagent_end(state: State, event: Event, body: ev.SubagentEnd) -> State:
    return gates_closed_where(state, event, lambda gate: body.child_sid in gate.path, "withdrawn")
