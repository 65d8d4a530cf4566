"""An agent's own list of what is to do, in the two forms that agents write it in: a checklist, and a list of objects."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from quarterdeck.events import Todo
from quarterdeck.harness.base import Object, text_of

Status: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]

_LINE = re.compile(r"^\s*(?:[-*+]|\d+[.)])?\s*\[(.?)\]\s+(\S.*?)\s*$")
_BY_MARK: dict[str, Status] = {"x": "completed", "X": "completed", "-": "in_progress", "~": "in_progress"}
_BY_WORD: dict[str, Status] = {
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
    """The list that this value is: objects, JSON of objects, or a checklist. None when it is none of them."""
    if isinstance(value, str):
        return _from_text(value)
    if not isinstance(value, list):
        return None
    items = [cast(Object, item) for item in cast("list[Any]", value) if isinstance(item, dict)]
    return tuple(_todo(place, item) for place, item in enumerate(items, 1) if _content(item))


def _from_text(text: str) -> tuple[Todo, ...] | None:
    if text.lstrip()[:1] == "[" and "{" in text:
        try:
            found: Any = msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return todos_in(found) if isinstance(found, list) else None
    lines = [found for line in text.splitlines() if (found := _LINE.match(line))]
    todos = tuple(
        Todo(id=str(place), content=line.group(2), status=_BY_MARK.get(line.group(1), "pending"))
        for place, line in enumerate(lines, 1)
    )
    return todos or None


def _content(item: Object) -> str:
    return text_of(item, "content", "text", "title", "step")


def _todo(place: int, item: Object) -> Todo:
    status = _BY_WORD.get(text_of(item, "status").lower(), "pending")
    return Todo(id=text_of(item, "id") or str(place), content=_content(item), status=status)


class Progress(Struct, frozen=True, gc=False):
    """How far a list is. `current` is the first item in work, else the first that is still to do."""

    total: int
    completed: int
    in_progress: int
    pending: int
    percent: int
    current: str
    all_done: bool


def progress_of(todos: tuple[Todo, ...]) -> Progress:
    """The list in numbers. What was cancelled is neither to do nor done."""
    counted = [todo for todo in todos if todo.status != "cancelled"]
    by_status = {name: [todo for todo in counted if todo.status == name] for name in _COUNTED}
    done, total = len(by_status["completed"]), len(counted)
    ahead = [*by_status["in_progress"], *by_status["pending"]]
    return Progress(
        total=total,
        completed=done,
        in_progress=len(by_status["in_progress"]),
        pending=len(by_status["pending"]),
        percent=100 * done // total if total else 0,
        current=ahead[0].content if ahead else "",
        all_done=total > 0 and done == total,
    )


_COUNTED = ("completed", "in_progress", "pending")
