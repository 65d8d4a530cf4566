"""Moves of the session itself, of its process, and of the agent that lives in it."""

from __future__ import annotations

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import activity, lifecycle, phase, process
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.moves.base import (
    AT_REST,
    MOVES,
    Inputs,
    all_gates_closed,
    all_gone,
    cell,
    fed,
    fed_over_gates,
    moved,
    on,
    with_profile,
)
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.profile import Failure, Profile, label
from quarterdeck.kernel.state import NOT_OPENED, State
from quarterdeck.kernel.turn import NO_TURN

TITLE_LENGTH = 60
#: Phases in which something is under way that an end must end.
_ACTIVE = frozenset(phase.FLAGS["isActive"])


@on(ev.SessionOpened)
def session_opened(state: State, event: Event, body: ev.SessionOpened) -> State:
    if state.lifecycle.value != NOT_OPENED:
        return state
    inputs = () if body.prompt is None else (("start_session", None),)
    profile = replace(
        state.profile,
        id=event.session_id,
        agent=body.agent,
        cwd=body.cwd,
        name=body.name or label(body.prompt or ""),
        named_by="user" if body.name else "prompt",
        model=body.model,
        mode=body.mode,
        repo=body.repo,
        owner=body.owner,
        created_at=event.at,
        continues=body.continues,
    )
    beneath, shown = fed(state, event, state.gates, inputs)
    return replace(
        state,
        lifecycle=cell(event, lifecycle.MACHINE.initial),
        profile=profile,
        last_active_at=event.at,
        beneath=beneath,
        phase=shown,
    )


@on(ev.SessionResumed, to=(AT_REST,))
def session_resumed(state: State, event: Event, _body: ev.SessionResumed) -> State:
    after = moved(lifecycle.MACHINE, state.lifecycle, event)
    if after is state.lifecycle:
        return state
    profile = replace(state.profile, end_reason=None)
    beneath, shown = fed(state, event, state.gates, (("resume_session", None),))
    return replace(
        state,
        lifecycle=after,
        profile=profile,
        error=None,
        exit=None,
        last_active_at=event.at,
        beneath=beneath,
        phase=shown,
    )


def _at_rest(
    state: State, event: Event, gates: Gates, profile: Profile, error: Failure | None, inputs: Inputs
) -> State:
    """The session leaves `active`: no process, no turn, no run, nothing in the background."""
    beneath, shown = fed_over_gates(state, event, gates, inputs)
    no_process, no_run, no_activity = all_gone(state, event)
    return replace(
        state,
        profile=profile,
        error=error,
        lifecycle=moved(lifecycle.MACHINE, state.lifecycle, event),
        process=no_process,
        run=no_run,
        activity=no_activity,
        turn=NO_TURN,
        gates=gates,
        background=(),
        last_active_at=event.at,
        beneath=beneath,
        phase=shown,
    )


@on(ev.SessionSuspended)
def session_suspended(state: State, event: Event, _body: ev.SessionSuspended) -> State:
    """Streaming becomes paused; creating and waiting become stopped. Judged by what shows before the gates close."""
    how = "ask:resume_task" if state.phase.value == "streaming" else "cancel_session"
    is_active = state.phase.value in _ACTIVE
    inputs = ((how, None),) if is_active else ()
    gates = all_gates_closed(state, event, "stale")
    return _at_rest(state, event, gates, state.profile, state.error, inputs)


@on(ev.SessionArchived)
def session_archived(state: State, event: Event, body: ev.SessionArchived) -> State:
    gates = all_gates_closed(state, event, "withdrawn")
    profile = replace(state.profile, end_reason=body.end_reason)
    return _at_rest(state, event, gates, profile, state.error, (("cancel_session", None),))


@on(ev.SessionFailed)
def session_failed(state: State, event: Event, body: ev.SessionFailed) -> State:
    inputs = (("process_error", None),) if state.phase.value in _ACTIVE else ()
    gates = all_gates_closed(state, event, "withdrawn")
    return _at_rest(state, event, gates, state.profile, Failure(body.kind, body.message), inputs)


@on(ev.SessionRenamed, to=(MOVES, AT_REST))
def session_renamed(state: State, _event: Event, body: ev.SessionRenamed) -> State:
    return with_profile(state, name=body.name, named_by="user")


@on(ev.TitleGenerated, to=(MOVES, AT_REST))
def title_generated(state: State, _event: Event, body: ev.TitleGenerated) -> State:
    """A name that a person gave stays."""
    if state.profile.named_by == "user" or not body.title.strip():
        return state
    return with_profile(state, name=body.title[:TITLE_LENGTH], named_by="agent")


