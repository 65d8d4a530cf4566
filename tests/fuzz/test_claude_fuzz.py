"""Replay mutated recordings of Claude Code: never an exception or an illegal state, for any choice of sources."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.harness.base import Signal
from quarterdeck.harness.claude.translate import claude
from quarterdeck.kernel.view import View
from tests.fuzz.mutate import lines_of, mutated, recordings, replayed

SOURCES = ((), (b'"hook', b'"proc"'), (b'"std', b'"proc"'), (b'"hook"',), (b'"stdout"',))
CASES = st.sampled_from(recordings("claude")).flatmap(lambda path: mutated(lines_of(path)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(
    ["stdin", "stdout", "stderr", "hook", "hook.reply", "hook.disconnect", "file", "notify", "proc"]
)


def no_false_idle(view: View) -> None:
    """Check that the agent isn't shown as idle while a call of its turn runs."""
    assert not (view.state.activity.value == "idle" and view.state.turn.calls)


@settings(max_examples=250)
@given(CASES, st.sampled_from(SOURCES))
def test_a_mutated_recording_never_breaks_a_rule(lines: list[bytes], kept: tuple[bytes, ...]) -> None:
    left = [line for line in lines if not kept or any(b'"src": ' + source in line for source in kept)]
    run = replayed("claude", left, no_false_idle)
    assert run.view.index >= 1


@settings(max_examples=150)
@given(st.lists(st.tuples(NAMES | st.just("otlp.log"), VALUES), max_size=12))
def test_no_value_at_all_makes_it_fail(signals: list[tuple[str, object]]) -> None:
    translator = claude()
    for number, (src, data) in enumerate(signals):
        assert isinstance(translator.feed(Signal(src, data), float(number)), list)
    assert isinstance(translator.end(100.0), list)


@settings(max_examples=40)
@given(st.sampled_from(recordings("claude")), st.data())
def test_a_recording_may_end_anywhere(path: Path, data: st.DataObject) -> None:
    lines = lines_of(path)
    end = data.draw(st.integers(0, len(lines)))
    run = replayed("claude", lines[:end])
    assert run.unknown == 0
