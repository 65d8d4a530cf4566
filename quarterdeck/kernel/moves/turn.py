"""Moves of prompts, of the queue and of the turn."""

from __future__ import annotations

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import gate, phase, queue, run, usage
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.moves.base import (
    AT_REST,
    MOVES,
    gates_settled,
    in_turn,
    moved,
    of_main,
    on,
    reply_guard,
    resume_guard,
    shown,
    turn_gates_closed,
)
from quarterdeck.kernel.phase import Phase
from quarterdeck.kernel.profile import Failure, label
from quarterdeck.kernel.state import State
from quarterdeck.kernel.turn import NO_TURN, Turn

LAST_TEXT_LENGTH = 200
#: What a prompt means where 000's table knows no message.
_PROMPT_INPUTS = {"paused": "resume_session", "stopped": "resume_session", "error": "retry"}
#: turn_failed's kinds in 000's words; the others are a failed request.
_FAILURE_ASKS = {
    "payment": "ask:payment_required_prompt",
    "invalid_model": "ask:invalid_model",
    "turn_limit": "ask:mistake_limit_reached",
}


@on(ev.PromptReceived)
def prompt_received(state: State, event: Event, body: ev.PromptReceived) -> State:
    beneath = phase.step(state.beneath, _prompt_input(state, body.new_task))
    waiting, profile = state.queue, state.profile
    # what an agent tells itself is never a person's text, though the words may be the same
    if body.source == "user":
        if waiting:
            waiting = queue.taken(waiting, body.message_id, body.text)
        if not profile.name:
            profile = replace(profile, name=label(body.text), named_by="prompt")
    return replace(
        state,
        queue=waiting,
        profile=profile,
        error=None,
        last_active_at=event.at,
        beneath=beneath,
        phase=shown(state, event, state.gates, beneath),
    )


def _prompt_input(state: State, new_task: bool) -> str:
    """A text in a stopped or paused session resumes it, in a failed one it retries, also where it is a new task."""
    if new_task and phase.step(state.beneath, "start_session") is not state.beneath:
        return "start_session"
    return _PROMPT_INPUTS.get(state.beneath.value, "send_message")


@on(ev.PromptQueued)
def prompt_queued(state: State, event: Event, body: ev.PromptQueued) -> State:
    """The text that begins the next turn is work at once: a process may have to be started for it first."""
    after = prompt_kept(state, event, body)
    if not body.starts:
        return after
    beneath = phase.step(state.beneath, _prompt_input(state, body.new_task))
    now = shown(state, event, state.gates, beneath)
    return replace(after, error=None, last_active_at=event.at, beneath=beneath, phase=now)


@on(ev.PromptQueued, to=(AT_REST,))
def prompt_kept(state: State, event: Event, body: ev.PromptQueued) -> State:
    name = body.message_id or f"e{event.index}"
    item = queue.Waiting(name, body.text, "prompt", "queued", event.at, body.images, new_task=body.new_task)
    return replace(state, queue=queue.added(state.queue, item))


@on(ev.PromptEdited, to=(MOVES, AT_REST))
def prompt_edited(state: State, _event: Event, body: ev.PromptEdited) -> State:
    return replace(state, queue=queue.edited(state.queue, body.message_id, body.text))


@on(ev.PromptDropped, to=(MOVES, AT_REST))
def prompt_dropped(state: State, _event: Event, body: ev.PromptDropped) -> State:
    return replace(state, queue=queue.taken(state.queue, body.message_id, body.text))


@on(ev.PromptRejected, to=(MOVES, AT_REST))
def prompt_rejected(state: State, _event: Event, body: ev.PromptRejected) -> State:
    return replace(state, queue=queue.without(state.queue, (body.message_id,)))


@on(ev.DeliveryChanged, to=(MOVES, AT_REST))
def delivery_changed(state: State, _event: Event, body: ev.DeliveryChanged) -> State:
    return replace(state, queue=queue.receipted(state.queue, body.message_id, body.status))


@on(ev.SteeringReceived)
def steering_received(state: State, event: Event, body: ev.SteeringReceived) -> State:
    if body.status != "queued":
        # refused, or taken as a prompt: it waits no longer, if it did
        return replace(state, queue=queue.without(state.queue, (body.ref,))) if state.queue else state
    item = queue.Waiting(body.ref, body.text, "steer", "queued", body.queued_at or event.at, body.images)
    return replace(state, queue=queue.added(state.queue, item), last_active_at=event.at)


@on(ev.SteeringApplied)
def steering_applied(state: State, _event: Event, body: ev.SteeringApplied) -> State:
    return replace(state, queue=queue.without(state.queue, body.refs))


@on(ev.AgentStart)
def agent_start(state: State, event: Event, body: ev.AgentStart) -> State:
    """A turn that starts is a request to come, so the phase shows it at once."""
    gates = state.gates
    if gates.open or gates.stale:
        gates = gate.closed_where(gate.without_stale(gates), of_main, "answered_elsewhere", event.at)
    beneath = phase.requested(state.beneath)
    return replace(
        state,
        run=moved(run.MACHINE, state.run, event),
        turn=Turn(body.turn_id or f"t{event.index}", event.at),
        gates=gates,
        usage=usage.next_turn(state.usage),
        error=None,
        last_active_at=event.at,
        beneath=beneath,
        phase=shown(state, event, gates, beneath),
    )


