"""Reproduce the faults that the search found in the kernel, each by its shortest path."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.harness.tracker import EventTracker
from quarterdeck.kernel import commands
from quarterdeck.kernel.log_invariants import in_order
from quarterdeck.kernel.routing import route
from tests.support.tape import Tape, approval, tape

READY = ev.AgentReady(native_session_id="n1", capabilities=("steer",), resumable=True)
DIALOG = ev.DialogRequired(method="confirm", gate_id="d1")
CHILD = ("a1",)


def at_work(*bodies: Body) -> Tape:
    """Open a turn with a request, then add these bodies."""
    return tape(READY, ev.AgentStart(), ev.RequestStart(), *bodies)


def start(call_id: str) -> Body:
    return ev.ToolExecutionStart(name="shell", call_id=call_id)


class TestTextsAndCommands:
    def test_a_second_text_waits_while_the_first_is_on_its_way(self) -> None:
        sent = tape(ev.PromptReceived(text="one", message_id="m1"))
        assert (sent.phase, route(sent.state).meaning) == ("streaming", "queue")

    def test_what_the_agent_tells_itself_never_takes_a_persons_text_out_of_the_queue(self) -> None:
        queued = at_work(ev.PromptQueued(text="go", message_id="m1"), ev.AgentEnd())
        queued.add(ev.PromptReceived(text="go", source="agent"))
        assert [item.id for item in queued.state.queue] == ["m1"]

    @pytest.mark.parametrize("before", [ev.ProcessExited(code=1), ev.TurnRestored()])
    def test_a_new_task_spins_where_000_knows_no_start(self, before: Body) -> None:
        failed_or_paused = tape(READY, ev.PromptReceived(text="one", message_id="m1"), before)
        failed_or_paused.add(ev.PromptReceived(text="two", message_id="m2", new_task=True))
        assert failed_or_paused.phase == "streaming"

    def test_only_what_can_be_decided_is_allowed(self) -> None:
        asked = at_work(DIALOG)
        assert {"approve", "reject", "respond"} & set(commands.allowed(asked.state)) == {"respond"}
        asked.add(ev.DialogResolved(gate_id="d1"), approval("g1"))
        assert {"approve", "reject", "respond"} & set(commands.allowed(asked.state)) == {"approve", "reject"}
        asked.add(ev.ApprovalResolved(gate_id="g1", status="approved"))
        assert {"approve", "reject", "respond"} & set(commands.allowed(asked.state)) == set()

    def test_steering_is_not_allowed_without_room(self) -> None:
        steered = at_work(ev.SteeringReceived(ref="s1", text="left"))
        assert "steer" in commands.allowed(steered.state)
        assert "steer" not in commands.allowed(steered.state, 1)


class TestProcessesThatEnd:
    def test_a_crash_by_a_signal_stays_an_error_when_its_turn_is_closed(self) -> None:
        crashed = at_work()
        crashed.add(*in_order(crashed.view, [ev.ProcessExited(signal="SIGSEGV")]))
        assert (crashed.phase, crashed.events[-1].type) == ("error", "agent_end")

    def test_the_book_closes_a_crashed_turn_the_same_way(self) -> None:
        tracker = EventTracker()
        tracker.start_request()
        tracker.record_process_exit(None, "SIGSEGV")
        crashed = Tape().opened().add(*tracker.take_events())
        assert (crashed.phase, crashed.events[-1].type) == ("error", "agent_end")

    def test_a_turn_that_failed_while_creating_stays_failed_when_the_process_ends_well(self) -> None:
        failed = tape(READY, ev.TurnFailed(kind="auth"), ev.ProcessExited(code=0), prompt="go")
        assert failed.phase == "error"

    @pytest.mark.parametrize(
        "end",
        [ev.ProcessExited(code=0), ev.ProcessExited(signal="SIGTERM"), ev.SessionSuspended(), ev.SessionArchived()],
    )
    def test_a_gate_over_finished_work_is_withdrawn_and_that_is_a_stop(self, end: Body) -> None:
        done = at_work(ev.BackgroundStarted(kind="subagent", id="a1"), ev.AgentEnd(), approval("g1", path=CHILD))
        assert done.phases(end) == ["waiting_approval", "stopped"]


class TestGates:
    def test_a_question_without_a_tool_runs_beside_an_approval_and_holds_the_turn_when_answered(self) -> None:
        asked = at_work(ev.AskUser(question="which?", gate_id="q1"), approval("g1", "c1"))
        assert asked.state.run.value == "executing_tools"
        asked.add(ev.UserResponded(gate_id="q1", response="this"))
        assert asked.state.run.value == "idle"

    def test_a_call_that_was_told_as_running_runs_when_it_is_approved_beside_another_approval(self) -> None:
        asked = at_work(approval("g1", "c1"), start("c2"), approval("g2", "c2"))
        assert asked.state.run.value == "idle"
        asked.add(ev.ApprovalResolved(gate_id="g2", status="approved"))
        assert (asked.state.run.value, asked.phase) == ("executing_tools", "waiting_approval")

    @pytest.mark.parametrize("end", [ev.AgentEnd(), ev.AgentAbort(), ev.TurnFailed()])
    def test_a_dialog_outlives_the_turn(self, end: Body) -> None:
        assert [gate.id for gate in at_work(DIALOG, end).state.gates.open] == ["d1"]

    @pytest.mark.parametrize(
        "word",
        [
            ev.RequestStart(agent_path=CHILD),
            ev.AgentEnd(agent_path=CHILD),
            ev.SubagentEnd(child_sid="a1"),
            ev.BackgroundEnded(kind="subagent", id="a1"),
        ],
    )
    def test_a_sub_agent_that_moved_on_or_ended_waits_for_nobody(self, word: Body) -> None:
        asked = at_work(start("c1"), approval("g1", path=CHILD), approval("g2", path=("a2",)))
        asked.add(word)
        assert [gate.id for gate in asked.state.gates.open] == ["g2"]
        asked.add(ev.SubagentEnd(child_sid="a2"))
        assert asked.phase == "streaming"
