"""Test how the chunks of a reply become events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.engine.model import (
    CallBegun,
    CallPiece,
    Finished,
    TextPiece,
    ThinkingPiece,
    ThinkingSigned,
)
from quarterdeck.engine.reply import Reply
from quarterdeck.events import Body

END = Finished("end")


def fed(*chunks: Any) -> tuple[Reply, list[Body]]:
    reply = Reply("m", "t", ("child",))
    return reply, reply.feed(chunks)


def test_blocks_are_numbered_as_they_begin() -> None:
    reply, bodies = fed(
        ThinkingPiece("hm"),
        ThinkingSigned("s"),
        TextPiece("a"),
        CallBegun(0, "c", "t"),
        TextPiece("b"),
        CallPiece(0, "{}"),
        END,
    )
    assert [(one.block, one.kind, one.text) for one in reply.complete().blocks] == [
        (0, "thinking", "hm"),
        (1, "text", "a"),
        (2, "tool_call", ""),
        (3, "text", "b"),
    ]
    assert {(body.turn_id, body.agent_path) for body in bodies} == {("t", ("child",))}
    starts = [
        (type(body).__name__, body.block) for body in bodies if isinstance(body, ev.MessageStart | ev.ThinkingStart)
    ]
    assert starts == [("ThinkingStart", 0), ("MessageStart", 1), ("MessageStart", 3)]


def test_calls_that_come_in_pieces_and_beside_each_other() -> None:
    reply, bodies = fed(
        CallBegun(0, "a", "t"),
        CallBegun(1, "b", "u"),
        CallPiece(0, '{"x":'),
        CallPiece(1, ""),
        CallPiece(0, "1}"),
        CallPiece(7, "for nobody"),
        END,
    )
    told = [(body.call_id, body.partial, body.args) for body in bodies if isinstance(body, ev.ToolCall)]
    assert told == [("a", True, None), ("b", True, None), ("a", False, {"x": 1}), ("b", False, {})]
    assert [one.args for one in reply.blocks()] == [{"x": 1}, {}]


def test_calls_with_one_id_or_none_get_ids_of_their_own() -> None:
    reply, _ = fed(CallBegun(0, "c", "t"), CallBegun(1, "c", "t"), CallBegun(2, "", "t"), CallPiece(1, '{"x":1}'), END)
    assert [(one.call_id, one.args) for one in reply.blocks()] == [("c", {}), ("c-m-1", {"x": 1}), ("call-m-2", {})]


def test_two_signed_thoughts_are_two_blocks_and_one_without_words_is_one_too() -> None:
    reply, _ = fed(
        ThinkingPiece("a"), ThinkingSigned("1"), ThinkingPiece("b"), ThinkingSigned("2"), ThinkingSigned("3"), END
    )
    assert [(one.text, one.signature) for one in reply.blocks()] == [("a", "1"), ("b", "2"), ("", "3")]


def test_nothing_at_all() -> None:
    reply, bodies = fed(TextPiece(""), END)
    assert bodies == []
    assert not reply.has_events
    assert reply.complete().blocks == ()


def test_what_was_held_back_is_text_when_the_reply_is_cut_off() -> None:
    reply, _ = fed(TextPiece("a <sta"), CallBegun(0, "c", "t"))
    assert [one.text for one in reply.abort(True).blocks] == ["a <sta"]
    reply, bodies = fed(TextPiece("a <sta"))
    assert [body.delta for body in bodies if isinstance(body, ev.MessageDelta)] == ["a "]
    assert [one.text for one in reply.abort(True).blocks] == ["a <sta"]
    assert reply.abort(False).blocks == ()


@given(st.lists(st.text(alphabet="ab <>/status", max_size=9), max_size=9))
def test_the_whole_is_the_deltas_joined(pieces: list[str]) -> None:
    reply, bodies = fed(*map(TextPiece, pieces), END)
    said = "".join(body.delta for body in bodies if isinstance(body, ev.MessageDelta))
    assert said == "".join(one.text for one in reply.complete().blocks)
