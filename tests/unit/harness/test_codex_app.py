"""Test `codex app-server` where no recording exists."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.codex.app_server import IGNORED_NOTIFICATIONS
from quarterdeck.harness.codex.approvals import IGNORED_REQUESTS
from quarterdeck.kernel.activity import COMPACTING, THINKING, TOOL_USE, WAITING
from tests.support.codex_session import THREAD, CodexTalk
from tests.support.translator_session import kinds

CHILD = "thread-child"


def started() -> CodexTalk:
    return CodexTalk().opened().turn()


def with_child() -> CodexTalk:
    """Start a sub-agent that works beside its parent."""
    talk = started()
    talk.item("subAgentActivity", "call_s", kind="started", agentThreadId=CHILD, agentPath="/helper")
    talk.notes("thread/status/changed", CHILD, status={"type": "active", "activeFlags": []})
    talk.notes("turn/started", CHILD, turn={"id": "c1"})
    return talk


# ------------------------------------------------------------------------------------------------- session and turn


def test_the_answer_to_our_request_names_the_session() -> None:
    talk = CodexTalk()
    asked = talk.request("initialize", clientInfo={"name": "quarterdeck"})
    talk.answers(asked, {"userAgent": "quarterdeck/0.170.1 (Debian 12)"})
    talk.opened(name="Fix the parser")
    ready = talk.last(ev.AgentReady)
    assert (ready.native_session_id, ready.model, ready.version) == (THREAD, "gpt-5.5", "0.170.1")
    assert (ready.capabilities, ready.resumable) == (("steer",), True)
    assert (talk.state.profile.mode, talk.state.profile.name) == ("edits", "Fix the parser")


@pytest.mark.parametrize(
    ("policy", "sandbox", "mode"),
    [
        ("never", {"type": "dangerFullAccess"}, "bypass"),
        ("never", {"type": "workspaceWrite"}, "auto"),
        ("on-request", {"type": "readOnly"}, "ask"),
        ("on-request", {"type": "workspaceWrite"}, "edits"),
        ("untrusted", {"type": "workspaceWrite"}, "ask"),
        ({"granular": {}}, {"type": "workspaceWrite"}, "ask"),
        ("from_the_future", {"type": "workspaceWrite"}, ""),
        (None, None, ""),
    ],
)
def test_policy_and_sandbox_are_a_mode(policy: Any, sandbox: Any, mode: str) -> None:
    talk = CodexTalk()
    asked = talk.request("thread/start")
    talk.answers(asked, {"thread": {"id": THREAD}, "model": "m", "approvalPolicy": policy, "sandbox": sandbox})
    assert talk.state.profile.mode == mode


def test_settings_are_told_when_they_change() -> None:
    talk = CodexTalk().opened()
    plan = {"mode": "plan", "settings": {}}
    fields = {"approvalPolicy": "on-request", "sandboxPolicy": {"type": "workspaceWrite"}, "model": "gpt-5.5"}
    assert kinds(talk.notes("thread/settings/updated", threadSettings=fields)) == []
    events = talk.notes(
        "thread/settings/updated", threadSettings={**fields, "effort": "high", "collaborationMode": plan}
    )
    assert kinds(events) == ["setting_changed"]
    assert (talk.state.profile.mode, talk.state.profile.thinking) == ("plan", "high")
    assert talk.notes("model/rerouted", fromModel="gpt-5.5", toModel="gpt-6")
    assert talk.state.profile.model == "gpt-6"


def test_a_turn_is_begun_once_by_status_and_name() -> None:
    talk = CodexTalk().opened()
    asked = talk.request("turn/start", threadId=THREAD, input=[{"type": "text", "text": "hi"}])
    talk.answers(asked, {"turn": {"id": "u7"}})
    talk.turn("u7")
    assert [body.turn_id for body in talk.events_of(ev.AgentStart)] == ["u7"]
    assert talk.words("user") == ["hi"]
    talk.says("Hello").ends()
    assert (talk.phase, talk.activity, talk.run) == ("completed", "idle", "idle")


def test_a_prompt_with_an_image_and_our_own_id() -> None:
    talk = CodexTalk().opened()
    content = [
        {"type": "text", "text": "look"},
        {"type": "image", "url": "data:image/png;base64,AAAA"},
        {"type": "localImage", "path": "/tmp/a.png"},
    ]
    talk.item("userMessage", "m1", clientId="ours", content=content)
    entry = talk.entries[-1]
    assert (entry.id, entry.text) == ("ours", "look")
    assert [(image.media_type, image.data, image.path) for image in entry.images] == [
        ("image/png", "AAAA", ""),
        ("", "", "/tmp/a.png"),
    ]


def test_the_status_alone_is_enough_for_whoever_hears_nothing_else() -> None:
    talk = CodexTalk().opened()
    talk.notes("thread/status/changed", status={"type": "active", "activeFlags": []})
    assert talk.phase == "streaming"
    talk.notes("thread/status/changed", status={"type": "active", "activeFlags": ["waitingOnApproval"]})
    assert talk.gates == []
    talk.wait(0.5)
    assert (talk.phase, talk.activity) == ("waiting_approval", WAITING)
    talk.notes("thread/status/changed", status={"type": "active", "activeFlags": ["waitingOnUserInput"]})
    talk.notes("thread/status/changed", status={"type": "active", "activeFlags": []})
    assert (talk.phase, talk.gates) == ("streaming", [])
    talk.notes("thread/status/changed", status={"type": "active", "activeFlags": ["waitingOnUserInput"]})
    talk.wait(0.5)
    assert talk.phase == "waiting_input"
    talk.notes("thread/status/changed", status={"type": "idle"})
    talk.wait(0.5)
    assert (talk.phase, talk.activity) == ("completed", "idle")


def test_a_broken_status_alone_is_a_failure() -> None:
    talk = started()
    talk.notes("thread/status/changed", status={"type": "systemError"})
    talk.wait(0.5)
    assert (talk.phase, talk.activity) == ("error", "idle")


def test_a_status_is_followed_by_the_turn_and_does_not_end_it_twice() -> None:
    talk = started().ends("interrupted")
    talk.wait(5)
    assert [type(body) for body in talk.events_of(ev.AgentAbort)] == [ev.AgentAbort]
    assert (talk.phase, talk.events_of(ev.AgentEnd)) == ("stopped", [])


def test_a_thread_that_is_unloaded_or_closed_is_gone() -> None:
    talk = started()
    talk.notes("thread/status/changed", status={"type": "notLoaded"})
    assert (talk.activity, talk.phase) == ("exited", "stopped")
    talk.turn("u2")
    assert talk.activity == THINKING
    talk.notes("thread/closed")
    assert talk.activity == "exited"


def test_another_thread_of_ours_replaces_the_session() -> None:
    talk = started().opened("thread/fork", thread="thread-2")
    assert (talk.state.profile.native_session_id, talk.phase) == ("thread-2", "stopped")
    talk.notes("turn/completed", turn={"id": "u1", "status": "failed"})
    assert talk.phase == "stopped"


# ----------------------------------------------------------------------------------- other threads and connections


def test_threads_of_others_move_nothing() -> None:
    talk = started()
    before = len(talk.bodies)
    title = {"id": "thread-title", "ephemeral": True, "threadSource": "thread_title"}
    talk.feed("stdout", {"method": "thread/started", "params": {"thread": title}})
    talk.turn("x1", "Generate a concise title", thread="thread-title")
    talk.says("A title", "msg_9", "thread-title").ends(thread="thread-title")
    talk.notes("thread/name/updated", "someone-elses", threadName="No")
    talk.asks("item/commandExecution/requestApproval", 5, "someone-elses", itemId="c")
    assert talk.bodies[before:] == []
    assert talk.unknown == 0


def test_without_our_requests_the_first_thread_that_works_is_ours() -> None:
    talk = CodexTalk()
    talk.notes("thread/status/changed", "other", status={"type": "idle"})
    talk.notes("thread/status/changed", status={"type": "active", "activeFlags": []})
    assert talk.phase == "idle"
    talk.notes("turn/started", turn={"id": "u1"})
    assert talk.state.profile.native_session_id == THREAD
    assert talk.phase == "streaming"
    other = CodexTalk()
    other.feed("stdout", {"method": "thread/started", "params": {"thread": {"id": THREAD, "model": "m"}}})
    assert (other.state.profile.native_session_id, other.state.profile.model) == (THREAD, "m")


def test_until_our_own_thread_is_open_no_other_one_is_taken_for_it() -> None:
    talk = CodexTalk()
    asked = talk.request("thread/start")
    talk.notes("turn/started", "other", turn={"id": "o1"})
    assert talk.phase == "idle"
    talk.answers(asked, {"thread": {"id": THREAD}, "model": "m", "approvalPolicy": "never"})
    assert talk.state.profile.native_session_id == THREAD


def test_of_several_connections_one_is_read() -> None:
    talk = CodexTalk().opened()
    line = {"method": "turn/started", "params": {"threadId": THREAD, "turn": {"id": "u1"}}}
    assert talk.feed("stdout.second", line) == []
    assert talk.feed("stdout", line)
    other = CodexTalk()
    assert other.feed("stdout.b", line)
    assert other.feed("stdout.c", line) == []
    assert other.unknown == 0


# ------------------------------------------------------------------------------------------------------- approvals


def test_an_approval_offers_what_codex_offers_and_what_it_takes_besides() -> None:
    amendment = {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["make", "test"]}}
    talk = started().asking(availableDecisions=["accept", amendment, "cancel"], reason="May I?")
    gate = talk.last(ev.ApprovalRequired).gate
    assert (gate.ref, gate.call_id, gate.ask, gate.title, gate.hint) == (
        "call_a",
        "call_a",
        "command",
        "make test",
        "May I?",
    )
    assert [(option.id, option.kind) for option in gate.options] == [
        ("accept", "allow_once"),
        ("acceptWithExecpolicyAmendment", "allow_always"),
        ("cancel", "cancel"),
        ("decline", "reject_once"),
    ]
    assert gate.options[1].label == "Always allow: make test"
    assert talk.tools() == [("exec_command", "calling")]


@pytest.mark.parametrize(
    ("decision", "status", "scope"),
    [
        ("accept", "approved", ""),
        ("acceptForSession", "approved", "session"),
        ({"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["make"]}}, "approved", "user"),
        ("decline", "rejected", ""),
        ("cancel", "rejected", ""),
        ("from_the_future", "rejected", ""),
        (None, "rejected", ""),
    ],
)
def test_our_answer_decides(decision: Any, status: str, scope: str) -> None:
    talk = started().asking()
    events = talk.replies({"decision": decision})
    resolved = next(body for body in events if isinstance(body, ev.ApprovalResolved))
    assert (resolved.status, resolved.by) == (status, "user")
    assert [body.scope for body in events if isinstance(body, ev.ToolApprovedAlways)] == ([scope] if scope else [])
    assert (talk.phase, talk.activity, talk.gates) == ("streaming", TOOL_USE, [])
    talk.resolved()
    assert len(talk.events_of(ev.ApprovalResolved)) == 1


def test_a_declined_command_is_told_and_the_turn_goes_on() -> None:
    talk = started().asking()
    talk.replies({"decision": "decline"})
    talk.item("commandExecution", "call_a", done=True, status="declined", command="make test")
    talk.resolved()
    assert (talk.activity, talk.tools()) == (THINKING, [("exec_command", "error")])
    talk.says("Then not").ends()
    assert (talk.phase, talk.words("assistant")) == ("completed", ["Then not"])


def test_another_client_answers() -> None:
    talk = started().asking()
    talk.resolved()
    assert talk.last(ev.ApprovalResolved).status == "answered_elsewhere"
    assert (talk.phase, talk.activity) == ("streaming", TOOL_USE)
    talk.item("commandExecution", "call_a", done=True, status="completed", exitCode=0, aggregatedOutput="ok")
    assert talk.tools() == [("exec_command", "done")]


def test_an_interrupt_withdraws_what_is_asked_and_what_never_ran_is_over() -> None:
    talk = started().asking("call_a", 0)
    talk.asks("item/fileChange/requestApproval", 1, itemId="call_p")
    talk.request("turn/interrupt", threadId=THREAD, turnId="u1")
    talk.ends("interrupted").notes("serverRequest/resolved", requestId=0)
    assert {body.status for body in talk.events_of(ev.ApprovalResolved)} == {"withdrawn"}
    assert (talk.phase, talk.gates, talk.background) == ("stopped", [], [])
    assert talk.tools() == [("exec_command", "error")]


def test_permissions_are_given_or_not() -> None:
    talk = started()
    permissions = {"network": {"enabled": True}}
    talk.asks("item/permissions/requestApproval", "p1", itemId="call_n", permissions=permissions, reason="to fetch")
    assert talk.last(ev.ApprovalRequired).gate.args == permissions
    talk.replies({"permissions": permissions, "scope": "turn"}, "p1")
    assert talk.last(ev.ApprovalResolved).status == "approved"
    talk.asks("item/permissions/requestApproval", "p2", itemId="call_m", permissions=permissions)
    talk.replies({"permissions": {}}, "p2")
    assert talk.last(ev.ApprovalResolved).status == "rejected"


def test_a_network_approval_within_a_command_is_a_gate_of_its_own() -> None:
    talk = started().asking()
    context = {"host": "example.org", "protocol": "https"}
    talk.asks(
        "item/commandExecution/requestApproval", 1, itemId="call_a", approvalId="ap-1", networkApprovalContext=context
    )
    assert talk.gates == ["call_a", "ap-1"]
    assert talk.last(ev.ApprovalRequired).gate.title == "Network access to example.org"


def test_the_first_protocol_asks_in_other_words() -> None:
    talk = started()
    command = ["bash", "-lc", "ls"]
    params = {"conversationId": THREAD, "callId": "c1", "command": command}
    talk.feed("stdout", {"method": "execCommandApproval", "id": 3, "params": params})
    assert talk.last(ev.ApprovalRequired).gate.args["command"] == "ls"
    talk.replies({"decision": "approved_for_session"}, 3)
    assert talk.last(ev.ApprovalResolved).status == "approved"
    params = {"conversationId": THREAD, "callId": "c2", "fileChanges": {"a": {"add": {}}}}
    talk.feed("stdout", {"method": "applyPatchApproval", "id": 4, "params": params})
    talk.replies({"decision": "denied"}, 4)
    assert talk.last(ev.ApprovalResolved).status == "rejected"


@pytest.mark.parametrize("method", sorted(IGNORED_REQUESTS))
def test_what_a_program_answers_is_no_gate(method: str) -> None:
    talk = started()
    talk.asks(method, 9)
    assert (talk.gates, talk.unknown) == ([], 0)


# ----------------------------------------------------------------------------------------------- questions, dialogs


def test_several_questions_are_one_gate_and_one_answer() -> None:
    talk = started()
    talk.notes("thread/status/changed", status={"type": "active", "activeFlags": ["waitingOnUserInput"]})
    questions = [
        {
            "id": "a",
            "header": "Color",
            "question": "Which?",
            "options": [{"label": "Red"}, {"label": "Blue", "description": "b"}],
        },
        {"id": "b", "question": "Why?", "multiSelect": True, "options": None},
    ]
    talk.asks(
        "item/tool/requestUserInput", 2, itemId="call_q", questions=questions, autoResolutionMs=500, startedAtMs=1000
    )
    asked = talk.last(ev.AskUser)
    assert (asked.ref, asked.call_id, asked.deadline) == ("call_q", "call_q", 1500)
    assert [(item.text, item.header, item.multiple) for item in asked.questions] == [
        ("Which?", "Color", False),
        ("Why?", "", True),
    ]
    assert [option.label for option in asked.options] == ["Red", "Blue: b"]
    assert (talk.phase, talk.activity) == ("waiting_input", WAITING)
    talk.replies({"answers": {"a": {"answers": ["Red"]}, "b": {"answers": ["so", "and so"]}}}, 2)
    assert talk.words("user")[-1] == "Red\nso, and so"
    assert talk.phase == "streaming"


def test_a_question_closed_without_an_answer_is_withdrawn() -> None:
    talk = started()
    talk.asks("item/tool/requestUserInput", 2, itemId="call_q", questions=[{"id": "a", "question": "Which?"}])
    talk.replies({"answers": {}}, 2)
    assert talk.last(ev.UserResponded).status == "withdrawn"
    talk.asks("item/tool/requestUserInput", 3, itemId="call_r", questions=[])
    assert talk.gates == []


@pytest.mark.parametrize(
    ("properties", "method"),
    [
        ({}, "confirm"),
        ({"ok": {"type": "boolean"}}, "confirm"),
        ({"color": {"type": "string", "enum": ["red", "blue"]}}, "select"),
        ({"name": {"type": "string"}}, "input"),
        ({"name": {"type": "string"}, "age": {"type": "integer"}}, "editor"),
    ],
)
def test_an_mcp_server_asks_by_a_dialog(properties: dict[str, Any], method: str) -> None:
    talk = started()
    schema = {"type": "object", "properties": properties}
    talk.asks("mcpServer/elicitation/request", 7, serverName="db", message="Which one?", requestedSchema=schema)
    dialog = talk.last(ev.DialogRequired)
    assert (dialog.method, dialog.title, dialog.message) == (method, "db", "Which one?")
    assert talk.phase == "waiting_input"
    talk.replies({"action": "accept", "content": {"name": "x"}}, 7)
    assert (talk.last(ev.DialogResolved).status, talk.last(ev.DialogResolved).value) == ("answered", {"name": "x"})
    talk.asks("mcpServer/elicitation/request", 8, serverName="db", message="Sure?")
    talk.replies({"action": "decline"}, 8)
    assert talk.last(ev.DialogResolved).status == "cancelled"


# -------------------------------------------------------------------------------------------------------- steering


def test_steering_is_scheduled_and_read_in_the_turn() -> None:
    talk = started()
    talk.item("agentMessage", "msg_1", text="")
    talk.notes("item/agentMessage/delta", itemId="msg_1", delta="On the o")
    text = [{"type": "text", "text": "stop that"}]
    asked = talk.request("turn/steer", threadId=THREAD, expectedTurnId="u1", clientUserMessageId="s1", input=text)
    assert [item.id for item in talk.state.queue] == ["s1"]
    talk.answers(asked, {"turnId": "u1"})
    talk.item("userMessage", "m9", clientId="s1", content=text)
    assert talk.state.queue == ()
    assert (talk.words("user"), talk.words("assistant")) == (["hi", "stop that"], ["On the o"])
    talk.says("All right", "msg_2").ends()
    assert len(talk.events_of(ev.AgentStart)) == len(talk.events_of(ev.AgentEnd)) == 1


def test_a_start_in_a_running_turn_is_steering_too() -> None:
    talk = started()
    talk.request("turn/start", threadId=THREAD, input=[{"type": "text", "text": "and this"}])
    assert [item.text for item in talk.state.queue] == ["and this"]
    talk.item("userMessage", "m9", content=[{"type": "text", "text": "and this"}])
    assert (talk.state.queue, talk.words("user")) == ((), ["hi", "and this"])
    talk.ends()
    assert talk.phase == "completed"


def test_steering_that_is_refused_or_cut_off_is_given_back() -> None:
    talk = started()
    text = [{"type": "text", "text": "late"}]
    asked = talk.request("turn/steer", threadId=THREAD, expectedTurnId="u1", input=text)
    talk.refuses(asked, "no active turn to steer")
    assert talk.last(ev.PromptDropped).text == "late"
    assert talk.words("error") == ["no active turn to steer"]
    talk.request("turn/steer", threadId=THREAD, expectedTurnId="u1", input=text)
    talk.ends("interrupted")
    assert (talk.last(ev.PromptDropped).text, talk.state.queue) == ("late", ())


# ----------------------------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("item", "name", "result"),
    [
        ({"type": "mcpToolCall", "server": "db", "tool": "query", "arguments": {"q": 1}}, "mcp__db__query", ""),
        ({"type": "dynamicToolCall", "tool": "lookup", "arguments": {}}, "lookup", ""),
        ({"type": "webSearch", "query": "codex"}, "web_search", ""),
        ({"type": "imageView", "path": "/tmp/a.png"}, "view_image", ""),
        ({"type": "imageGeneration", "revisedPrompt": "a cat"}, "image_generation", ""),
        ({"type": "collabAgentToolCall", "tool": "sendInput", "prompt": "go"}, "send_input", ""),
        ({"type": "sleep", "durationMs": 5}, "sleep", ""),
    ],
)
def test_every_item_that_is_a_call(item: dict[str, Any], name: str, result: str) -> None:
    talk = started()
    kind = item.pop("type")
    talk.item(kind, "c1", **item, status="inProgress")
    assert (talk.activity, talk.tools()) == (TOOL_USE, [(name, "running")])
    talk.item(kind, "c1", done=True, **item, status="completed")
    assert (talk.activity, talk.tools()) == (THINKING, [(name, "done")])
    assert (talk.last(ev.ToolExecutionEnd).result, talk.unknown) == (result, 0)


def test_an_mcp_call_tells_its_texts_its_progress_and_its_error() -> None:
    talk = started()
    call = {"server": "db", "tool": "query", "arguments": {"q": 1}}
    talk.item("mcpToolCall", "c1", **call, status="inProgress")
    talk.notes("item/mcpToolCall/progress", itemId="c1", message="half")
    assert talk.last(ev.ToolExecutionOutput).delta == "half\n"
    content = {"content": [{"type": "text", "text": "row 1"}, {"type": "text", "text": "row 2"}]}
    talk.item("mcpToolCall", "c1", done=True, **call, status="completed", result=content)
    assert talk.last(ev.ToolExecutionEnd).result == "row 1\nrow 2"
    talk.item("mcpToolCall", "c2", done=True, **call, status="failed", error={"message": "no such table"})
    assert (talk.last(ev.ToolExecutionEnd).ok, talk.last(ev.ToolExecutionEnd).result) == (False, "no such table")


def test_a_command_that_fails_is_no_success() -> None:
    talk = started()
    talk.item("commandExecution", "c1", command="false", processId="7")
    talk.notes("item/commandExecution/outputDelta", itemId="c1", delta="so far")
    talk.item(
        "commandExecution", "c1", done=True, command="false", status="completed", exitCode=1, aggregatedOutput="x"
    )
    assert (talk.tools(), talk.last(ev.ToolExecutionEnd).result) == ([("exec_command", "error")], "x")


def test_an_item_of_an_unknown_type_is_counted() -> None:
    talk = started()
    talk.item("hologram", "h1")
    talk.item("hologram", "h1", done=True)
    talk.notes("thread/hologram/updated")
    assert (talk.unknown, talk.phase) == (3, "streaming")


@pytest.mark.parametrize("method", sorted(IGNORED_NOTIFICATIONS))
def test_known_notifications_without_meaning(method: str) -> None:
    talk = started()
    before = len(talk.bodies)
    talk.notes(method, itemId="x", delta="y")
    assert (talk.bodies[before:], talk.unknown) == ([], 0)


def test_the_users_own_command_is_no_call() -> None:
    talk = started()
    shell = {"command": "/bin/bash -lc 'git status'", "source": "userShell"}
    talk.item("commandExecution", "b1", **shell)
    talk.notes("item/commandExecution/outputDelta", itemId="b1", delta="clean\n")
    talk.item("commandExecution", "b1", done=True, **shell, exitCode=0, aggregatedOutput="clean\n")
    assert talk.tools() == []
    assert talk.words("bash") == ["git status"]
    assert talk.entries[-1].bash_result is not None
    assert (talk.entries[-1].bash_result.output, talk.entries[-1].bash_result.exit_code) == ("clean\n", 0)


def test_only_commands_with_a_terminal_outlive_an_interrupt() -> None:
    talk = started()
    talk.item("commandExecution", "c1", command="/bin/bash -lc 'sleep 99'", processId="7", source="unifiedExecStartup")
    talk.item("mcpToolCall", "c2", server="s", tool="t")
    talk.ends("interrupted")
    assert (talk.background, talk.phase, talk.activity) == (["c1"], "stopped", "idle")
    assert talk.tools() == [("exec_command", "running"), ("mcp__s__t", "error")]
    assert talk.state.background[0].title == "sleep 99"
    talk.notes("item/commandExecution/outputDelta", itemId="c1", delta="still")
    talk.item("commandExecution", "c1", done=True, command="sleep 99", status="failed", exitCode=137)
    assert (talk.background, talk.tools()[0]) == ([], ("exec_command", "error"))


def test_background_terminals_can_be_ended_by_us() -> None:
    talk = started()
    talk.item("commandExecution", "c1", command="sleep 99", processId="7")
    talk.ends("interrupted")
    asked = talk.request("thread/backgroundTerminals/clean", threadId=THREAD)
    talk.answers(asked, {})
    assert talk.background == []


def test_a_command_left_running_is_not_waited_for() -> None:
    talk = started()
    talk.item("commandExecution", "c1", command="sleep 99", processId="7")
    sums = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    talk.notes("thread/tokenUsage/updated", tokenUsage={"total": sums, "last": sums})
    assert (talk.background, talk.activity, talk.run) == (["c1"], THINKING, "running")
    talk.says("It runs").ends()
    assert (talk.phase, talk.background) == ("completed", ["c1"])


# -------------------------------------------------------------------------------------------------------- the rest


def test_tokens_are_differences_and_a_repeated_sum_adds_nothing() -> None:
    talk = started()

    def used(total: int, cached: int, output: int, last: int) -> None:
        sums = {
            "inputTokens": total,
            "cachedInputTokens": cached,
            "outputTokens": output,
            "totalTokens": total + output,
        }
        tokens = {"total": sums, "last": {"inputTokens": last, "totalTokens": last}, "modelContextWindow": 1000}
        talk.notes("thread/tokenUsage/updated", tokenUsage=tokens)

    used(100, 20, 30, 100)
    used(100, 20, 30, 100)
    used(250, 60, 50, 150)
    total = talk.state.usage.total
    assert (total.input, total.cache_read, total.output) == (190, 60, 50)
    assert talk.state.profile.context is not None
    assert (talk.state.profile.context.tokens, talk.state.profile.context.limit) == (150, 1000)
    used(40, 0, 10, 40)
    assert talk.state.usage.total.input == 190 + 40


def test_a_resumed_thread_counts_its_last_message_only() -> None:
    talk = CodexTalk().opened("thread/resume").turn()
    sums = {"inputTokens": 9000, "outputTokens": 900}
    last = {"inputTokens": 100, "cachedInputTokens": 40, "outputTokens": 10}
    talk.notes("thread/tokenUsage/updated", tokenUsage={"total": sums, "last": last})
    total = talk.state.usage.total
    assert (total.input, total.cache_read, total.output) == (60, 40, 10)


def test_a_plan_pays_when_codex_names_one() -> None:
    talk = started()
    talk.notes("account/rateLimits/updated", rateLimits={"planType": "plus", "primary": {"usedPercent": 4}})
    talk.notes("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": 1}, "last": {}})
    assert talk.state.usage.billing == "plan"


def test_reasoning_in_pieces_and_whole() -> None:
    talk = started()
    talk.item("reasoning", "r1", summary=[], content=[])
    talk.notes("item/reasoning/summaryTextDelta", itemId="r1", summaryIndex=0, delta="Let me ")
    talk.notes("item/reasoning/summaryTextDelta", itemId="r1", summaryIndex=0, delta="see")
    talk.notes("item/reasoning/textDelta", itemId="r1", contentIndex=0, delta="raw")
    talk.item("reasoning", "r1", done=True, summary=["Let me see."], content=["raw"])
    assert talk.words("thinking") == ["Let me see.", "raw"]
    talk.item("reasoning", "r2", done=True, summary=[], content=[])
    assert len(talk.words("thinking")) == 2


def test_plans_todos_titles_and_diffs() -> None:
    talk = started()
    steps = [{"step": "read", "status": "completed"}, {"step": "write", "status": "inProgress"}, {"step": "test"}]
    talk.notes("turn/plan/updated", turnId="u1", plan=steps)
    assert [(todo.content, todo.status) for todo in talk.state.todos] == [
        ("read", "completed"),
        ("write", "in_progress"),
        ("test", "pending"),
    ]
    talk.item("plan", "p1", text="")
    talk.notes("item/plan/delta", itemId="p1", delta="# Plan")
    talk.item("plan", "p1", done=True, text="# Plan\n1. x")
    assert talk.state.plan is not None
    assert (talk.state.plan.text, talk.words("assistant")) == ("# Plan\n1. x", ["# Plan\n1. x"])
    talk.notes("thread/name/updated", threadName="Parser")
    assert talk.state.profile.name == "Parser"
    diff = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1,2 @@\n-a\n+b\n+c\n"
    talk.notes("turn/diff/updated", turnId="u1", diff=diff)
    talk.notes("turn/diff/updated", turnId="u1", diff=diff)
    talk.notes("turn/diff/updated", turnId="u2", diff=diff + diff.replace("x.py", "y.py"))
    changes = talk.state.profile.changes
    assert (changes.files, changes.added, changes.removed) == (2, 6, 3)
    assert len(talk.events_of(ev.ChangesUpdated)) == 2


def test_compaction_within_a_turn_of_its_own_and_as_older_servers_say_it() -> None:
    talk = started()
    talk.item("contextCompaction", "k1")
    assert talk.activity == COMPACTING
    talk.item("contextCompaction", "k1", done=True)
    assert talk.last(ev.CompactStart).trigger == "auto"
    talk.ends()
    talk.notes("turn/started", turn={"id": "u2"})
    talk.item("contextCompaction", "k2")
    assert (talk.last(ev.CompactStart).trigger, talk.activity) == ("manual", COMPACTING)
    talk.ends("interrupted")
    assert talk.activity == "idle"
    talk.turn("u3")
    talk.notes("thread/compacted")
    assert (talk.activity, len(talk.events_of(ev.CompactEnd))) == (THINKING, 2)


def test_reviews_hook_prompts_and_warnings() -> None:
    talk = started()
    talk.item("enteredReviewMode", "v1", review="current changes")
    talk.item("exitedReviewMode", "v2", done=True, review="Looks good")
    talk.item("hookPrompt", "h1", fragments=[{"text": "remember the tests"}])
    for _ in range(2):
        talk.feed("stdout", {"method": "configWarning", "params": {"summary": "no sandbox"}})
        talk.notes("warning", message="no sandbox")
    talk.notes("warning", "someone-elses", message="not ours")
    talk.feed(
        "stdout",
        {"method": "mcpServer/startupStatus/updated", "params": {"name": "db", "status": "failed", "error": "x"}},
    )
    assert talk.words("assistant") == ["Looks good"]
    assert talk.words("system") == [
        "Review: current changes",
        "remember the tests",
        "no sandbox",
        "MCP server db did not start: x",
    ]


# -------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("info", "message", "kind"),
    [
        ("usageLimitExceeded", "You've hit your usage limit", "usage_limit"),
        ("unauthorized", "token expired", "auth"),
        ("internalServerError", "boom", "api"),
        ("serverOverloaded", "busy", "api"),
        ("contextWindowExceeded", "full", "api"),
        ("sandboxError", "no", "internal"),
        ("badRequest", "unknown model gpt-9", "invalid_model"),
        ({"httpConnectionFailed": {"httpStatusCode": None}}, "refused", "network"),
        ({"responseStreamDisconnected": {}}, "cut", "network"),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, "last status: 429", "rate_limit"),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 401}}, "no", "auth"),
        ({"httpConnectionFailed": {"httpStatusCode": 402}}, "no", "payment"),
        ({"modelCap": {"model": "x"}}, "capped", "rate_limit"),
        ("other", "insufficient_quota", "payment"),
        (None, "who knows", "api"),
    ],
)
def test_a_failed_turn_says_why(info: Any, message: str, kind: str) -> None:
    talk = started()
    error = {"message": message, "codexErrorInfo": info}
    talk.notes("error", error=error, willRetry=False)
    assert talk.phase == "streaming"
    talk.ends("failed", error=error)
    assert talk.state.error is not None
    assert (talk.state.error.kind, talk.state.error.message, talk.phase) == (kind, message, "error")
    assert (kind == "api") == (talk.state.error.resets_at is None and kind == "api")
    talk.turn("u2")
    assert (talk.phase, talk.state.error) == ("streaming", None)


def test_a_usage_limit_says_when_it_ends_if_codex_does() -> None:
    talk = started()
    used = {"primary": {"usedPercent": 100, "resetsAt": 1_794_800_000}, "secondary": {"usedPercent": 40, "resetsAt": 5}}
    talk.notes("account/rateLimits/updated", rateLimits=used)
    talk.ends("failed", error={"message": "limit", "codexErrorInfo": "usageLimitExceeded"})
    assert talk.state.error is not None
    assert talk.state.error.resets_at == 1_794_800_000_000


def test_a_broken_stream_is_tried_again_and_its_half_message_is_taken_back() -> None:
    talk = started()
    talk.item("agentMessage", "msg_1", text="")
    talk.notes("item/agentMessage/delta", itemId="msg_1", delta="Hel")
    error = {
        "message": "Reconnecting... 2/5",
        "additionalDetails": "cut",
        "codexErrorInfo": {"responseStreamDisconnected": {}},
    }
    talk.notes("error", error=error, willRetry=True)
    retry = talk.last(ev.Retry)
    assert (retry.attempt, retry.reason) == (2, "cut")
    assert (talk.words("assistant"), talk.phase, talk.activity) == ([], "streaming", THINKING)
    talk.says("Hello", "msg_2").ends()
    assert talk.words("assistant") == ["Hello"]


def test_an_error_outside_a_turn_is_only_told() -> None:
    talk = CodexTalk().opened()
    talk.notes("error", error={"message": "could not save"}, willRetry=False)
    assert (talk.phase, talk.words("error")) == ("idle", ["could not save"])


# ------------------------------------------------------------------------------------------------------ sub-agents


def test_a_sub_agents_words_and_calls_stand_under_its_path() -> None:
    talk = with_child()
    assert talk.background == [CHILD]
    talk.says("child words", "msg_c", CHILD)
    talk.item("commandExecution", "call_c", CHILD, command="ls", processId="1")
    assert (talk.activity, talk.words("assistant")) == (THINKING, [])
    paths = {entry.path for entry in talk.entries if entry.text in ("child words", "exec_command")}
    assert paths == {(CHILD,)}
    talk.notes("turn/completed", CHILD, turn={"id": "c1", "status": "completed"})
    assert talk.background == []
    assert talk.last(ev.ToolKilled).agent_path == (CHILD,)
    assert talk.phase == "streaming"


def test_a_sub_agents_approval_waits_for_a_person_and_not_its_parent() -> None:
    talk = with_child()
    talk.asks("item/commandExecution/requestApproval", 4, CHILD, itemId="call_c", command="rm x")
    assert (talk.phase, talk.activity, talk.gates) == ("waiting_approval", THINKING, ["call_c"])
    talk.says("Meanwhile").ends()
    assert (talk.phase, talk.activity) == ("waiting_approval", "idle")
    talk.replies({"decision": "accept"}, 4)
    assert (talk.phase, talk.gates, talk.background) == ("completed", [], [CHILD])
    talk.notes("turn/completed", CHILD, turn={"id": "c1", "status": "completed"})
    assert talk.background == []


def test_a_sub_agent_that_is_interrupted_withdraws_what_it_asked() -> None:
    talk = with_child()
    talk.asks("item/commandExecution/requestApproval", 4, CHILD, itemId="call_c", command="rm x")
    talk.item("subAgentActivity", "x1", kind="interrupted", agentThreadId=CHILD, agentPath="/helper")
    assert (talk.gates, talk.background, talk.phase) == ([], [], "streaming")
    assert talk.last(ev.SubagentEnd).ok is False


def test_a_sub_agent_may_work_before_anybody_says_whose_it_is() -> None:
    talk = started()
    talk.notes("thread/status/changed", CHILD, status={"type": "active", "activeFlags": []})
    assert talk.background == []
    call = {"tool": "spawnAgent", "prompt": "look around", "receiverThreadIds": [CHILD], "status": "inProgress"}
    talk.item("collabAgentToolCall", "call_s", **call)
    assert (talk.background, talk.tools()) == ([CHILD], [("spawn_agent", "running")])
    grandchild = {"id": "thread-grand", "parentThreadId": CHILD, "agentNickname": "scout"}
    talk.feed("stdout", {"method": "thread/started", "params": {"thread": grandchild}})
    talk.says("deep", "msg_g", "thread-grand")
    assert talk.entries[-1].path == (CHILD, "thread-grand")


def test_a_sub_agents_tokens_are_counted_under_its_name() -> None:
    talk = with_child()
    talk.notes("thread/tokenUsage/updated", CHILD, tokenUsage={"total": {"inputTokens": 7}, "last": {}})
    assert talk.state.usage.by_agent[0].name == CHILD
    assert talk.state.profile.context is None


# --------------------------------------------------------------------------------------- processes, resume, restore


def test_a_server_that_dies_takes_the_turn_with_it_and_late_lines_bring_nothing_back() -> None:
    talk = CodexTalk()
    talk.feed("proc", {"event": "start"})
    talk.opened().turn().asking()
    talk.feed("proc", {"event": "exit", "code": 1})
    assert (talk.phase, talk.activity, talk.gates) == ("error", "exited", [])
    talk.says("ghost").ends()
    talk.asks("item/commandExecution/requestApproval", 3, itemId="c9")
    assert (talk.phase, talk.activity, talk.words("assistant")) == ("error", "exited", [])


def test_closing_its_input_asks_the_server_to_leave() -> None:
    talk = CodexTalk()
    talk.feed("proc", {"event": "start"})
    talk.opened().turn()
    talk.item("commandExecution", "c1", command="sleep 9", processId="1")
    talk.feed("proc", {"event": "stdin_closed"})
    talk.feed("proc", {"event": "exit", "code": 0})
    assert (talk.phase, talk.activity, talk.tools()) == ("stopped", "exited", [("exec_command", "error")])


def test_a_turn_that_starts_after_an_exit_shows_that_the_agent_lives() -> None:
    """The exit of a terminal isn't the exit of the server behind it."""
    talk = CodexTalk()
    talk.feed("proc", {"event": "start"})
    talk.opened().turn()
    talk.feed("proc", {"event": "exit", "code": -9})
    assert (talk.phase, talk.activity) == ("stopped", "exited")
    talk.turn("u2", "go on")
    assert (talk.phase, talk.activity) == ("streaming", THINKING)


