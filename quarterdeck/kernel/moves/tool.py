"""Handle events of tool calls."""

from __future__ import annotations

from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import run, turn
from quarterdeck.kernel.moves.base import (
    SUB_MOVES,
    call_gate_closed,
    held_guard,
    moved,
    on,
    resume_guard,
    turn_guard,
    updated,
    with_run,
)
from quarterdeck.kernel.state import State

_Ended: TypeAlias = (
    ev.ToolExecutionEnd | ev.ToolBlocked | ev.ToolKilled | ev.ToolSkippedForSteering | ev.ToolCallUnknown
)


@on(ev.ToolCall)
def tool_call(state: State, event: Event, body: ev.ToolCall) -> State:
    return with_run(state, moved(run.MACHINE, state.run, event, "partial" if body.partial else None))


@on(ev.ToolCalls)
def tool_calls(state: State, event: Event, _body: ev.ToolCalls) -> State:
    return with_run(state, moved(run.MACHINE, state.run, event, turn_guard(state.turn)))


@on(ev.ToolExecutionStart)
def tool_execution_start(state: State, event: Event, body: ev.ToolExecutionStart) -> State:
    """Add the call to the turn. Its approval is closed: a call that runs was approved somewhere."""
    turn_after = state.turn
    if state.turn.is_open:
        turn_after = turn.with_call(state.turn, body.call_id, body.name, body.args, event.at)
    return updated(
        state,
        event,
        gates=call_gate_closed(state.gates, body.call_id, event),
        run=moved(run.MACHINE, state.run, event, turn_guard(state.turn)),
        turn=turn_after,
    )


@on(ev.ToolExecutionEnd, ev.ToolBlocked, ev.ToolKilled, ev.ToolSkippedForSteering, ev.ToolCallUnknown)
def tool_ended(state: State, event: Event, body: _Ended) -> State:
    """Remove the call from the turn and close its approval.

    If the remaining calls are held, so is the turn. If the approval was the last one, the turn resumes.
    """
    turn_after = turn.without_call(state.turn, body.call_id)
    gates = call_gate_closed(state.gates, body.call_id, event)
    guard = held_guard(turn_after, gates)
    if guard is None and gates is not state.gates:
        guard = resume_guard(turn_after, gates)
    run_after = moved(run.MACHINE, state.run, event, guard)
    return updated(state, event, gates=gates, run=run_after, turn=turn_after)


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
    return state if gates is state.gates else updated(state, event, gates=gates)
