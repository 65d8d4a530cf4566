"""Work that outlives the turn: shells and sub-agents. While any is there, a finished turn is not finished work."""

from __future__ import annotations

from msgspec import Struct


class Task(Struct, frozen=True, gc=False):
    """One piece of work in the background."""

    kind: str
    id: str
    title: str
    since: int


Background = tuple[Task, ...]


def started(background: Background, task: Task) -> Background:
    """With this work; told again, it keeps the time at which it was first seen."""
    if any(one.id == task.id for one in background):
        return background
    return (*background, task)


def ended(background: Background, task_id: str) -> Background:
    """Without this work."""
    return tuple(one for one in background if one.id != task_id)
