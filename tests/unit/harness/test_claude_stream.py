"""Test Claude Code through its stream: partial replies, calls, control requests, steering, results and tokens."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.claude.translate import claude
from tests.support.claude_session import ID, WRITE, Session, text, tool_use

THINKING = "active/thinking"
TOOL_USE = "active/tool_use"
WAITING = "active/waiting_for_permission"


def ready() -> Session:
    """Start a stream-json process that has answered `initialize`."""
    agent = Session().starts().feed("stdin", request("r0", "initialize"))
    return agent.feed("stdout", response("r0", current_permission_mode="default", claude_code_version="2.1"))


def working() -> Session:
    return ready().sends("go").init()


def request(request_id: str, subtype: str, **fields: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}}


def response(request_id: str, **answer: Any) -> dict[str, Any]:
    return {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": request_id, "response": answer},
    }


def may(agent: Session, request_id: str = "q1", call_id: str = "c1", tool: str = "Write", **more: Any) -> Session:
    """Send the request in which Claude Code asks the host to permit a call."""
    fields = {"tool_name": tool, "tool_use_id": call_id, "input": more.pop("input", WRITE), **more}
    return agent.feed("stdout", request(request_id, "can_use_tool", **fields))


def answers(agent: Session, request_id: str = "q1", **answer: Any) -> Session:
    return agent.feed("stdin", response(request_id, **answer))


def part(agent: Session, kind: str, **fields: Any) -> Session:
    """Send one stream event, which is a part of a reply."""
    return agent.line("stream_event", event={"type": kind, **fields})


# --- identity and settings


def test_the_agent_says_who_it_is_and_that_it_can_be_steered() -> None:
    agent = working()
    profile = agent.state.profile
    assert (profile.native_session_id, profile.model, profile.agent_version) == (ID, "opus", "2.1")
    assert "steer" in profile.capabilities
    assert profile.resumable is True
    assert profile.mode == "ask"


def test_the_answer_to_an_unseen_request_is_known_by_its_fields() -> None:
    agent = Session().starts().feed("stdout", response("x", current_permission_mode="plan"))
    assert (agent.activity, agent.state.profile.mode) == ("idle", "plan")
    agent.feed("stdout", response("y", totalTokens=500, maxTokens=1000)).feed("stdout", response("z", title="Fix it"))
    context = agent.state.profile.context
    assert context is not None
    assert (context.tokens, context.limit, context.percent) == (500, 1000, 50.0)
    assert agent.state.profile.name == "Fix it"
    assert agent.feed("stdout", response("w", something=1)).said == []


def test_a_request_that_is_refused_is_told() -> None:
    agent = ready().feed("stdin", request("r1", "set_model", model="x"))
    agent.line("control_response", response={"subtype": "error", "request_id": "r1", "error": "no such model"})
    failed = agent.events_of(ev.CommandFailed)
    assert [(body.command_id, body.message) for body in failed] == [("r1", "no such model")]


def test_model_and_mode_are_switched_once_though_several_lines_say_so() -> None:
    agent = working().result().feed("stdin", request("r1", "set_model")).feed("stdout", response("r1", model="sonnet"))
    agent.line(
        "user", message={"content": "<local-command-stdout>Set model to `sonnet`</local-command-stdout>"}, isReplay=True
    )
    agent.feed("stdin", request("r2", "set_permission_mode")).feed("stdout", response("r2", mode="acceptEdits"))
    agent.system("status", permissionMode="acceptEdits")
    assert [body.to for body in agent.events_of(ev.ModelSwitched)] == ["sonnet"]
    assert [body.mode for body in agent.events_of(ev.SettingChanged)] == ["ask", "edits"]
    assert agent.events_of(ev.Notice) == []


@pytest.mark.parametrize(("source", "billing"), [("ANTHROPIC_API_KEY", "metered"), ("none", "unknown")])
def test_who_pays_is_told_by_the_key(source: str, billing: str) -> None:
    agent = Session().starts().init(apiKeySource=source).replies(text("hi")).result()
    assert agent.state.usage.billing == billing


def test_a_subscription_is_a_plan() -> None:
    agent = (
        Session()
        .starts()
        .feed("stdout", response("x", current_permission_mode="plan", account={"subscriptionType": "max"}))
    )
    agent.init(apiKeySource="none").replies(text("hi"))
    assert agent.state.usage.billing == "plan"


# --- replies


def test_a_reply_in_pieces_is_told_once() -> None:
    agent = working().system("status", status="requesting")
    part(agent, "message_start", message={"id": "m1", "model": "opus", "usage": {"input_tokens": 5}})
    part(agent, "content_block_start", index=0, content_block={"type": "thinking"})
    part(agent, "content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    part(agent, "content_block_delta", index=0, delta={"type": "signature_delta", "signature": "x"})
    agent.replies({"type": "thinking", "thinking": "hm"})
    part(agent, "content_block_delta", index=1, delta={"type": "text_delta", "text": "Hel"})
    assert agent.state.run.value == "streaming"
    # The line that restates the block contains the lost piece.
    agent.replies(text("Hello"))
    part(agent, "message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    part(agent, "message_stop")
    assert agent.words("thinking", "assistant") == ["hm", "Hello"]
    assert len(agent.events_of(ev.RequestStart)) == 1
    assert len(agent.events_of(ev.ResponseComplete)) == 1
    assert agent.result().phase == "completed"


def test_a_call_is_announced_while_its_arguments_are_streamed() -> None:
    agent = part(working(), "message_start", message={"id": "m1"})
    part(agent, "content_block_start", index=0, content_block={"type": "tool_use", "id": "c1", "name": "Write"})
    assert (agent.tools(), agent.activity) == ([("Write", "calling")], THINKING)
    agent.replies(tool_use())
    assert (agent.tools(), agent.activity) == ([("Write", "running")], TOOL_USE)
    assert agent.results().activity == THINKING
    assert agent.tools() == [("Write", "done")]


def test_a_reply_that_breaks_off_is_a_stream_error_and_no_failure() -> None:
    agent = part(working(), "message_start", message={"id": "m1"})
    part(agent, "content_block_delta", index=0, delta={"type": "text_delta", "text": "par"})
    agent.line("stream_event", event={"type": "message_stop"}, abandoned_blocks={"from_block_index": 1})
    assert len(agent.events_of(ev.StreamError)) == 1
    assert agent.phase == "streaming"


def test_pieces_without_a_message_and_unknown_pieces_are_counted_or_dropped() -> None:
    agent = working()
    part(agent, "content_block_delta", index=0, delta={"type": "text_delta", "text": "lost"})
    part(agent, "content_block_delta", index="0", delta=[])
    part(agent, "message_delta").line("stream_event", event={"type": "message_stop"})
    assert agent.translator.unknown == 0
    part(agent, "content_block_delta", index=0, delta={"type": "hologram_delta"})
    part(agent, "new_kind").line("stream_event").line("new_line").system("new_subtype")
    assert agent.translator.unknown == 5
    assert agent.words("assistant") == []


def test_lines_that_mean_nothing_are_known() -> None:
    agent = working()
    for name in ("keep_alive", "auth_status", "tool_use_summary"):
        assert agent.line(name).said == []
    assert agent.system("thinking_tokens").said == []
    assert agent.feed("stdin", {"type": "keep_alive"}).translator.unknown == 0
    assert agent.feed("stdin", {"type": "new"}).translator.unknown == 1


def test_a_server_side_call_is_shown_and_holds_nothing() -> None:
    agent = working().replies({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}})
    assert (agent.tools(), agent.activity) == ([("web_search", "calling")], THINKING)


def test_progress_shows_that_a_call_runs() -> None:
    agent = part(working(), "message_start", message={"id": "m1"})
    part(agent, "content_block_start", index=0, content_block={"type": "tool_use", "id": "c1", "name": "Bash"})
    assert agent.line("tool_progress", tool_use_id="c1").activity == TOOL_USE
    assert agent.line("tool_progress", tool_use_id="c9").said == []


# --- sub-agents


def test_a_sub_agents_lines_stand_under_its_path() -> None:
    agent = working().replies(tool_use("a1", "Agent", description="look"))
    agent.system("task_started", task_id="s", tool_use_id="a1", task_type="local_agent", description="look")
    sub: dict[str, Any] = {"parent_tool_use_id": "a1", "agent_id": "s"}
    agent.replies(text("found"), tool_use("x1", "Read"), message_id="m2", **sub).results("x1", **sub)
    paths = {entry.path for entry in agent.entries if entry.text in ("found", "Read")}
    assert paths == {("s",)}
    assert (agent.activity, agent.state.background) == (TOOL_USE, ())
    agent.results("a1", tool_use_result={"status": "completed", "agentId": "s", "content": [text("found")]})
    assert agent.events_of(ev.SubagentEnd)[0].result == "found"
    assert agent.activity == THINKING


def test_a_sub_agent_without_an_id_is_named_after_its_call() -> None:
    agent = working().replies(tool_use("a1", "Task", prompt="look"))
    agent.replies(text("found"), message_id="m2", parent_tool_use_id="a1")
    assert [entry.path for entry in agent.entries if entry.text == "found"] == [("a1",)]


def test_a_task_may_be_sent_to_the_background_and_be_killed() -> None:
    agent = working().replies(tool_use("a1", "Agent"))
    agent.system("task_started", task_id="s", tool_use_id="a1", task_type="local_agent", description="look")
    agent.system("task_updated", task_id="s", patch={"is_backgrounded": True})
    assert [task.kind for task in agent.state.background] == ["subagent"]
    agent.system("task_updated", task_id="s", patch={"status": "killed"}).system("task_started")
    assert agent.state.background == ()
    assert agent.events_of(ev.SubagentEnd)[0].ok is False


def test_a_shell_in_the_background_is_told_by_its_task() -> None:
    agent = working().replies(tool_use("b1", "Bash", command="sleep 9"))
    agent.results("b1", tool_use_result={"backgroundTaskId": "sh1"})
    agent.system("task_started", task_id="sh1", task_type="local_bash", is_backgrounded=True, description="wait")
    assert [(task.kind, task.id) for task in agent.state.background] == [("shell", "sh1")]
    assert agent.result().phase == "completed"
    agent.system("task_notification", task_id="sh1", status="completed")
    assert agent.state.background == ()


def test_a_turn_that_leaves_work_behind_is_over_though_its_result_is_printed_late() -> None:
    agent = working().system("background_tasks_changed", tasks=[{"task_id": "s", "task_type": "local_agent"}])
    part(agent, "message_start", message={"id": "m1"})
    part(agent, "message_delta", delta={"stop_reason": "end_turn"})
    part(agent, "message_stop")
    assert agent.phase == "streaming"
    assert (agent.passes(2).phase, agent.activity) == ("completed", "idle")
    agent.system("background_tasks_changed", tasks=[]).init()
    assert agent.phase == "streaming"
    # The first result belongs to the previous turn.
    assert agent.result().phase == "streaming"
    assert agent.result().phase == "completed"


def test_a_second_init_shows_that_the_turn_before_it_is_over() -> None:
    agent = working().replies(text("done")).init()
    assert len(agent.events_of(ev.AgentStart)) == 2
    assert agent.result().phase == "streaming"
    assert agent.result().phase == "completed"
    busy = working().replies(tool_use()).init()
    assert len(busy.events_of(ev.AgentStart)) == 1


# --- approvals over the control protocol


def test_the_host_is_asked_and_answers() -> None:
    agent = may(working().replies(tool_use()))
    assert (agent.phase, agent.activity, agent.state.run.value) == ("waiting_approval", WAITING, "idle")
    answers(agent, behavior="allow", updatedInput=WRITE)
    assert (agent.phase, agent.activity) == ("streaming", TOOL_USE)
    assert agent.events_of(ev.ApprovalResolved)[0].status == "approved"


def test_a_request_that_is_cancelled_was_answered_elsewhere() -> None:
    agent = may(working().replies(tool_use())).line("control_cancel_request", request_id="q1")
    assert (agent.gates, agent.activity) == (0, TOOL_USE)
    assert agent.line("control_cancel_request", request_id="zz").said == []
    assert may(agent, "q2").gates == 0


def test_a_sub_agent_asks_the_host_under_its_path() -> None:
    agent = working().replies(tool_use("a1", "Agent"))
    agent.system("task_started", task_id="s", tool_use_id="a1", task_type="local_agent")
    may(agent, "q1", "x1", agent_id="s")
    assert agent.state.gates.open[0].path == ("s",)
    assert agent.activity == TOOL_USE


def test_a_form_on_the_stream_is_answered_or_withdrawn() -> None:
    form = {"mcp_server_name": "srv", "message": "Name?", "requested_schema": {}}
    agent = working().replies(tool_use("m1", "mcp__srv__ask")).feed("stdout", request("f1", "elicitation", **form))
    assert agent.phase == "waiting_input"
    assert answers(agent, "f1", action="accept", content={"name": "Bob"}).gates == 0
    assert agent.events_of(ev.DialogResolved)[0].value == {"name": "Bob"}
    agent.feed("stdout", request("f2", "elicitation", **form)).line("control_cancel_request", request_id="f2")
    assert agent.gates == 0
    agent.feed("stdout", request("f3", "elicitation", **form)).results("m1")
    assert agent.gates == 0


def test_hooks_as_callbacks_are_hooks() -> None:
    def callback(request_id: str, event: str, **fields: Any) -> None:
        payload = {"hook_event_name": event, "session_id": ID, **fields}
        agent.feed("stdout", request(request_id, "hook_callback", input=payload, tool_use_id="c1"))

    agent = ready().sends("go")
    callback("h1", "UserPromptSubmit", prompt="go", prompt_id="p1")
    agent.prompts("go", "p1").init().replies(tool_use())
    assert agent.words("user") == ["go"]
    callback("h2", "PermissionRequest", tool_name="Write", tool_input={"other": 1})
    assert agent.state.gates.open[0].call_id == "c1"
    answers(agent, "h2", hookSpecificOutput={"decision": {"behavior": "deny", "message": "no"}})
    assert (agent.gates, agent.tools()) == (0, [("Write", "error")])
    callback("h3", "Unheard")
    assert answers(agent, "h3").said == []
    assert agent.feed("stdout", request("x", "new_request")).translator.unknown == 0


# --- prompts and steering


def test_a_text_sent_before_the_agent_is_there_waits_for_it() -> None:
    agent = Session().starts().sends("one").sends("two")
    assert (agent.phase, agent.events_of(ev.PromptReceived)) == ("idle", [])
    agent.init()
    assert (agent.phase, agent.words("user")) == ("streaming", ["one"])
    assert [item.text for item in agent.state.queue] == ["two"]


def test_steering_is_queued_and_read_with_the_next_request() -> None:
    agent = working().replies(tool_use()).sends("also this", uuid="u2")
    assert [(item.id, item.kind) for item in agent.state.queue] == [("u2", "steer")]
    agent.results().replies(text("ok"), message_id="m2")
    assert agent.state.queue == ()
    assert agent.words("user") == ["go", "also this"]
    assert agent.result().phase == "completed"


def test_steering_is_read_when_its_hook_says_so() -> None:
    agent = ready().sends("go").prompts("go", "p1").init().replies(tool_use()).sends("also this", uuid="u2")
    agent.results()
    assert len(agent.state.queue) == 1
    agent.prompts("also this", "p1")
    assert (agent.state.queue, agent.words("user")) == ((), ["go", "also this"])
    assert len(agent.events_of(ev.AgentStart)) == 1


def test_a_text_that_no_call_let_in_becomes_the_next_turn() -> None:
    agent = working().sends("second", uuid="u2").replies(text("one")).result()
    assert (agent.phase, len(agent.state.queue)) == ("completed", 1)
    agent.init()
    assert (agent.phase, agent.state.queue) == ("streaming", ())
    assert agent.words("user") == ["go", "second"]


def test_the_lifecycle_of_a_text_is_followed_by_its_uuid() -> None:
    agent = ready().sends("go", uuid="u1").line("command_lifecycle", command_uuid="u1", state="started").init()
    agent.sends("second", uuid="u2").line("command_lifecycle", command_uuid="u2", state="queued")
    agent.line("user", message={"content": "second"}, uuid="u2", isReplay=True)
    assert agent.words("user") == ["go", "second"]
    agent.sends("third", uuid="u3").line("command_lifecycle", command_uuid="u3", state="cancelled")
    assert agent.state.queue == ()
    assert [body.text for body in agent.events_of(ev.PromptDropped)] == ["third"]


def test_a_text_with_an_image_keeps_it() -> None:
    image = {"type": "image", "source": {"media_type": "image/png", "data": "QUJD"}}
    agent = ready().feed("stdin", {"type": "user", "message": {"content": [text("see"), image]}})
    assert [(body.text, body.images[0].media_type) for body in agent.events_of(ev.PromptReceived)] == [
        ("see", "image/png")
    ]
    assert agent.feed("stdin", {"type": "user", "message": {"content": 7}}).said == []


# --- how turns end


def test_an_interrupt_is_a_stop_and_the_session_goes_on() -> None:
    agent = may(working().replies(tool_use())).feed("stdin", request("r1", "interrupt"))
    agent.feed("stdout", response("r1", still_queued=[])).line("control_cancel_request", request_id="q1")
    agent.results(error=True, text="rejected")
    agent.line("user", message={"content": [text("[Request interrupted by user for tool use]")]})
    agent.result("error_during_execution", is_error=True, terminal_reason="aborted_tools")
    assert (agent.phase, agent.activity, agent.gates) == ("stopped", "idle", 0)
    assert agent.sends("next").init().phase == "streaming"


def test_an_interrupt_is_known_even_if_the_result_names_no_reason() -> None:
    agent = working().line("user", message={"content": [text("[Request interrupted by user]")]})
    assert agent.result("error_during_execution", is_error=True).phase == "stopped"


@pytest.mark.parametrize(
    ("subtype", "kind"),
    [
        ("error_max_turns", "turn_limit"),
        ("error_max_budget_usd", "usage_limit"),
        ("error_during_execution", "internal"),
        ("error_max_structured_output_retries", "internal"),
    ],
)
def test_results_that_are_errors_fail_the_turn(subtype: str, kind: str) -> None:
    agent = working().result(subtype, is_error=True, errors=["oh", 7])
    assert agent.phase == "error"
    assert agent.state.error is not None
    assert (agent.state.error.kind, agent.state.error.message) == (kind, "oh")


def test_a_prompt_that_is_too_long_says_so() -> None:
    agent = working().result(is_error=True, result="Prompt is too long", terminal_reason="prompt_too_long")
    assert len(agent.events_of(ev.ContextOverflow)) == 1
    assert agent.phase == "error"


def test_retries_are_told_and_are_no_failure() -> None:
    agent = working().system("api_retry", attempt=2, retry_delay_ms=500, error_status=529, error="overloaded")
    agent.system("api_retry", attempt=3, error_status=500)
    assert [(body.attempt, body.delay_ms, body.reason) for body in agent.events_of(ev.Retry)] == [
        (2, 500, "overloaded"),
        (3, 0, "500"),
    ]
    assert agent.phase == "streaming"


def test_a_session_that_cannot_be_opened_is_told() -> None:
    agent = Session().starts().result("error_during_execution", is_error=True, errors=["No conversation found"])
    assert agent.words("error") == ["No conversation found"]
    assert agent.exits(1).phase == "error"


def test_a_hook_that_keeps_the_agent_from_stopping_closes_nothing() -> None:
    agent = working().replies(text("one")).hook("Stop", prompt_id="p1").reply("Stop", decision="block", reason="more")
    assert agent.phase == "streaming"
    agent.line("user", message={"content": [text("Stop hook feedback:\nmore")]}, isSynthetic=True)
    assert len(agent.events_of(ev.Intervention)) == 1
    assert agent.replies(text("two"), message_id="m2").result().phase == "completed"


def test_a_stop_with_background_work_that_a_hook_forbids_owes_no_result() -> None:
    agent = working().replies(text("one")).hook("Stop", background_tasks=[{"id": "s", "type": "shell"}])
    assert agent.phase == "completed"
    agent.line("user", message={"content": [text("Stop hook feedback:\nmore")]}, isSynthetic=True)
    assert agent.phase == "streaming"
    assert agent.result().phase == "completed"


def test_a_prompt_that_a_hook_refuses_is_closed_by_its_result() -> None:
    agent = ready().sends("bad").prompts("bad", "p1").reply("UserPromptSubmit", decision="block", reason="no").init()
    agent.system("informational", prompt_submit_outcome={"kind": "blocked_by_hook", "reason": "no"})
    assert agent.result(num_turns=0).phase == "completed"
    assert len(agent.events_of(ev.PromptRejected)) == 1


def test_a_local_command_is_a_turn_without_a_model() -> None:
    agent = ready().sends("/cost").init().system("local_command_output", content="$0.10").result(num_turns=0)
    assert (agent.phase, agent.words("system")) == ("completed", ["$0.10"])


def test_session_state_closes_what_no_result_did() -> None:
    agent = working().system("session_state_changed", state="running")
    assert agent.phase == "streaming"
    assert agent.system("session_state_changed", state="idle").phase == "completed"


def test_compaction_on_the_stream_is_told_with_what_is_left() -> None:
    agent = working().system("status", status="compacting")
    assert agent.activity == "active/compacting"
    agent.system("status", status=None, compact_result="failed")
    assert agent.events_of(ev.CompactEnd)[0].ok is False
    agent.system("status", status="compacting").system("compact_boundary", compact_metadata={"post_tokens": 2580})
    assert agent.activity == THINKING
    assert agent.events_of(ev.ContextUsage)[0].tokens == 2580
    assert agent.system("microcompact_boundary").events_of(ev.ContextUsage)[1:] == []


def test_clear_on_the_stream_binds_another_session() -> None:
    agent = working().result().sends("/clear").line("conversation_reset", new_conversation_id="x")
    agent.feed("stdout", {"type": "system", "subtype": "init", "session_id": "other", "model": "opus"})
    assert agent.phase == "completed"
    agent.result(local_command="clear")
    assert agent.state.profile.native_session_id == "other"
    assert agent.sends("more").phase == "streaming"


def test_notices_keep_their_level() -> None:
    agent = working().system("informational", content="careful", level="warning").system("informational", content="fyi")
    assert [(body.text, body.level) for body in agent.events_of(ev.Notice)] == [("careful", "warning"), ("fyi", "info")]


def test_closing_its_input_asks_it_to_leave() -> None:
    agent = working().line("user", message={"content": "[Request interrupted by user]"}).result("error", is_error=True)
    agent.feed("proc", {"event": "stdin_closed"}).exits(1)
    assert agent.phase == "stopped"


# --- hooks on the stream


def test_a_hook_on_the_stream_holds_its_call() -> None:
    def held(hook_id: str, name: str = "PermissionRequest:Write") -> None:
        agent.system("hook_started", hook_id=hook_id, hook_name=name)

    def answered(hook_id: str, output: str, outcome: str = "success") -> None:
        event = "PermissionRequest"
        agent.system("hook_response", hook_id=hook_id, hook_event=event, output=output, outcome=outcome)

    agent = working().replies(tool_use(), tool_use("c2", "Write", file_path="b"))
    held("h1")
    assert (agent.gates, agent.state.gates.open[0].call_id) == (1, "c1")
    answered("h1", '{"hookSpecificOutput": {"decision": {"behavior": "allow"}}}')
    assert agent.gates == 0
    held("h2")
    assert agent.state.gates.open[0].call_id == "c2"
    answered("h2", "Hook cancelled", "cancelled")
    assert agent.gates == 0
    held("h3", "PermissionRequest:Unknown")
    held("h4", "Stop")
    answered("h3", "{")
    agent.replies(tool_use("c3", "Edit"), message_id="m2")
    held("h5", "PermissionRequest:Edit")
    answered("h5", "no json")
    assert agent.gates == 1


# --- tokens


def usage(**fields: int) -> dict[str, int]:
    names = {
        "input": "inputTokens",
        "output": "outputTokens",
        "read": "cacheReadInputTokens",
        "write": "cacheCreationInputTokens",
    }
    return {names[name]: value for name, value in fields.items()}


def test_a_result_restates_what_its_messages_told_and_adds_the_cost() -> None:
    agent = working().replies(text("one")).replies(text("two"), message_id="m2")
    assert agent.state.usage.total.input == 20
    assert agent.state.usage.total.cost_usd is None
    since = {"opus": {**usage(input=20, output=8, read=3, write=2), "costUSD": 0.5}}
    agent.result(model_usage_since_last_result=since)
    total = agent.state.usage.total
    assert (total.input, total.output, total.cache_read, total.cache_write, total.cost_usd) == (20, 8, 3, 2, 0.5)
    assert agent.state.usage.partial is False


def test_a_sub_agents_tokens_are_its_own_and_the_cost_is_shared() -> None:
    agent = working().replies(text("one"))
    for number in (1, 2):
        name = f"s{number}"
        agent.replies(text("sub"), message_id=name, parent_tool_use_id=f"a{number}", agent_id=name)
    since = {"opus": {**usage(input=30, output=10), "costUSD": 0.4}}
    agent.result(usage={"input_tokens": 10, "output_tokens": 5}, model_usage_since_last_result=since)
    ledger = agent.state.usage
    assert (ledger.total.input, ledger.total.output) == (30, 10)
    assert ledger.total.cost_usd == pytest.approx(0.4)
    assert [(share.name, share.tokens.input, share.tokens.output) for share in ledger.by_agent] == [
        ("s1", 10, 0),
        ("s2", 10, 5),
    ]


def test_a_reply_that_was_cut_off_is_not_counted() -> None:
    agent = working().replies(text("par")).result("error_during_execution", terminal_reason="aborted_streaming")
    assert agent.state.usage.total.input == 10
    agent = working().replies(text("par"))
    agent.result("error_during_execution", terminal_reason="aborted_streaming", model_usage_since_last_result={})
    assert agent.state.usage.total.total_tokens == 0


def test_an_older_release_says_only_sums_and_a_sum_that_fell_is_a_new_one() -> None:
    agent = working().replies(text("one")).result(usage={"input_tokens": 10, "output_tokens": 4}, total_cost_usd=0.5)
    agent.sends("b").init().replies(text("two"), message_id="m2")
    agent.result(usage={"input_tokens": 10, "output_tokens": 4}, total_cost_usd=0.75)
    agent.sends("c").init().replies(text("three"), message_id="m3")
    agent.result(usage={"input_tokens": 10, "output_tokens": 4}, total_cost_usd=0.25)
    total = agent.state.usage.total
    assert (total.input, total.output) == (30, 12)
    assert total.cost_usd == pytest.approx(1.0)


def test_sums_go_on_after_a_restart_of_ours() -> None:
    agent = working().replies(text("one"))
    other = claude()
    other.restore(agent.view)
    agent.translator = other
    agent.replies(text("two"), message_id="m2")
    since = {"opus": {**usage(input=20, output=8), "costUSD": 0.5}}
    agent.result(model_usage_since_last_result=since)
    assert (agent.state.usage.total.input, agent.state.usage.total.cost_usd) == (20, 0.5)
    third = claude()
    third.restore(agent.view)
    agent.translator = third
    agent.sends("more").init().replies(text("three"), message_id="m3")
    assert agent.state.usage.total.input == 30
