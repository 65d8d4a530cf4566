"""Test Claude Code's background work that no recording shows: background shells, sub-agents of sub-agents.

The order of signals follows the facts (section 3, sub-agent): a background shell behaves like a background agent, without
Subagent hooks.
"""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from tests.support.claude_session import Session, text, tool_use

TASK = {"task_id": "sh1", "task_type": "local_bash", "description": "wait"}
LISTED = {"id": "sh1", "type": "shell", "status": "running", "description": "wait", "command": "sleep 9"}
NOTE = "<task-notification>\n<task-id>sh1</task-id>\n<status>{}</status>\n<summary>wait is over</summary>\n"
OUTER: dict[str, Any] = {"agent_id": "outer", "agent_type": "general-purpose"}
INNER: dict[str, Any] = {"agent_id": "inner", "agent_type": "Explore"}


def one_shot() -> Session:
    """Start `claude -p` with hooks and stream, up to its first request."""
    agent = Session().opens().prompts("start it", "p1").init()
    return agent.system("status", status="requesting")


def shell_runs(agent: Session) -> Session:
    """Start a shell in the background. Its call gets its result at once."""
    agent.replies(tool_use("b1", "Bash", command="sleep 9", run_in_background=True))
    agent.calls("b1", "Bash", command="sleep 9", run_in_background=True)
    agent.system("background_tasks_changed", tasks=[TASK])
    agent.system("task_started", tool_use_id="b1", is_backgrounded=True, **TASK)
    response = {"stdout": "", "stderr": "", "interrupted": False, "backgroundTaskId": "sh1"}
    agent.hook("PostToolUse", tool_name="Bash", tool_use_id="b1", tool_response=response)
    return agent.results("b1", "Command running in background with ID: sh1", tool_use_result=response)


def states(agent: Session) -> tuple[str, str, str, int]:
    return agent.phase, agent.activity, agent.state.run.value, len(agent.state.background)


class TestShells:
    def test_hooks_and_stream_tell_one_shell_and_its_turn_ends_before_it(self) -> None:
        agent = shell_runs(one_shot())
        assert states(agent) == ("streaming", "active/thinking", "executing_tools", 1)
        assert agent.tools() == [("Bash", "done")]
        agent.replies(text("It runs."), message_id="m2").hook("Stop", background_tasks=[LISTED])
        assert states(agent) == ("completed", "idle", "idle", 1)
        assert [(one.kind, one.id, one.title) for one in agent.state.background] == [("shell", "sh1", "wait")]
        assert len(agent.events_of(ev.BackgroundStarted)) == 1

    def test_its_end_wakes_the_agent_and_both_results_come_at_the_very_end(self) -> None:
        agent = shell_runs(one_shot()).replies(text("It runs."), message_id="m2")
        agent.hook("Stop", background_tasks=[LISTED])
        agent.system("task_updated", task_id="sh1", patch={"status": "completed"})
        assert states(agent) == ("completed", "idle", "idle", 0)
        agent.system("task_notification", task_id="sh1", tool_use_id="b1", status="completed", summary="wait is over")
        agent.system("background_tasks_changed", tasks=[])
        agent.prompts(NOTE.format("completed"), "p2").init()
        assert (agent.phase, agent.activity) == ("streaming", "active/thinking")
        agent.replies(text("It is over."), message_id="m3").hook("Stop", background_tasks=[]).result().result()
        assert states(agent) == ("completed", "idle", "idle", 0)
        assert agent.words("user", "assistant") == ["start it", "It runs.", "It is over."]
        assert (len(agent.events_of(ev.AgentStart)), len(agent.events_of(ev.BackgroundEnded))) == (2, 1)
        assert agent.hook("SessionEnd", reason="other").exits(0).phase == "completed"

    def test_the_result_of_a_turn_that_its_stop_ended_does_not_end_the_next_one(self) -> None:
        agent = shell_runs(one_shot()).replies(text("It runs."), message_id="m2")
        agent.hook("Stop", background_tasks=[LISTED]).sends("next").result()
        assert (agent.phase, agent.activity) == ("streaming", "active/thinking")
        agent.init().replies(text("Yes?"), message_id="m3").result()
        assert states(agent) == ("completed", "idle", "idle", 1)
        assert len(agent.events_of(ev.AgentStart)) == 2

    def test_a_result_that_never_came_does_not_swallow_the_next_one(self) -> None:
        agent = shell_runs(one_shot()).replies(text("It runs."), message_id="m2")
        agent.hook("Stop", background_tasks=[LISTED]).passes(2).sends("next").init()
        assert agent.replies(text("Yes?"), message_id="m3").result().phase == "completed"

    @pytest.mark.parametrize(("status", "ok"), [("completed", True), ("failed", False), ("killed", False)])
    def test_by_hooks_alone_the_notification_says_how_it_ended(self, status: str, ok: bool) -> None:
        agent = Session().opens().prompts("go", "p1").calls("b1", "Bash", command="sleep 9")
        agent.hook("PostToolUse", tool_name="Bash", tool_use_id="b1", tool_response={"backgroundTaskId": "sh1"})
        agent.hook("Stop", background_tasks=[LISTED])
        agent.prompts(NOTE.format(status), "p2")
        assert [one.ok for one in agent.events_of(ev.BackgroundEnded)] == [ok]
        assert states(agent) == ("streaming", "active/thinking", "running", 0)

    def test_what_runs_when_the_process_goes_is_over_with_it(self) -> None:
        agent = shell_runs(one_shot()).replies(text("It runs."), message_id="m2")
        agent.hook("Stop", background_tasks=[LISTED]).exits(0)
        assert states(agent) == ("completed", "exited", "idle", 0)


