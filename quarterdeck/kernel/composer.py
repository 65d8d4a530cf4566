"""What the text field does: enabled, what Enter means, and the line above it that says so.

Only an archived or a failed session has it disabled. To an agent on somebody's terminal nothing is sent: a text can answer
what it asks, and else goes on in a new session, as in one that cannot be resumed. 000's own flag `inputEnabled` is another
matter and stays as 000 wrote it; this is what a person may type, which is nearly always.
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
    """`action` is what Enter does; `reason` is the line that says it."""

    enabled: bool
    action: Action
    reason: str


def composer(state: State) -> Composer:
    """The text field of this state."""
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
