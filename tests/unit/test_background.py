"""Test background work, which outlives the turn."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.kernel.turn import Task, with_task, without_task
from tests.support.tape import START, STEP, tape

SHELL = Task("shell", "b1", "make watch", 5)


def test_work_is_there_from_its_start_to_its_end() -> None:
    assert with_task((), SHELL) == (SHELL,)
    assert without_task((SHELL,), "b1") == ()
    assert without_task((SHELL,), "b2") == (SHELL,)


def test_work_that_is_told_again_keeps_the_time_of_its_start() -> None:
    running = (SHELL,)
    assert with_task(running, Task("shell", "b1", "make watch", 9)) is running


def test_a_finished_turn_leaves_it_running() -> None:
    played = tape(ev.AgentStart(), ev.BackgroundStarted(kind="shell", id="b1", title="make"), ev.AgentEnd())
    assert played.state.background == (Task("shell", "b1", "make", START + 2 * STEP),)
    assert played.add(ev.BackgroundEnded(kind="shell", id="b1")).state.background == ()


def test_work_of_a_sub_agent_counts_too() -> None:
    played = tape(ev.BackgroundStarted(kind="subagent", id="k1", agent_path=("k",)))
    assert [task.id for task in played.state.background] == ["k1"]
    assert played.add(ev.BackgroundEnded(kind="subagent", id="k1", agent_path=("k",))).state.background == ()


def test_nothing_outlives_the_process() -> None:
    assert tape(ev.BackgroundStarted(kind="shell", id="b1"), ev.ProcessExited(code=0)).state.background == ()
