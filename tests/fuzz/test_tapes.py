"""Fold any events in any order: nothing raises, and the view depends only on the log."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.errors import MalformedEvent
from quarterdeck.events import DELTAS, Body, Event, decode_body, decode_event, encode_event
from quarterdeck.kernel import phase
from quarterdeck.kernel.composer import composer
from quarterdeck.kernel.log_invariants import in_order
from quarterdeck.kernel.profile import NAME_LENGTH
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import details, summary
from quarterdeck.kernel.timeline import ARGS_PREVIEW, RESULT_PREVIEW, window
from quarterdeck.kernel.view import View, fold, fold_all, reconstructed, why
from tests.conformance.marks import case
from tests.fuzz.bodies import many_bodies, numbered, tapes

_DELTA_NAMES = {ev.NAMES[kind] for kind in DELTAS}


def encoded(state: State) -> bytes:
    """Encode a state as it is stored and sent."""
    return msgspec.json.encode(state)


def views(log: list[Event]) -> list[View]:
    """Return the view before the first event and after each one."""
    seen = [View()]
    for event in log:
        seen.append(fold(seen[-1], event))
    return seen


@given(tapes())
def test_nothing_that_can_be_asked_of_any_view_raises(log: list[Event]) -> None:
    for view in views(log):
        row = summary(view)
        assert row.index == view.index
        assert details(view).fold_version == view.state.fold_version
        assert composer(view.state) == row.composer
        assert len(window(view.timeline)) <= len(view.timeline.entries)
        assert {reason.owner for reason in why(view)} >= {"lifecycle", "process", "run", "activity", "phase"}


@case("X-026")
@given(tapes())
def test_a_view_rebuilt_from_the_log_is_the_live_one(log: list[Event]) -> None:
    live = views(log)[-1]
    assert fold_all(log) == live
    stored = [encode_event(event) for event in log]
    rebuilt = fold_all(map(decode_event, stored))
    assert encoded(rebuilt.state) == encoded(live.state)
    assert window(rebuilt.timeline) == window(live.timeline)
    assert rebuilt.timeline.streaming == live.timeline.streaming


@case("X-027")
@given(tapes(), st.data())
def test_cut_anywhere_and_replayed_from_there_nothing_is_different(log: list[Event], data: st.DataObject) -> None:
    seen = views(log)
    cut = data.draw(st.integers(0, len(log)), label="cut")
    again = data.draw(st.integers(0, cut), label="events delivered twice")
    assert fold_all(log[cut - again :], seen[cut]) == seen[-1]


@case("X-027")
@given(tapes(), st.data())
def test_a_stored_snapshot_goes_on_like_the_live_state(log: list[Event], data: st.DataObject) -> None:
    seen = views(log)
    at = data.draw(st.integers(0, len(log)), label="snapshot after")
    kept = msgspec.json.decode(encoded(seen[at].state), type=State)
    resumed = fold_all(log[at:], View(seen[at].index, seen[at].at, kept, seen[at].timeline))
    assert encoded(resumed.state) == encoded(seen[-1].state)


@given(tapes())
def test_no_cause_is_an_event_that_may_be_dropped(log: list[Event]) -> None:
    for view in views(log):
        cited = {reason.cause.type for reason in why(view) if reason.cause is not None}
        assert not cited & _DELTA_NAMES


@given(tapes())
def test_every_cause_is_the_event_of_its_index(log: list[Event]) -> None:
    for reason in why(fold_all(log)):
        if reason.cause is not None:
            event = log[reason.cause.index - 1]
            assert (event.type, event.origin, event.at) == (reason.cause.type, reason.cause.origin, reason.since)


@given(tapes())
def test_a_waiting_phase_shows_exactly_while_a_gate_is_open(log: list[Event]) -> None:
    for view in views(log):
        assert (view.state.phase.value in phase.WAITING) == bool(view.state.gates.open)


@case("0-108")
@given(tapes())
def test_the_three_sources_of_000_find_the_same_phase_as_the_fold(log: list[Event]) -> None:
    for view in views(log):
        assert reconstructed(view) == view.state.phase.value


@given(tapes())
def test_events_of_sub_agents_move_no_owner_but_the_phase_by_their_gates(log: list[Event]) -> None:
    seen = views(log)
    for before, event, after in zip(seen, log, seen[1:]):
        if event.body.agent_path:
            owned = ("lifecycle", "process", "run", "activity", "turn", "queue", "profile", "base_phase", "signal")
            assert all(getattr(before.state, name) is getattr(after.state, name) for name in owned)


@case("X-024")
@given(many_bodies())
def test_what_is_written_in_order_closes_every_turn_once_before_the_next(bodies: list[Body]) -> None:
    turn_open = False
    for body in in_order(View(), bodies):
        if body.agent_path:
            continue
        if isinstance(body, ev.AgentStart):
            assert not turn_open
            turn_open = True
        elif isinstance(body, ev.AgentEnd):
            assert turn_open
            turn_open = False
        elif isinstance(body, ev.AgentAbort):
            # An abort is also written when no turn was open.
            turn_open = False


@given(many_bodies())
def test_what_is_written_in_order_holds_everything_else_unchanged(bodies: list[Body]) -> None:
    written = in_order(View(), bodies)
    turn = (ev.AgentStart, ev.AgentEnd, ev.AgentAbort, ev.MessageStart, ev.ThinkingStart)
    assert [one for one in written if not isinstance(one, turn)] == [one for one in bodies if not isinstance(one, turn)]


@given(many_bodies())
def test_deltas_that_were_restated_may_be_dropped_and_nothing_shows_it(bodies: list[Body]) -> None:
    log = numbered(in_order(View(), bodies))
    kept = [event for place, event in enumerate(log) if not _is_restated(event.body, log[place + 1 :])]
    whole, thinned = fold_all(log), fold_all(kept)
    assert thinned.state == whole.state
    assert window(thinned.timeline) == window(whole.timeline)


def _is_restated(body: Body, later: list[Event]) -> bool:
    """Return whether a later event restates this delta."""
    if not isinstance(body, tuple(DELTAS)):
        return False
    return any(_restates(event.body, body) for event in later)


def _restates(whole: Body, piece: Body) -> bool:
    if isinstance(piece, ev.ToolExecutionOutput):
        return isinstance(whole, ev.ToolExecutionEnd) and whole.call_id == piece.call_id
    if isinstance(piece, ev.BashOutput):
        return isinstance(whole, ev.BashEnd) and whole.bash_id == piece.bash_id
    assert isinstance(piece, ev.MessageDelta | ev.ThinkingDelta)
    if not isinstance(whole, ev.ResponseComplete | ev.MessageAborted) or whole.message_id != piece.message_id:
        return False
    if isinstance(whole, ev.MessageAborted) and not whole.keep:
        return True
    return any(block.block == piece.block and block.kind in ("text", "thinking") for block in whole.blocks)


#: Events that may come between a text and the event that restates it.
BETWEEN: list[Body] = [
    ev.AgentStart(),
    ev.AgentEnd(),
    ev.AgentAbort(),
    ev.ProcessExited(code=1),
    ev.ProcessError(),
    ev.SessionSuspended(),
    ev.SessionArchived(),
    ev.Retry(attempt=1),
]
WHOLE = (ev.Block(text="Hello"),)
RESTATED: list[tuple[Body, Body, Body]] = [
    (
        ev.MessageStart(message_id="m1"),
        ev.MessageDelta(message_id="m1", delta="Hel"),
        ev.ResponseComplete(message_id="m1", blocks=WHOLE),
    ),
    (
        ev.MessageStart(message_id="m1"),
        ev.MessageDelta(message_id="m1", delta="Hel"),
        ev.MessageAborted(message_id="m1", keep=True, blocks=WHOLE),
    ),
    (
        ev.MessageStart(message_id="m1"),
        ev.MessageDelta(message_id="m1", delta="Hel"),
        ev.MessageAborted(message_id="m1"),
    ),
    (
        ev.ThinkingStart(message_id="m1"),
        ev.ThinkingDelta(message_id="m1", delta="Hm"),
        ev.MessageAborted(message_id="m1"),
    ),
    (
        ev.ToolExecutionStart(name="t", call_id="c1"),
        ev.ToolExecutionOutput(call_id="c1", delta="out"),
        ev.ToolExecutionEnd(name="t", call_id="c1", result="output"),
    ),
    (
        ev.BashStart(bash_id="b1", command="ls"),
        ev.BashOutput(bash_id="b1", delta="out"),
        ev.BashEnd(bash_id="b1", output="output"),
    ),
]


@pytest.mark.parametrize(("start", "piece", "whole"), RESTATED)
def test_pieces_may_be_dropped_whatever_came_before_they_were_restated(start: Body, piece: Body, whole: Body) -> None:
    for between in product([None, *BETWEEN], repeat=2):
        bodies = [ev.SessionOpened(agent="a"), ev.AgentStart(), start, piece, *filter(None, between), whole]
        log = numbered(bodies)
        kept, thinned = fold_all(log), fold_all(event for event in log if event.body is not piece)
        assert thinned.state == kept.state, between
        assert window(thinned.timeline) == window(kept.timeline), between


# ---------------------------------------------------------------------------------------------------- limits


def test_a_text_of_megabytes_is_told_whole_and_everything_short_stays_short() -> None:
    huge = "\U0001f525 words " * 500_000
    bodies = [
        ev.SessionOpened(agent="a", prompt=huge, message_id="m0"),
        ev.AgentStart(),
        ev.ToolExecutionStart(name="t", call_id="c1", args={"path": huge, "text": huge}),
        ev.ToolExecutionEnd(name="t", call_id="c1", result=huge),
        ev.MessageDelta(message_id="m1", delta=huge),
    ]
    view = fold_all(numbered(bodies))
    prompt, step, reply = window(view.timeline)
    assert prompt.text == reply.text == huge
    assert step.tool_step is not None
    assert len(step.tool_step.tool_args) <= ARGS_PREVIEW
    assert len(step.tool_step.result or "") <= RESULT_PREVIEW
    assert len(summary(view).name) <= NAME_LENGTH


def _nested(kind: str, field: str, levels: int) -> bytes:
    body = f'{{"type":"{kind}","name":"t","call_id":"c1","{field}":'
    return (body + '{"path":' * levels + "1" + "}" * levels + "}").encode()


@pytest.mark.parametrize(
    ("kind", "field"), [("tool_call", "args"), ("tool_execution_start", "args"), ("tool_execution_end", "result")]
)
def test_what_the_codec_takes_however_deep_is_folded(kind: str, field: str) -> None:
    """The decoder accepts deeper nesting than Python's repr, and such values must not break a session."""
    folded = 0
    for levels in range(1, 1_200):
        try:
            body, _ = decode_body(_nested(kind, field, levels))
        except MalformedEvent:
            continue
        view = fold_all(numbered([ev.SessionOpened(agent="a"), ev.AgentStart(), body]))
        assert [entry.id for entry in window(view.timeline)] == ["c1"]
        folded += 1
    assert folded > 100
