"""What a message from a person means now.

In this order: an archived or failed session refuses it; a suspended one is resumed first, if the agent can; an open
question takes it as the answer; a busy or held run takes it as steering where the agent can and its queue has room, else
it waits in the queue; otherwise it is a prompt. An explicit steer or queue command skips the guessing, never the refusal.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.kernel import lifecycle, queue
from quarterdeck.kernel.gate import Gate, ranked
from quarterdeck.kernel.phase import FLAGS
from quarterdeck.kernel.state import State

STEERING_LIMIT = 3
#: An agent that can read a text in the middle of a turn declares this.
STEER = "steer"

Intent: TypeAlias = Literal["message", "steer", "queue"]
Meaning: TypeAlias = Literal["refused", "resume_then_prompt", "answer", "steer", "queue", "prompt"]


class Route(Struct, frozen=True, gc=False):
    """Where a text goes, and why; `gate_id` names the question that it answers."""

    meaning: Meaning
    reason: str = ""
    gate_id: str = ""


def route(state: State, intent: Intent = "message", limit: int = STEERING_LIMIT) -> Route:
    """The meaning of a text with this intent, in this state."""
    status = state.lifecycle.value
    if status != "active":
        return _outside(state, status)
    question = open_question(state)
    if question is not None and intent == "message":
        return Route("answer", "Answers the question", question.id)
    if not is_busy(state):
        return Route("prompt")
    if intent == "queue":
        return Route("queue", "Read when the turn is over")
    return _while_busy(state, limit)


def is_busy(state: State) -> bool:
    """A turn is open, also one that is held for an approval; or one is on its way: the session starts, or loads, for it."""
    return state.turn.is_open or is_promised(state)


def is_promised(state: State) -> bool:
    """The session is at work for a turn that has not begun: its agent starts, or loads, or has yet to read the text."""
    return not state.turn.is_open and state.beneath.value in FLAGS["showSpinner"]


def open_question(state: State) -> Gate | None:
    """The question that a typed text would answer: the oldest one of the main agent, else of a sub-agent."""
    questions = [gate for gate in ranked(state.gates) if gate.kind == "question"]
    return min(questions, key=lambda gate: bool(gate.path), default=None)


def is_held(state: State) -> bool:
    """The turn waits for an approval and nothing of it runs."""
    return state.turn.is_open and state.run.value == "idle" and bool(state.gates.open)


def _outside(state: State, status: str) -> Route:
    if status == "suspended" and state.profile.can_resume:
        return Route("resume_then_prompt", "Resumes and sends")
    reason = lifecycle.HINTS.get(status, "There is no such session")
    if status == "suspended":
        reason = "This session cannot be resumed; continue in a new one"
    return Route("refused", reason)


def _while_busy(state: State, limit: int) -> Route:
    if is_held(state):
        return Route("queue", "Read when the approval is decided and the turn is over")
    if STEER not in state.profile.capabilities:
        return Route("queue", "Read when the turn is over")
    if queue.steering(state.queue) >= limit:
        return Route("queue", "Steering queue is full; read when the turn is over")
    return Route("steer", "Read at the next step")
