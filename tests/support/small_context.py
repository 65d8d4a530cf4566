"""Provide a plugin context for tests that call the hooks of plugins directly."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from quarterdeck.engine.model import Message, Text
from quarterdeck.engine.plugins.base import HOOKS, Answer, Emit, Plugin
from quarterdeck.events import Body, Json

WRITERS = ("write_file", "edit_file", "shell")


class SmallContext:
    """A plugin context with a model that returns scripted replies."""

    def __init__(self, folder: Path, mode: str = "", replies: Sequence[str | Exception] = ()) -> None:
        self.session_id = "s1"
        self.turn_id = "t1"
        self.agent_path: tuple[str, ...] = ()
        self.cwd = folder / "project"
        self.cwd.mkdir(exist_ok=True)
        self.model = "test:model"
        self.mode = mode
        self.user_data: Json = None
        self.messages: Sequence[Message] = ()
        self.store = folder / "store"
        self.events = 0
        self.emitted: list[Body] = []
        self.replies = list(replies)
        self.requests: list[tuple[str, str, str]] = []
        self.careful: set[str] = set()
        self.saved: list[str] = []
        self.checkpoint_count = 0

    def emit(self, event: Body) -> None:
        self.emitted.append(event)

    async def ask_model(self, prompt: str, system: str = "", model: str = "") -> str:
        self.requests.append((prompt, system, model))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def tool_needs_approval(self, name: str) -> bool:
        return name in self.careful

    def tool_writes(self, name: str) -> bool:
        return name in WRITERS

    async def checkpoint(self) -> str:
        self.checkpoint_count += 1
        self.saved.append(f"c{self.checkpoint_count}")
        return self.saved[-1]


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def ask(plugin: Plugin, hook: str, *args: Any) -> list[Answer]:
    """Call a hook and return its answers as a list. Fails if the hook doesn't allow one of them."""
    answer = getattr(plugin, hook)(*args)
    if inspect.isawaitable(answer):
        answer = asyncio.run(_awaited(answer))
    answers = [] if answer is None else list(answer) if isinstance(answer, list | tuple) else [answer]
    assert all(isinstance(item, (*HOOKS[hook], Message)) for item in answers)
    return answers


def events_of(answers: Sequence[Answer]) -> list[Body]:
    return [answer.event for answer in answers if isinstance(answer, Emit)]


def others_of(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if not isinstance(answer, Emit)]


def restarted(plugin: Plugin, fresh: Plugin) -> Plugin:
    """Restore the state of a plugin into a fresh one, encoded as in the log."""
    fresh.restore(msgspec.json.decode(msgspec.json.encode(plugin.state)))
    return fresh


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(text: str) -> Message:
    return Message("assistant", (Text(text),))
