"""What every event body shares, and the values that bodies are made of.

A body is a frozen struct whose `type` is its class name in snake case. It knows nothing of where it is stored:
session, index, time and origin belong to the envelope (codec.py). Fields that a newer version adds make the fast
decoder refuse the body, and the codec then keeps the bytes as they came; so bodies forbid unknown fields on purpose.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, dataclass_transform

from msgspec import Struct, field

Origin: TypeAlias = Literal["engine", "hook", "stream", "otlp", "rpc", "process", "file", "user", "supervisor"]
#: Any JSON value. Tool arguments and results are the agent's own and are carried, not interpreted.
Json: TypeAlias = Any

# Checkers take a struct's options from its own class line only, so the two roots say them once for all below.

_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


def event_name(class_name: str) -> str:
    """`ToolExecutionStart` is called `tool_execution_start` in the log."""
    return _HUMP.sub("_", class_name).lower()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A part of a body. An unknown field in it makes the codec keep the bytes of the whole body."""


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
    """An image of a prompt: inline (base64) or a file that the store keeps."""

    media_type: str
    data: str = ""
    path: str = ""


class Repo(Value):
    """The repository that a session works in."""

    root: str
    name: str
    branch: str = ""


class TokenUsage(Value):
    """Four buckets that never overlap, so their sum is the total whatever the provider's own way of counting."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost_usd: float | None = None

    @property
    def total_tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


class Block(Value):
    """One part of a message, numbered in its message. A tool call or result names its call.

    `signature` is what the provider wants back with a block of reasoning. The `text` of a tool call holds arguments that
    are no JSON object, as they came.
    """

    block: int = 0
    kind: Literal["text", "thinking", "tool_call", "tool_result", "bash"] = "text"
    text: str = ""
    call_id: str = ""
    name: str = ""
    args: Json = None
    ok: bool = True
    exit_code: int | None = None
    images: tuple[Image, ...] = ()
    signature: str = ""


class HistoryMessage(Value):
    """One message of an agent's own history, as read back when a session is resumed."""

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
    """What a human is asked to allow. `gate_id` is the deck's short name (g7), `ref` the agent's own request id."""

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


class Todo(Value):
    """One line of the agent's own list."""

    id: str
    content: str
    status: Literal["pending", "in_progress", "completed", "cancelled"] = "pending"


class PlanStep(Value):
    """One step of a plan; the states are 001's."""

    description: str
    status: Literal["pending", "in_progress", "completed", "failed", "skipped"] = "pending"
    id: str = ""


class Plan(Value):
    """A checklist that the agent made before it worked."""

    steps: tuple[PlanStep, ...] = ()
    text: str = ""


def renamed(name: str, default: Any) -> Any:
    """A field whose JSON name is a Python keyword."""
    return field(default=default, name=name)
