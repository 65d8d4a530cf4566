"""Hooks that agents post to us: whose they are, which of them wait for a decision, and how one is told.

Claude Code and Codex share the shape. A hook that only tells is answered with an empty object at once. One that asks
(PermissionRequest) may be answered with a decision; an empty object leaves the decision to whoever else is asked, such
as the dialog on the terminal.
"""

from __future__ import annotations

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, object_of, text_of
from quarterdeck.harness.drive import Decision

#: The agents whose hooks are read.
AGENTS = ("claude", "codex")
#: What an observing hook is answered with.
NO_ANSWER: Object = {}
_DECIDING = "PermissionRequest"


def native_session(payload: Json) -> str:
    """The agent's own name for the conversation."""
    return text_of(object_of(payload), "session_id")


def folder(payload: Json) -> str:
    """Where the agent works."""
    return text_of(object_of(payload), "cwd")


def is_deciding(payload: Json) -> bool:
    """Whether somebody may decide by answering."""
    return text_of(object_of(payload), "hook_event_name") == _DECIDING


def answer(decision: Decision) -> Object:
    """A decision as the answer of the hook."""
    if decision.status == "approved":
        told: Object = {"behavior": "allow"}
    elif decision.status == "rejected":
        told = {"behavior": "deny", "message": decision.reason or "The user said no."}
    else:
        return NO_ANSWER
    return {"hookSpecificOutput": {"hookEventName": _DECIDING, "decision": told}}


def replied(payload: Json, ref: str, answered: Object) -> Object:
    """What the translator is told of our answer to what it knows as `ref`."""
    return {"event": text_of(object_of(payload), "hook_event_name"), "ref": ref, "answer": answered}


def hung_up(payload: Json, ref: str) -> Object:
    """What the translator is told when the agent did not wait for our answer."""
    return {"event": text_of(object_of(payload), "hook_event_name"), "ref": ref}
