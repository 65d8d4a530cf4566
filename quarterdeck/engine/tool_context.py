"""Implement `ToolContext`: what a running tool call can read and use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from quarterdeck import events as ev
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.events import Json, Option, Todo

if TYPE_CHECKING:
    from quarterdeck.engine.turn import Turn


class CallContext:
    """The `ToolContext` of one call. The protocol (engine/tools/base.py) documents its members."""

    def __init__(self, turn: Turn, call_id: str, name: str) -> None:
        self._turn = turn
        self.call_id = call_id
        self.name = name

    @property
    def session_id(self) -> str:
        return self._turn.runtime.session_id

    @property
    def turn_id(self) -> str:
        return self._turn.turn_id

    @property
    def agent_path(self) -> tuple[str, ...]:
        return self._turn.path

    @property
    def cwd(self) -> Path:
        return self._turn.runtime.options.cwd

    @property
    def allowed_paths(self) -> Sequence[Path]:
        return self._turn.runtime.options.allowed_paths

    @property
    def environment(self) -> Mapping[str, str]:
        environment = self._turn.runtime.options.environment
        return os.environ if environment is None else environment

    @property
    def sandbox(self) -> str:
        return self._turn.runtime.options.sandbox

    @property
    def user_data(self) -> Json:
        return self._turn.runtime.options.user_data

    @property
    def store(self) -> Path:
        return self._turn.runtime.store

    def output(self, delta: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        if delta:
            self._turn.record(ev.ToolExecutionOutput, call_id=self.call_id, delta=delta, stream=stream)

    async def ask(self, question: str, options: Sequence[Option] = (), patience: float | None = 300) -> str:
        approvals = self._turn.runtime.approvals
        return await approvals.ask(self._turn, self.call_id, question, tuple(options), patience)

    def set_todos(self, todos: Sequence[Todo]) -> None:
        self._turn.record(ev.TodoChange, todos=tuple(todos))

    async def delegate(self, description: str, prompt: str, kind: str = "") -> Outcome:
        # Imported here because subagent.py imports the turn, which imports this module.
        from quarterdeck.engine.subagent import run_subagent

        return await run_subagent(self._turn, self.call_id, description, prompt, kind)

    async def compact(self) -> int:
        return self._turn.request_compaction()

    async def read_elsewhere(self, path: str) -> bytes | None:
        """Read a file of the session's store. Paths that lead out of the store aren't read."""
        store = self.store.resolve()
        target = (store / path.lstrip("/")).resolve()
        if not target.is_relative_to(store):
            return None
        try:
            return await asyncio.to_thread(target.read_bytes)
        except OSError:
            return None