@on(ev.SessionMarked, to=(MOVES, AT_REST))
def session_marked(state: State, _event: Event, body: ev.SessionMarked) -> State:
    profile = state.profile
    snoozed = profile.snoozed_until if body.snoozed_until is None else body.snoozed_until or None
    return with_profile(
        state,
        pinned=profile.pinned if body.pinned is None else body.pinned,
        snoozed_until=snoozed,
        read_index=profile.read_index if body.read_index is None else body.read_index,
    )


@on(ev.OwnerChanged, to=(MOVES, AT_REST))
def owner_changed(state: State, _event: Event, body: ev.OwnerChanged) -> State:
    return with_profile(state, epoch=body.epoch, owner=body.owner or state.profile.owner)


@on(ev.ProcessStarting)
def process_starting(state: State, event: Event, _body: ev.ProcessStarting) -> State:
    return replace(
        state,
        process=moved(process.MACHINE, state.process, event),
        activity=moved(activity.MACHINE, state.activity, event),
        exit=None,
        last_active_at=event.at,
    )


@on(ev.AgentReady)
def agent_ready(state: State, event: Event, body: ev.AgentReady) -> State:
    old = state.profile
    profile = replace(
        old,
        native_session_id=body.native_session_id or old.native_session_id,
        model=body.model or old.model,
        agent_version=body.version or old.agent_version,
        capabilities=body.capabilities or old.capabilities,
        resumable=old.resumable if body.resumable is None else body.resumable,
    )
    # a session that this deck did not start with a prompt is not being created, whoever says so
    inputs = (("session_created", None),) if state.beneath.value == "creating" else ()
    beneath, shown = fed(state, event, state.gates, inputs)
    return replace(
        state,
        process=moved(process.MACHINE, state.process, event),
        activity=moved(activity.MACHINE, state.activity, event),
        profile=profile,
        beneath=beneath,
        phase=shown,
    )


#: What an exit with another code than zero is to 000.
_FAILED: Inputs = (("process_exit", "error"),)


def _process_gone(state: State, event: Event, ended: Exit | None, error: Failure | None, inputs: Inputs) -> State:
    """Nobody is left who could go on. With an error there is something that a person should see."""
    gates = all_gates_closed(state, event, "withdrawn")
    beneath, shown = fed_over_gates(state, event, gates, inputs)
    no_process, no_run, no_activity = all_gone(state, event)
    return replace(
        state,
        exit=ended,
        error=error or state.error,
        settled_index=event.index if error else state.settled_index,
        process=no_process,
        run=no_run,
        activity=no_activity,
        turn=NO_TURN,
        gates=gates,
        background=(),
        beneath=beneath,
        phase=shown,
    )


@on(ev.ProcessError)
def process_error(state: State, event: Event, body: ev.ProcessError) -> State:
    return _process_gone(state, event, None, Failure("process", body.message), (("process_error", None),))


@on(ev.ProcessExited)
def process_exited(state: State, event: Event, body: ev.ProcessExited) -> State:
    inputs = _exit_inputs(state, body)
    ended = Exit(body.code, body.signal)
    if inputs is not _FAILED:
        return _process_gone(state, event, ended, None, inputs)
    how = f"code {body.code}" if body.code is not None else body.signal or "unknown"
    failure = Failure("process", f"The agent process ended with {how}")
    return _process_gone(state, event, ended, failure, inputs)


def _exit_inputs(state: State, body: ev.ProcessExited) -> Inputs:
    """An exit that we asked for is no exit of 000's table, but it ends what was under way."""
    if body.asked:
        # a turn that was promised and not begun is under way too: no spinner may turn for it now
        under_way = state.turn.is_open or state.beneath.value in phase.FLAGS["showSpinner"]
        return (("cancel_session", None),) if under_way else ()
    if process.was_stopped(body.code, body.signal):
        return (("cancel_session", None),)
    if body.code != 0:
        return _FAILED
    # "no pending ask" is false while a gate is open: the ask is withdrawn as by a cancel
    return (("cancel_session", None),) if state.gates.open else (("process_exit", "success"),)


@on(ev.AgentEnded)
def agent_ended(state: State, event: Event, _body: ev.AgentEnded) -> State:
    return replace(state, activity=moved(activity.MACHINE, state.activity, event))


@on(ev.StateChange)
def state_change(state: State, event: Event, body: ev.StateChange) -> State:
    value = activity.joined(body.state, body.sub)
    return state if value == state.activity.value else replace(state, activity=cell(event, value))


@on(ev.SignalChanged)
def signal_changed(state: State, event: Event, body: ev.SignalChanged) -> State:
    return state if body.signal == state.signal.value else replace(state, signal=cell(event, body.signal))
