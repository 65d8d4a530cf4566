"""Test Claude Code through hooks alone, through the session file, and where approvals race."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.base import Signal
from quarterdeck.harness.claude.translate import claude
from tests.support.claude_session import ID, WRITE, Session

THINKING = "active/thinking"
TOOL_USE = "active/tool_use"
WAITING = "active/waiting_for_permission"
QUESTION = {
    "questions": [
        {
            "question": "Which colour?",
            "header": "Colour",
            "multiSelect": True,
            "options": [{"label": "Red", "description": "r"}, "Blue"],
        },
        {"question": "How many?", "options": []},
    ]
}


def working() -> Session:
    return Session().opens().prompts()


def asked() -> Session:
    return working().calls().asks()


def post(agent: Session, call_id: str = "c1", tool: str = "Write", **fields: Any) -> Session:
    return agent.hook("PostToolUse", tool_name=tool, tool_use_id=call_id, **fields)


# --- approvals


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("PostToolUse", {"tool_name": "Write", "tool_use_id": "c1"}),
        ("PostToolUseFailure", {"tool_name": "Write", "tool_use_id": "c1", "error": "no"}),
        ("PostToolBatch", {"tool_calls": [{"tool_name": "Write", "tool_use_id": "c1", "tool_response": "denied"}]}),
        ("Stop", {}),
        ("StopFailure", {"error": "server_error"}),
        ("UserPromptSubmit", {"prompt": "next", "prompt_id": "p2"}),
        ("SessionEnd", {"reason": "other"}),
    ],
)
def test_an_approval_that_was_answered_in_the_terminal_is_retired(name: str, fields: dict[str, Any]) -> None:
    agent = asked()
    assert agent.gates == 1
    assert agent.hook(name, **fields).gates == 0


def test_an_approval_of_a_closed_connection_is_withdrawn() -> None:
    agent = asked().feed("hook.disconnect", {"event": "PermissionRequest"})
    assert agent.gates == 0
    assert agent.events_of(ev.ApprovalResolved)[-1].status == "withdrawn"
    assert agent.activity == TOOL_USE


def test_a_late_answer_decides_nothing_and_not_the_next_approval_either() -> None:
    agent = asked()
    post(agent).calls("c2", "Write", file_path="b").asks(file_path="b")
    answer = {"hookSpecificOutput": {"decision": {"behavior": "allow"}}}
    agent.feed("hook.reply", {"event": "PermissionRequest", "after_s": 10.03, "answer": answer}, after=10)
    assert agent.gates == 1
    agent.feed("hook.reply", {"event": "PermissionRequest", "tool_use_id": "c2", "answer": answer})
    assert agent.gates == 0


def test_an_answer_that_fits_no_hook_in_time_is_ignored() -> None:
    agent = asked()
    answer = {"hookSpecificOutput": {"decision": {"behavior": "allow"}}}
    agent.feed("hook.reply", {"event": "PermissionRequest", "after_s": 100, "answer": answer})
    assert agent.gates == 1
    assert agent.feed("hook.reply", {"event": "PermissionRequest", "answer": answer}).gates == 0


def test_approvals_of_parallel_agents_are_matched_by_agent_and_arguments() -> None:
    agent = working().calls("a1", "Agent").hook("SubagentStart", agent_id="s", agent_type="Explore")
    sub: dict[str, Any] = {"agent_id": "s", "agent_type": "Explore", "tool_name": "Write", "tool_input": WRITE}
    agent.hook("PreToolUse", tool_use_id="x1", **sub).hook("PermissionRequest", **sub)
    gate = agent.state.gates.open[0]
    assert (gate.call_id, gate.path) == ("x1", ("s",))
    assert agent.activity == TOOL_USE
    assert agent.phase == "waiting_approval"
    assert agent.decides("allow").phase == "streaming"


def test_options_offer_what_claude_code_suggests() -> None:
    suggestions = [
        {
            "type": "addRules",
            "rules": [{"toolName": "Bash", "ruleContent": "touch *"}, {"toolName": "Read"}],
            "behavior": "allow",
            "destination": "localSettings",
        },
        {"type": "addDirectories", "directories": ["src"]},
        {"type": "setMode", "mode": "acceptEdits"},
        {"type": "new"},
        "junk",
    ]
    agent = working().calls("c1", "Bash", command="touch a")
    agent.hook(
        "PermissionRequest", tool_name="Bash", tool_input={"command": "touch a"}, permission_suggestions=suggestions
    )
    gate = agent.state.gates.open[0]
    assert [option.label for option in gate.options] == [
        "Allow",
        "Always allow Bash(touch *), Read",
        "Allow, and add src",
        "Allow, and switch to edits",
        "Deny",
    ]
    assert gate.ask == "ask:command"
    agent.decides("allow", updatedPermissions=suggestions)
    always = agent.events_of(ev.ToolApprovedAlways)
    assert [(body.tool, body.rule, body.scope) for body in always] == [("Bash", "Bash(touch *), Read", "repo")]


def test_a_refusal_that_interrupts_stops_the_turn() -> None:
    agent = asked().decides("deny", message="stop it", interrupt=True)
    assert (agent.phase, agent.activity) == ("stopped", "idle")
    assert agent.tools() == [("Write", "error")]


def test_an_ask_for_a_call_that_no_hook_told_gets_a_call_of_its_own() -> None:
    agent = working().hook("PermissionRequest", tool_name="mcp__x__y", tool_input={"a": 1})
    assert agent.state.gates.open[0].ask == "ask:use_mcp_server"
    agent.decides("allow")
    assert agent.activity == TOOL_USE
    post(agent, "real-id", "mcp__x__y", tool_input={"a": 1})
    assert agent.activity == THINKING
    assert agent.tools() == [("mcp__x__y", "done")]


# --- questions and forms


def test_a_question_has_all_its_parts_and_is_answered_by_the_hook() -> None:
    agent = working().hook("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q1", tool_input=QUESTION)
    asked_for = agent.events_of(ev.AskUser)[0]
    assert asked_for.question == "Which colour?"
    assert [one.text for one in asked_for.questions] == ["Which colour?", "How many?"]
    assert asked_for.questions[0].multiple
    assert [option.id for option in asked_for.options] == ["Red", "Blue"]
    assert (agent.phase, agent.activity, agent.state.run.value) == ("waiting_input", WAITING, "executing_tools")
    answers = {"Which colour?": "Red", "How many?": "2"}
    agent.reply("PreToolUse", hookSpecificOutput={"permissionDecision": "allow", "updatedInput": {"answers": answers}})
    assert (agent.phase, agent.activity) == ("streaming", TOOL_USE)
    assert agent.events_of(ev.UserResponded)[0].response == answers


@pytest.mark.parametrize("decision", ["allow", "ask"])
def test_a_hook_that_only_lets_a_question_pass_does_not_answer_it(decision: str) -> None:
    agent = working().hook("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q1", tool_input=QUESTION)
    agent.reply("PreToolUse", hookSpecificOutput={"permissionDecision": decision})
    assert agent.phase == "waiting_input"


def test_a_question_may_be_answered_by_the_permission_hook() -> None:
    agent = working().hook("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q1", tool_input=QUESTION)
    agent.hook("PermissionRequest", tool_name="AskUserQuestion", tool_input=QUESTION)
    assert len(agent.events_of(ev.AskUser)) == 1
    agent.decides("allow", updatedInput={"answers": {"Which colour?": "Blue"}})
    assert agent.words("user") == ["go", "Blue"]


def test_a_question_that_is_refused_or_answered_in_the_terminal_is_closed() -> None:
    agent = working().hook("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q1", tool_input={})
    assert agent.decides("deny").gates == 1
    agent.hook("PermissionRequest", tool_name="AskUserQuestion", tool_input={}).decides("deny")
    assert (agent.gates, agent.activity) == (0, THINKING)
    agent.hook("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q2", tool_input=QUESTION)
    post(agent, "q2", "AskUserQuestion", tool_response={"answers": {"Which colour?": "Red"}})
    assert agent.gates == 0
    assert agent.words("user") == ["go", "Red"]


def form(agent: Session, **schema: Any) -> Session:
    return agent.hook("Elicitation", mcp_server_name="srv", message="Your name?", requested_schema=schema)


@pytest.mark.parametrize(
    ("schema", "method"),
    [
        ({"properties": {"name": {"type": "string"}}}, "input"),
        ({"properties": {"sure": {"type": "boolean"}}}, "confirm"),
        ({"properties": {"size": {"type": "string", "enum": ["s", "m"]}}}, "select"),
        ({}, "input"),
    ],
)
def test_a_form_is_a_dialog(schema: dict[str, Any], method: str) -> None:
    agent = form(working().calls("m1", "mcp__srv__ask"), **schema)
    shown = agent.events_of(ev.DialogRequired)[0]
    assert (shown.method, shown.title, shown.message) == (method, "srv", "Your name?")
    assert (agent.phase, agent.activity) == ("waiting_input", WAITING)
    agent.reply("Elicitation", hookSpecificOutput={})
    assert agent.gates == 1
    agent.reply("Elicitation", hookSpecificOutput={"action": "accept", "content": {"name": "Ann"}})
    form(agent)
    agent.hook("ElicitationResult", mcp_server_name="srv", action="decline")
    statuses = [body.status for body in agent.events_of(ev.DialogResolved)]
    assert statuses in (["answered", "cancelled"], ["cancelled"])
    assert agent.gates == 0


def test_a_form_is_over_when_its_call_is() -> None:
    agent = form(working().calls("m1", "mcp__srv__ask"))
    assert post(agent, "m1", "mcp__srv__ask").gates == 0


def test_a_page_to_visit_is_a_confirmation() -> None:
    agent = working().hook("Elicitation", mcp_server_name="srv", mode="url", url="https://example.org")
    shown = agent.events_of(ev.DialogRequired)[0]
    assert (shown.method, shown.message) == ("confirm", "https://example.org")


# --- calls


def test_a_call_that_a_hook_refuses_is_blocked() -> None:
    agent = working().calls()
    agent.reply("PreToolUse", hookSpecificOutput={"permissionDecision": "deny", "permissionDecisionReason": "no"})
    assert agent.kinds == ["tool_blocked", "state_change"]
    assert agent.activity == THINKING
    agent.hook("PostToolBatch", tool_calls=[{"tool_name": "Write", "tool_use_id": "c1", "tool_response": "no"}])
    assert agent.tools() == [("Write", "error")]
    assert agent.calls("c2").reply("PreToolUse", decision="block", reason="old form").activity == THINKING


def test_parallel_calls_are_in_use_until_the_last_one_ends() -> None:
    agent = working().calls("c1", "Read", file_path="a").calls("c2", "Read", file_path="b")
    assert post(agent, "c2", "Read").activity == TOOL_USE
    assert post(agent, "c1", "Read").activity == THINKING


def test_a_call_that_auto_mode_refuses_ends() -> None:
    agent = working().calls().hook("PermissionDenied", tool_name="Write", tool_use_id="c1", reason="classifier")
    assert (agent.activity, agent.tools()) == (THINKING, [("Write", "error")])


def test_calls_without_ids_are_told_apart_by_tool_and_arguments() -> None:
    agent = working().hook("PreToolUse", tool_name="Read", tool_input={"file_path": "a"})
    agent.hook(
        "PostToolUse", tool_name="Read", tool_input={"file_path": "a"}, tool_response={"stdout": "x", "stderr": "y"}
    )
    assert agent.events_of(ev.ToolExecutionEnd)[0].result == "x\ny"
    assert agent.activity == THINKING
    assert agent.hook("PostToolUse", tool_name="Other").activity == THINKING


def test_whoever_allows_a_call_may_change_its_arguments() -> None:
    agent = working().calls("c1", "Bash", command="rm -r /")
    agent.reply("PreToolUse", hookSpecificOutput={"permissionDecision": "allow", "updatedInput": {"command": "ls"}})
    assert [entry.tool_step.tool_args for entry in agent.entries if entry.tool_step] == ['{"command":"ls"}']
    agent.asks("Bash", command="ls").decides("allow", updatedInput={"command": "ls -l"})
    assert [entry.tool_step.tool_args for entry in agent.entries if entry.tool_step] == ['{"command":"ls -l"}']


def test_hooks_that_are_installed_twice_tell_everything_once() -> None:
    agent = Session().opens()
    hooks: list[tuple[str, dict[str, Any]]] = [
        ("UserPromptSubmit", {"prompt": "go", "prompt_id": "p1"}),
        ("MessageDisplay", {"message_id": "m1", "index": 0, "delta": "one ", "final": False}),
        ("MessageDisplay", {"message_id": "m1", "index": 1, "delta": "two", "final": True}),
        ("PreToolUse", {"tool_name": "Write", "tool_use_id": "c1", "tool_input": WRITE}),
        ("PermissionRequest", {"tool_name": "Write", "tool_input": WRITE}),
        ("PostToolUse", {"tool_name": "Write", "tool_use_id": "c1"}),
        ("StopFailure", {"error": "server_error", "last_assistant_message": "API Error: 500"}),
        ("SessionEnd", {"reason": "other"}),
    ]
    for name, fields in hooks:
        agent.hook(name, **fields).hook(name, **fields)
    assert agent.words("user", "assistant") == ["go", "one two"]
    assert (agent.tools(), len(agent.events_of(ev.ApprovalRequired))) == ([("Write", "done")], 1)
    assert len(agent.events_of(ev.TurnFailed)) == len(agent.events_of(ev.AgentEnded)) == 1


def test_the_same_words_again_later_are_another_prompt() -> None:
    agent = working().passes(5).prompts()
    assert agent.words("user") == ["go", "go"]


def test_a_plan_is_told() -> None:
    agent = working().calls("e1", "ExitPlanMode", plan="1. look").calls("e1", "ExitPlanMode", plan="1. look")
    assert [body.plan.text for body in agent.events_of(ev.PlanGenerated)] == ["1. look"]


def test_todo_lists_are_told_whole() -> None:
    agent = working().calls("t1", "TodoWrite", todos=[{"content": "A", "status": "in_progress"}])
    post(agent, "t1", "TodoWrite")
    assert [(todo.content, todo.status) for todo in agent.state.todos] == [("A", "in_progress")]
    agent = working().hook("TaskCreated", task_id="1", task_subject="Do A")
    agent.calls("t2", "TaskCreate", subject="Do B")
    post(agent, "t2", "TaskCreate", tool_response={"task": {"id": "2"}})
    agent.calls("t3", "TaskUpdate", taskId="2", status="in_progress")
    post(agent, "t3", "TaskUpdate")
    agent.hook("TaskCompleted", task_id="1", task_subject="Do A").hook("TaskCompleted")
    assert [(todo.content, todo.status) for todo in agent.state.todos] == [
        ("Do A", "completed"),
        ("Do B", "in_progress"),
    ]
    agent.calls("t4", "TaskUpdate", taskId="1", status="deleted")
    post(agent, "t4", "TaskUpdate")
    assert [todo.content for todo in agent.state.todos] == ["Do B"]


# --- sub-agents and background work


def test_a_background_shell_outlives_its_turn_and_wakes_the_agent() -> None:
    agent = working().calls("b1", "Bash", command="sleep 9", description="wait")
    post(agent, "b1", "Bash", tool_response={"backgroundTaskId": "sh1"})
    agent.hook("Stop", background_tasks=[{"id": "sh1", "type": "shell", "status": "running", "description": "wait"}])
    assert (agent.phase, agent.activity) == ("completed", "idle")
    assert [(task.kind, task.id, task.title) for task in agent.state.background] == [("shell", "sh1", "wait")]
    note = "<task-notification>\n<task-id>sh1</task-id>\n<status>completed</status>\n<summary>wait is done</summary>"
    agent.prompts(note + "\n</task-notification>", "p2")
    assert agent.state.background == ()
    assert (agent.phase, agent.words("system")[-1]) == ("streaming", "wait is done")
    assert agent.events_of(ev.PromptReceived)[-1].source == "agent"


def test_background_work_that_is_not_listed_any_more_is_over() -> None:
    agent = working().hook(
        "Stop", background_tasks=[{"id": "x", "type": "subagent"}, {"id": "y", "status": "failed"}, 7]
    )
    assert [task.id for task in agent.state.background] == ["x"]
    agent.prompts("more", "p2").hook("Stop", background_tasks=[])
    assert agent.state.background == ()
    assert len(agent.events_of(ev.SubagentEnd)) == 1


def test_a_sub_agent_that_ends_closes_what_it_left_open() -> None:
    agent = working().calls("a1", "Agent", description="look")
    sub: dict[str, Any] = {"agent_id": "s", "agent_type": "Explore"}
    agent.hook("SubagentStart", **sub)
    agent.hook("PreToolUse", tool_name="Bash", tool_use_id="x1", tool_input={"a": 1}, **sub)
    agent.hook("PermissionRequest", tool_name="Bash", tool_input={"a": 1}, **sub)
    assert agent.gates == 1
    agent.hook("SubagentStop", last_assistant_message="found it", **sub)
    assert agent.gates == 0
    assert agent.events_of(ev.SubagentEnd)[0].result == "found it"
    assert [entry.tool_step.phase for entry in agent.entries if entry.path and entry.tool_step] == ["error"]
    assert post(agent, "a1", "Agent", tool_response={"status": "completed", "agentId": "s"}).activity == THINKING


def test_a_nested_sub_agent_stands_under_its_caller() -> None:
    agent = working().calls("a1", "Agent")
    agent.hook("SubagentStart", agent_id="outer", agent_type="Plan")
    agent.hook("PreToolUse", tool_name="Agent", tool_use_id="a2", agent_id="outer", agent_type="Plan")
    agent.hook("SubagentStart", agent_id="inner", agent_type="Explore")
    agent.hook("PreToolUse", tool_name="Read", tool_use_id="r1", agent_id="inner", agent_type="Explore")
    assert agent.events_of(ev.ToolExecutionStart)[-1].agent_path == ("outer", "inner")
    assert agent.events_of(ev.SubagentStart)[-1].call_id == "a2"


def test_a_foreground_sub_agent_ends_with_an_interrupted_turn() -> None:
    agent = working().calls("a1", "Agent").hook("SubagentStart", agent_id="s", agent_type="Plan").hook("Interrupt")
    assert len(agent.events_of(ev.SubagentEnd)) == 1
    assert agent.phase == "stopped"


def test_claude_codes_own_helpers_are_no_sub_agents() -> None:
    agent = working().hook("SubagentStop", agent_id="c", agent_type="").hook("SubagentStart").hook("SubagentStop")
    assert agent.events_of(ev.SubagentEnd) == []
    assert agent.activity == THINKING


# --- turns and prompts


def test_a_turn_that_a_foreign_hook_kept_going_is_opened_again_by_its_next_call() -> None:
    agent = working().hook("Stop", prompt_id="p1")
    assert agent.phase == "completed"
    agent.calls("c2")
    assert agent.phase == "streaming"
    assert post(agent, "c2").hook("Stop", stop_hook_active=True).phase == "completed"


def test_the_last_text_is_told_where_none_is_displayed() -> None:
    agent = working().hook("Stop", last_assistant_message="all done")
    assert agent.words("assistant") == ["all done"]


def test_displayed_texts_are_joined_and_a_straggler_opens_no_turn() -> None:
    def show(message_id: str, delta: str, final: bool) -> None:
        agent.hook("MessageDisplay", message_id=message_id, prompt_id="p1", delta=delta, final=final)

    agent = working()
    show("m1", "one ", final=False)
    assert agent.state.run.value == "streaming"
    show("m1", "two", final=True)
    agent.hook("Stop", last_assistant_message="one two")
    show("m1", "two", final=True)
    show("m2", "three", final=True)
    assert agent.phase == "completed"
    agent.prompts("more", "p2")
    assert agent.words("assistant") == ["one two", "three"]


def test_a_prompt_with_another_id_shows_that_the_turn_before_was_interrupted() -> None:
    agent = working().calls().prompts("next", "p2")
    aborted = agent.events_of(ev.AgentAbort)
    assert [body.reason for body in aborted] == ["interrupted"]
    assert agent.tools() == [("Write", "error")]
    assert agent.activity == THINKING


def test_steering_is_a_prompt_of_the_same_turn() -> None:
    agent = working().calls()
    post(agent).prompts("also this", "p1")
    assert agent.words("user") == ["go", "also this"]
    assert len(agent.events_of(ev.AgentStart)) == 1


def test_a_reminder_that_it_waits_for_input_ends_an_interrupted_turn() -> None:
    agent = working().hook("Notification", notification_type="idle_prompt", message="waiting", after=60)
    assert (agent.phase, agent.activity) == ("stopped", "idle")


def test_a_reminder_of_a_dialog_opens_an_approval_where_no_hook_did() -> None:
    agent = working().calls().hook("Notification", notification_type="permission_prompt", message="needs you")
    assert (agent.phase, agent.state.gates.open[0].title) == ("waiting_approval", "needs you")
    agent.hook("Notification", notification_type="permission_prompt").hook("Notification")
    assert agent.gates == 1
    agent.asks()
    assert [gate.call_id for gate in agent.state.gates.open] == ["c1"]
    assert post(agent).gates == 0


def test_a_compaction_that_a_hook_forbids_or_nobody_ends_is_given_up() -> None:
    agent = working().hook("PreCompact", trigger="auto").reply("PreCompact", decision="block")
    assert agent.activity == THINKING
    assert agent.hook("PreCompact").calls().activity == TOOL_USE
    ends = agent.events_of(ev.CompactEnd)
    assert [body.ok for body in ends] == [False, False]
    agent = working().hook("PreCompact").hook("PostCompact", compact_summary="short")
    assert agent.events_of(ev.CompactEnd)[0].summary == "short"


def test_a_prompt_that_a_hook_refuses_makes_no_turn() -> None:
    agent = Session().opens().prompts("bad").reply("UserPromptSubmit", decision="block", reason="not allowed")
    assert (agent.phase, agent.activity) == ("completed", "idle")
    assert agent.events_of(ev.PromptRejected)[0].reason == "not allowed"
    assert agent.prompts("good", "p2").reply("UserPromptSubmit").phase == "streaming"


def test_clear_binds_another_session_and_leaves_the_phase_alone() -> None:
    agent = working().hook("Stop").hook("SessionEnd", reason="clear")
    agent.hook("SessionStart", session_id="other", source="clear")
    assert agent.state.profile.native_session_id == "other"
    assert (agent.phase, agent.activity) == ("completed", "idle")
    agent.hook("UserPromptSubmit", session_id=ID, prompt="stale")
    assert agent.activity == "idle"
    agent.hook("UserPromptSubmit", session_id="other", prompt="fresh")
    assert agent.words("user") == ["go", "fresh"]


def test_a_deferred_call_pauses_the_turn_until_it_is_resumed() -> None:
    agent = working().calls().reply("PreToolUse", hookSpecificOutput={"permissionDecision": "defer"}).exits(0)
    assert (agent.phase, agent.state.process.value) == ("paused", "none")
    agent.starts().hook("SessionStart", source="resume").calls()
    assert (agent.phase, agent.activity) == ("streaming", TOOL_USE)
    post(agent).hook("Stop")
    assert agent.tools() == [("Write", "done")]


def test_modes_and_models_are_told_when_they_change() -> None:
    agent = Session().opens().hook("UserPromptSubmit", prompt="a", permission_mode="plan")
    agent.hook("Stop", permission_mode="plan").hook("Stop", permission_mode="bypassPermissions")
    agent.hook("Stop", permission_mode="unheard of")
    assert [(body.mode, body.auto_approve) for body in agent.events_of(ev.SettingChanged)] == [
        ("plan", False),
        ("bypass", True),
    ]
    agent.hook("SessionStart", model="opus").hook("PostModelSwitch", to_model="sonnet")
    assert [(body.from_, body.to) for body in agent.events_of(ev.ModelSwitched)] == [("opus", "sonnet")]
    assert agent.state.profile.model == "sonnet"


def test_a_title_from_a_hooks_answer_names_the_session() -> None:
    agent = Session().opens().reply("SessionStart", hookSpecificOutput={"sessionTitle": "Fix it"})
    assert agent.state.profile.name == "Fix it"


# --- stale signals, and the session file


def test_silence_makes_thinking_stale_and_anything_makes_it_live_again() -> None:
    agent = working().passes(61)
    assert (agent.state.signal.value, agent.activity) == ("stale", THINKING)
    assert agent.calls().state.signal.value == "live"
    assert agent.passes(3600).state.signal.value == "live"


def test_an_open_approval_does_not_grow_stale() -> None:
    assert asked().passes(3600).state.signal.value == "live"


def test_a_hook_that_is_not_waited_for_any_more_may_be_an_interrupt_and_grows_stale() -> None:
    agent = asked().feed("hook.disconnect", {"event": "PermissionRequest"})
    assert (agent.gates, agent.passes(61).state.signal.value) == (0, "stale")
    assert agent.prompts("next", "p2").state.signal.value == "live"


def status(value: str, **more: Any) -> dict[str, Any]:
    return {"pid": 7, "sessionId": ID, "version": "2.1", "name": "fix-it", "status": value, **more}


@pytest.mark.parametrize("wrap", [lambda found: found, lambda found: {"path": "7.json", "content": found}])
def test_the_session_file_alone_tells_idle_busy_and_waiting(wrap: Any) -> None:
    agent = Session().starts().feed("file", wrap(status("idle")))
    assert (agent.activity, agent.state.profile.native_session_id) == ("idle", ID)
    assert agent.state.profile.name == "fix-it"
    assert agent.feed("file", wrap(status("busy"))).activity == THINKING
    agent.feed("file", wrap(status("waiting", waitingFor="permission prompt")))
    assert (agent.activity, agent.phase) == (WAITING, "waiting_approval")
    assert agent.feed("file", wrap(status("busy"))).phase == "streaming"
    assert agent.feed("file", wrap(status("idle"))).phase == "completed"


def test_the_session_file_tells_the_interrupt_that_no_hook_does() -> None:
    agent = working().feed("file", status("busy")).feed("file", status("idle"), after=30)
    assert agent.activity == THINKING
    assert (agent.passes(0.4).phase, agent.activity) == ("stopped", "idle")
    assert agent.state.signal.value == "live"


def test_a_session_file_that_is_behind_the_hooks_ends_nothing() -> None:
    agent = Session().opens().feed("file", status("idle")).prompts().feed("file", status("idle"))
    agent.feed("file", status("busy"), after=0.1)
    assert agent.passes(5).activity == THINKING
    agent.feed("file", status("idle")).calls("c1").feed("file", status("busy"))
    assert agent.passes(5).activity == TOOL_USE


def test_a_dialog_that_the_file_says_is_closed_was_answered_in_the_terminal() -> None:
    agent = asked().feed("file", status("waiting"))
    assert agent.passes(1).gates == 1
    agent.feed("file", status("busy"))
    assert agent.passes(1).gates == 0


def test_what_the_file_said_before_a_prompt_does_not_end_its_turn() -> None:
    agent = working().feed("file", status("busy")).hook("Stop", prompt_id="p1")
    agent.feed("file", status("idle"), after=0.1).prompts("next", "p2")
    assert agent.passes(5).activity == THINKING
    agent.feed("file", status("busy")).feed("file", status("idle"), after=1)
    assert agent.passes(1).phase == "stopped"


def test_a_sub_agents_dialog_that_the_file_says_is_closed_was_answered_too() -> None:
    helper = {"agent_id": "a1", "agent_type": "general-purpose"}
    agent = working().hook("SubagentStart", **helper)
    agent.hook("PreToolUse", tool_name="Write", tool_use_id="c9", tool_input=WRITE, **helper)
    agent.hook("PermissionRequest", tool_name="Write", tool_input=WRITE, **helper).feed("file", status("waiting"))
    # The open gate is the sub-agent's. The file's status doesn't open a second one.
    assert agent.passes(1).gates == 1
    assert agent.feed("file", status("busy")).passes(1).gates == 0


def test_a_dialog_that_only_the_file_knows_is_shown_after_a_moment() -> None:
    agent = working().calls().feed("file", status("waiting", waitingFor="permission prompt"))
    assert agent.gates == 0
    assert agent.passes(1).gates == 1


def test_an_approval_of_print_mode_outlives_a_busy_file() -> None:
    agent = working().feed("file", status("busy")).calls().asks()
    assert agent.passes(5).gates == 1


@pytest.mark.parametrize("junk", [None, "{", "[]", {"path": "x", "content": None}, {"status": 7}])
def test_a_file_without_a_status_says_nothing(junk: Any) -> None:
    agent = working().feed("file", junk)
    assert agent.said == []
    assert agent.translator.unknown == 0


# --- other sources


def test_telemetry_tells_the_cost_where_no_stream_does() -> None:
    record = {"event.name": "api_request", "session.id": ID, "model": "opus", "cost_usd": "0.5", "request_id": "r1"}
    tokens = {"input_tokens": "7", "output_tokens": 3, "cache_read_tokens": 2, "cache_creation_tokens": 1}
    agent = working().feed("otlp.log", {"attributes": {**record, **tokens}})
    agent.feed("otlp.log", {"attributes": {**record, **tokens}})
    agent.feed("otlp.log", {"attributes": {**record, "session.id": "other", "request_id": "r2", "input_tokens": 9}})
    total = agent.state.usage.total
    assert (total.input, total.output, total.cache_read, total.cache_write, total.cost_usd) == (7, 3, 2, 1, 0.5)
    agent.feed("otlp.log", {"body": "claude_code.user_prompt", "attributes": {}})
    agent.feed("otlp.log", {"attributes": {**record, "cost_usd": "dear", "request_id": "r3"}})
    agent.feed("otlp.log", {"attributes": {**record, "cost_usd": True, "request_id": "r4"}})
    assert agent.translator.unknown == 0
    assert agent.state.usage.total.cost_usd == 0.5


def test_a_notification_may_come_as_the_hook_that_it_is() -> None:
    agent = Session().starts().feed("notify", {"hook_event_name": "SessionStart", "session_id": ID})
    assert agent.activity == "idle"
    assert agent.feed("notify", {"type": "other"}).translator.unknown == 0


def test_stragglers_of_a_process_that_is_gone_are_ignored() -> None:
    agent = working().exits(None, signal=9)
    assert (agent.phase, agent.activity) == ("stopped", "exited")
    agent.hook("PostToolUse", tool_name="Write", tool_use_id="c1").reply("Stop", decision="block")
    agent.feed("stdout", {"type": "system", "subtype": "init"}).sends("hello").feed("file", status("busy"))
    agent.feed("hook.disconnect", {"event": "PermissionRequest"})
    assert (agent.phase, agent.activity) == ("stopped", "exited")
    assert agent.prompts("again", "p2").phase == "streaming"


def test_the_last_words_of_a_process_that_failed_are_kept() -> None:
    agent = Session().starts().feed("stderr", {"raw": "cannot be used as root"}).exits(1)
    assert agent.phase == "error"
    assert agent.words("error")[0] == "cannot be used as root"
    quiet = Session().starts().feed("stderr", "just a warning").exits(0)
    assert quiet.words("error") == []


@pytest.mark.parametrize("code", [129, 130, 143])
def test_a_signal_that_it_caught_is_no_failure(code: int) -> None:
    assert working().exits(code).phase == "stopped"


def test_a_process_that_lost_its_source_is_shown_as_lost() -> None:
    agent = working()
    bodies = agent.translator.end(agent.now)
    assert [body.signal for body in bodies if isinstance(body, ev.SignalChanged)] == ["lost"]
    assert agent.translator.deadline() is None


def test_a_translator_goes_on_where_another_one_stopped() -> None:
    agent = asked()
    other = claude()
    other.restore(agent.view)
    assert other.session.session_id == ID
    assert other.feed(Signal("hook", {"hook_event_name": "Stop", "session_id": "foreign"}), 1.0) == []
    agent.translator = other
    post(agent)
    assert (agent.gates, agent.activity) == (0, THINKING)
    agent.hook("Stop").prompts("more", "p2")
    assert agent.words("user") == ["go", "more"]
    starts = [body.turn_id for body in agent.events_of(ev.AgentStart)]
    assert len(set(starts)) == 2