def test_a_request_that_is_sent_again_is_the_same_gate() -> None:
    talk = started().asking("call_a", 0)
    talk.request("initialize")
    talk.opened("thread/resume", status={"type": "active", "activeFlags": ["waitingOnApproval"]})
    talk.asks("item/commandExecution/requestApproval", 12, itemId="call_a", command="make test")
    assert (talk.gates, len(talk.events_of(ev.ApprovalRequired))) == (["call_a"], 1)
    talk.replies({"decision": "accept"}, 12)
    assert (talk.gates, talk.phase, talk.activity) == ([], "streaming", TOOL_USE)


def test_what_happened_while_nobody_listened_is_settled_on_resume() -> None:
    talk = started().asking("call_a", 0)
    talk.request("initialize")
    talk.opened("thread/resume", status={"type": "active", "activeFlags": []})
    assert (talk.gates, talk.phase) == ([], "streaming")
    turns = [{"id": "u1", "status": "interrupted", "items": []}]
    talk.opened("thread/resume", status={"type": "idle"}, turns=turns)
    assert (talk.phase, talk.activity) == ("stopped", "idle")


def test_a_resumed_thread_tells_its_history() -> None:
    talk = CodexTalk()
    items = [
        {"type": "userMessage", "id": "m1", "content": [{"type": "text", "text": "hi"}]},
        {"type": "reasoning", "id": "r1", "summary": ["hm"]},
        {
            "type": "commandExecution",
            "id": "c1",
            "command": "ls",
            "status": "failed",
            "exitCode": 2,
            "aggregatedOutput": "no",
        },
        {"type": "agentMessage", "id": "a1", "text": "hello"},
        {"type": "contextCompaction", "id": "k"},
    ]
    talk.opened("thread/resume", turns=[{"id": "u0", "status": "completed", "items": items}])
    assert [(entry.kind, entry.text) for entry in talk.entries] == [
        ("user", "hi"),
        ("thinking", "hm"),
        ("tool", "exec_command"),
        ("assistant", "hello"),
    ]
    assert talk.tools() == [("exec_command", "error")]
    assert talk.last(ev.TurnRestored).finished


