"""Read an agent's todo list in the two forms that agents write: a checklist, and a list of objects."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from quarterdeck.events import Todo
from quarterdeck.harness.base import Object, is_object, text_of

Status: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]

_CHECKLIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])?\s*\[(.?)\]\s+(\S.*?)\s*$")
_STATUS_BY_MARK: dict[str, Status] = {"x": "completed", "X": "completed", "-": "in_progress", "~": "in_progress"}
_STATUS_BY_WORD: dict[str, Status] = {
    "completed": "completed",
    "complete": "completed",
    "done": "completed",
    "in_progress": "in_progress",
    "in-progress": "in_progress",
    "inprogress": "in_progress",
    "active": "in_progress",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "skipped": "cancelled",
}


def todos_in(value: Any) -> tuple[Todo, ...] | None:
    """Return the todo list that a value is: objects, JSON of objects, or a checklist. None if it is none of them."""
    if isinstance(value, str):
        return _todos_in_text(value)
    if not isinstance(value, list):
        return None
    items = [item for item in cast("list[Any]", value) if is_object(item)]
    return tuple(_todo(number, item) for number, item in enumerate(items, 1) if _content(item))


def _todos_in_text(text: str) -> tuple[Todo, ...] | None:
    if text.lstrip()[:1] == "[" and "{" in text:
        try:
            value: Any = msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return todos_in(value) if isinstance(value, list) else None
    matches = [match for line in text.splitlines() if (match := _CHECKLIST_ITEM.match(line))]
    todos = tuple(
        Todo(id=str(number), content=match.group(2), status=_STATUS_BY_MARK.get(match.group(1), "pending"))
        for number, match in enumerate(matches, 1)
    )
    return todos or None


def _content(item: Object) -> str:
    return text_of(item, "content", "text", "title", "step")


def _todo(number: int, item: Object) -> Todo:
    status = _STATUS_BY_WORD.get(text_of(item, "status").lower(), "pending")
    return Todo(id=text_of(item, "id") or str(number), content=_content(item), status=status)


class Progress(Struct, frozen=True, gc=False):
    """A todo list in numbers, without cancelled items."""

    total: int
    completed: int
    in_progress: int
    pending: int
    percent: int
    #: The first item in progress, else the first that is pending.
    current: str
    all_done: bool


def progress_of(todos: tuple[Todo, ...]) -> Progress:
    """Return how far a todo list is."""
    completed = [todo for todo in todos if todo.status == "completed"]
    in_progress = [todo for todo in todos if todo.status == "in_progress"]
    pending = [todo for todo in todos if todo.status == "pending"]
    total = len(completed) + len(in_progress) + len(pending)
    remaining = [*in_progress, *pending]
    return Progress(
        total=total,
        completed=len(completed),
        in_progress=len(in_progress),
        pending=len(pending),
        percent=100 * len(completed) // total if total else 0,
        current=remaining[0].content if remaining else "",
        all_done=total > 0 and not remaining,
    )
