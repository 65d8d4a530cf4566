"""Tool calls: announced, run, ended, or kept from running; and the user's own shell commands."""

from __future__ import annotations

from typing import Literal

from quarterdeck.events.base import Body, Image, Json


class ToolCalls(Body):
    """The reply asks for this many tools."""

    count: int


class ToolCall(Body):
    """A call is announced; its arguments may still be streaming."""

    name: str
    call_id: str
    args: Json = None
    partial: bool = False
    message_id: str = ""
    block: int = 0


class ToolExecutionStart(Body):
    """A call runs."""

    name: str
    call_id: str
    args: Json = None


class ToolExecutionOutput(Body):
    """More output of a running call. May be dropped once the end restates it."""

    call_id: str
    delta: str
    stream: Literal["stdout", "stderr"] = "stdout"


class ToolExecutionEnd(Body):
    """A call ended. The result is whole; past the big-result limit `path` names the stored file. `told`: what the model is
    told, where that is not the result."""

    name: str
    call_id: str
    ok: bool = True
    result: Json = None
    path: str = ""
    told: str = ""
    images: tuple[Image, ...] = ()


class ToolExecutionMetrics(Body):
    """How long a call took."""

    name: str
    call_id: str
    started_at_ms: int
    ended_at_ms: int | None = None
    duration_ms: int | None = None


class ToolBlocked(Body):
    """A plugin or a rule kept the call from running."""

    name: str
    call_id: str
    reason: str = ""


class ToolKilled(Body):
    """An abort ended the call."""

    name: str
    call_id: str
    reason: str = ""


class ToolSkippedForSteering(Body):
    """The call gave way to a steering text."""

    name: str
    call_id: str
    reason: str = ""


class ToolCallUnknown(Body):
    """The model called a tool that is not there any more."""

    name: str
    call_id: str


class ToolAttached(Body):
    """A tool was added at run time."""

    name: str


class ToolDetached(Body):
    """A tool was taken away at run time."""

    name: str


class ToolsUpdated(Body):
    """Several tools changed in one step."""

    attached: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()


class LoopDetected(Body):
    """The same calls, or the same file, again and again. `loop` is 001's type."""

    loop: Literal["repeat_pattern", "file_loop_warn", "file_loop_abort"]
    detail: Json = None


class LargeResultOffloaded(Body):
    """A result too big for the conversation was stored whole at `path`."""

    tool: str
    call_id: str
    path: str
    bytes: int


class BashStart(Body):
    """The user's own shell command runs."""

    bash_id: str
    command: str


class BashOutput(Body):
    """More output of the user's command. May be dropped once the end restates it."""

    bash_id: str
    delta: str


class BashEnd(Body):
    """The user's command ended; its whole output. No exit code: it was ended from outside."""

    bash_id: str
    exit_code: int | None = None
    output: str = ""
    command: str = ""
