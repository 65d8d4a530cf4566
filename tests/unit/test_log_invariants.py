"""Test the invariants of a log: each turn is closed once, and each text starts before it grows."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.kernel.log_invariants import in_order
from quarterdeck.kernel.view import View
from tests.support.sessions import in_lifecycle, in_phase, works
from tests.support.tape import START, Tape

CHILD = ("helper",)
START_AGAIN = ev.AgentStart(turn_id="t2")


def resting() -> View:
    """Return the view of a session without an open turn."""
    return in_phase("completed").view


def test_what_is_in_order_is_written_as_it_is() -> None:
    bodies: list[Body] = [
        ev.PromptReceived(text="Go"),
        ev.AgentStart(),
        ev.RequestStart(),
        ev.MessageStart(message_id="m1"),
        ev.MessageDelta(message_id="m1", delta="a"),
        ev.ResponseComplete(message_id="m1", blocks=(ev.Block(text="a"),)),
        ev.AgentEnd(),
        ev.AgentStart(),
        ev.AgentAbort(),
    ]
    assert in_order(resting(), bodies) == bodies


def test_nothing_is_written_for_nothing() -> None:
    assert in_order(View(), []) == []


# --------------------------------------------------------------------------------------------------------- turns


def test_a_turn_that_begins_in_another_closes_it_first() -> None:
    assert in_order(works().view, [START_AGAIN]) == [ev.AgentAbort(reason="superseded"), START_AGAIN]


def test_an_end_without_a_turn_is_not_written() -> None:
    assert in_order(resting(), [ev.AgentEnd()]) == []
    assert in_order(works().view, [ev.AgentEnd(), ev.AgentEnd()]) == [ev.AgentEnd()]


def test_an_abort_is_written_even_when_nothing_runs() -> None:
    assert in_order(resting(), [ev.AgentAbort()]) == [ev.AgentAbort()]


def test_the_abort_of_a_turn_that_is_closed_is_not_written() -> None:
    gone = ev.ProcessExited(signal="SIGKILL")
    assert in_order(works().view, [gone, ev.AgentAbort(reason="process exited", turn_id="t1")]) == [
        gone,
        ev.AgentAbort(reason="process_exited"),
    ]


@pytest.mark.parametrize(
    ("cause", "closing"),
    [
        (ev.SessionSuspended(), ev.AgentAbort(reason="session_suspended")),
        (ev.SessionArchived(), ev.AgentAbort(reason="session_archived")),
        (ev.SessionFailed(), ev.AgentAbort(reason="session_failed")),
        (ev.ProcessError(), ev.AgentEnd(outcome="failed")),
        (ev.ProcessExited(code=0), ev.AgentEnd(outcome="completed")),
        (ev.ProcessExited(code=1), ev.AgentEnd(outcome="failed")),
        (ev.ProcessExited(signal="SIGSEGV"), ev.AgentEnd(outcome="failed")),
        (ev.ProcessExited(signal="SIGTERM"), ev.AgentAbort(reason="process_exited")),
        (ev.ProcessExited(), ev.AgentAbort(reason="process_exited")),
        (ev.ProcessExited(code=1, asked=True), ev.AgentAbort(reason="process_exited")),
    ],
)
def test_what_ends_a_turn_without_a_word_is_followed_by_its_close(cause: Body, closing: Body) -> None:
    assert in_order(works().view, [cause]) == [cause, closing]
    assert in_order(resting(), [cause]) == [cause]


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (ev.ProcessExited(code=0), "completed"),
        (ev.ProcessExited(code=1), "error"),
        (ev.ProcessExited(signal="SIGSEGV"), "error"),
        (ev.ProcessExited(signal="SIGTERM"), "stopped"),
        (ev.ProcessError(), "error"),
        (ev.SessionSuspended(), "paused"),
        (ev.SessionArchived(), "stopped"),
    ],
)
def test_the_cause_decides_what_shows_and_its_close_does_not_change_it(cause: Body, shown: str) -> None:
    tape = works()
    tape.add(*in_order(tape.view, [cause]))
    assert (tape.phase, tape.state.turn.is_open, tape.view.timeline.streaming) == (shown, False, False)


@pytest.mark.parametrize("status", ["suspended", "archived", "error"])
def test_a_start_that_comes_too_late_is_closed_at_once(status: str) -> None:
    view = in_lifecycle(status).view
    late = [ev.AgentStart(), ev.AgentAbort(reason=f"session is {status}")]
    assert in_order(view, [ev.AgentStart(), ev.AgentEnd()]) == late
    assert in_order(view, [ev.AgentStart(), ev.AgentStart()]) == [*late, *late]


def test_a_start_before_the_session_is_opened_is_a_start() -> None:
    assert in_order(View(), [ev.AgentStart(), ev.AgentEnd()]) == [ev.AgentStart(), ev.AgentEnd()]


def test_the_turns_of_sub_agents_are_their_own() -> None:
    theirs: list[Body] = [
        ev.AgentStart(agent_path=CHILD),
        ev.AgentStart(agent_path=CHILD),
        ev.AgentEnd(agent_path=CHILD),
    ]
    assert in_order(works().view, theirs) == theirs
    assert in_order(resting(), theirs) == theirs


# --------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("path", [(), CHILD])
@pytest.mark.parametrize(("delta", "start"), [(ev.MessageDelta, ev.MessageStart), (ev.ThinkingDelta, ev.ThinkingStart)])
def test_a_text_that_grows_is_begun_first(
    delta: type[ev.MessageDelta | ev.ThinkingDelta],
    start: type[ev.MessageStart | ev.ThinkingStart],
    path: tuple[str, ...],
) -> None:
    piece = delta(message_id="m9", block=2, delta="a", turn_id="t1", agent_path=path)
    begun = start(message_id="m9", block=2, turn_id="t1", agent_path=path)
    assert in_order(works().view, [piece, piece]) == [begun, piece, piece]


def test_a_block_that_was_begun_is_not_begun_again() -> None:
    piece = ev.MessageDelta(message_id="m9", delta="a")
    tape = works().add(ev.MessageStart(message_id="m9"))
    assert in_order(tape.view, [piece]) == [piece]


def test_blocks_are_begun_one_by_one() -> None:
    pieces = [ev.MessageDelta(message_id="m9", block=block, delta="a") for block in (0, 1, 0)]
    written = in_order(works().view, pieces)
    assert [body.block for body in written if isinstance(body, ev.MessageStart)] == [0, 1]


# ---------------------------------------------------------------------------------------------------------- inputs


def test_the_view_that_was_given_is_left_as_it_was() -> None:
    view = works().view
    in_order(view, [START_AGAIN, ev.AgentEnd()])
    assert view == works().view


@pytest.mark.parametrize("at", [0, START, START * 2])
def test_a_clock_that_stands_still_or_goes_back_does_no_harm(at: int) -> None:
    assert in_order(Tape().opened().view, [ev.AgentStart(), ev.AgentEnd()], at) == [ev.AgentStart(), ev.AgentEnd()]
