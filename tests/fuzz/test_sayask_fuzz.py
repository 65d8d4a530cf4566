"""Mutate recordings of say/ask agents, and feed any bytes to the line parser: no exception, no impossible state."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.harness.base import Signal
from quarterdeck.harness.lines import LineBuffer
from quarterdeck.harness.sayask.translate import SayAskTranslator, sayask
from quarterdeck.kernel.view import View
from tests.fuzz.mutate import lines_of, mutated, recordings, replayed

PATHS = [path for path in recordings("cline") if "acp" not in path.parent.name]
CASES = st.sampled_from(PATHS).flatmap(lambda path: mutated(lines_of(path)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TEXTS = st.sampled_from(
    [
        "",
        "hello",
        '{"tool":"x"}',
        '{"question":"q","options":["a"]}',
        '{"request":"r"}',
        '{"tokensIn":5}',
        "- [ ] x",
        "{",
    ]
)


def message(name: str, ts: object, text: object, partial: bool, extra: dict[str, object]) -> dict[str, object]:
    kind, _, what = name.partition(":")
    return {**extra, "type": kind, kind: what, "ts": ts, "text": text, "partial": partial}


MESSAGES = st.builds(
    message,
    st.sampled_from(sorted(SayAskTranslator().handlers)),
    st.integers(0, 6) | VALUES,
    TEXTS | VALUES,
    st.booleans(),
    st.dictionaries(st.sampled_from(["metadata", "isAnswered", "commandCompleted", "modelInfo"]), VALUES, max_size=2),
)
SOURCES = st.sampled_from(["stdout", "stdout.state", "stdout.partial", "stdin", "proc", "stderr"])


def no_false_idle(view: View) -> None:
    """Assert that the agent isn't shown as idle while a call of its turn runs."""
    assert not (view.state.activity.value == "idle" and view.state.turn.calls)


@settings(max_examples=200)
@given(CASES, st.sampled_from(["sayask", "cline"]))
def test_a_mutated_recording_never_breaks_a_rule(lines: list[bytes], agent: str) -> None:
    assert replayed(agent, lines, no_false_idle).view.index >= 1


@settings(max_examples=150)
@given(st.lists(st.tuples(SOURCES, VALUES | MESSAGES), max_size=12))
def test_no_value_at_all_makes_it_fail(signals: list[tuple[str, object]]) -> None:
    translator = sayask()
    for number, (src, data) in enumerate(signals):
        assert isinstance(translator.feed(Signal(src, data), float(number)), list)
        due = translator.deadline()
        if due is not None:
            assert isinstance(translator.tick(due), list)
    assert isinstance(translator.end(100.0), list)


@settings(max_examples=200)
@given(st.lists(MESSAGES, max_size=16))
def test_messages_in_any_order_never_break_a_rule(messages: list[dict[str, object]]) -> None:
    lines = [
        json.dumps({"t": number / 4, "src": "stdout", "data": data}).encode() for number, data in enumerate(messages)
    ]
    assert replayed("sayask", lines, no_false_idle).view.index >= 1


@settings(max_examples=40)
@given(st.sampled_from(PATHS), st.data())
def test_a_recording_may_end_anywhere(path: Path, data: st.DataObject) -> None:
    lines = lines_of(path)
    end = data.draw(st.integers(0, len(lines)))
    assert replayed("sayask", lines[:end], no_false_idle).unknown == 0


@settings(max_examples=200)
@given(
    st.lists(
        st.binary(max_size=12) | st.sampled_from([b"{", b"}\n", b'{"a":1}', b"\n", b"\x1b[31m", b'"']), max_size=20
    )
)
def test_the_line_parser_takes_any_bytes_and_any_cuts(chunks: list[bytes]) -> None:
    whole, pieces = LineBuffer(), LineBuffer()
    expected = [*whole.feed(b"".join(chunks)), *whole.flush()]
    parsed = [piece for chunk in chunks for piece in pieces.feed(chunk)] + pieces.flush()
    assert repr(parsed) == repr(expected)
    assert all(isinstance(piece, dict) or piece.strip() for piece in parsed)
