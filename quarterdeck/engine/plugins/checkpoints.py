"""AutoCheckpoint: saves the work every so many turns, tool calls or events, and knows the last few by name.

A checkpoint is a name for a place in the session's log, after which everything up to there is on disk. Nothing has to be
cleared away when one is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.plugins.base import Context, InvalidPluginOption, Plugin
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
    The names of the last `keep` stand in its state. Without a log there is nothing to save, and a notice says so."""

    name = "auto_checkpoint"
    priority = 1_000

    def __init__(self, *, turns: int = 1, tools: int = 0, events: int = 0, keep: int = 5) -> None:
        if min(turns, tools, events) < 0 or not (turns or tools or events):
            raise InvalidPluginOption(self.name, "turns", "nothing is counted", "Give turns, tools or events above 0.")
        if keep < 1:
            raise InvalidPluginOption(self.name, "keep", "at least one is kept")
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
        name = await context.checkpoint()
        self.state = _State(events=context.events, saved=(*self.state.saved, name)[-self.keep :])