def _turn_closed(state: State, event: Event, gates: Gates, settled_index: int, beneath: Phase) -> State:
    return replace(
        state,
        run=moved(run.MACHINE, state.run, event),
        turn=NO_TURN,
        gates=gates,
        last_active_at=event.at,
        settled_index=settled_index,
        beneath=beneath,
        phase=shown(state, event, gates, beneath),
    )


@on(ev.AgentEnd)
def agent_end(state: State, event: Event, body: ev.AgentEnd) -> State:
    gates = turn_gates_closed(state, event, "answered_elsewhere") if state.gates.open else state.gates
    if body.outcome == "completed":
        # the `say` that comes before this ask in 000 leads to the same phase
        beneath = phase.step(state.beneath, "ask:completion_result")
    else:
        # turn_failed said which failure it was; without it the spinner must still end
        beneath = phase.step(state.beneath, "ask:api_req_failed")
    return _turn_closed(state, event, gates, event.index, beneath)


@on(ev.AgentAbort)
def agent_abort(state: State, event: Event, _body: ev.AgentAbort) -> State:
    gates = turn_gates_closed(state, event, "withdrawn")
    return _turn_closed(state, event, gates, state.settled_index, phase.step(state.beneath, "cancel_session"))


@on(ev.AgentResumed)
def agent_resumed(state: State, event: Event, _body: ev.AgentResumed) -> State:
    after = moved(run.MACHINE, state.run, event, in_turn(state.turn))
    return state if after is state.run else replace(state, run=after)


@on(ev.TurnContinued)
def turn_continued(state: State, event: Event, _body: ev.TurnContinued) -> State:
    beneath = phase.step(state.beneath, "resume_session")
    return replace(state, last_active_at=event.at, beneath=beneath, phase=shown(state, event, state.gates, beneath))


@on(ev.TurnRetried)
def turn_retried(state: State, event: Event, _body: ev.TurnRetried) -> State:
    beneath = phase.step(state.beneath, "retry")
    phase_now = shown(state, event, state.gates, beneath)
    return replace(state, error=None, last_active_at=event.at, beneath=beneath, phase=phase_now)


@on(ev.TurnRestored)
def turn_restored(state: State, event: Event, body: ev.TurnRestored) -> State:
    beneath = phase.step(state.beneath, "ask:resume_completed_task" if body.finished else "ask:resume_task")
    return replace(state, beneath=beneath, phase=shown(state, event, state.gates, beneath))


@on(ev.TurnFailed)
def turn_failed(state: State, event: Event, body: ev.TurnFailed) -> State:
    gates = turn_gates_closed(state, event, "withdrawn")
    # before the first request there is nothing that 000 could call a failed request
    creating = state.beneath.value == "creating"
    ask = _FAILURE_ASKS.get(body.kind, "ask:api_req_failed")
    beneath = phase.step(state.beneath, "process_error" if creating else ask)
    if creating:
        # an ask all the same: nobody has answered it when the process then ends with 0
        beneath = replace(beneath, ask=ask)
    return replace(
        state,
        gates=gates,
        error=Failure(body.kind, body.message, body.resets_at),
        settled_index=event.index,
        last_active_at=event.at,
        beneath=beneath,
        phase=shown(state, event, gates, beneath),
    )


@on(ev.RequestStart)
def request_start(state: State, event: Event, body: ev.RequestStart) -> State:
    """The agent moved on: what it asked in this turn is answered, whoever answered it."""
    gates, profile = state.gates, state.profile
    if gates.open:
        gates = gate.closed_where(gates, of_main, "answered_elsewhere", event.at)
    if body.model and not profile.model:
        profile = replace(profile, model=body.model)
    beneath = phase.requested(state.beneath)
    return replace(
        state,
        run=moved(run.MACHINE, state.run, event, in_turn(state.turn)),
        gates=gates,
        profile=profile,
        beneath=beneath,
        phase=shown(state, event, gates, beneath),
    )


@on(ev.MessageStart, ev.ThinkingStart)
def message_start(state: State, event: Event, _body: Body) -> State:
    after = moved(run.MACHINE, state.run, event, reply_guard(state.turn, state.gates))
    return state if after is state.run else replace(state, run=after)


@on(ev.CompactStart)
def compact_start(state: State, event: Event, _body: ev.CompactStart) -> State:
    """A request of its own, over the whole conversation: as with any request, what was asked is answered."""
    answered = gates_settled(state, event, of_main, "answered_elsewhere")
    after = moved(run.MACHINE, state.run, event, in_turn(state.turn))
    return answered if after is state.run else replace(answered, run=after)


@on(ev.CompactEnd)
def compact_end(state: State, event: Event, _body: ev.CompactEnd) -> State:
    after = moved(run.MACHINE, state.run, event, resume_guard(state.turn, state.gates))
    return state if after is state.run else replace(state, run=after)


@on(ev.ResponseComplete)
def response_complete(state: State, _event: Event, body: ev.ResponseComplete) -> State:
    """What the session last said stands in the list."""
    for block in reversed(body.blocks):
        if block.kind == "text" and block.text.strip():
            return replace(state, last_text=block.text[-LAST_TEXT_LENGTH:])
    return state
