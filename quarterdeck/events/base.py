"""Define the base class of event bodies and the values that bodies contain.

A body is a frozen struct whose `type` is its class name in snake case. Session, index, time and origin aren't part of
the body: they belong to the envelope (codec.py).

Bodies forbid unknown fields on purpose. A body written by a newer release fails in the fast decoder because of its
new field, and the codec then preserves its bytes instead of dropping the field silently.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, dataclass_transform

from msgspec import Struct, field

Origin: TypeAlias = Literal["engine", "hook", "stream", "otlp", "rpc", "process", "file", "user", "supervisor"]
#: Any JSON value. Tool arguments and results have the agent's own shape and are passed through uninterpreted.
Json: TypeAlias = Any

_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


def event_name(class_name: str) -> str:
    """Convert a class name to the event's name: `ToolExecutionStart` becomes `tool_execution_start`."""
    return _HUMP.sub("_", class_name).lower()


# Type checkers read a struct's options from its own class line only. The decorator on these two roots declares the
# options for all subclasses.


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A part of a body. If it has an unknown field, the codec preserves the bytes of the whole body."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Body(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag=event_name,
    gc=False,
):
    """One thing that happened. `agent_path` names the sub-agent it happened in, outermost first."""

    turn_id: str | None = None
    agent_path: tuple[str, ...] = ()


class Image(Value):
    """An image of a prompt: inline as base64 (`data`), or a file in the store (`path`)."""

    media_type: str
    data: str = ""
    path: str = ""


class Repo(Value):
    """The repository that a session works in."""

    root: str
    name: str
    branch: str = ""


class TokenUsage(Value):
    """Token counts in four buckets that never overlap, so their sum is the total for every provider."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost_usd: float | None = None

    @property
    def total_tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


class Block(Value):
    """One block of a message, numbered within its message."""

    block: int = 0
    kind: Literal["text", "thinking", "tool_call", "tool_result", "bash"] = "text"
    #: For a tool call: the raw arguments if they aren't a JSON object.
    text: str = ""
    #: The call that a tool call or a tool result belongs to.
    call_id: str = ""
    name: str = ""
    args: Json = None
    ok: bool = True
    exit_code: int | None = None
    images: tuple[Image, ...] = ()
    #: Opaque value that the provider requires back with a thinking block.
    signature: str = ""


class HistoryMessage(Value):
    """One message of an agent's own history, read when a session is resumed."""

    message_id: str
    role: Literal["user", "assistant", "tool", "system", "bash"]
    blocks: tuple[Block, ...] = ()


class Option(Value):
    """One answer that a gate offers."""

    id: str
    label: str = ""
    kind: str = ""


class Question(Value):
    """One of several questions that an agent asks at once."""

    text: str
    options: tuple[Option, ...] = ()
    multiple: bool = False
    header: str = ""


class GateRequest(Value):
    """A request for approval. `gate_id` is the deck's short id (g7), `ref` the agent's own request id."""

    gate_id: str = ""
    ref: str = ""
    tool: str = ""
    args: Json = None
    call_id: str = ""
    title: str = ""
    hint: str = ""
    ask: Literal["tool", "command", "browser", "mcp"] = "tool"
    options: tuple[Option, ...] = ()
    requested_at: int | None = None
    deadline: int | None = None
    #: What is allowed: the call itself, or access to `host` for a call that runs.
    purpose: Literal["call", "network"] = "call"
    host: str = ""


class Todo(Value):
    """One item of the agent's todo list."""

    id: str
    content: str
    status: Literal["pending", "in_progress", "completed", "cancelled"] = "pending"


class PlanStep(Value):
    """One step of a plan. The statuses are those of document 001."""

    description: str
    status: Literal["pending", "in_progress", "completed", "failed", "skipped"] = "pending"
    id: str = ""


class Plan(Value):
    """A checklist that the agent wrote before working."""

    steps: tuple[PlanStep, ...] = ()
    text: str = ""


def renamed(name: str, default: Any) -> Any:
    """Declare a field whose JSON name is a Python keyword."""
    return field(default=default, name=name)
