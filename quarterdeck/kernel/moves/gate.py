"""Moves of gates: what is asked, and how it is decided."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import gate, run
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.moves.base import (
    MOVES,
    SUB_MOVES,
    any_runs,
    gates_settled,
    held_guard,
    in_turn,
    moved,
    on,
    resume_guard,
    shown,
)
from quarterdeck.kernel.state import Cell, State

_Resolved: TypeAlias = ev.ApprovalResolved | ev.UserResponded | ev.DialogResolved


def _with_gates(state: State, event: Event, gates: Gates, run_now: Cell) -> State:
    """With other gates, and with the phase that then shows."""
    if gates is state.gates:
        return state
    phase_now = shown(state, event, gates, state.beneath)
    return replace(state, gates=gates, last_active_at=event.at, phase=phase_now, run=run_now)


def _opened(state: State, event: Event) -> Gates:
    return gate.opened(state.gates, gate.asked(event))


@on(ev.ApprovalRequired)
def approval_required(state: State, event: Event, _body: ev.ApprovalRequired) -> State:
    gates = _opened(state, event)
    guard = "beside" if any_runs(state.turn, gates) else "alone"
    return _with_gates(state, event, gates, moved(run.MACHINE, state.run, event, guard))


@on(ev.AskUser)
def ask_user(state: State, event: Event, _body: ev.AskUser) -> State:
    """The tool that asks blocks, so the run executes tools."""
    return _with_gates(state, event, _opened(state, event), moved(run.MACHINE, state.run, event, in_turn(state.turn)))


@on(ev.DialogRequired, to=(MOVES, SUB_MOVES))
def dialog_required(state: State, event: Event, _body: ev.DialogRequired) -> State:
    return _with_gates(state, event, _opened(state, event), state.run)


@on(ev.ApprovalRequired, ev.AskUser, to=(SUB_MOVES,))
def sub_agent_asked(state: State, event: Event, _body: Body) -> State:
    return _with_gates(state, event, _opened(state, event), state.run)


def _closed(state: State, event: Event, kind: gate.Kind, body: _Resolved) -> Gates:
    """The same object when no open gate is meant."""
    found = gate.find(state.gates, body.gate_id, body.ref, kind)
    if found is None:
        return state.gates
    rule = body.rule if isinstance(body, ev.ApprovalResolved) else ""
    return gate.closed(state.gates, found, body.status, event.at, body.by, rule)


@on(ev.ApprovalResolved)
def approval_resolved(state: State, event: Event, body: ev.ApprovalResolved) -> State:
    gates = _closed(state, event, "approval", body)
    run_now = moved(run.MACHINE, state.run, event, resume_guard(state.turn, gates))
    return _with_gates(state, event, gates, run_now)


@on(ev.ApprovalResolved, to=(SUB_MOVES,))
def sub_agent_approval_resolved(state: State, event: Event, body: ev.ApprovalResolved) -> State:
    return _with_gates(state, event, _closed(state, event, "approval", body), state.run)


@on(ev.UserResponded)
def user_responded(state: State, event: Event, body: ev.UserResponded) -> State:
    """The tool that asked is done; if it was all that ran beside an approval, the turn is held now."""
    gates = _closed(state, event, "question", body)
    run_now = moved(run.MACHINE, state.run, event, held_guard(state.turn, gates))
    return _with_gates(state, event, gates, run_now)


@on(ev.UserResponded, to=(SUB_MOVES,))
def sub_agent_question_answered(state: State, event: Event, body: ev.UserResponded) -> State:
    return _with_gates(state, event, _closed(state, event, "question", body), state.run)


@on(ev.DialogResolved, to=(MOVES, SUB_MOVES))
def dialog_resolved(state: State, event: Event, body: ev.DialogResolved) -> State:
    return _with_gates(state, event, _closed(state, event, "dialog", body), state.run)


@on(ev.RequestStart, ev.AgentEnd, ev.AgentAbort, to=(SUB_MOVES,))
def sub_agent_moved_on(state: State, event: Event, body: Body) -> State:
    """What a sub-agent asked is answered when it goes on, and nobody waits for it when it is done."""
    return gates_settled(state, event, lambda one: one.path == body.agent_path, "answered_elsewhere")


@on(ev.SubagentEnd, to=(MOVES, SUB_MOVES))
def subagent_end(state: State, event: Event, body: ev.SubagentEnd) -> State:
    return gates_settled(state, event, lambda one: body.child_sid in one.path, "withdrawn")
