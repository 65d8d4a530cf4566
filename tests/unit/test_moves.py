"""Test how run, calls and approvals interact."""

from __future__ import annotations

from quarterdeck import events as ev
from tests.support.tape import Tape, approval, tape


def with_calls(*call_ids: str) -> Tape:
    """Create a turn in which these calls started."""
    begun = [ev.ToolExecutionStart(name="shell", call_id=call_id) for call_id in call_ids]
    return tape(ev.AgentReady(), ev.AgentStart(), *begun)


def run_of(played: Tape) -> str:
    return played.state.run.value


class TestACallThatBeganAndThenAsks:
    """Some agents report the start of a call before they ask for its approval."""

    def test_alone_it_holds_the_turn(self) -> None:
        assert run_of(with_calls("c1").add(approval("g1", "c1"))) == "idle"

    def test_beside_another_one_that_runs_it_does_not(self) -> None:
        for first, second in (("c1", "c2"), ("c2", "c1")):
            assert run_of(with_calls(first, second).add(approval("g1", "c1"))) == "executing_tools"

    def test_the_turn_is_held_when_the_last_one_beside_it_ends(self) -> None:
        played = with_calls("c1", "c2").add(approval("g1", "c1"))
        assert run_of(played.add(ev.ToolExecutionEnd(name="shell", call_id="c2"))) == "idle"

    def test_all_of_them_asking_hold_the_turn(self) -> None:
        played = with_calls("c1", "c2").add(approval("g1", "c1"), approval("g2", "c2"))
        assert run_of(played) == "idle"
        played.add(ev.ApprovalResolved(status="approved", gate_id="g1"))
        assert run_of(played) == "executing_tools"

    def test_it_runs_again_when_it_is_allowed(self) -> None:
        played = with_calls("c1").add(approval("g1", "c1"), ev.ApprovalResolved(status="approved", gate_id="g1"))
        assert run_of(played) == "executing_tools"
        assert played.phase == "streaming"
