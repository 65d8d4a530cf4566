"""Provide a tool context for tests that run tools without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.events import Json, Option, Todo


class TestHands:
    """A `ToolContext` that records what a tool does with it. Tests set the answers."""

    __test__ = False

    def __init__(self, cwd: Path, **attributes: Any) -> None:
        self.session_id = "s1"
        self.turn_id = "t1"
        self.call_id = "c1"
        self.agent_path: tuple[str, ...] = ()
        self.cwd = cwd.resolve()
        self.allowed_paths: Sequence[Path] = ()
        self.environment: Mapping[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        self.sandbox = ""
        self.user_data: Json = None
        self.store = cwd.resolve().parent / f"{cwd.name}-store"
        for name, value in attributes.items():
            setattr(self, name, value)
        self.outputs: list[tuple[str, str]] = []
        self.todos: list[Todo] | None = None
        self.asked: list[tuple[str, tuple[Option, ...], float | None]] = []
        self.answer: str | None = None
        self.delegated: list[tuple[str, str, str]] = []
        self.compacted = 0
        self.elsewhere: dict[str, bytes] = {}

    def output(self, delta: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        self.outputs.append((stream, delta))

    def said(self, stream: str = "stdout") -> str:
        return "".join(delta for name, delta in self.outputs if name == stream)

    async def ask(self, question: str, options: Sequence[Option] = (), patience: float | None = 300) -> str:
        self.asked.append((question, tuple(options), patience))
        if self.answer is None:
            raise TimeoutError
        return self.answer

    def set_todos(self, todos: Sequence[Todo]) -> None:
        self.todos = list(todos)

    async def delegate(self, description: str, prompt: str, kind: str = "") -> Outcome:
        self.delegated.append((description, prompt, kind))
        return Outcome(f"did {description}")

    async def compact(self) -> int:
        self.compacted += 1
        return 12

    async def read_elsewhere(self, path: str) -> bytes | None:
        """Return what the test put into `elsewhere`, or a file of the store, as the engine does."""
        stored = self.store / path.lstrip("/")
        if path in self.elsewhere or not stored.is_file():
            return self.elsewhere.get(path)
        return stored.read_bytes()


def call(tool: Tool, hands: ToolContext, **args: Any) -> Outcome:
    """Run one call from a synchronous test."""
    return asyncio.run(called(tool, hands, **args))


async def called(tool: Tool, hands: ToolContext, **args: Any) -> Outcome:
    return await asyncio.wait_for(tool.run(args, hands), 60)
