"""Call the tracker in any order: its states never contradict each other, and every turn is closed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, TokenUsage
from quarterdeck.harness.tracker import EventTracker
from quarterdeck.kernel.view import View, fold
from tests.fuzz.legal import unclosed, violations

Word = tuple[str, Callable[[EventTracker], Any]]

IDS = ("a", "b")
PATHS: tuple[tuple[str, ...], ...] = ((), ("child",))


def linger(tracker: EventTracker) -> None:
    """Do what the Codex translator does when a call ends: tools count as in use until the model replies."""
    if tracker.turn_id:
        tracker.end_call("lingering", name="shell")
        tracker.tools_linger = True
        tracker.end_call("last", name="shell")


WORDS: list[Word] = [
    ("process_starting", lambda tracker: tracker.record_process_start()),
    ("ready", lambda tracker: tracker.report_ready("n", "m")),
    ("ended", lambda tracker: tracker.end_session("over")),
    ("exit 0", lambda tracker: tracker.record_process_exit(0)),
    ("exit 1", lambda tracker: tracker.record_process_exit(1)),
    ("killed", lambda tracker: tracker.record_process_exit(None, "SIGKILL")),
    ("asked exit", lambda tracker: tracker.record_process_exit(0, asked=True)),
    ("process_failed", lambda tracker: tracker.record_process_error("no")),
    ("prompt", lambda tracker: tracker.record_prompt("hello", "m1")),
    ("agent's prompt", lambda tracker: tracker.record_prompt("wake", source="agent")),
    ("begin", lambda tracker: tracker.start_turn()),
    ("request", lambda tracker: tracker.start_request()),
    ("end", lambda tracker: tracker.end_turn()),
    ("abort", lambda tracker: tracker.abort_turn("stop")),
    ("abort, calls go on", lambda tracker: tracker.abort_turn("stop", kill_calls=False)),
    ("fail", lambda tracker: tracker.fail_turn("api", "500")),
    ("compact_start", lambda tracker: tracker.start_compaction("auto")),
    ("compact_end", lambda tracker: tracker.end_compaction()),
    ("linger", lambda tracker: linger(tracker)),
    ("usage", lambda tracker: tracker.record_usage(TokenUsage(input=1), "u")),
    ("notice", lambda tracker: tracker.add_notice("hm")),
    ("stale", lambda tracker: tracker.set_signal("stale")),
    ("restored", lambda tracker: tracker.record_history(True)),
]
for name in IDS:
    WORDS += [
        (f"background_start {name}", lambda tracker, name=name: tracker.start_background("subagent", name)),
        (f"background_end {name}", lambda tracker, name=name: tracker.end_background(name)),
        (f"dialog {name}", lambda tracker, name=name: tracker.open_dialog(f"d{name}", "confirm", "sure?")),
        (f"close_dialog {name}", lambda tracker, name=name: tracker.close_dialog(f"d{name}", True)),
        (f"resolve {name}", lambda tracker, name=name: tracker.resolve_approval(f"g{name}", "approved")),
        (f"allow {name}", lambda tracker, name=name: tracker.approve_call(f"g{name}")),
        (f"refuse {name}", lambda tracker, name=name: tracker.reject_call(f"g{name}")),
        (f"aside {name}", lambda tracker, name=name: tracker.add_text_outside_turn(f"aside{name}", 0, "by the way")),
        (f"answer {name}", lambda tracker, name=name: tracker.answer_question(f"q{name}", "yes")),
        (f"message_done {name}", lambda tracker, name=name: tracker.finish_message(name)),
        (f"message_dropped {name}", lambda tracker, name=name: tracker.abort_message(name)),
    ]
    for path in PATHS:
        call = f"{name}{''.join(path)}"
        WORDS += [
            (f"text {name} {path}", lambda tracker, name=name, path=path: tracker.add_text(name, 0, "hi", path)),
            (
                f"thinking {name} {path}",
                lambda tracker, name=name, path=path: tracker.add_thinking(name, 1, "hm", path),
            ),
            (f"announce {call}", lambda tracker, call=call, path=path: tracker.open_call(call, "shell", {}, path=path)),
            (f"start {call}", lambda tracker, call=call, path=path: tracker.start_call(call, "shell", path=path)),
            (f"output {call}", lambda tracker, call=call: tracker.update_output(call, "out")),
            (f"end {call}", lambda tracker, call=call, path=path: tracker.end_call(call, name="shell", path=path)),
            (f"block {call}", lambda tracker, call=call: tracker.block_call(call, "no")),
            (
                f"ask {call}",
                lambda tracker, call=call, path=path: tracker.open_approval(
                    f"g{call}", "shell", call_id=call, path=path
                ),
            ),
            (
                f"question {call}",
                lambda tracker, call=call, path=path: tracker.open_question(f"q{call}", "?", path=path),
            ),
        ]

sentences = st.lists(st.sampled_from(WORDS), max_size=40)


def written(tracker: EventTracker, view: View) -> tuple[View, list[Body]]:
    bodies = tracker.take_events()
    for body in bodies:
        view = fold(view, Event("s", view.index + 1, view.index, "stream", body))
    return view, bodies


def opened() -> View:
    return fold(View(), Event("s", 1, 0, "user", ev.SessionOpened(agent="test")))


@given(sentences)
def test_no_order_of_calls_makes_states_contradict_each_other(words: list[Word]) -> None:
    tracker, view, said = EventTracker(), opened(), list[Body]()
    for name, word in words:
        word(tracker)
        view, bodies = written(tracker, view)
        said += bodies
        assert not violations(view), name
        assert tracker.activity == view.state.activity.value, name
        assert bool(tracker.turn_id) == view.state.turn.is_open, name
        assert len(tracker.gates) == len(view.state.gates.open), name
    assert not unclosed(said)


@given(sentences, sentences)
def test_a_tracker_restored_in_the_middle_continues(before: list[Word], after: list[Word]) -> None:
    tracker, view = EventTracker(), opened()
    for _, word in before:
        word(tracker)
    view, _ = written(tracker, view)
    restored = EventTracker()
    restored.restore(view)
    for name, word in after:
        word(restored)
        view, _ = written(restored, view)
        assert not violations(view), name
