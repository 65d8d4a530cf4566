"""Measure decoding an event's body, against a union of only the types on the tape, and against pydantic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from bench.figure import Figure
from bench.measure import Effort, Work, ratio
from quarterdeck import events as ev

#: The packages that this group compares with, from requirements-bench.txt.
NEEDS = ("pydantic",)
#: Events on the tape. The mean body is as long as in the logs of real agents.
TAPE_LENGTH = 100
_TEXT = "The lexer returned None for an empty line, and the parser took it for the end."
_IDS = {"turn_id": "turn_01HZX3V9QK", "message_id": "msg_01HZX3VA2M8R"}
_CALL = "toolu_01HZX3VB7T5N"
_OTHERS: tuple[ev.Body, ...] = (
    ev.MessageStart(**_IDS),
    ev.ToolExecutionStart(
        turn_id=_IDS["turn_id"],
        name="Edit",
        call_id=_CALL,
        args={"file_path": "/home/dev/project/src/parser/lexer.py", "old_string": "None", "new_string": "[]"},
    ),
    ev.ToolExecutionEnd(turn_id=_IDS["turn_id"], name="Edit", call_id=_CALL, result=_TEXT * 6),
    ev.Usage(
        message_id=_IDS["message_id"],
        model="m-large-2025-09-29",
        tokens=ev.TokenUsage(input=1200, output=310, cache_read=40_000, cache_write=900, cost_usd=0.0123),
    ),
    ev.ResponseComplete(
        **_IDS,
        stop_reason="tool_use",
        blocks=(ev.Block(text=_TEXT), ev.Block(block=1, kind="tool_call", call_id=_CALL, name="Edit", args={"n": 1})),
    ),
    ev.StateChange(state="active", sub="tool_use", turn_id=_IDS["turn_id"]),
)


def tape() -> list[bytes]:
    """Return bodies of seven types. Seven of ten are text deltas."""
    bodies: list[ev.Body] = []
    for at in range(TAPE_LENGTH):
        is_delta = at % 10 < 7
        delta = ev.MessageDelta(delta=_TEXT[: 60 + at % 19], **_IDS)
        bodies.append(delta if is_delta else _OTHERS[(at // 10 * 3 + at % 10 - 7) % len(_OTHERS)])
    return [ev.encode_body(body) for body in bodies]


class _Part(Struct, frozen=True):
    turn_id: str | None = None


class MessageStart(_Part, frozen=True, tag_field="type", tag="message_start", kw_only=True):
    message_id: str
    block: int = 0


class MessageDelta(_Part, frozen=True, tag_field="type", tag="message_delta", kw_only=True):
    delta: str
    message_id: str
    block: int = 0


class ToolExecutionStart(_Part, frozen=True, tag_field="type", tag="tool_execution_start", kw_only=True):
    name: str
    call_id: str
    args: Any = None


class ToolExecutionEnd(_Part, frozen=True, tag_field="type", tag="tool_execution_end", kw_only=True):
    name: str
    call_id: str
    ok: bool = True
    result: Any = None


class Tokens(Struct, frozen=True):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost_usd: float | None = None


class Usage(_Part, frozen=True, tag_field="type", tag="usage", kw_only=True):
    tokens: Tokens
    message_id: str = ""
    model: str = ""


class Block(Struct, frozen=True):
    block: int = 0
    kind: str = "text"
    text: str = ""
    call_id: str = ""
    name: str = ""
    args: Any = None


class ResponseComplete(_Part, frozen=True, tag_field="type", tag="response_complete", kw_only=True):
    message_id: str
    blocks: tuple[Block, ...] = ()
    stop_reason: str = ""


class StateChange(_Part, frozen=True, tag_field="type", tag="state_change", kw_only=True):
    state: str
    sub: str | None = None


Minimal = MessageStart | MessageDelta | ToolExecutionStart | ToolExecutionEnd | Usage | ResponseComplete | StateChange


def figures(effort: Effort) -> Iterator[Figure]:
    """Compare ours with the minimal union, then pydantic's with ours."""
    bodies = tape()
    ours = _work(ev.decode_body, bodies)
    minimal = _work(msgspec.json.Decoder(Minimal).decode, bodies)
    yield Figure("decode", "decode_body to a minimal union", ratio(ours, minimal, effort))

    from bench.pydantic_union import decoder

    peer = _work(decoder(), bodies)
    yield Figure("decode", "pydantic, the same union, to decode_body", ratio(peer, ours, effort), 3, "at least")


def _work(decode: Callable[[bytes], object], bodies: list[bytes]) -> Work:
    for body in bodies:
        decode(body)

    def run() -> None:
        for body in bodies:
            decode(body)

    return Work(run, len(bodies))
