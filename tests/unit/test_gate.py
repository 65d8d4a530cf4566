"""Test gates: how they open, how each is decided once, and which phase is shown while one is open."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.errors import AlreadyDecided, NoSuchGate
from quarterdeck.events import Body, Event, GateRequest, Option, Question
from quarterdeck.kernel import gate
from quarterdeck.kernel.gate import Gate, Gates
from tests.support.sessions import READY, in_phase, works
from tests.support.tape import Tape, approval

CHILD = ("helper",)


def asked(body: Body, index: int = 7, at: int = 1_000) -> Gate:
    return gate.gate_of(Event("s1", index, at, "stream", body))


def opened(*bodies: Body) -> Gates:
    gates = Gates()
    for index, body in enumerate(bodies, 1):
        gates = gate.opened(gates, asked(body, index, at=index * 100))
    return gates


def question(gate_id: str = "q1", path: tuple[str, ...] = ()) -> ev.AskUser:
    return ev.AskUser(question="Which branch?", gate_id=gate_id, agent_path=path)


def dialog(gate_id: str = "d1", path: tuple[str, ...] = ()) -> ev.DialogRequired:
    return ev.DialogRequired(method="confirm", title="Push?", gate_id=gate_id, agent_path=path)


def open_ids(tape: Tape) -> list[str]:
    return [one.id for one in tape.state.gates.open]


def statuses(tape: Tape) -> dict[str, str]:
    return {one.gate_id: one.status for one in tape.state.gates.decided}


# ------------------------------------------------------------------------------------------------------- requests


def test_an_approval_carries_what_a_person_needs_to_decide() -> None:
    options = (Option(id="yes", label="Yes"),)
    request = GateRequest(
        gate_id="g1", ref="r1", tool="shell", args={"command": "ls"}, call_id="c1", hint="reads", ask="command",
        options=options, requested_at=5, deadline=9,
    )  # fmt: skip
    assert asked(ev.ApprovalRequired(gate=request, agent_path=CHILD)) == Gate(
        "g1", "approval", "shell", {"tool": "shell", "args": {"command": "ls"}, "hint": "reads"}, options, 5, 9, CHILD,
        "r1", "c1", "ask:command",
    )  # fmt: skip


def test_an_approval_may_have_a_title_of_its_own_and_is_asked_now_unless_it_says_when() -> None:
    one = asked(ev.ApprovalRequired(gate=GateRequest(title="Delete build/", tool="shell")))
    assert (one.title, one.requested_at, one.deadline) == ("Delete build/", 1_000, None)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        ("tool", "ask:tool"),
        ("command", "ask:command"),
        ("browser", "ask:browser_action_launch"),
        ("mcp", "ask:use_mcp_server"),
    ],
)
def test_an_approval_has_000s_name(ask: str, name: str) -> None:
    assert asked(ev.ApprovalRequired(gate=GateRequest(ask=ask))).ask == name  # pyright: ignore[reportArgumentType]


def test_a_question_keeps_its_questions_and_options() -> None:
    several = (Question(text="Which branch?"), Question(text="And when?"))
    body = ev.AskUser(question="Two things", questions=several, options=(Option(id="a"),), call_id="c1", deadline=9)
    one = asked(body)
    assert (one.kind, one.title, one.questions, one.call_id) == ("question", "Two things", several, "c1")
    assert (one.options, one.deadline, one.ask) == ((Option(id="a"),), 9, "ask:followup")


def test_a_dialog_keeps_its_method_and_its_text() -> None:
    one = asked(ev.DialogRequired(method="editor", title="Message", message="Why?", prefill="Fix", deadline=9))
    assert (one.kind, one.title, one.call_id) == ("dialog", "Message", "")
    assert one.payload == {"method": "editor", "message": "Why?", "prefill": "Fix"}
    assert one.deadline == 9


@pytest.mark.parametrize(
    "make",
    [
        lambda gate_id, ref: ev.ApprovalRequired(gate=GateRequest(gate_id=gate_id, ref=ref)),
        lambda gate_id, ref: ev.AskUser(question="?", gate_id=gate_id, ref=ref),
        lambda gate_id, ref: ev.DialogRequired(method="input", gate_id=gate_id, ref=ref),
    ],
)
def test_a_gate_is_named_by_the_deck_else_by_the_agent_else_by_its_event(make: Callable[[str, str], Body]) -> None:
    assert asked(make("g1", "r1")).id == "g1"
    assert asked(make("", "r1")).id == "r1"
    assert asked(make("", "")).id == "e7"


# ------------------------------------------------------------------------------------------ opening, finding, closing


def test_a_gate_that_is_asked_again_is_one_gate() -> None:
    gates = gate.opened(opened(approval("g1", "c1"), approval("g2")), asked(approval("g1", "c9")))
    assert [(one.id, one.call_id) for one in gates.open] == [("g2", ""), ("g1", "c9")]


def test_a_decision_finds_its_gate_by_either_name() -> None:
    gates = opened(ev.ApprovalRequired(gate=GateRequest(gate_id="g1", ref="r1")), approval("g2"))
    first = gates.open[0]
    assert gate.find(gates, "g1", "", "approval") is first
    assert gate.find(gates, "", "r1", "approval") is first
    assert gate.find(gates, "g9", "r1", "approval") is first
    assert gate.find(gates, "g9", "", "approval") is None


def test_a_decision_without_a_name_means_the_only_gate_of_its_kind() -> None:
    gates = opened(approval("g1"), question("q1"))
    assert gate.find(gates, "", "", "question") is gates.open[1]
    assert gate.find(gates, "", "", "dialog") is None
    assert gate.find(opened(approval("g1"), approval("g2")), "", "", "approval") is None


def test_a_closed_gate_is_remembered_with_who_decided_what() -> None:
    gates = opened(approval("g1"), approval("g2"))
    after = gate.closed(gates, gates.open[0], "approved", 9, "user", "allow ls")
    assert [one.id for one in after.open] == ["g2"]
    assert after.decided == (gate.Decision("g1", "", "approved", "user", "allow ls", 9),)
    assert after.stale == ()


@pytest.mark.parametrize("together", [False, True])
def test_only_the_last_decisions_are_kept(together: bool) -> None:
    gates = opened(*(approval(f"g{number}") for number in range(60)))
    if together:
        gates = gate.closed_all(gates, "withdrawn", 9)
    for one in gates.open:
        gates = gate.closed(gates, one, "approved", 9)
    assert [decision.gate_id for decision in gates.decided] == [f"g{number}" for number in range(12, 60)]


def test_a_gate_that_a_restart_cut_off_is_stale_until_it_is_asked_again_or_a_turn_begins() -> None:
    gates = opened(approval("g1"), approval("g2"))
    for one in gates.open:
        gates = gate.closed(gates, one, "stale", 9)
    assert [one.id for one in gates.stale] == ["g1", "g2"]
    assert [one.id for one in gate.opened(gates, asked(approval("g1"))).stale] == ["g2"]
    assert gate.without_stale(gates) == Gates((), (), gates.decided)
    assert gate.without_stale(Gates()) == Gates()


def test_closing_none_gives_the_same_object() -> None:
    empty, gates = Gates(), opened(approval("g1"))
    assert gate.closed_where(empty, lambda _: True, "withdrawn", 9) is empty
    assert gate.closed_where(gates, lambda _: False, "withdrawn", 9) is gates


def test_all_that_are_meant_are_closed() -> None:
    after = gate.closed_where(opened(approval("g1"), question("q1"), approval("g2")), _is_approval, "withdrawn", 9)
    assert [one.id for one in after.open] == ["q1"]
    assert [(one.gate_id, one.status) for one in after.decided] == [("g1", "withdrawn"), ("g2", "withdrawn")]


def _is_approval(one: Gate) -> bool:
    return one.kind == "approval"


def test_whoever_decides_gets_the_gate_or_is_told_why_not() -> None:
    gates = opened(approval("g1"), approval("g2"))
    assert gate.to_decide(gates, "g2").id == "g2"
    gates = gate.closed(gates, gates.open[0], "rejected", 9, "user")
    with pytest.raises(AlreadyDecided, match="g1 was already decided: rejected by user") as decided:
        gate.to_decide(gates, "g1")
    assert (decided.value.gate_id, decided.value.status, decided.value.by) == ("g1", "rejected", "user")
    with pytest.raises(NoSuchGate, match="no gate g9") as unknown:
        gate.to_decide(gates, "g9")
    assert unknown.value.hint == "Open gates: g2."


def test_the_last_decision_about_a_name_is_told() -> None:
    gates = Gates()
    for status in ("withdrawn", "approved"):
        gates = gate.opened(gates, asked(approval("g1")))
        gates = gate.closed(gates, gates.open[0], status, 9)
    with pytest.raises(AlreadyDecided, match="approved by the agent"):
        gate.to_decide(gates, "g1")


def test_approvals_and_dialogs_stand_before_questions_then_the_oldest_first() -> None:
    gates = opened(question("q1"), dialog("d1"), approval("g1"), approval("g0"))
    assert [one.id for one in gate.ranked(gates)] == ["g1", "g0", "d1", "q1"]


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ((), None),
        ((question(),), "waiting_input"),
        ((dialog(),), "waiting_input"),
        ((approval(),), "waiting_approval"),
        ((question(), dialog(), approval()), "waiting_approval"),
    ],
)
def test_the_strongest_gate_decides_what_shows(bodies: tuple[Body, ...], expected: str | None) -> None:
    assert gate.waiting_phase(opened(*bodies)) == expected


# ------------------------------------------------------------------------------------------------ gates in a session


def test_several_gates_are_decided_in_any_order_and_the_last_one_ends_the_wait() -> None:
    tape = works().add(approval("g1", "c1"), approval("g2", "c2"), question("q1"))
    assert tape.phases(
        ev.ApprovalResolved(gate_id="g2", status="approved"),
        ev.ApprovalResolved(gate_id="g1", status="rejected"),
        ev.UserResponded(gate_id="q1", response="main"),
    ) == ["waiting_approval", "waiting_input", "streaming"]


@pytest.mark.parametrize("name", ["idle", "completed", "stopped", "error", "paused"])
def test_when_no_turn_is_open_the_last_gate_leaves_what_was_there_before(name: str) -> None:
    tape = in_phase(name).add(dialog("d1"))
    assert tape.phase == "waiting_input"
    assert tape.add(ev.DialogResolved(gate_id="d1", status="cancelled")).phase == name


@pytest.mark.parametrize("moves_on", [ev.RequestStart(), ev.AgentStart()])
def test_an_agent_that_moves_on_has_its_answer(moves_on: Body) -> None:
    tape = works().add(approval("g1", "c1"), question("q1"), dialog("d1"), approval("g2", path=CHILD), moves_on)
    assert open_ids(tape) == ["d1", "g2"]
    assert statuses(tape) == {"g1": "answered_elsewhere", "q1": "answered_elsewhere"}


ENDS_OF_A_CALL = [
    ev.ToolExecutionStart(name="shell", call_id="c1"),
    ev.ToolExecutionEnd(name="shell", call_id="c1"),
    ev.ToolBlocked(name="shell", call_id="c1"),
    ev.ToolKilled(name="shell", call_id="c1"),
    ev.ToolSkippedForSteering(name="shell", call_id="c1"),
    ev.ToolCallUnknown(name="shell", call_id="c1"),
]


@pytest.mark.parametrize("body", ENDS_OF_A_CALL)
@pytest.mark.parametrize("path", [(), CHILD])
def test_a_call_that_runs_or_ended_is_not_asked_about_any_more(body: Body, path: tuple[str, ...]) -> None:
    tape = works().add(approval("g1", "c1", path=path), approval("g2", "c2", path=path))
    tape.add(replace(body, agent_path=path))
    assert open_ids(tape) == ["g2"]
    assert statuses(tape) == {"g1": "answered_elsewhere"}
    assert tape.phase == "waiting_approval"


def test_a_call_without_a_name_closes_no_gate() -> None:
    tape = works().add(approval("g1", ""), ev.ToolExecutionStart(name="shell", call_id=""))
    assert open_ids(tape) == ["g1"]


@pytest.mark.parametrize("ends", [ev.AgentEnd(), ev.AgentEnd(outcome="failed"), ev.TurnFailed(), ev.AgentAbort()])
def test_the_turns_gates_end_with_it_and_a_background_agents_stay(ends: Body) -> None:
    background = ev.BackgroundStarted(kind="subagent", id="helper")
    tape = works().add(background, approval("g1", "c1"), question("q1"), approval("g2", path=CHILD), ends)
    assert open_ids(tape) == ["g2"]
    assert tape.phase == "waiting_approval"
    alone = works().add(approval("g1", "c1"), approval("g2", path=CHILD), ends)
    assert open_ids(alone) == []


def test_a_stale_gate_is_forgotten_when_the_agent_works_again() -> None:
    tape = in_phase("waiting_approval").add(ev.SessionSuspended(), ev.SessionResumed(), READY)
    assert [one.id for one in tape.state.gates.stale] == ["g1"]
    assert tape.add(ev.AgentStart()).state.gates.stale == ()


def test_a_decision_about_nothing_changes_nothing() -> None:
    tape = works()
    before = tape.state
    for body in (
        ev.ApprovalResolved(gate_id="g9", status="approved"),
        ev.UserResponded(gate_id="g9"),
        ev.DialogResolved(gate_id="g9"),
        ev.ApprovalResolved(gate_id="g9", status="approved", agent_path=CHILD),
    ):
        assert tape.add(body).state is before


def test_a_sub_agents_gate_holds_nothing_of_the_main_agent() -> None:
    tape = works().add(ev.MessageStart(message_id="m1"), approval("g1", path=CHILD))
    assert (tape.phase, tape.state.run.value) == ("waiting_approval", "streaming")
    tape.add(ev.ApprovalResolved(gate_id="g1", status="approved", agent_path=CHILD))
    assert (tape.phase, tape.state.run.value) == ("streaming", "streaming")
