"""Read the fields that hooks of Claude Code and Codex share, and write a decision as the answer to a hook.

A hook that only reports is answered with an empty object at once. One that asks (PermissionRequest) may be answered with a
decision. An empty object leaves the decision to the dialog in the terminal.
"""

from __future__ import annotations

from typing import cast

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.driver import Decision

#: The agents whose hooks are read.
AGENTS = ("claude", "codex")
#: The answer to a hook that only reports.
NO_ANSWER: Object = {}
_ASKING_EVENT = "PermissionRequest"
_QUESTION_TOOL = "AskUserQuestion"


def is_question(payload: Object) -> bool:
    """Return whether a hook is about a question of the agent. Another hook may have reported the question before."""
    return text_of(payload, "tool_name") == _QUESTION_TOOL


def awaits_decision(payload: Object) -> bool:
    """Return whether the answer to a hook may contain a decision."""
    return text_of(payload, "hook_event_name") == _ASKING_EVENT


def encode_decision(agent: str, payload: Object, decision: Decision) -> Object:
    """Return a decision as the answer to a hook. Only Claude Code can also end the turn on request."""
    if decision.status == "approved":
        answer: Object = {"behavior": "allow"}
    elif decision.status == "answered":
        args = object_of(payload, "tool_input")
        answer = {"behavior": "allow", "updatedInput": {**args, "answers": _answers(args, decision.answer)}}
    else:
        answer = {"behavior": "deny", "message": decision.reason or "The user said no."}
        if decision.stops and agent == "claude":
            answer["interrupt"] = True
    return {"hookSpecificOutput": {"hookEventName": _ASKING_EVENT, "decision": answer}}


def _answers(args: Object, response: Json) -> Object:
    """Return the answer to each question of a call: a text, or several options separated by commas."""
    questions = [text_of(object_of(question), "question") for question in list_of(args, "questions")]
    if isinstance(response, dict):
        return {question: _answer_text(response[question]) for question in questions if question in response}
    if len(questions) == 1:
        return {questions[0]: _answer_text(response)}
    answers = cast("list[Json]", response) if isinstance(response, list) else [response]
    return {question: _answer_text(answer) for question, answer in zip(questions, answers)}


def _answer_text(answer: Json) -> str:
    if isinstance(answer, list):
        return ", ".join(_answer_text(item) for item in cast("list[Json]", answer))
    if answer is None:
        return ""
    return answer if isinstance(answer, str) else str(answer)


def reply_data(payload: Object, ref: str, answer: Object) -> Object:
    """Return the data of a `hook.reply` signal, which tells the translator our answer to the gate `ref`."""
    return {"event": text_of(payload, "hook_event_name"), "ref": ref, "answer": answer}


def disconnect_data(payload: Object, ref: str) -> Object:
    """Return the data of a `hook.disconnect` signal: the agent didn't wait for our answer to the gate `ref`."""
    return {"event": text_of(payload, "hook_event_name"), "ref": ref}
