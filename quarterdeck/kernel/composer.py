"""Decide what the text field does: whether it is enabled, what Enter does, and the line above it that says so.

Only an archived or failed session has it disabled. An agent in a user's terminal can't be sent a prompt: a text either
answers its open question, or starts a new session, as it does in a session that can't be resumed.

000's flag `inputEnabled` is something else and stays as 000 defines it. The composer says what a user may type, which is
nearly always something.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.kernel import lifecycle
from quarterdeck.kernel.routing import route
from quarterdeck.kernel.state import State

Action: TypeAlias = Literal["prompt", "steer", "queue", "answer", "resume_and_send", "retry_with"]

_BY_PHASE: dict[str, tuple[Action, str]] = {
    "paused": ("resume_and_send", "Resumes and sends"),
    "stopped": ("resume_and_send", "Resumes and sends"),
    "error": ("retry_with", "Tries again with this text"),
}


class Composer(Struct, frozen=True, gc=False):
    """The text field. `action` is what Enter does, `reason` the line that says so."""

    enabled: bool
    action: Action
    reason: str


def composer(state: State) -> Composer:
    """Return the text field for this state."""
    status = state.lifecycle.value
    if status in ("archived", "error"):
        return Composer(False, "prompt", lifecycle.HINTS[status])
    way = route(state)
    if state.profile.owner == "terminal" and way.meaning != "answer":
        return Composer(True, "prompt", "Runs in a terminal; continues in a new session with this text")
    if way.meaning == "resume_then_prompt":
        return Composer(True, "resume_and_send", way.reason)
    if way.meaning in ("answer", "steer", "queue"):
        return Composer(True, way.meaning, way.reason)
    if way.meaning == "refused":
        return Composer(True, "prompt", "Continues in a new session with this text")
    action, reason = _BY_PHASE.get(state.phase.value, ("prompt", ""))
    return Composer(True, action, reason)
