"""Moves of the session itself, of its process, and of the agent that lives in it."""

from __future__ import annotations

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import NAMES, Event
from quarterdeck.kernel import activity, gate, lifecycle, phase, process, run
from quarterdeck.kernel.machine import Machine
from quarterdeck.kernel.moves.base import (
    AT_REST,
    MOVES,
    Input,
    cell,
    moved,
    on,
    shown,
    with_profile,
)
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.profile import Failure, label
from quarterdeck.kernel.state import NOT_OPENED, Cell, State
from quarterdeck.kernel.turn import NO_TURN

TITLE_LENGTH = 60
#: Phases in which something is under way that an end must end.
_ACTIVE = frozenset(phase.FLAGS["isActive"])


@on(ev.SessionOpened)
def session_opened(state: State, event: Event, body: ev.SessionOpened) -> State:
    if state.lifecycle.value != NOT_OPENED:
        return state
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
        arguments=body.arguments,
        unmet=body.owner == "deck",
    )
    beneath = state.beneath if body.prompt is None else phase.step(state.beneath, "start_session")
    return replace(
        state,
        lifecycle=cell(event, lifecycle.MACHINE.initial),
        profile=profile,
        last_active_at=event.at,
        beneath=beneath,
        phase=shown(state, event, state.gates, beneath),
    )


@on(ev.SessionResumed, to=(AT_REST,))
def session_resumed(state: State, event: Event, _body: ev.SessionResumed) -> State:
    after = moved(lifecycle.MACHINE, state.lifecycle, event)
    if after is state.lifecycle:
        return state
    profile = replace(state.profile, end_reason=None)
    beneath = phase.step(state.beneath, "resume_session")
    return replace(
        state,
        lifecycle=after,
        profile=profile,
        error=None,
        exit=None,
        last_active_at=event.at,
        beneath=beneath,
        phase=shown(state, event, state.gates, beneath),
    )


def _gone(
    state: State,
    event: Event,
    given: Input | None,
    close_as: str,
    ended: Exit | None,
    error: Failure | None,
    settled: int,
) -> State:
    """Nobody is left who could go on: no process, no run, no turn, no open gate, nothing in the background.

    How it ended is told with it, though not every caller has something new to tell: one state is made, not two.
    """
    at, index, name, origin = event.at, event.index, NAMES[type(event.body)], event.origin
    gates, beneath, shown = state.gates, state.beneath, state.phase
    if given is not None:
        # what closes every gate at once meets the phase that shows, as in 000, not the one beneath
        beneath = phase.step(beneath, given[0], given[1], shown.value if gates.open else "")
    if gates.open:
        gates = gate.closed_all(gates, close_as, at)
    was_process, was_run, was_activity = state.process, state.run, state.activity
    return replace(
        state,
        process=was_process if was_process.value == _NO_PROCESS else Cell(_NO_PROCESS, at, index, name, origin),
        run=was_run if was_run.value == _NO_RUN else Cell(_NO_RUN, at, index, name, origin),
        activity=was_activity if was_activity.value == _NO_AGENT else Cell(_NO_AGENT, at, index, name, origin),
        phase=shown if shown.value == beneath.value else Cell(beneath.value, at, index, name, origin),
        turn=NO_TURN,
        gates=gates,
        background=(),
        beneath=beneath,
        exit=ended,
        error=error,
        settled_index=settled,
    )


def _from_anywhere(machine: Machine) -> str:
    """Where the events that end all three owners lead, whatever the state is: one row for all."""
    ends = ("process_error", "process_exited", "session_suspended", "session_archived", "session_failed")
    (target,) = {machine.step(state, name) for state in machine.states for name in ends}
    return target


_NO_PROCESS, _NO_RUN, _NO_AGENT = map(_from_anywhere, (process.MACHINE, run.MACHINE, activity.MACHINE))


#: What ends a phase that is active.
_CANCELLED: Input = ("cancel_session", None)
_RESUMABLE: Input = ("ask:resume_task", None)
_BROKEN: Input = ("process_error", None)


