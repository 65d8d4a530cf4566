"""What a plugin may know and use while one of its hooks is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.engine.conversation import messages_of
from quarterdeck.engine.model import Finished, Message, Request, Text, TextPiece
from quarterdeck.engine.tools.base import Tool
from quarterdeck.events import Body, Json

if TYPE_CHECKING:
    from quarterdeck.engine.runtime import Core
    from quarterdeck.engine.turn import Turn


class PluginContext:
    """One for every time that plugins are asked."""

    __slots__ = ("_core", "_turn")

    def __init__(self, core: Core, turn: Turn | None) -> None:
        self._core = core
        self._turn = turn

    @property
    def session_id(self) -> str:
        return self._core.session_id

    @property
    def turn_id(self) -> str:
        return self._turn.turn_id if self._turn is not None else ""

    @property
    def agent_path(self) -> tuple[str, ...]:
        return self._turn.path if self._turn is not None else ()

    @property
    def cwd(self) -> Path:
        return self._core.options.cwd

    @property
    def model(self) -> str:
        return self._turn.model_name if self._turn is not None else self._core.model_name

    @property
    def mode(self) -> str:
        return self._core.mode

    @property
    def user_data(self) -> Json:
        return self._core.options.user_data

    @property
    def messages(self) -> Sequence[Message]:
        return messages_of(self._core.journal.conversations[self.agent_path])

    @property
    def store(self) -> Path:
        return self._core.store

    @property
    def events(self) -> int:
        return self._core.journal.index

    def emit(self, event: Body) -> None:
        payload: Any = event.payload if isinstance(event, ev.PluginEvent) else None
        if isinstance(payload, dict) and self.user_data is not None:
            event = replace(event, payload={**cast("dict[str, Any]", payload), "user_data": self.user_data})
        self.say(event)

    def say(self, body: Body) -> None:
        """With the turn and the agent that it belongs to, unless the plugin said another."""
        if self._turn is not None and body.turn_id is None:
            body = replace(body, turn_id=self._turn.turn_id, agent_path=body.agent_path or self._turn.path)
        self._core.journal.write((body,))

    async def ask_model(self, prompt: str, system: str = "", model: str = "") -> str:
        core = self._core
        adapter, name, full = core.model, core.own_model_name, core.model_name
        if model and model != full:
            (adapter, name), full = core.resolved(model, core.provider_opts), model
        request = Request(model=name, messages=(Message("user", (Text(prompt),)),), system=system)
        pieces: list[str] = []
        async for chunks in adapter.stream(request):
            for chunk in chunks:
                if isinstance(chunk, TextPiece):
                    pieces.append(chunk.text)
                elif isinstance(chunk, Finished) and chunk.usage is not None:
                    core.count(chunk.usage, full, self._turn)
        return "".join(pieces)

    def tool_needs_approval(self, name: str) -> bool:
        tool = self._tool(name)
        return tool is not None and tool.needs_approval

    def tool_writes(self, name: str) -> bool:
        tool = self._tool(name)
        return tool is None or tool.writes

    def _tool(self, name: str) -> Tool | None:
        """Of the agent that works now: a sub-agent may have tools of its own."""
        return (self._core.tools if self._turn is None else self._turn.tools).get(name)

    async def checkpoint(self) -> str:
        return await self._core.checkpoint()
