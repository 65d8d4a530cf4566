"""Hooks that agents post to us: whose they are, which of them wait for a decision, and how one is told.

Claude Code and Codex share the shape. A hook that only tells is answered with an empty object at once. One that asks
(PermissionRequest) may be answered with a decision; an empty object leaves the decision to whoever else is asked, such
as the dialog on the terminal.
"""

from __future__ import annotations

from typing import cast

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, is_object, list_of, object_of, text_of
from quarterdeck.harness.driver import Decision

#: The agents whose hooks are read.
AGENTS = ("claude", "codex")
#: What an observing hook is answered with.
NO_ANSWER: Object = {}
_DECIDING = "PermissionRequest"
_QUESTION_TOOL = "AskUserQuestion"


def _text(payload: Json, name: str) -> str:
    found: Json = payload.get(name) if is_object(payload) else None
    return found if isinstance(found, str) else ""


def native_session(payload: Json) -> str:
    """The agent's own name for the conversation."""
    return _text(payload, "session_id")


def folder(payload: Json) -> str:
    """Where the agent works."""
    return _text(payload, "cwd")


def is_question(payload: Json) -> bool:
    """Whether it is about a question of the agent, which another hook may have told before."""
    return _text(payload, "tool_name") == _QUESTION_TOOL


def is_deciding(payload: Json) -> bool:
    """Whether somebody may decide by answering."""
    return _text(payload, "hook_event_name") == _DECIDING


def answer(agent: str, payload: Json, decision: Decision) -> Object:
    """A decision as the answer of the hook. One that was stopped here ends the turn where the agent can be told so."""
    if decision.status == "approved":
        told: Object = {"behavior": "allow"}
    elif decision.status == "answered":
        args = object_of(object_of(payload), "tool_input")
        told = {"behavior": "allow", "updatedInput": {**args, "answers": _answers(args, decision.answer)}}
    else:
        told = {"behavior": "deny", "message": decision.reason or "The user said no."}
        if decision.stops and agent == "claude":
            told["interrupt"] = True
    return {"hookSpecificOutput": {"hookEventName": _DECIDING, "decision": told}}


def _answers(args: Object, given: Json) -> Object:
    """Each question with its answer: a text, or several options with commas between."""
    questions = [text_of(object_of(one), "question") for one in list_of(args, "questions")]
    if isinstance(given, dict):
        return {text: _told(given[text]) for text in questions if text in given}
    if len(questions) == 1:
        return {questions[0]: _told(given)}
    each = cast("list[Json]", given) if isinstance(given, list) else [given]
    return {text: _told(one) for text, one in zip(questions, each)}


def _told(given: Json) -> str:
    if isinstance(given, list):
        return ", ".join(_told(one) for one in cast("list[Json]", given))
    return given if isinstance(given, str) else "" if given is None else str(given)


def replied(payload: Json, ref: str, answered: Object) -> Object:
    """What the translator is told of our answer to what it knows as `ref`."""
    return {"event": _text(payload, "hook_event_name"), "ref": ref, "answer": answered}


def hung_up(payload: Json, ref: str) -> Object:
    """What the translator is told when the agent did not wait for our answer."""
    return {"event": _text(payload, "hook_event_name"), "ref": ref}
