"""Moves of what surrounds the turn: background work, usage, settings, plans."""

from __future__ import annotations

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import background, run, turn, usage
from quarterdeck.kernel.moves.base import (
    AT_REST,
    MOVES,
    SUB_MOVES,
    gates_settled,
    held_guard,
    moved,
    on,
    with_profile,
)
from quarterdeck.kernel.profile import Changes, Context
from quarterdeck.kernel.state import State


def _with_task(state: State, event: Event, body: ev.BackgroundStarted) -> State:
    task = background.Task(body.kind, body.id, body.title, event.at)
    return replace(state, background=background.started(state.background, task))


@on(ev.BackgroundStarted)
def background_started(state: State, event: Event, body: ev.BackgroundStarted) -> State:
    """A call that goes on in the background is one that the turn does not wait for any more."""
    after, open_turn = _with_task(state, event, body), turn.without_call(state.turn, body.id)
    if open_turn is state.turn:
        return after
    return replace(after, turn=open_turn, run=moved(run.MACHINE, state.run, event, held_guard(open_turn, state.gates)))


on(ev.BackgroundStarted, to=(SUB_MOVES,))(_with_task)


@on(ev.BackgroundEnded, to=(MOVES, SUB_MOVES))
def background_ended(state: State, event: Event, body: ev.BackgroundEnded) -> State:
    """A sub-agent that is over waits for nobody."""
    after = replace(state, background=background.ended(state.background, body.id))
    return gates_settled(after, event, lambda one: body.id in one.path, "withdrawn")


@on(ev.Usage, to=(MOVES, SUB_MOVES, AT_REST))
def usage_told(state: State, _event: Event, body: ev.Usage) -> State:
    return replace(state, usage=usage.entered(state.usage, body))


@on(ev.ContextUsage)
def context_usage(state: State, _event: Event, body: ev.ContextUsage) -> State:
    return with_profile(state, context=Context(body.tokens, body.limit, body.percent))


@on(ev.SettingChanged, to=(MOVES, AT_REST))
def setting_changed(state: State, _event: Event, body: ev.SettingChanged) -> State:
    old = state.profile
    profile = replace(
        old,
        auto_approve=old.auto_approve if body.auto_approve is None else body.auto_approve,
        mode=old.mode if body.mode is None else body.mode,
        thinking=old.thinking if body.thinking is None else body.thinking,
        model=old.model if body.model is None else body.model,
    )
    return replace(state, profile=profile)


@on(ev.ModelSwitched, to=(MOVES, AT_REST))
def model_switched(state: State, _event: Event, body: ev.ModelSwitched) -> State:
    return with_profile(state, model=body.to)


@on(ev.TodoChange)
def todo_change(state: State, _event: Event, body: ev.TodoChange) -> State:
    return replace(state, todos=body.todos)


@on(ev.PlanGenerated)
def plan_generated(state: State, _event: Event, body: ev.PlanGenerated) -> State:
    return replace(state, plan=body.plan)


@on(ev.ChangesUpdated, to=(MOVES, AT_REST))
def changes_updated(state: State, _event: Event, body: ev.ChangesUpdated) -> State:
    return with_profile(state, changes=Changes(body.files, body.added, body.removed))
