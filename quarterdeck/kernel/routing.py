"""Decide what a user's message means in the current state.

In this order: an archived or failed session refuses it. A suspended session is resumed first, if the agent can. An open
question takes it as its answer. A turn that is open or about to start takes it as steering, if the agent can steer and
the steering queue has room; else the message is queued. Otherwise it is a prompt. An explicit steer or queue command
skips this guessing, but not the refusal.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.kernel import lifecycle, queue
from quarterdeck.kernel.gate import Gate, ranked
from quarterdeck.kernel.phase import FLAGS
from quarterdeck.kernel.state import State

STEERING_LIMIT = 3
#: The capability of an agent that can read a message in the middle of a turn.
STEER = "steer"

Intent: TypeAlias = Literal["message", "steer", "queue"]
Meaning: TypeAlias = Literal["refused", "resume_then_prompt", "answer", "steer", "queue", "prompt"]


class Route(Struct, frozen=True, gc=False):
    """What a message means, and why. `gate_id` names the question that it answers."""

    meaning: Meaning
    reason: str = ""
    gate_id: str = ""


def route(state: State, intent: Intent = "message", limit: int = STEERING_LIMIT) -> Route:
    """Return what a message with this intent means in this state."""
    status = state.lifecycle.value
    if status != "active":
        return _route_inactive(state, status)
    question = open_question(state)
    if question is not None and intent == "message":
        return Route("answer", "Answers the question", question.id)
    if not is_busy(state):
        return Route("prompt")
    if intent == "queue":
        return Route("queue", "Read when the turn is over")
    return _route_busy(state, limit)


def is_busy(state: State) -> bool:
    """Return whether a turn is open, also if it is held, or about to start."""
    return state.turn.is_open or is_promised(state)


def is_promised(state: State) -> bool:
    """Return whether a turn is about to start: the agent is starting or loading, or hasn't read the message yet."""
    return not state.turn.is_open and state.base_phase.value in FLAGS["showSpinner"]


def open_question(state: State) -> Gate | None:
    """Return the question that a message would answer: the oldest of the main agent, else of a sub-agent."""
    questions = [gate for gate in ranked(state.gates) if gate.kind == "question"]
    return min(questions, key=lambda gate: bool(gate.path), default=None)


def is_held(state: State) -> bool:
    """Return whether the turn is held: a call of it waits for a decision, and nothing of it runs."""
    return state.turn.is_open and state.run.value == "idle" and bool(state.gates.open)


def _route_inactive(state: State, status: str) -> Route:
    if status == "suspended" and state.profile.can_resume:
        return Route("resume_then_prompt", "Resumes and sends")
    reason = lifecycle.HINTS.get(status, "There is no such session")
    if status == "suspended":
        reason = "This session cannot be resumed; continue in a new one"
    return Route("refused", reason)


def _route_busy(state: State, limit: int) -> Route:
    if is_held(state):
        return Route("queue", "Read when the approval is decided and the turn is over")
    if STEER not in state.profile.capabilities:
        return Route("queue", "Read when the turn is over")
    if queue.steering_count(state.queue) >= limit:
        return Route("queue", "Steering queue is full; read when the turn is over")
    return Route("steer", "Read at the next step")
