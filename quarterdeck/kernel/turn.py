"""Track the open turn, its running calls, and background work that outlives the turn.

A turn is open from agent_start until the one event that closes it. Background work (shells and sub-agents) may continue
after that: while there is any, a finished turn doesn't mean finished work.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from quarterdeck.events import Json
from quarterdeck.kernel.timeline import json_text

#: The arguments in which tools name their target, in the order in which they are tried.
_TARGET_KEYS = ("file_path", "path", "command", "cmd", "pattern", "query", "url", "description", "prompt", "name")
_TARGET_LENGTH = 200


# ---------------------------------------------------------------------------------------- turn and calls


class Call(Struct, frozen=True, gc=False):
    """A running call."""

    id: str
    name: str
    target: str
    since: int


class Turn(Struct, frozen=True, gc=False):
    """The open turn. `id` is empty if no turn is open."""

    id: str = ""
    since: int = 0
    calls: tuple[Call, ...] = ()

    @property
    def is_open(self) -> bool:
        return bool(self.id)


NO_TURN = Turn()


def with_call(turn: Turn, call_id: str, name: str, args: Json, at: int) -> Turn:
    """Add a running call. A call with the same id is replaced."""
    others = tuple(call for call in turn.calls if call.id != call_id)
    return Turn(turn.id, turn.since, (*others, Call(call_id, name, target_of(args), at)))


def without_call(turn: Turn, call_id: str) -> Turn:
    """Remove a call. Return the same object if it doesn't run."""
    others = tuple(call for call in turn.calls if call.id != call_id)
    return turn if len(others) == len(turn.calls) else Turn(turn.id, turn.since, others)


def target_of(args: Json) -> str:
    """Return what a call works on, in one line: a path, a command or a pattern."""
    if not isinstance(args, dict):
        return ""
    arguments = cast("dict[str, Any]", args)
    for key in _TARGET_KEYS:
        value = arguments.get(key)
        if value is not None:
            parts = cast("list[Any]", value) if isinstance(value, list) else [value]
            return " ".join(part if isinstance(part, str) else json_text(part) for part in parts)[:_TARGET_LENGTH]
    return ""


# ---------------------------------------------------------------------------------------- background work


class Task(Struct, frozen=True, gc=False):
    """One piece of background work."""

    kind: str
    id: str
    title: str
    since: int


Background = tuple[Task, ...]


def with_task(background: Background, task: Task) -> Background:
    """Add background work. If its id is present already, the earlier start time stays."""
    return background if any(other.id == task.id for other in background) else (*background, task)


def without_task(background: Background, task_id: str) -> Background:
    """Remove background work."""
    return tuple(task for task in background if task.id != task_id)
