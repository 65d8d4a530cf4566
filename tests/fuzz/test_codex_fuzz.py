"""Mutate recordings of Codex and drop sources: no exception, no impossible state."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.events import encode_body
from quarterdeck.harness.base import Signal
from quarterdeck.harness.codex.translate import codex
from quarterdeck.harness.replay import Replay
from quarterdeck.kernel.view import View
from tests.fuzz.mutate import lines_of, mutated, recordings, replayed

SOURCES = (
    (),
    (b'"std', b'"proc"'),
    (b'"stdout"',),
    (b'"otlp.log"', b'"proc"'),
    (b'"otlp.log"', b'"notify"'),
    (b'"hook"', b'"proc"'),
    (b'"hook"', b'"otlp.log"', b'"notify"'),
)
RECORDINGS = st.sampled_from(recordings("codex"))
CASES = RECORDINGS.flatmap(lambda path: mutated(lines_of(path)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(
    ["stdin", "stdout", "stdout.b", "stderr", "hook", "hook.reply", "hook.disconnect", "otlp.log", "notify", "proc"]
)
_NAMED = st.sampled_from(
    [
        ("stdout", {"method": "item/started", "params": {"threadId": "t", "item": {"type": "commandExecution"}}}),
        ("stdout", {"method": "turn/completed", "params": {"threadId": "t", "turn": {}}}),
        ("stdout", {"method": "thread/status/changed", "params": {"threadId": "t", "status": {"type": "active"}}}),
        ("stdout", {"method": "item/commandExecution/requestApproval", "id": [], "params": {"threadId": "t"}}),
        ("stdout", {"method": "item/tool/requestUserInput", "id": 1, "params": {"threadId": "t", "questions": [1]}}),
        ("stdout", {"type": "item.completed", "item": {"type": "todo_list", "items": [None]}}),
        ("stdin", {"id": 1, "result": []}),
        ("hook", {"hook_event_name": "PermissionRequest", "session_id": "t", "tool_input": []}),
        ("hook", {"hook_event_name": "PreModelRequest", "session_id": "t", "turn_id": 5}),
        ("otlp.log", {"attributes": {"event.name": "codex.tool_decision", "conversation.id": "t", "decision": []}}),
        ("otlp.log", {"attributes": {"event.name": "codex.user_prompt", "conversation.id": "t", "prompt": {}}}),
        ("notify", {"type": "agent-turn-complete", "thread-id": "t", "turn-id": None}),
    ]
)


def no_false_idle(view: View) -> None:
    """Assert that the agent isn't shown as idle while a call of its turn runs."""
    assert not (view.state.activity.value == "idle" and view.state.turn.calls)


@settings(max_examples=220)
@given(CASES, st.sampled_from(SOURCES))
def test_a_mutated_recording_never_breaks_a_rule(lines: list[bytes], sources: tuple[bytes, ...]) -> None:
    left = [line for line in lines if not sources or any(b'"src": ' + source in line for source in sources)]
    run = replayed("codex", left, no_false_idle)
    assert run.view.index >= 1


@settings(max_examples=150)
@given(st.lists(st.tuples(NAMES, VALUES) | _NAMED, max_size=14))
def test_no_value_at_all_makes_it_fail(signals: list[tuple[str, object]]) -> None:
    translator = codex()
    for number, (src, data) in enumerate(signals):
        bodies = translator.feed(Signal(src, data), number / 4)
        while (due := translator.deadline()) is not None and due <= number / 4:
            bodies += translator.tick(due)
        assert all(encode_body(body) for body in bodies)
    assert isinstance(translator.end(100.0), list)


@settings(max_examples=40)
@given(RECORDINGS, st.data())
def test_a_recording_may_end_anywhere(path: object, data: st.DataObject) -> None:
    lines = lines_of(path)  # type: ignore[arg-type]
    end = data.draw(st.integers(0, len(lines)))
    assert replayed("codex", lines[:end]).unknown == 0


@settings(max_examples=40)
@given(RECORDINGS, st.sampled_from(SOURCES), st.data())
def test_a_session_that_is_restored_anywhere_goes_on_legally(
    path: object, sources: tuple[bytes, ...], data: st.DataObject
) -> None:
    lines = [line for line in lines_of(path) if not sources or any(b'"src": ' + source in line for source in sources)]  # type: ignore[arg-type]
    cut = data.draw(st.integers(0, len(lines)))
    first = replayed("codex", lines[:cut])
    again = codex()
    again.restore(first.view)
    run = Replay(again, "codex")
    run.view = first.view
    for row in run.rows(lines[cut:]):
        no_false_idle(row.view)
        assert msgspec.json.encode(row.view.state)