class TestNested:
    def test_by_the_stream_an_agent_of_an_agent_stands_under_both(self) -> None:
        agent = one_shot().replies(tool_use("a1", "Agent", prompt="x"))
        started: dict[str, Any] = {"task_type": "local_agent", "is_backgrounded": False}
        agent.system("task_started", task_id="outer", tool_use_id="a1", spawn_depth=1, **started)
        agent.replies(tool_use("a2", "Agent", prompt="y"), message_id="m2", parent_tool_use_id="a1", agent_id="outer")
        agent.system("task_started", task_id="inner", tool_use_id="a2", spawn_depth=2, **started)
        agent.replies(text("deep"), message_id="m3", parent_tool_use_id="a2", agent_id="inner")
        assert [entry.path for entry in agent.entries if entry.text == "deep"] == [("outer", "inner")]
        assert [(one.call_id, one.agent_path) for one in agent.events_of(ev.SubagentStart)] == [
            ("a1", ()),
            ("a2", ("outer",)),
        ]
        assert (agent.tools(), agent.activity) == ([("Agent", "running")] * 2, "active/tool_use")

    def test_its_question_is_asked_under_its_path_and_moves_the_phase_alone(self) -> None:
        agent = Session().opens().prompts().calls("a1", "Agent").hook("SubagentStart", **OUTER)
        agent.hook("PreToolUse", tool_name="Agent", tool_use_id="a2", tool_input={"prompt": "y"}, **OUTER)
        agent.hook("SubagentStart", **INNER)
        agent.hook("PreToolUse", tool_name="Bash", tool_use_id="x1", tool_input={"command": "ls"}, **INNER)
        agent.hook("PermissionRequest", tool_name="Bash", tool_input={"command": "ls"}, **INNER)
        assert [gate.path for gate in agent.state.gates.open] == [("outer", "inner")]
        assert (agent.phase, agent.activity) == ("waiting_approval", "active/tool_use")
        agent.decides("allow")
        assert (agent.phase, agent.activity, agent.gates) == ("streaming", "active/tool_use", 0)

    def test_one_that_its_caller_left_in_the_background_outlives_the_caller_and_the_turn(self) -> None:
        agent = Session().opens().prompts().calls("a1", "Agent").hook("SubagentStart", **OUTER)
        agent.hook("PreToolUse", tool_name="Agent", tool_use_id="a2", tool_input={"prompt": "y"}, **OUTER)
        agent.hook("SubagentStart", **INNER)
        launched = {"isAsync": True, "status": "async_launched", "agentId": "inner", "description": "look"}
        agent.hook("PostToolUse", tool_name="Agent", tool_use_id="a2", tool_response=launched, **OUTER)
        agent.hook("SubagentStop", last_assistant_message="done", **OUTER)
        agent.hook("PostToolUse", tool_name="Agent", tool_use_id="a1", tool_response={"agentId": "outer"})
        task = {"id": "inner", "type": "subagent", "status": "running", "description": "look"}
        agent.hook("Stop", background_tasks=[task])
        assert states(agent) == ("completed", "idle", "idle", 1)
        agent.hook("SubagentStop", **INNER)
        assert states(agent) == ("completed", "idle", "idle", 0)
        assert [one.child_sid for one in agent.events_of(ev.SubagentEnd)] == ["outer", "inner"]
