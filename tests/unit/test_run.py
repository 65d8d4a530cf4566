"""Test the run: open turns, parallel calls and held calls."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body
from tests.support.sessions import in_phase, works
from tests.support.tape import Tape, approval

REQUEST = ev.RequestStart()
TEXT = ev.MessageStart(message_id="m1")
THOUGHT = ev.ThinkingStart(message_id="m1")
CALLS = ev.ToolCalls(count=2)
STREAMED = ev.ToolCall(name="shell", call_id="c1", partial=True)
QUESTION = ev.AskUser(question="Which branch?", gate_id="q1")
ANSWER = ev.UserResponded(gate_id="q1", response="main")
COMPACTS = ev.CompactStart(trigger="auto")
BEHIND = ev.BackgroundStarted(kind="shell", id="c1")
GATE_1, GATE_2 = approval("g1", "c1"), approval("g2", "c2")


def runs(call_id: str) -> Body:
    return ev.ToolExecutionStart(name="shell", call_id=call_id)


def ends(call_id: str) -> Body:
    return ev.ToolExecutionEnd(name="shell", call_id=call_id)


def yes(gate_id: str) -> Body:
    return ev.ApprovalResolved(gate_id=gate_id, status="approved", by="user")


def no(gate_id: str) -> Body:
    return ev.ApprovalResolved(gate_id=gate_id, status="rejected", by="user")


#: Events in an open turn → the state of the run after them.
IN_A_TURN: list[tuple[tuple[Body, ...], str]] = [
    ((), "running"),
    ((TEXT,), "streaming"),
    ((THOUGHT,), "streaming"),
    ((TEXT, ev.MessageDelta(message_id="m1", delta="a")), "streaming"),
    # A reply may consist of a call only. Its arguments are then the first part to arrive.
    ((STREAMED,), "streaming"),
    ((STREAMED, ev.ToolCall(name="shell", call_id="c1", args={"a": 1})), "streaming"),
    ((STREAMED, runs("c1")), "executing_tools"),
    ((ev.ToolCall(name="shell", call_id="c1", args={"a": 1}),), "running"),
    ((runs("c2"), STREAMED), "executing_tools"),
    ((GATE_2, STREAMED), "idle"),
    ((TEXT, CALLS), "executing_tools"),
    ((TEXT, runs("c1")), "executing_tools"),
    ((runs("c1"), ends("c1")), "executing_tools"),
    ((runs("c1"), ends("c1"), REQUEST), "running"),
    ((QUESTION,), "executing_tools"),
    ((QUESTION, ANSWER), "executing_tools"),
    # A call that needs an approval holds the turn unless another call is running.
    ((GATE_1,), "idle"),
    ((TEXT, CALLS, GATE_1), "idle"),
    ((runs("c2"), GATE_1), "executing_tools"),
    ((runs("c2"), GATE_1, ends("c2")), "idle"),
    ((runs("c1"), GATE_1), "idle"),
    # The turn continues when the last approval is decided, whether approved or rejected.
    ((GATE_1, yes("g1")), "running"),
    ((GATE_1, no("g1")), "running"),
    ((GATE_1, GATE_2, yes("g1")), "idle"),
    ((GATE_1, GATE_2, yes("g1"), no("g2")), "running"),
    ((GATE_1, GATE_2, yes("g1"), runs("c1")), "executing_tools"),
    ((GATE_1, GATE_2, yes("g1"), runs("c1"), ends("c1")), "idle"),
    ((runs("c1"), GATE_1, yes("g1")), "executing_tools"),
    ((GATE_1, yes("g1"), ev.AgentResumed(trigger="tool_approved"), runs("c1")), "executing_tools"),
    # A held turn also continues when the agent does something else.
    ((GATE_1, REQUEST), "running"),
    ((GATE_1, runs("c1")), "executing_tools"),
    ((GATE_1, ev.ToolBlocked(name="shell", call_id="c1")), "running"),
    ((GATE_1, ev.AgentEnd()), "idle"),
    ((GATE_1, ev.AgentAbort()), "idle"),
    # Gates of sub-agents and dialogs don't hold the turn.
    ((TEXT, approval("g1", path=("helper",))), "streaming"),
    ((TEXT, ev.DialogRequired(method="confirm", gate_id="d1")), "streaming"),
    # A text during an open call or gate isn't the model's reply, so the run doesn't change.
    ((runs("c1"), TEXT), "executing_tools"),
    ((runs("c1"), ends("c1"), TEXT), "streaming"),
    ((CALLS, TEXT), "streaming"),
    ((QUESTION, THOUGHT), "executing_tools"),
    ((GATE_1, TEXT), "idle"),
    ((GATE_1, yes("g1"), TEXT), "streaming"),
    ((approval("g1", path=("helper",)), TEXT), "streaming"),
    ((ev.DialogRequired(method="confirm", gate_id="d1"), TEXT), "streaming"),
    # A background call doesn't count as open: the turn doesn't wait for it.
    ((runs("c1"), BEHIND, TEXT), "streaming"),
    ((runs("c1"), GATE_2, BEHIND), "idle"),
    ((runs("c1"), runs("c3"), GATE_2, BEHIND), "executing_tools"),
    # Compaction is a request of its own and closes open gates. The run then returns to calls that are still running.
    ((TEXT, COMPACTS), "running"),
    ((runs("c1"), ends("c1"), COMPACTS), "running"),
    ((runs("c1"), ends("c1"), COMPACTS, ev.CompactEnd()), "running"),
    ((GATE_1, COMPACTS), "running"),
    ((GATE_1, COMPACTS, ev.CompactEnd()), "running"),
    ((runs("c1"), COMPACTS), "running"),
    ((runs("c1"), COMPACTS, ev.CompactEnd()), "executing_tools"),
    ((runs("c1"), COMPACTS, ends("c1"), ev.CompactEnd()), "running"),
    # The agent sent a request without ending a call, and then asks for an approval.
    ((runs("c1"), REQUEST, GATE_2), "executing_tools"),
    # A second start in an open turn starts a new turn.
    ((runs("c1"), ev.AgentStart()), "running"),
]


@pytest.mark.parametrize(("bodies", "expected"), IN_A_TURN)
def test_in_a_turn(bodies: tuple[Body, ...], expected: str) -> None:
    assert works().add(*bodies).state.run.value == expected


@pytest.mark.parametrize(
    "body",
    [
        *(REQUEST, TEXT, THOUGHT, CALLS, runs("c1"), ends("c1"), QUESTION, GATE_1, COMPACTS, ev.CompactEnd()),
        ev.AgentResumed(trigger="steering"),
    ],
)
def test_nothing_outside_a_turn_makes_the_loop_busy(body: Body) -> None:
    tape = in_phase("completed").add(body)
    assert tape.state.run.value == "idle"
    assert tape.state.turn.calls == ()


@pytest.mark.parametrize("before", [(), (TEXT,), (runs("c1"),), (GATE_1,)])
@pytest.mark.parametrize(
    "ending",
    [
        ev.AgentEnd(),
        ev.AgentAbort(),
        ev.ProcessExited(code=0),
        ev.ProcessError(),
        ev.SessionSuspended(),
        ev.SessionArchived(),
        ev.SessionFailed(),
    ],
)
def test_whatever_ends_the_turn_ends_the_run_and_its_calls(before: tuple[Body, ...], ending: Body) -> None:
    tape = works().add(*before, ending)
    assert (tape.state.run.value, tape.state.turn.is_open, tape.state.turn.calls) == ("idle", False, ())


def test_a_held_turn_is_not_over() -> None:
    tape = works().add(GATE_1)
    assert (tape.state.run.value, tape.state.turn.is_open) == ("idle", True)
    assert tape.view.timeline.streaming


def test_compaction_answers_what_the_main_agent_asked_and_nothing_else() -> None:
    dialog = ev.DialogRequired(method="confirm", gate_id="d1")
    tape = works().add(GATE_1, QUESTION, approval("g3", path=("helper",)), dialog, COMPACTS)
    assert [gate.id for gate in tape.state.gates.open] == ["g3", "d1"]
    assert {one.status for one in tape.state.gates.decided} == {"answered_elsewhere"}


def test_a_call_left_behind_is_no_longer_a_call_of_the_turn() -> None:
    tape = works().add(runs("c1"), runs("c2"), BEHIND)
    assert [call.id for call in tape.state.turn.calls] == ["c2"]
    assert [task.id for task in tape.state.background] == ["c1"]


def test_a_turn_without_a_name_is_named_by_its_event() -> None:
    tape = Tape().opened().add(ev.AgentStart())
    assert tape.state.turn.id == "t2"
    assert Tape().opened().add(ev.AgentStart(turn_id="turn-7")).state.turn.id == "turn-7"


def test_the_cause_of_a_state_is_the_event_that_brought_it() -> None:
    tape = works().add(TEXT, ev.MessageDelta(message_id="m1", delta="a"), ev.MessageDelta(message_id="m1", delta="b"))
    assert (tape.state.run.type, tape.state.run.index) == ("message_start", tape.view.index - 2)
