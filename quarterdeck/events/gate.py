"""What a human is asked, and how it was decided. Each question is decided once."""

from __future__ import annotations

from typing import Literal, TypeAlias

from quarterdeck.events.base import Body, GateRequest, Json, Option, Question

GateStatus: TypeAlias = Literal[
    "approved", "rejected", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"
]


class ApprovalRequired(Body):
    """A call waits for a person's yes or no."""

    gate: GateRequest


class ApprovalResolved(Body):
    """An approval is decided. `by` says who or what decided, `rule` which rule if one did."""

    status: GateStatus
    gate_id: str = ""
    ref: str = ""
    by: str = ""
    rule: str = ""
    reason: str = ""
    gate: GateRequest | None = None


class ToolApprovedAlways(Body):
    """From here on calls of this family are not asked about."""

    tool: str
    command_family: str = ""
    scope: Literal["session", "repo", "user"] = "session"
    rule: str = ""


class RuleRemoved(Body):
    """A rule of this session, as `tool_approved_always` told its text, decides nothing any more."""

    rule: str


class AskUser(Body):
    """The agent asks a question. Several at once stand in `questions`."""

    question: str
    ref: str = ""
    options: tuple[Option, ...] = ()
    gate_id: str = ""
    questions: tuple[Question, ...] = ()
    call_id: str = ""
    deadline: int | None = None


class UserResponded(Body):
    """A question is answered, or closed without an answer (then `status` says how)."""

    response: Json = None
    ref: str = ""
    gate_id: str = ""
    message_id: str = ""
    by: str = ""
    status: Literal["answered", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"] = "answered"


class DialogRequired(Body):
    """An extension or the agent's own interface wants a choice, a confirmation or a text."""

    method: Literal["select", "confirm", "input", "editor"]
    title: str = ""
    ref: str = ""
    message: str = ""
    options: tuple[Option, ...] = ()
    gate_id: str = ""
    deadline: int | None = None
    prefill: str = ""


class DialogResolved(Body):
    """A dialog is closed: with a value, or dismissed."""

    value: Json = None
    ref: str = ""
    gate_id: str = ""
    by: str = ""
    status: Literal["answered", "cancelled", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"] = (
        "answered"
    )
