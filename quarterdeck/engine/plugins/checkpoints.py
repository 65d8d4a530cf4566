"""AutoCheckpoint: saves the work every so many turns, tool calls or events, and keeps the last few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.plugins.base import Context, InvalidOption, Plugin
from quarterdeck.events import Json


class _State(Struct, frozen=True, omit_defaults=True):
    """Counted since the last one, and the ones that are kept, oldest first."""

    turns: int = 0
    tools: int = 0
    #: How many events there were at the last one.
    events: int = 0
    saved: tuple[str, ...] = ()


class AutoCheckpoint(Plugin):
    """A checkpoint after each `turns` turns, `tools` calls or `events` events, whichever comes first; 0 does not count.
    The last `keep` are kept."""

    name = "auto_checkpoint"
    priority = 1_000

    def __init__(self, *, turns: int = 1, tools: int = 0, events: int = 0, keep: int = 5) -> None:
        if min(turns, tools, events) < 0 or not (turns or tools or events):
            raise InvalidOption(self.name, "turns", "nothing is counted", "Give turns, tools or events above 0.")
        if keep < 1:
            raise InvalidOption(self.name, "keep", "at least one is kept")
        self.turns, self.tools, self.events = turns, tools, events
        self.keep = keep
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    async def after_tool_batch(self, results: Sequence[object], context: Context) -> None:
        self.state = replace(self.state, tools=self.state.tools + len(results))
        await self._save_if_due(context)

    async def after_turn(self, payload: Json, context: Context) -> None:
        if context.agent_path:  # a sub-agent's turn is a call of its parent
            return
        self.state = replace(self.state, turns=self.state.turns + 1)
        await self._save_if_due(context)

    async def _save_if_due(self, context: Context) -> None:
        counted = (self.state.turns, self.state.tools, context.events - self.state.events)
        if not any(limit and count >= limit for count, limit in zip(counted, (self.turns, self.tools, self.events))):
            return
        saved = (*self.state.saved, await context.checkpoint())
        self.state = _State(events=context.events, saved=saved[-self.keep :])
        for old in saved[: -self.keep]:
            await context.drop_checkpoint(old)
