"""The open turn and its running calls. A turn is open between agent_start and the one event that closes it."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from quarterdeck.events import Json
from quarterdeck.kernel.timeline import plain

#: Where a tool names what it works on, in the order in which we look.
_TARGET_KEYS = ("file_path", "path", "command", "cmd", "pattern", "query", "url", "description", "prompt", "name")
_TARGET_LENGTH = 200
#: A checker learns nothing from a comparison with this, so it asks for no `cast`, which is a call at run time.
_DICT: Any = dict


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


def with_call(turn: Turn, call_id: str, name: str, args: Json, at: int) -> Turn:
    """With one more running call; the same id again is the same call."""
    call = Call(call_id, name, target_of(args), at)
    return Turn(turn.id, turn.since, (*_others(turn.calls, call_id), call) if turn.calls else (call,))


def without_call(turn: Turn, call_id: str) -> Turn:
    """Without this call; the same object when it did not run."""
    left = _others(turn.calls, call_id)
    return turn if left is turn.calls else Turn(turn.id, turn.since, left)


def _others(calls: tuple[Call, ...], call_id: str) -> tuple[Call, ...]:
    """Without this call; the same object when it is not among them."""
    for one in calls:
        if one.id == call_id:
            return () if len(calls) == 1 else tuple([other for other in calls if other.id != call_id])
    return calls


def target_of(args: Json) -> str:
    """What a call works on, in one line: a path, a command, a pattern."""
    if type(args) is not _DICT:
        return ""
    for key in _TARGET_KEYS:
        if key not in args:
            continue
        value = args[key]
        if isinstance(value, str):
            return value[:_TARGET_LENGTH]
        if value is not None:
            parts = cast("list[Any]", value) if isinstance(value, list) else [value]
            return " ".join(part if isinstance(part, str) else plain(part) for part in parts)[:_TARGET_LENGTH]
    return ""