def test_another_deck_goes_on_in_the_middle() -> None:
    talk = with_child().asking()
    talk.restarted()
    talk.asks("item/commandExecution/requestApproval", 33, itemId="call_a", command="make test")
    assert len(talk.events_of(ev.ApprovalRequired)) == 1
    talk.replies({"decision": "accept"}, 33)
    talk.item("commandExecution", "call_a", done=True, status="completed", exitCode=0)
    talk.notes("turn/completed", CHILD, turn={"id": "c1", "status": "completed"})
    talk.says("Done").ends()
    assert (talk.phase, talk.activity, talk.background, talk.gates) == ("completed", "idle", [], [])
    assert len(talk.events_of(ev.AgentStart)) == 1


def test_the_source_ends_without_a_word() -> None:
    talk = started()
    talk.over()
    assert (talk.signal, talk.phase) == ("lost", "streaming")


# ---------------------------------------------------------------------------------- together with hooks and telemetry


def test_the_app_server_decides_and_the_others_only_add_what_it_lacks() -> None:
    talk = started()
    before = len(talk.bodies)
    talk.hook("UserPromptSubmit", turn_id="u1", prompt="hi")
    talk.hook("PreModelRequest", turn_id="u1")
    talk.hook("PermissionRequest", turn_id="u1", tool_name="Bash", tool_input={"command": "ls"})
    talk.record("user_prompt", prompt="hi")
    talk.completed()
    talk.notify()
    talk.wait(30)
    assert (talk.bodies[before:], talk.phase, talk.signal) == ([], "streaming", "live")
    talk.item("commandExecution", "call_a", command="ls", processId="1")
    talk.result("call_a", output="x")
    talk.result("call_hidden", success="false", output="denied by the sandbox", arguments='{"cmd": "rm"}')
    talk.hook("PostToolUse", turn_id="u1", tool_name="Bash", tool_use_id="call_hidden", tool_response="")
    assert talk.tools() == [("exec_command", "running"), ("exec_command", "error")]
    assert talk.activity == TOOL_USE


def test_an_interrupt_that_the_server_tells_is_not_told_again_to_the_next_turn() -> None:
    talk = started()
    talk.hook("Interrupt", turn_id="u1")
    talk.ends("interrupted").turn("u2", "go on")
    talk.wait(5)
    assert talk.phase == "streaming"


def test_a_server_that_is_shut_down_says_so_by_its_hooks_only() -> None:
    talk = started()
    talk.hook("Interrupt", turn_id="u1")
    assert talk.phase == "streaming"
    talk.wait(1.0)
    assert (talk.phase, talk.activity) == ("stopped", "idle")
    other = started()
    other.hook("SessionEnd", reason="other")
    assert (other.phase, other.activity) == ("stopped", "exited")