@on(ev.SessionSuspended)
def session_suspended(state: State, event: Event, _body: ev.SessionSuspended) -> State:
    """Streaming becomes paused; creating and waiting become stopped. Judged by what shows before the gates close."""
    was = state.phase.value
    given = _RESUMABLE if was == "streaming" else _CANCELLED if was in _ACTIVE else None
    after = moved(lifecycle.MACHINE, state.lifecycle, event)
    gone = _gone(state, event, given, "stale", state.exit, state.error, state.settled_index)
    return replace(gone, lifecycle=after, last_active_at=event.at)


@on(ev.SessionArchived)
def session_archived(state: State, event: Event, body: ev.SessionArchived) -> State:
    after = moved(lifecycle.MACHINE, state.lifecycle, event)
    profile = replace(state.profile, end_reason=body.end_reason)
    gone = _gone(state, event, _CANCELLED, "withdrawn", state.exit, state.error, state.settled_index)
    return replace(gone, lifecycle=after, profile=profile, last_active_at=event.at)


@on(ev.SessionFailed)
def session_failed(state: State, event: Event, body: ev.SessionFailed) -> State:
    after = moved(lifecycle.MACHINE, state.lifecycle, event)
    given, failure = _BROKEN if state.phase.value in _ACTIVE else None, Failure(body.kind, body.message)
    gone = _gone(state, event, given, "withdrawn", state.exit, failure, state.settled_index)
    return replace(gone, lifecycle=after, last_active_at=event.at)


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
        unmet=False,
    )
    after = replace(
        state,
        process=moved(process.MACHINE, state.process, event),
        activity=moved(activity.MACHINE, state.activity, event),
        profile=profile,
    )
    # a session that this deck did not start with a prompt is not being created, whoever says so
    if state.beneath.value != "creating":
        return after
    beneath = phase.step(state.beneath, "session_created")
    return replace(after, beneath=beneath, phase=shown(state, event, state.gates, beneath))


#: An exit in 000's words.
_FAILED: Input = ("process_exit", "error")
_SUCCEEDED: Input = ("process_exit", "success")


@on(ev.ProcessError)
def process_error(state: State, event: Event, body: ev.ProcessError) -> State:
    return _gone(state, event, _BROKEN, "withdrawn", None, Failure("process", body.message), event.index)


@on(ev.ProcessExited)
def process_exited(state: State, event: Event, body: ev.ProcessExited) -> State:
    """With a failure there is something that a person should see."""
    given, ended = _exit_input(state, body), Exit(body.code, body.signal)
    if given is not _FAILED:
        return _gone(state, event, given, "withdrawn", ended, state.error, state.settled_index)
    failure = Failure("process", process.last_words(body.code, body.signal))
    return _gone(state, event, given, "withdrawn", ended, failure, event.index)


def _exit_input(state: State, body: ev.ProcessExited) -> Input | None:
    """An exit that we asked for is no exit of 000's table, but it ends what was under way."""
    if body.asked:
        # a turn that was promised and not begun is under way too: no spinner may turn for it now
        under_way = state.turn.id or state.beneath.value in phase.FLAGS["showSpinner"]
        return _CANCELLED if under_way else None
    if body.code:
        return _FAILED
    if body.code is None:
        return _CANCELLED if process.was_stopped(None, body.signal) else _FAILED
    # "no pending ask" is false while a gate is open: the ask is withdrawn as by a cancel
    return _CANCELLED if state.gates.open else _SUCCEEDED


@on(ev.AgentEnded)
def agent_ended(state: State, event: Event, _body: ev.AgentEnded) -> State:
    return replace(state, activity=moved(activity.MACHINE, state.activity, event))


@on(ev.StateChange)
def state_change(state: State, event: Event, body: ev.StateChange) -> State:
    # every other event is one of these, so nothing here is left to a helper
    value = activity.ACTIVE_STATES[body.sub] if body.state == "active" else body.state
    if value == state.activity.value:
        return state
    return replace(state, activity=Cell(value, event.at, event.index, "state_change", event.origin))


@on(ev.SignalChanged)
def signal_changed(state: State, event: Event, body: ev.SignalChanged) -> State:
    return state if body.signal == state.signal.value else replace(state, signal=cell(event, body.signal))
