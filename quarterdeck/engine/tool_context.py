"""The hands that the engine lends to a call while it runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from quarterdeck import events as ev
from quarterdeck.engine.decisions import ask
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.events import Json, Option, Todo

if TYPE_CHECKING:
    from quarterdeck.engine.turn import Turn


class CallContext:
    """One for every call."""

    __slots__ = ("_turn", "call_id", "name")

    def __init__(self, turn: Turn, call_id: str, name: str) -> None:
        self._turn = turn
        self.call_id = call_id
        self.name = name

    @property
    def session_id(self) -> str:
        return self._turn.core.session_id

    @property
    def turn_id(self) -> str:
        return self._turn.turn_id

    @property
    def agent_path(self) -> tuple[str, ...]:
        return self._turn.path

    @property
    def cwd(self) -> Path:
        return self._turn.core.options.cwd

    @property
    def allowed_paths(self) -> Sequence[Path]:
        return self._turn.core.options.allowed_paths

    @property
    def environment(self) -> Mapping[str, str]:
        given = self._turn.core.options.environment
        return os.environ if given is None else given

    @property
    def sandbox(self) -> str:
        return self._turn.core.options.sandbox

    @property
    def user_data(self) -> Json:
        return self._turn.core.options.user_data

    @property
    def store(self) -> Path:
        return self._turn.core.store

    def output(self, delta: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        if delta:
            self._turn.tell(ev.ToolExecutionOutput, call_id=self.call_id, delta=delta, stream=stream)

    async def ask(self, question: str, options: Sequence[Option] = (), patience: float | None = 300) -> str:
        return await ask(self._turn.core, self._turn, self.call_id, question, tuple(options), patience)

    def set_todos(self, todos: Sequence[Todo]) -> None:
        self._turn.tell(ev.TodoChange, todos=tuple(todos))

    async def delegate(self, description: str, prompt: str, kind: str = "") -> Outcome:
        from quarterdeck.engine.subagent import delegated

        return await delegated(self._turn, self.call_id, description, prompt, kind)

    async def compact(self) -> int:
        return self._turn.want_compaction()

    async def read_elsewhere(self, path: str) -> bytes | None:
        """Only what lies in the store of this session."""
        store = self.store.resolve()
        wanted = (store / path.lstrip("/")).resolve()
        if not wanted.is_relative_to(store):
            return None
        try:
            return await asyncio.to_thread(wanted.read_bytes)
        except OSError:
            return None
