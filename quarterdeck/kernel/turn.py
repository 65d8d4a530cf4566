"""The open turn and its running calls. A turn is open between agent_start and the one event that closes it."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

#: Where a tool names what it works on, in the order in which we look.
_TARGET_KEYS = ("file_path", "path", "command", "cmd", "pattern", "query", "url", "description", "prompt", "name")
_TARGET_LENGTH = 200


class Call(Struct, frozen=True, gc=False):
    """A call that runs now."""

    id: str
    name: str
    target: str
    since: int


class Turn(Struct, frozen=True, gc=False):
    """`id` is empty while no turn is open."""

    id: str = ""
    since: int = 0
    calls: tuple[Call, ...] = ()

    @property
    def is_open(self) -> bool:
        return bool(self.id)


NO_TURN = Turn()


def with_call(turn: Turn, call_id: str, name: str, args: object, at: int) -> Turn:
    """With one more running call; the same id again is the same call."""
    call = Call(call_id, name, target_of(args), at)
    if not turn.calls:
        return Turn(turn.id, turn.since, (call,))
    return Turn(turn.id, turn.since, (*(one for one in turn.calls if one.id != call_id), call))


def without_call(turn: Turn, call_id: str) -> Turn:
    """Without this call; the same object when it did not run."""
    left = tuple(one for one in turn.calls if one.id != call_id)
    return turn if len(left) == len(turn.calls) else Turn(turn.id, turn.since, left)


def target_of(args: object) -> str:
    """What a call works on, in one line: a path, a command, a pattern."""
    if not isinstance(args, dict):
        return ""
    named = cast("dict[str, Any]", args)
    for key in _TARGET_KEYS:
        value = named.get(key)
        if value is not None:
            text = " ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
            return text[:_TARGET_LENGTH]
    return ""
