"""A tool, and the context that the engine lends it while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.model import ToolSpec
from quarterdeck.events import Image, Json, Option, Todo


class Outcome(Struct, frozen=True):
    """What a call gave. `text` is what the model is told; `value` is what the event holds when it is not that text."""

    text: str
    ok: bool = True
    value: Json = None
    images: tuple[Image, ...] = ()
    #: Where the whole result lies when `text` is only a part of it.
    path: str = ""


class ToolContext(Protocol):
    """What a running call may use. One for every call; the engine implements it."""

    session_id: str
    turn_id: str
    call_id: str
    agent_path: tuple[str, ...]
    #: The working directory, resolved.
    cwd: Path
    #: Folders outside of it that may be used too.
    allowed_paths: Sequence[Path]
    environment: Mapping[str, str]
    #: "" or "bwrap"
    sandbox: str
    user_data: Json
    #: Where whole results and other files of this session may lie.
    store: Path

    def output(self, delta: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        """More output of the call, live."""
        ...

    async def ask(self, question: str, options: Sequence[Option] = (), patience: float | None = 300) -> str:
        """A person's answer; TimeoutError when nobody answered within this many seconds."""
        ...

    def set_todos(self, todos: Sequence[Todo]) -> None: ...

    async def delegate(self, description: str, prompt: str, kind: str = "") -> Outcome:
        """Has a sub-agent do it; its last text is the outcome. A crash of it is an outcome too."""
        ...

    async def compact(self) -> int:
        """Shortens the conversation when this batch is done; how many messages that will take at most."""
        ...

    async def read_elsewhere(self, path: str) -> bytes | None:
        """A whole result that was stored under this name, if there is one."""
        ...


Run = Callable[[dict[str, Any], ToolContext], Awaitable[Outcome]]


class Tool(Struct, frozen=True, kw_only=True):
    """One tool. Cancelling `run` must end everything that it started, whole process trees included, before it returns.

    `killable` gives way to steering and to an abort; `immune` runs on through both. `needs_approval` is for plugins and
    modes to look at; `writes` for those who want to know whether it changes anything. What `run` raises becomes a failed
    outcome, never a crash.
    """

    spec: ToolSpec
    run: Run
    killable: bool = True
    immune: bool = False
    needs_approval: bool = False
    writes: bool = False
    #: Two calls of this tool in one batch may run at the same time.
    parallel: bool = True

    @property
    def name(self) -> str:
        return self.spec.name


def naming_kinds(tool: Tool, kinds: Mapping[str, str]) -> Tool:
    """A tool that starts sub-agents, told to the model with the kinds that there are: name and description."""
    listed = "".join(f"\n- {name}: {text}" if text else f"\n- {name}" for name, text in kinds.items())
    return replace(tool, spec=replace(tool.spec, description=f"{tool.spec.description}\n\nKinds of agent:{listed}"))
