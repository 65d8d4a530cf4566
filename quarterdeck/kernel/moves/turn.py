"""Handle events of prompts, of the queue and of the turn."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import gate, phase, queue, run, usage
from quarterdeck.kernel.moves.base import (
    INACTIVE_MOVES,
    MOVES,
    blocks_main_agent,
    gates_closed_where,
    moved,
    on,
    reply_guard,
    resume_guard,
    turn_gates_closed,
    turn_guard,
    updated,
    with_run,
)
from quarterdeck.kernel.profile import Failure, label
from quarterdeck.kernel.state import State
from quarterdeck.kernel.turn import NO_TURN, Turn

LAST_TEXT_LENGTH = 200
#: The input of a prompt in phases where 000's table has no row for a message.
_PROMPT_INPUTS = {"paused": "resume_session", "stopped": "resume_session", "error": "retry"}
#: The input of each kind of turn_failed. Every other kind is a failed request.
_FAILURE_ASKS = {
    "payment": "ask:payment_required_prompt",
    "invalid_model": "ask:invalid_model",
    "turn_limit": "ask:mistake_limit_reached",
}


# ------------------------------------------------------------------------------------ prompts and queue


@on(ev.PromptReceived)
def prompt_received(state: State, event: Event, body: ev.PromptReceived) -> State:
    changes: dict[str, Any] = {}
    # A prompt that the agent sent itself never matches a user's message, even if the text is the same.
    if body.source == "user":
        changes["queue"] = queue.taken(state.queue, body.message_id, body.text)
        if not state.profile.name:
            changes["profile"] = replace(state.profile, name=label(body.text), named_by="prompt")
    base_phase = phase.step(state.base_phase, _prompt_input(state, body.new_task))
    return updated(state, event, base_phase=base_phase, error=None, last_active_at=event.at, **changes)


def _prompt_input(state: State, new_task: bool) -> str:
    """Return 000's input for a prompt.

    A prompt resumes a stopped or paused session and retries a failed one, also if it is a new task for which 000 has no
    row in that phase.
    """
    if new_task and phase.step(state.base_phase, "start_session") is not state.base_phase:
        return "start_session"
    return _PROMPT_INPUTS.get(state.base_phase.value, "send_message")


@on(ev.PromptQueued, to=(INACTIVE_MOVES,))
def prompt_queued_inactive(state: State, event: Event, body: ev.PromptQueued) -> State:
    message_id = body.message_id or f"e{event.index}"
    item = queue.Waiting(message_id, body.text, "prompt", "queued", event.at, body.images, new_task=body.new_task)
    return replace(state, queue=queue.added(state.queue, item))


@on(ev.PromptQueued)
def prompt_queued(state: State, event: Event, body: ev.PromptQueued) -> State:
    """Queue a message. If it starts the next turn, show the work at once: a process may have to be started first."""
    after = prompt_queued_inactive(state, event, body)
    if not body.starts:
        return after
    base_phase = phase.step(state.base_phase, _prompt_input(state, body.new_task))
    return updated(after, event, base_phase=base_phase, error=None, last_active_at=event.at)


@on(ev.PromptEdited, to=(MOVES, INACTIVE_MOVES))
def prompt_edited(state: State, _event: Event, body: ev.PromptEdited) -> State:
    return replace(state, queue=queue.edited(state.queue, body.message_id, body.text))


@on(ev.PromptDropped, to=(MOVES, INACTIVE_MOVES))
def prompt_dropped(state: State, _event: Event, body: ev.PromptDropped) -> State:
    return replace(state, queue=queue.taken(state.queue, body.message_id, body.text))


@on(ev.PromptRejected, to=(MOVES, INACTIVE_MOVES))
def prompt_rejected(state: State, _event: Event, body: ev.PromptRejected) -> State:
    return replace(state, queue=queue.without(state.queue, (body.message_id,)))


@on(ev.DeliveryChanged, to=(MOVES, INACTIVE_MOVES))
def delivery_changed(state: State, _event: Event, body: ev.DeliveryChanged) -> State:
    return replace(state, queue=queue.receipted(state.queue, body.message_id, body.status))


@on(ev.SteeringReceived)
def steering_received(state: State, event: Event, body: ev.SteeringReceived) -> State:
    if body.status != "queued":
        # The message was refused or became a prompt. If it was queued before, it no longer is.
        return replace(state, queue=queue.without(state.queue, (body.ref,)))
    item = queue.Waiting(body.ref, body.text, "steer", "queued", body.queued_at or event.at, body.images)
    return replace(state, queue=queue.added(state.queue, item), last_active_at=event.at)


@on(ev.SteeringApplied)
def steering_applied(state: State, _event: Event, body: ev.SteeringApplied) -> State:
    return replace(state, queue=queue.without(state.queue, body.refs))


# ----------------------------------------------------------------------------------------------- turns


@on(ev.AgentStart)
def agent_start(state: State, event: Event, body: ev.AgentStart) -> State:
    """Open a turn. It will send a request, so the phase shows the request at once."""
    gates = gate.closed_where(gate.without_stale(state.gates), blocks_main_agent, "answered_elsewhere", event.at)
    return updated(
        state,
        event,
        gates=gates,
        base_phase=phase.requested(state.base_phase),
        run=moved(run.MACHINE, state.run, event),
        turn=Turn(body.turn_id or f"t{event.index}", event.at),
        usage=usage.next_turn(state.usage),
        error=None,
        last_active_at=event.at,
    )


@on(ev.AgentEnd)
def agent_end(state: State, event: Event, body: ev.AgentEnd) -> State:
    # A completed turn: the `say` that precedes this ask in 000 leads to the same phase.
    # A failed turn: turn_failed has already set the phase. Without a turn_failed the spinner must still end.
    ask = "ask:completion_result" if body.outcome == "completed" else "ask:api_req_failed"
    return updated(
        state,
        event,
        gates=turn_gates_closed(state, event, "answered_elsewhere"),
        base_phase=phase.step(state.base_phase, ask),
        run=moved(run.MACHINE, state.run, event),
        turn=NO_TURN,
        last_active_at=event.at,
        outcome_index=event.index,
    )


@on(ev.AgentAbort)
def agent_abort(state: State, event: Event, _body: ev.AgentAbort) -> State:
    return updated(
        state,
        event,
        gates=turn_gates_closed(state, event, "withdrawn"),
        base_phase=phase.step(state.base_phase, "cancel_session"),
        run=moved(run.MACHINE, state.run, event),
        turn=NO_TURN,
        last_active_at=event.at,
    )


@on(ev.AgentResumed)
def agent_resumed(state: State, event: Event, _body: ev.AgentResumed) -> State:
    return with_run(state, moved(run.MACHINE, state.run, event, turn_guard(state.turn)))


@on(ev.TurnContinued)
def turn_continued(state: State, event: Event, _body: ev.TurnContinued) -> State:
    base_phase = phase.step(state.base_phase, "resume_session")
    return updated(state, event, base_phase=base_phase, last_active_at=event.at)


@on(ev.TurnRetried)
def turn_retried(state: State, event: Event, _body: ev.TurnRetried) -> State:
    base_phase = phase.step(state.base_phase, "retry")
    return updated(state, event, base_phase=base_phase, error=None, last_active_at=event.at)


@on(ev.TurnRestored)
def turn_restored(state: State, event: Event, body: ev.TurnRestored) -> State:
    ask = "ask:resume_completed_task" if body.finished else "ask:resume_task"
    return updated(state, event, base_phase=phase.step(state.base_phase, ask))


@on(ev.TurnFailed)
def turn_failed(state: State, event: Event, body: ev.TurnFailed) -> State:
    ask = _FAILURE_ASKS.get(body.kind, "ask:api_req_failed")
    if state.base_phase.value == "creating":
        # 000 has no failed request before the first request, so the failure is a process error. It counts as an
        # unanswered ask nevertheless: if the process then exits with code 0, that isn't a success.
        base_phase = replace(phase.step(state.base_phase, "process_error"), ask=ask)
    else:
        base_phase = phase.step(state.base_phase, ask)
    return updated(
        state,
        event,
        gates=turn_gates_closed(state, event, "withdrawn"),
        base_phase=base_phase,
        error=Failure(body.kind, body.message, body.resets_at),
        outcome_index=event.index,
        last_active_at=event.at,
    )


# ------------------------------------------------------------------------------- requests and replies


@on(ev.RequestStart)
def request_start(state: State, event: Event, body: ev.RequestStart) -> State:
    """Close the gates of the main agent: it moved on, so they were answered somewhere."""
    profile = state.profile
    if body.model and not profile.model:
        profile = replace(profile, model=body.model)
    return updated(
        state,
        event,
        gates=gate.closed_where(state.gates, blocks_main_agent, "answered_elsewhere", event.at),
        base_phase=phase.requested(state.base_phase),
        run=moved(run.MACHINE, state.run, event, turn_guard(state.turn)),
        profile=profile,
    )


@on(ev.MessageStart, ev.ThinkingStart)
def message_start(state: State, event: Event, _body: Body) -> State:
    return with_run(state, moved(run.MACHINE, state.run, event, reply_guard(state.turn, state.gates)))


@on(ev.CompactStart)
def compact_start(state: State, event: Event, _body: ev.CompactStart) -> State:
    """Start a request over the whole conversation. As for any request, the gates of the main agent were answered."""
    after = gates_closed_where(state, event, blocks_main_agent, "answered_elsewhere")
    return with_run(after, moved(run.MACHINE, state.run, event, turn_guard(state.turn)))


@on(ev.CompactEnd)
def compact_end(state: State, event: Event, _body: ev.CompactEnd) -> State:
    return with_run(state, moved(run.MACHINE, state.run, event, resume_guard(state.turn, state.gates)))


@on(ev.ResponseComplete)
def response_complete(state: State, _event: Event, body: ev.ResponseComplete) -> State:
    """Remember the end of the reply's last text, for the list of sessions."""
    for block in reversed(body.blocks):
        if block.kind == "text" and block.text.strip():
            return replace(state, last_text=block.text[-LAST_TEXT_LENGTH:])
    return state
