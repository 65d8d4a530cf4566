"""Test how an agent's output is split into objects and texts."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck.harness.lines import LineBuffer, object_in, plain


def pieces(*chunks: bytes) -> list[Any]:
    buffer = LineBuffer()
    return [one for chunk in chunks for one in buffer.feed(chunk)] + buffer.flush()


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        ([b'{"a":1}\n'], [{"a": 1}]),
        ([b'\x1b[33m{"a":1}\x1b[0m\n'], [{"a": 1}]),
        ([b'{"a"', b":", b"1}\n"], [{"a": 1}]),
        ([b'{"a":1}{"b":2} {"c":3}\n'], [{"a": 1}, {"b": 2}, {"c": 3}]),
        ([b'{"a":1} and more\n'], [{"a": 1}, "and more"]),
        ([b'[{"a":1},{"b":2}]\n'], [{"a": 1}, {"b": 2}]),
        ([b'[1,2]\n42\n"x"\nnull\n'], ["[1,2]", "42", '"x"', "null"]),
        ([b"\n  \n\r\n"], []),
        ([b"\x1b]0;title\x07plain \x1b[1mtext\x1b[0m\n"], ["plain text"]),
        (['{"a":"\u2028"}\n'.encode()], [{"a": "\u2028"}]),
        ([b'{"a":1}\r\n'], [{"a": 1}]),
        ([b"\xff\xfe\n"], ["\ufffd\ufffd"]),
    ],
)
def test_lines(chunks: list[bytes], found: list[Any]) -> None:
    assert pieces(*chunks) == found


class TestObjectsOverManyLines:
    def test_braces_are_matched_and_those_in_texts_do_not_count(self) -> None:
        text = b'Using instance\n{\n  "a": "}{",\n  "b": {\n    "c": 1\n  }\n}\nbye\n'
        assert pieces(text) == ["Using instance", {"a": "}{", "b": {"c": 1}}, "bye"]

    def test_an_object_may_begin_after_another_one(self) -> None:
        assert pieces(b'{"a":1}{"b":\n  2\n}\n') == [{"a": 1}, {"b": 2}]

    def test_prose_that_begins_with_a_brace_is_given_back_when_an_object_follows(self) -> None:
        assert pieces(b'{ not json\nmore\n{"a":1}\n') == ["{ not json", "more", {"a": 1}]

    def test_a_quote_that_stays_open_shows_that_it_is_none(self) -> None:
        assert pieces(b'{"a": "open\nnext\n') == ['{"a": "open', "next"]

    def test_braces_that_close_without_sense_are_prose(self) -> None:
        assert pieces(b"{\n  nonsense\n}\n") == ["{", "nonsense", "}"]

    def test_nothing_is_held_for_ever(self) -> None:
        buffer = LineBuffer()
        assert len(buffer.feed(b"{\n" + b"x\n" * 20_001)) > 20_000


class TestTheEnd:
    def test_flush_gives_what_is_left_and_reset_drops_it(self) -> None:
        buffer = LineBuffer()
        assert buffer.feed(b'{"a":1}') == []
        assert buffer.flush() == [{"a": 1}]
        assert buffer.flush() == []
        assert buffer.feed(b'half{"a') == []
        buffer.reset()
        assert buffer.feed(b'{"b":2}\n') == [{"b": 2}]

    def test_reset_drops_lines_that_were_held_too(self) -> None:
        buffer = LineBuffer()
        assert buffer.feed(b'{\n"a":\n') == []
        buffer.reset()
        assert buffer.feed(b"1}\n") == ["1}"]


@pytest.mark.parametrize("text", ["", "1", "[]", '"x"', "{", '{"a":}', "[" * 100_000])
def test_only_an_object_is_an_object(text: str) -> None:
    assert object_in(text) is None
    assert object_in('{"a":' + "1" + "}") == {"a": 1}


def test_nesting_without_end_is_text() -> None:
    line = '{"a":' * 100_000
    assert pieces(line.encode() + b"\n") == [line]


def test_control_codes_are_taken_out() -> None:
    assert plain("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x07\tend") == "red link\tend"
