"""Moves of tool calls."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import run, turn
from quarterdeck.kernel.moves.base import (
    SUB_MOVES,
    call_gate_closed,
    held_guard,
    in_turn,
    moved,
    on,
    resume_guard,
    shown,
)
from quarterdeck.kernel.state import State

_Ended: TypeAlias = (
    ev.ToolExecutionEnd | ev.ToolBlocked | ev.ToolKilled | ev.ToolSkippedForSteering | ev.ToolCallUnknown
)


@on(ev.ToolCall)
def tool_call(state: State, event: Event, body: ev.ToolCall) -> State:
    after = moved(run.MACHINE, state.run, event, "partial" if body.partial else None)
    return state if after is state.run else replace(state, run=after)


@on(ev.ToolCalls)
def tool_calls(state: State, event: Event, _body: ev.ToolCalls) -> State:
    after = moved(run.MACHINE, state.run, event, in_turn(state.turn))
    return state if after is state.run else replace(state, run=after)


@on(ev.ToolExecutionStart)
def tool_execution_start(state: State, event: Event, body: ev.ToolExecutionStart) -> State:
    open_turn, gates = state.turn, state.gates
    run_now = moved(run.MACHINE, state.run, event, in_turn(open_turn))
    if open_turn.id:
        open_turn = turn.with_call(open_turn, body.call_id, body.name, body.args, event.at)
    if gates.open:
        gates = call_gate_closed(gates, body.call_id, event)
    if gates is state.gates:
        return replace(state, run=run_now, turn=open_turn)
    phase_now = shown(state, event, gates, state.beneath)
    return replace(state, run=run_now, turn=open_turn, gates=gates, phase=phase_now)


@on(ev.ToolExecutionEnd, ev.ToolBlocked, ev.ToolKilled, ev.ToolSkippedForSteering, ev.ToolCallUnknown)
def tool_ended(state: State, event: Event, body: _Ended) -> State:
    open_turn = turn.without_call(state.turn, body.call_id)
    gates = state.gates
    if not gates.open:
        return state if open_turn is state.turn else replace(state, turn=open_turn)
    gates = call_gate_closed(gates, body.call_id, event)
    guard = held_guard(open_turn, gates) or (None if gates is state.gates else resume_guard(open_turn, gates))
    run_now = moved(run.MACHINE, state.run, event, guard)
    phase_now = shown(state, event, gates, state.beneath)
    return replace(state, run=run_now, turn=open_turn, gates=gates, phase=phase_now)


@on(
    ev.ToolExecutionStart,
    ev.ToolExecutionEnd,
    ev.ToolBlocked,
    ev.ToolKilled,
    ev.ToolSkippedForSteering,
    ev.ToolCallUnknown,
    to=(SUB_MOVES,),
)
def sub_agent_call_moved(state: State, event: Event, body: ev.ToolExecutionStart | _Ended) -> State:
    gates = call_gate_closed(state.gates, body.call_id, event)
    if gates is state.gates:
        return state
    return replace(state, gates=gates, phase=shown(state, event, gates, state.beneath))
