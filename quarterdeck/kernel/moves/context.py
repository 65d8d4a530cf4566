"""Handle events around the turn: background work, usage, settings and plans."""

from __future__ import annotations

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import run, turn, usage
from quarterdeck.kernel.moves.base import (
    INACTIVE_MOVES,
    MOVES,
    SUB_MOVES,
    gates_closed_where,
    held_guard,
    moved,
    on,
    with_profile,
)
from quarterdeck.kernel.profile import Changes, Context
from quarterdeck.kernel.state import State


@on(ev.BackgroundStarted, to=(SUB_MOVES,))
def sub_agent_background_started(state: State, event: Event, body: ev.BackgroundStarted) -> State:
    task = turn.Task(body.kind, body.id, body.title, event.at)
    return replace(state, background=turn.with_task(state.background, task))


@on(ev.BackgroundStarted)
def background_started(state: State, event: Event, body: ev.BackgroundStarted) -> State:
    """Add the work. If it is a call of the turn, the turn no longer waits for that call."""
    after = sub_agent_background_started(state, event, body)
    remaining = turn.without_call(state.turn, body.id)
    if remaining is state.turn:
        return after
    return replace(after, turn=remaining, run=moved(run.MACHINE, state.run, event, held_guard(remaining, state.gates)))


@on(ev.BackgroundEnded, to=(MOVES, SUB_MOVES))
def background_ended(state: State, event: Event, body: ev.BackgroundEnded) -> State:
    """Remove the work. Gates of a sub-agent that ended are withdrawn."""
    after = replace(state, background=turn.without_task(state.background, body.id))
    return gates_closed_where(after, event, lambda gate: body.id in gate.path, "withdrawn")


@on(ev.Usage, to=(MOVES, SUB_MOVES, INACTIVE_MOVES))
def usage_reported(state: State, _event: Event, body: ev.Usage) -> State:
    return replace(state, usage=usage.entered(state.usage, body))


@on(ev.ContextUsage)
def context_usage(state: State, _event: Event, body: ev.ContextUsage) -> State:
    return with_profile(state, context=Context(body.tokens, body.limit, body.percent))


@on(ev.SettingChanged, to=(MOVES, INACTIVE_MOVES))
def setting_changed(state: State, _event: Event, body: ev.SettingChanged) -> State:
    old = state.profile
    return with_profile(
        state,
        auto_approve=old.auto_approve if body.auto_approve is None else body.auto_approve,
        mode=old.mode if body.mode is None else body.mode,
        thinking=old.thinking if body.thinking is None else body.thinking,
        model=old.model if body.model is None else body.model,
    )


@on(ev.ModelSwitched, to=(MOVES, INACTIVE_MOVES))
def model_switched(state: State, _event: Event, body: ev.ModelSwitched) -> State:
    return with_profile(state, model=body.to)


@on(ev.TodoChange)
def todo_change(state: State, _event: Event, body: ev.TodoChange) -> State:
    return replace(state, todos=body.todos)


@on(ev.PlanGenerated)
def plan_generated(state: State, _event: Event, body: ev.PlanGenerated) -> State:
    return replace(state, plan=body.plan)


@on(ev.ChangesUpdated, to=(MOVES, INACTIVE_MOVES))
def changes_updated(state: State, _event: Event, body: ev.ChangesUpdated) -> State:
    return with_profile(state, changes=Changes(body.files, body.added, body.removed))
