"""AutoCheckpoint: save a checkpoint every few turns, tool calls or events.

A checkpoint is an id for a point in the session's log; everything before it is on disk. Forgetting one needs no cleanup.
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
    #: Turns since the last checkpoint.
    turns: int = 0
    #: Tool calls since the last checkpoint.
    tools: int = 0
    #: Number of events in the session at the last checkpoint.
    events: int = 0
    #: Ids of the last checkpoints, oldest first.
    saved: tuple[str, ...] = ()


class AutoCheckpoint(Plugin):
    """Save a checkpoint after `turns` turns, `tools` calls or `events` events, whichever comes first. 0 disables a count.

    The ids of the last `keep` checkpoints are in the plugin's state. Without a log nothing can be saved, and a notice
    says so.
    """

    name = "auto_checkpoint"
    priority = 1_000

    def __init__(self, *, turns: int = 1, tools: int = 0, events: int = 0, keep: int = 5) -> None:
        if min(turns, tools, events) < 0 or not (turns or tools or events):
            raise InvalidPluginOption(self.name, "turns", "no count is set", "Set turns, tools or events to 1 or more.")
        if keep < 1:
            raise InvalidPluginOption(self.name, "keep", "it must be 1 or more")
        self.turns, self.tools, self.events = turns, tools, events
        self.keep = keep
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    async def after_tool_batch(self, results: Sequence[object], context: Context) -> None:
        self.state = replace(self.state, tools=self.state.tools + len(results))
        await self._save_if_due(context)

    async def after_turn(self, payload: Json, context: Context) -> None:
        if context.agent_path:
            # The turn of a sub-agent is one tool call of its parent.
            return
        self.state = replace(self.state, turns=self.state.turns + 1)
        await self._save_if_due(context)

    async def _save_if_due(self, context: Context) -> None:
        counts = (self.state.turns, self.state.tools, context.events - self.state.events)
        limits = (self.turns, self.tools, self.events)
        if any(limit and count >= limit for count, limit in zip(counts, limits)):
            checkpoint_id = await context.checkpoint()
            self.state = _State(events=context.events, saved=(*self.state.saved, checkpoint_id)[-self.keep :])
