"""Moves of gates: what is asked, and how it is decided."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import gate, run
from quarterdeck.kernel.moves.base import MOVES, SUB_MOVES, any_runs, fed, in_turn, moved, on, resume_guard
from quarterdeck.kernel.state import State

_Resolved: TypeAlias = ev.ApprovalResolved | ev.UserResponded | ev.DialogResolved


def _gate_opened(state: State, event: Event) -> State:
    gates = gate.opened(state.gates, gate.asked(event))
    beneath, shown = fed(state, event, gates)
    return replace(state, gates=gates, last_active_at=event.at, beneath=beneath, phase=shown)


@on(ev.ApprovalRequired)
def approval_required(state: State, event: Event, _body: ev.ApprovalRequired) -> State:
    after = _gate_opened(state, event)
    alone = None if any_runs(state.turn, after.gates) else "alone"
    return replace(after, run=moved(run.MACHINE, state.run, event, alone))


@on(ev.AskUser)
def ask_user(state: State, event: Event, _body: ev.AskUser) -> State:
    """The tool that asks blocks, so the run executes tools."""
    after = _gate_opened(state, event)
    return replace(after, run=moved(run.MACHINE, state.run, event, in_turn(state.turn)))


@on(ev.DialogRequired, to=(MOVES, SUB_MOVES))
def dialog_required(state: State, event: Event, _body: ev.DialogRequired) -> State:
    return _gate_opened(state, event)


@on(ev.ApprovalRequired, ev.AskUser, to=(SUB_MOVES,))
def sub_agent_asked(state: State, event: Event, _body: Body) -> State:
    return _gate_opened(state, event)


def _gate_closed(state: State, event: Event, kind: gate.Kind, body: _Resolved) -> State:
    found = gate.find(state.gates, body.gate_id, body.ref, kind)
    if found is None:
        return state
    rule = body.rule if isinstance(body, ev.ApprovalResolved) else ""
    gates = gate.closed(state.gates, found, body.status, event.at, body.by, rule)
    beneath, shown = fed(state, event, gates)
    return replace(state, gates=gates, last_active_at=event.at, beneath=beneath, phase=shown)


@on(ev.ApprovalResolved)
def approval_resolved(state: State, event: Event, body: ev.ApprovalResolved) -> State:
    after = _gate_closed(state, event, "approval", body)
    if after is state:
        return state
    return replace(after, run=moved(run.MACHINE, state.run, event, resume_guard(after)))


@on(ev.ApprovalResolved, to=(SUB_MOVES,))
def sub_agent_approval_resolved(state: State, event: Event, body: ev.ApprovalResolved) -> State:
    return _gate_closed(state, event, "approval", body)


@on(ev.UserResponded, to=(MOVES, SUB_MOVES))
def user_responded(state: State, event: Event, body: ev.UserResponded) -> State:
    return _gate_closed(state, event, "question", body)


@on(ev.DialogResolved, to=(MOVES, SUB_MOVES))
def dialog_resolved(state: State, event: Event, body: ev.DialogResolved) -> State:
    return _gate_closed(state, event, "dialog", body)
