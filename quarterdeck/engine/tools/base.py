"""Define tools: what one is, what it returns, and what the engine offers it while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.model import ToolSpec
from quarterdeck.events import Image, Json, Option, Todo


class Outcome(Struct, frozen=True):
    """The result of a tool call."""

    #: What the model reads.
    text: str
    ok: bool = True
    #: What the event records, if that isn't the text.
    value: Json = None
    images: tuple[Image, ...] = ()
    #: Name of the file with the whole result, if `text` is only a part of it.
    path: str = ""


class ToolContext(Protocol):
    """What a running call may use. The engine creates one for every call."""

    session_id: str
    turn_id: str
    call_id: str
    agent_path: tuple[str, ...]
    #: The working directory, resolved.
    cwd: Path
    #: Folders outside the working directory that may be used too.
    allowed_paths: Sequence[Path]
    environment: Mapping[str, str]
    #: "" or "bwrap".
    sandbox: str
    user_data: Json
    #: Folder for large results and other files of this session.
    store: Path

    def output(self, delta: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        """Report output while the call runs."""
        ...

    async def ask(self, question: str, options: Sequence[Option] = (), patience: float | None = 300) -> str:
        """Ask the user a question and return the answer.

        Raises:
            TimeoutError: there was no answer within `patience` seconds.
        """
        ...

    def set_todos(self, todos: Sequence[Todo]) -> None:
        """Replace the session's to-do list."""
        ...

    async def delegate(self, description: str, prompt: str, kind: str = "") -> Outcome:
        """Run a sub-agent and return its last text. If it crashes, return a failed outcome."""
        ...

    async def compact(self) -> int:
        """Request a compaction after the current batch of calls. Return how many messages it will replace at most."""
        ...

    async def read_elsewhere(self, path: str) -> bytes | None:
        """Return a result that was stored under this name, or None if there isn't one."""
        ...


Run = Callable[[dict[str, Any], ToolContext], Awaitable[Outcome]]


class Tool(Struct, frozen=True, kw_only=True):
    """One tool.

    Cancelling `run` must end everything it started, whole process trees included, before it returns. What `run` raises
    becomes a failed outcome and never crashes the agent.
    """

    spec: ToolSpec
    run: Run
    #: Steering messages and aborts cancel the call.
    killable: bool = True
    #: The call continues through steering messages and aborts.
    immune: bool = False
    #: Hint for plugins and modes that decide about approvals.
    needs_approval: bool = False
    #: Hint that the tool changes something.
    writes: bool = False
    #: Two calls of this tool in one batch may run at the same time.
    parallel: bool = True

    @property
    def name(self) -> str:
        return self.spec.name


def describe_kinds(tool: Tool, kinds: Mapping[str, str]) -> Tool:
    """Return the sub-agent tool with the available kinds of agent listed in its description.

    Args:
        tool: the tool that starts sub-agents
        kinds: the description of each kind, by name
    """
    lines = "".join(f"\n- {name}: {text}" if text else f"\n- {name}" for name, text in kinds.items())
    return replace(tool, spec=replace(tool.spec, description=f"{tool.spec.description}\n\nKinds of agent:{lines}"))
