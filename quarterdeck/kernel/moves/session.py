"""Handle events of the session, of its process, and of the agent in that process."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import activity, gate, lifecycle, phase, process, run
from quarterdeck.kernel.moves.base import (
    INACTIVE_MOVES,
    MOVES,
    cell,
    moved,
    on,
    updated,
    with_profile,
)
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.profile import Failure, label
from quarterdeck.kernel.routing import is_busy
from quarterdeck.kernel.state import NOT_OPENED, State
from quarterdeck.kernel.turn import NO_TURN

TITLE_LENGTH = 60
#: The phases that an end of the session or process must end.
_ACTIVE_PHASES = frozenset(phase.FLAGS["isActive"])


# ------------------------------------------------------------------------------------------- the session


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
        never_ready=body.owner == "deck",
    )
    base_phase = state.base_phase if body.prompt is None else phase.step(state.base_phase, "start_session")
    return updated(
        state,
        event,
        base_phase=base_phase,
        lifecycle=cell(event, lifecycle.MACHINE.initial),
        profile=profile,
        last_active_at=event.at,
    )


@on(ev.SessionResumed, to=(INACTIVE_MOVES,))
def session_resumed(state: State, event: Event, _body: ev.SessionResumed) -> State:
    after = moved(lifecycle.MACHINE, state.lifecycle, event)
    if after is state.lifecycle:
        return state
    return updated(
        state,
        event,
        base_phase=phase.step(state.base_phase, "resume_session"),
        lifecycle=after,
        profile=replace(state.profile, end_reason=None),
        error=None,
        exit=None,
        last_active_at=event.at,
    )


@on(ev.SessionRenamed, to=(MOVES, INACTIVE_MOVES))
def session_renamed(state: State, _event: Event, body: ev.SessionRenamed) -> State:
    return with_profile(state, name=body.name, named_by="user")


@on(ev.TitleGenerated, to=(MOVES, INACTIVE_MOVES))
def title_generated(state: State, _event: Event, body: ev.TitleGenerated) -> State:
    """Name the session, unless a user named it."""
    if state.profile.named_by == "user" or not body.title.strip():
        return state
    return with_profile(state, name=body.title[:TITLE_LENGTH], named_by="agent")


@on(ev.SessionMarked, to=(MOVES, INACTIVE_MOVES))
def session_marked(state: State, _event: Event, body: ev.SessionMarked) -> State:
    profile = state.profile
    return with_profile(
        state,
        pinned=profile.pinned if body.pinned is None else body.pinned,
        # 0 ends a snooze.
        snoozed_until=profile.snoozed_until if body.snoozed_until is None else body.snoozed_until or None,
        read_index=profile.read_index if body.read_index is None else body.read_index,
    )


@on(ev.OwnerChanged, to=(MOVES, INACTIVE_MOVES))
def owner_changed(state: State, _event: Event, body: ev.OwnerChanged) -> State:
    return with_profile(state, epoch=body.epoch, owner=body.owner or state.profile.owner)


# ----------------------------------------------------------------------- the end of session or process


class _PhaseInput(NamedTuple):
    """One of 000's inputs, and the guard that holds."""

    name: str
    guard: str | None = None


_CANCELLED = _PhaseInput("cancel_session")
_RESUMABLE = _PhaseInput("ask:resume_task")
_BROKEN = _PhaseInput("process_error")
_EXIT_FAILED = _PhaseInput("process_exit", "error")
_EXIT_SUCCEEDED = _PhaseInput("process_exit", "success")


def _ended(state: State, event: Event, phase_input: _PhaseInput | None, gate_status: str, **changes: Any) -> State:
    """End everything that needs a living agent: process, run, activity, turn, gates and background work."""
    base_phase, gates = state.base_phase, state.gates
    if phase_input is not None:
        # As in 000, an input that closes all gates acts on the shown phase and not on the base phase.
        over = state.phase.value if gates.open else ""
        base_phase = phase.step(base_phase, phase_input.name, phase_input.guard, over)
    return updated(
        state,
        event,
        gates=gate.closed_all(gates, gate_status, event.at),
        base_phase=base_phase,
        process=moved(process.MACHINE, state.process, event),
        run=moved(run.MACHINE, state.run, event),
        activity=moved(activity.MACHINE, state.activity, event),
        turn=NO_TURN,
        background=(),
        **changes,
    )


@on(ev.SessionSuspended)
def session_suspended(state: State, event: Event, _body: ev.SessionSuspended) -> State:
    """Suspend the session. By the phase that was shown: streaming becomes paused, creating and waiting become stopped."""
    shown = state.phase.value
    phase_input = _RESUMABLE if shown == "streaming" else _CANCELLED if shown in _ACTIVE_PHASES else None
    after = moved(lifecycle.MACHINE, state.lifecycle, event)
    return _ended(state, event, phase_input, "stale", lifecycle=after, last_active_at=event.at)


@on(ev.SessionArchived)
def session_archived(state: State, event: Event, body: ev.SessionArchived) -> State:
    return _ended(
        state,
        event,
        _CANCELLED,
        "withdrawn",
        lifecycle=moved(lifecycle.MACHINE, state.lifecycle, event),
        profile=replace(state.profile, end_reason=body.end_reason),
        last_active_at=event.at,
    )


@on(ev.SessionFailed)
def session_failed(state: State, event: Event, body: ev.SessionFailed) -> State:
    return _ended(
        state,
        event,
        _BROKEN if state.phase.value in _ACTIVE_PHASES else None,
        "withdrawn",
        lifecycle=moved(lifecycle.MACHINE, state.lifecycle, event),
        error=Failure(body.kind, body.message),
        last_active_at=event.at,
    )


@on(ev.ProcessError)
def process_error(state: State, event: Event, body: ev.ProcessError) -> State:
    failure = Failure("process", body.message)
    return _ended(state, event, _BROKEN, "withdrawn", exit=None, error=failure, outcome_index=event.index)


@on(ev.ProcessExited)
def process_exited(state: State, event: Event, body: ev.ProcessExited) -> State:
    phase_input, exit_status = _exit_input(state, body), Exit(body.code, body.signal)
    if phase_input is not _EXIT_FAILED:
        return _ended(state, event, phase_input, "withdrawn", exit=exit_status)
    failure = Failure("process", process.exit_message(body.code, body.signal))
    return _ended(state, event, phase_input, "withdrawn", exit=exit_status, error=failure, outcome_index=event.index)


def _exit_input(state: State, body: ev.ProcessExited) -> _PhaseInput | None:
    """Translate an exit to 000's input."""
    if body.asked:
        # 000's table doesn't know an exit that we requested. It ends an open turn, and also one that is about to start:
        # its spinner must not continue.
        return _CANCELLED if is_busy(state) else None
    if body.code:
        return _EXIT_FAILED
    if body.code is None:
        return _CANCELLED if process.was_stopped(None, body.signal) else _EXIT_FAILED
    # 000 requires "no pending ask" for a success. An open gate is one: it is withdrawn, as by a cancel.
    return _CANCELLED if state.gates.open else _EXIT_SUCCEEDED


# ------------------------------------------------------------------------------------ process and agent


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
        never_ready=False,
    )
    # `session_created` only acts on a session that is being created, which requires that it was opened with a prompt.
    return updated(
        state,
        event,
        base_phase=phase.step(state.base_phase, "session_created"),
        process=moved(process.MACHINE, state.process, event),
        activity=moved(activity.MACHINE, state.activity, event),
        profile=profile,
    )


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
