"""Mutate recordings of pi: no exception, no impossible state."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.harness.base import Signal
from quarterdeck.harness.pi.translate import PiTranslator, pi
from quarterdeck.kernel.view import View
from tests.fuzz.mutate import lines_of, mutated, recordings, replayed

CASES = st.sampled_from(recordings("pi")).flatmap(lambda path: mutated(lines_of(path)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    *("id", "command", "success", "data", "error", "message", "assistantMessageEvent", "usage", "willRetry", "aborted"),
    *(
        "toolCallId",
        "toolName",
        "args",
        "partialResult",
        "result",
        "isError",
        "steering",
        "followUp",
        "reason",
        "delta",
    ),
    *("method", "title", "options", "timeout", "level", "name"),
]
#: Lines of every kind with anything in their fields.
LINES = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(sorted(PiTranslator().event_readers)),
    st.dictionaries(
        st.sampled_from(FIELDS),
        VALUES | st.sampled_from(["a", "prompt", "get_state", "bash", "select", "overflow", 5, True]),
        max_size=6,
    ),
)


def no_false_idle(view: View) -> None:
    """Assert that the agent isn't shown as idle while a call of its turn runs."""
    assert not (view.state.activity.value == "idle" and view.state.turn.calls)


@settings(max_examples=200)
@given(CASES)
def test_a_mutated_recording_never_breaks_a_rule(lines: list[bytes]) -> None:
    assert replayed("pi", lines, no_false_idle).view.index >= 1


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(["stdin", "stdout", "stderr", "proc", "hook"]), VALUES | LINES), max_size=12))
def test_no_value_at_all_makes_it_fail(signals: list[tuple[str, object]]) -> None:
    translator = pi()
    for number, (src, data) in enumerate(signals):
        assert isinstance(translator.feed(Signal(src, data), float(number)), list)
        due = translator.deadline()
        if due is not None:
            assert isinstance(translator.tick(due), list)
    assert isinstance(translator.end(100.0), list)


@settings(max_examples=40)
@given(st.sampled_from(recordings("pi")), st.data())
def test_a_recording_may_end_anywhere(path: Path, data: st.DataObject) -> None:
    lines = lines_of(path)
    end = data.draw(st.integers(0, len(lines)))
    assert replayed("pi", lines[:end], no_false_idle).unknown == 0
