"""Test the event tracker where agents leave things out: the end of a compaction, the end of a rejected call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quarterdeck.events import Body, Event, SessionOpened, type_of
from quarterdeck.harness.tracker import EventTracker
from quarterdeck.kernel.view import View, fold
from tests.support.state_table import legal


class Told:
    """A tracker, and the view of the events that it emitted."""

    def __init__(self) -> None:
        self.tracker = EventTracker()
        self.bodies: list[Body] = []
        self.view = fold(View(), Event("s1", 1, 0, "user", SessionOpened(agent="test")))

    def after(self, *words: Callable[[EventTracker], object]) -> tuple[str, str]:
        """Apply each step, check that the view is legal, and return the run and the activity."""
        for word in words:
            word(self.tracker)
            for body in self.tracker.take_events():
                self.bodies.append(body)
                self.view = fold(self.view, Event("s1", self.view.index + 1, 0, "stream", body))
            assert legal(self.view)
        return self.view.state.run.value, self.view.state.activity.value


def request(tracker: EventTracker) -> None:
    tracker.start_request()


def text(tracker: EventTracker) -> None:
    tracker.add_text("m1", 0, "hi")


def runs(tracker: EventTracker) -> None:
    tracker.start_call("c1", "shell")


def ends(tracker: EventTracker) -> None:
    tracker.end_call("c1")


def asks(tracker: EventTracker) -> None:
    tracker.open_call("c2", "shell")
    tracker.open_approval("g2", "shell", call_id="c2")


def question(tracker: EventTracker) -> None:
    tracker.open_question("q1", "which?")


def refused(tracker: EventTracker) -> None:
    tracker.reject_call("g2", "user")


def compacts(tracker: EventTracker) -> None:
    tracker.start_compaction("auto")


def compacted(tracker: EventTracker) -> None:
    tracker.end_compaction()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (text, ("streaming", "active/thinking")),
        (request, ("running", "active/thinking")),
        (runs, ("executing_tools", "active/tool_use")),
        (asks, ("idle", "active/waiting_for_permission")),
        (question, ("executing_tools", "active/waiting_for_permission")),
    ],
)
def test_who_does_something_else_compacts_no_more(
    word: Callable[[EventTracker], None], expected: tuple[str, str]
) -> None:
    told = Told()
    assert told.after(request, compacts) == ("running", "active/compacting")
    assert told.after(word) == expected
    # The tracker didn't see how the compaction ended, so it must not report an end.
    assert "compact_end" not in map(type_of, told.bodies)


@pytest.mark.parametrize("before", [asks, question])
def test_a_compaction_answers_what_was_asked(before: Callable[[EventTracker], None]) -> None:
    told = Told()
    assert told.after(request, before, compacts) == ("running", "active/compacting")
    assert told.view.state.phase.value == "streaming"
    assert told.after(compacted) == ("running", "active/thinking")


def test_a_call_that_goes_on_beside_a_compaction_is_come_back_to() -> None:
    told = Told()
    assert told.after(request, runs, compacts) == ("running", "active/compacting")
    assert told.after(compacted) == ("executing_tools", "active/tool_use")


def test_a_text_beside_a_call_or_an_approval_moves_neither() -> None:
    told = Told()
    assert told.after(request, runs, text) == ("executing_tools", "active/tool_use")
    told = Told()
    assert told.after(request, asks, text) == ("idle", "active/waiting_for_permission")


def test_a_refused_call_is_over_when_the_model_answers_and_its_end_may_still_come() -> None:
    told = Told()
    assert told.after(request, asks, refused) == ("running", "active/tool_use")
    assert told.after(text) == ("streaming", "active/thinking")
    assert told.after(lambda tracker: tracker.end_call("c2", ok=False)) == ("streaming", "active/thinking")
    assert "tool_execution_start" not in map(type_of, told.bodies)


def test_a_refused_call_of_a_sub_agent_is_none_of_the_main_agent_though_they_share_a_name() -> None:
    told = Told()
    told.after(request, text, lambda tracker: tracker.open_approval("g2", "shell", call_id="c2", path=("child",)))
    told.after(lambda tracker: tracker.open_call("c2", "shell"))
    assert told.after(refused) == ("streaming", "active/thinking")


def test_a_call_that_is_left_behind_does_not_keep_the_reply_waiting() -> None:
    told = Told()
    assert told.after(request, runs, lambda tracker: tracker.move_call_to_background("c1"), text) == (
        "streaming",
        "active/thinking",
    )
    assert told.after(asks, ends) == ("idle", "active/waiting_for_permission")
