"""Test Codex hooks without a stream: approvals, questions, hooks out of order, turns without a reported end."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.codex.hooks import GIVE_UP_S, QUESTION_S
from quarterdeck.kernel.activity import COMPACTING, THINKING, TOOL_USE, WAITING
from tests.support.codex_session import THREAD, CodexTalk
from tests.support.translator_session import kinds

COMMAND = {"command": "make test", "description": "May I?"}


def turn(talk: CodexTalk | None = None, turn_id: str = "t1", prompt: str = "hi") -> CodexTalk:
    talk = talk or CodexTalk()
    talk.hook("UserPromptSubmit", turn_id=turn_id, prompt=prompt)
    talk.hook("PreModelRequest", turn_id=turn_id, model="gpt-5.5")
    return talk


def calling(call_id: str = "call_a", **more: Any) -> CodexTalk:
    talk = turn()
    talk.hook("PostModelRequest", turn_id="t1", status="completed")
    talk.hook("PreToolUse", turn_id="t1", tool_name="Bash", tool_use_id=call_id, tool_input=COMMAND, **more)
    return talk


def asking() -> CodexTalk:
    talk = calling()
    talk.hook("PermissionRequest", turn_id="t1", tool_name="Bash", tool_input=COMMAND)
    return talk


def reply(behavior: str, **more: Any) -> dict[str, Any]:
    decision = {"behavior": behavior, **more}
    return {"event": "PermissionRequest", "answer": {"hookSpecificOutput": {"decision": decision}}}


# ---------------------------------------------------------------------------------------------------------- a turn


def test_a_whole_turn() -> None:
    talk = CodexTalk()
    talk.hook("SessionStart", source="startup", model="gpt-5.5", permission_mode="bypassPermissions")
    assert (talk.activity, talk.state.profile.mode, talk.state.profile.model) == ("idle", "bypass", "gpt-5.5")
    turn(talk)
    assert (talk.phase, talk.activity, talk.run) == ("streaming", THINKING, "running")
    used = {"input_tokens": 100, "cached_input_tokens": 20, "output_tokens": 30}
    talk.hook("PostModelRequest", turn_id="t1", status="completed", token_usage=used)
    talk.hook("Stop", turn_id="t1", last_assistant_message="Done")
    assert (talk.phase, talk.activity) == ("completed", "idle")
    assert (talk.words("user"), talk.words("assistant")) == (["hi"], ["Done"])
    total = talk.state.usage.total
    assert (total.input, total.cache_read, total.output) == (80, 20, 30)
    assert [body.turn_id for body in talk.events_of(ev.AgentStart)] == ["t1"]


def test_calls_run_between_their_hooks() -> None:
    talk = calling()
    assert (talk.activity, talk.tools()) == (TOOL_USE, [("exec_command", "running")])
    talk.hook("PostToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_response="ok")
    assert (talk.activity, talk.tools()) == (THINKING, [("exec_command", "done")])


def test_an_unknown_hook_is_counted_and_changes_nothing() -> None:
    talk = turn()
    assert talk.hook("PreHologram", turn_id="t1") == []
    assert talk.feed("hook", "no object") == []
    assert (talk.unknown, talk.activity) == (2, THINKING)


def test_an_interrupt_stops_the_turn() -> None:
    talk = calling()
    talk.hook("Interrupt", turn_id="t1")
    assert (talk.phase, talk.activity, talk.tools()) == ("stopped", "idle", [("exec_command", "error")])
    turn(talk, "t2", "go on")
    assert talk.phase == "streaming"


def test_a_turn_that_another_one_replaces_was_cut_off() -> None:
    talk = calling()
    turn(talk, "t2", "next")
    assert (talk.last(ev.AgentAbort).turn_id, talk.activity) == ("t1", THINKING)
    assert talk.tools() == [("exec_command", "error")]


def test_a_failed_request_is_tried_again_or_was_the_last_one() -> None:
    talk = turn()
    talk.hook("PostModelRequest", turn_id="t1", status="failed", error="stream disconnected")
    talk.wait(GIVE_UP_S - 1)
    talk.hook("PreModelRequest", turn_id="t1")
    talk.wait(GIVE_UP_S * 2)
    assert (talk.phase, talk.activity) == ("streaming", THINKING)
    talk.hook("PostModelRequest", turn_id="t1", status="failed", error="last status: 401 Unauthorized")
    talk.wait(GIVE_UP_S)
    assert talk.state.error is not None
    assert (talk.phase, talk.state.error.kind) == ("error", "auth")


def test_a_session_that_ends_after_a_failed_request_failed() -> None:
    talk = turn()
    talk.hook("PostModelRequest", turn_id="t1", status="failed", error="boom")
    talk.hook("SessionEnd", reason="other")
    assert (talk.phase, talk.activity) == ("error", "exited")


def test_after_its_end_the_same_process_may_serve_another_session() -> None:
    talk = turn()
    talk.hook("SessionEnd", reason="clear")
    assert (talk.phase, talk.activity) == ("stopped", "exited")
    assert talk.hook("PostModelRequest", turn_id="t1", status="cancelled") == []
    talk.hook("SessionStart", session="thread-2", source="startup")
    assert (talk.activity, talk.state.profile.native_session_id) == ("idle", "thread-2")
    assert talk.hook("Stop", turn_id="t1") == []
    talk.hook("SessionEnd", session="thread-2", reason="other")
    talk.hook("SessionStart", source="resume")
    assert (talk.activity, talk.state.profile.native_session_id) == ("idle", THREAD)


def test_a_stop_that_somebodys_hook_prevents_goes_on() -> None:
    talk = turn()
    talk.hook("PostModelRequest", turn_id="t1", status="completed")
    talk.hook("Stop", turn_id="t1", last_assistant_message="Done?")
    assert talk.phase == "completed"
    talk.hook("PreModelRequest", turn_id="t1")
    assert (talk.phase, talk.activity) == ("streaming", THINKING)


# ------------------------------------------------------------------------------------------------------- approvals


def test_a_permission_request_is_about_the_last_call_of_its_tool() -> None:
    talk = asking()
    gate = talk.last(ev.ApprovalRequired).gate
    assert (gate.ref, gate.call_id, gate.title, gate.hint, gate.ask) == (
        "call_a",
        "call_a",
        "make test",
        "May I?",
        "command",
    )
    assert (talk.phase, talk.activity) == ("waiting_approval", WAITING)


def test_our_hook_allows() -> None:
    talk = asking()
    talk.feed("hook.reply", reply("allow"))
    assert (talk.last(ev.ApprovalResolved).status, talk.phase, talk.activity) == ("approved", "streaming", TOOL_USE)
    talk.hook("PostToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_response="ok")
    assert talk.tools() == [("exec_command", "done")]


def test_our_hook_denies_and_the_call_gets_no_other_hook() -> None:
    talk = asking()
    events = talk.feed("hook.reply", reply("deny", message="not now"))
    assert (talk.last(ev.ApprovalResolved).status, talk.last(ev.ApprovalResolved).reason) == ("rejected", "not now")
    assert [body.sub for body in events if isinstance(body, ev.StateChange)] == ["tool_use", "thinking"]
    assert (talk.tools(), talk.activity) == ([("exec_command", "error")], THINKING)


def test_a_hook_that_does_not_decide_leaves_it_to_the_person() -> None:
    talk = asking()
    talk.feed("hook.reply", {"event": "PermissionRequest", "answer": {}})
    talk.feed("hook.disconnect", {"event": "PermissionRequest"})
    assert (talk.phase, talk.unknown) == ("waiting_approval", 0)


@pytest.mark.parametrize("sign", ["PostToolUse", "PreModelRequest", "Stop"])
def test_the_person_answered_when_codex_goes_on(sign: str) -> None:
    talk = asking()
    talk.hook(sign, turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_response="ok")
    assert (talk.gates, talk.last(ev.ApprovalResolved).status) == ([], "answered_elsewhere")


def test_a_refusal_in_the_terminal_shows_by_the_next_request() -> None:
    talk = asking()
    talk.hook("PreModelRequest", turn_id="t1")
    assert (talk.activity, talk.tools()) == (THINKING, [("exec_command", "error")])


def test_a_command_left_running_is_not_waited_for() -> None:
    talk = calling()
    talk.hook("PreModelRequest", turn_id="t1")
    assert (talk.activity, talk.tools()) == (THINKING, [("exec_command", "done")])


def test_telemetry_tells_the_answer_that_no_hook_tells() -> None:
    talk = asking()
    talk.decided("approved", source="User")
    assert (talk.last(ev.ApprovalResolved).by, talk.activity) == ("user", TOOL_USE)
    other = asking()
    other.decided("denied", source="User")
    assert (other.last(ev.ApprovalResolved).status, other.gates) == ("rejected", [])


# -------------------------------------------------------------------------------------------------------- questions


QUESTIONS = {"questions": [{"id": "c", "header": "Color", "question": "Which?", "options": [{"label": "Red"}]}]}


def question() -> CodexTalk:
    talk = turn()
    fields = {"tool_name": "request_user_input", "tool_use_id": "call_q", "tool_input": QUESTIONS}
    talk.hook("PreToolUse", turn_id="t1", **fields)
    return talk


def test_a_question_waits_when_nothing_follows_it() -> None:
    talk = question()
    assert talk.gates == []
    talk.wait(QUESTION_S)
    assert (talk.phase, talk.last(ev.AskUser).question) == ("waiting_input", "Which?")
    talk.hook("PostToolUse", turn_id="t1", tool_name="request_user_input", tool_use_id="call_q", tool_response="{}")
    assert (talk.phase, talk.tools()) == ("streaming", [("request_user_input", "done")])


def test_a_question_that_fails_at_once_is_never_asked() -> None:
    talk = question()
    talk.hook("PreModelRequest", turn_id="t1")
    assert talk.wait(QUESTION_S * 3) == []
    assert talk.tools() == [("request_user_input", "error")]


# ---------------------------------------------------------------------------------------------------- out of order


def test_asynchronous_hooks_in_any_order_lose_no_approval() -> None:
    talk = CodexTalk()
    talk.hook("PermissionRequest", turn_id="t1", tool_name="Bash", tool_input=COMMAND)
    assert talk.phase == "waiting_approval"
    talk.hook("PreModelRequest", turn_id="t1")
    talk.hook("PostModelRequest", turn_id="t1", status="completed")
    talk.hook("PreToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_input=COMMAND)
    talk.hook("UserPromptSubmit", turn_id="t1", prompt="hi")
    talk.hook("SessionStart", source="startup")
    assert (talk.phase, talk.activity, len(talk.gates)) == ("waiting_approval", WAITING, 1)
    assert (len(talk.events_of(ev.AgentStart)), len(talk.events_of(ev.AgentReady))) == (1, 1)
    talk.feed("hook.reply", reply("allow"))
    assert talk.gates == []


def test_a_call_that_comes_before_its_request_keeps_running() -> None:
    talk = CodexTalk()
    talk.hook("PreToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_input=COMMAND)
    talk.hook("PreModelRequest", turn_id="t1")
    assert (talk.activity, talk.tools()) == (TOOL_USE, [("exec_command", "running")])


def test_what_comes_after_the_end_of_its_turn_begins_nothing() -> None:
    talk = turn()
    talk.hook("Stop", turn_id="t1")
    before = len(talk.bodies)
    talk.hook("PostModelRequest", turn_id="t1", status="completed")
    talk.hook("PreToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_input=COMMAND)
    talk.hook("PermissionRequest", turn_id="t1", tool_name="Bash", tool_input=COMMAND)
    assert talk.bodies[before:] == []
    events = talk.hook("PostToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_response="ok")
    assert (kinds(events), talk.phase) == (["tool_call", "tool_execution_end"], "completed")


# ------------------------------------------------------------------------------------------ compaction, sub-agents


def test_compaction_by_hand_is_work_of_its_own() -> None:
    talk = CodexTalk()
    talk.hook("SessionStart", source="startup")
    talk.hook("PreCompact", turn_id="t9", trigger="manual")
    assert (talk.activity, talk.phase) == (COMPACTING, "streaming")
    talk.hook("PostCompact", turn_id="t9", trigger="manual")
    assert (talk.activity, talk.phase) == ("idle", "completed")


def test_compaction_in_a_turn_goes_back_to_it() -> None:
    talk = turn()
    talk.hook("PreCompact", turn_id="t1", trigger="auto")
    assert talk.activity == COMPACTING
    talk.hook("SessionStart", source="compact")
    assert talk.activity == THINKING


def test_a_sub_agents_hooks_never_move_its_parent() -> None:
    talk = turn()
    child = {"agent_id": "thread-c", "agent_type": "helper"}
    talk.hook("SubagentStart", turn_id="c1", **child)
    assert talk.background == ["thread-c"]
    talk.hook("PreModelRequest", turn_id="c1", **child)
    talk.hook("PreToolUse", turn_id="c1", tool_name="Bash", tool_use_id="call_c", tool_input=COMMAND, **child)
    talk.hook("PermissionRequest", turn_id="c1", tool_name="Bash", tool_input=COMMAND, **child)
    assert (talk.activity, talk.phase, talk.gates) == (THINKING, "waiting_approval", ["call_c"])
    used = {"input_tokens": 10, "output_tokens": 5}
    talk.hook("PostModelRequest", turn_id="c1", status="completed", token_usage=used, **child)
    assert talk.state.usage.by_agent[0].name == "thread-c"
    talk.hook("SubagentStop", turn_id="c1", last_assistant_message="42", **child)
    assert (talk.gates, talk.background, talk.phase) == ([], [], "streaming")
    assert talk.last(ev.SubagentEnd).result == "42"


# ---------------------------------------------------------------------------------- together with telemetry, restore


def test_the_same_call_from_hooks_and_telemetry_is_told_once() -> None:
    talk = calling()
    talk.decided("approved", source="Config")
    talk.result("call_a", output="Process exited with code 0")
    talk.hook("PostToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_response="ok")
    assert talk.tools() == [("exec_command", "done")]
    assert len(talk.events_of(ev.ToolExecutionStart)) == len(talk.events_of(ev.ToolExecutionEnd)) == 1


def test_where_hooks_tell_every_request_telemetry_moves_nothing() -> None:
    talk = asking()
    before = talk.activity
    talk.record("user_prompt", prompt="hi")
    talk.sse("response.created")
    talk.completed()
    talk.wait(60)
    assert (talk.activity, talk.gates, talk.signal) == (before, ["call_a"], "live")
    assert (talk.words("user"), talk.state.usage.total.input) == (["hi"], 0)


def test_a_few_hooks_and_telemetry_complete_each_other() -> None:
    """Only PermissionRequest, Stop and Interrupt are installed; telemetry reports the rest."""
    talk = CodexTalk()
    talk.record("conversation_starts")
    talk.record("user_prompt", prompt="hi")
    talk.sse("response.created")
    talk.sse("response.function_call_arguments.done")
    talk.completed()
    talk.hook("PermissionRequest", turn_id="t1", tool_name="Bash", tool_input=COMMAND)
    talk.wait(30)
    assert (talk.phase, talk.signal) == ("waiting_approval", "live")
    talk.decided("approved", source="User")
    assert (talk.phase, talk.activity) == ("streaming", TOOL_USE)
    talk.result()
    talk.sse("response.created")
    talk.completed()
    talk.hook("Stop", turn_id="t1", last_assistant_message="Done", after=0.05)
    assert (talk.phase, talk.activity, talk.signal) == ("completed", "idle", "live")


def test_another_deck_goes_on_in_the_middle() -> None:
    talk = asking().restarted()
    talk.hook("PostToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_response="ok")
    assert (talk.gates, talk.activity) == ([], THINKING)
    talk.hook("Stop", turn_id="t1", last_assistant_message="Done")
    assert (talk.phase, len(talk.events_of(ev.AgentStart))) == ("completed", 1)
