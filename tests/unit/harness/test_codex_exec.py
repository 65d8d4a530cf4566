"""Test `codex exec --json` where no recording exists."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.kernel.activity import THINKING, TOOL_USE
from tests.support.codex_session import THREAD, CodexTalk


def line(talk: CodexTalk, kind: str, **fields: Any) -> None:
    talk.feed("stdout", {"type": kind, **fields})


def item(talk: CodexTalk, stage: str, item_type: str, name: str = "item_0", **fields: Any) -> None:
    line(talk, f"item.{stage}", item={"id": name, "type": item_type, **fields})


def running(*argv: str) -> CodexTalk:
    talk = CodexTalk()
    talk.feed("proc", {"event": "start", "argv": ["codex", "exec", *argv]})
    return begun(talk)


def begun(talk: CodexTalk, thread: str = THREAD) -> CodexTalk:
    line(talk, "thread.started", thread_id=thread)
    line(talk, "turn.started")
    return talk


def usage(whole: int, cached: int, output: int) -> dict[str, int]:
    return {"input_tokens": whole, "cached_input_tokens": cached, "output_tokens": output}


def spent(talk: CodexTalk) -> tuple[int, int, int]:
    total = talk.state.usage.total
    return total.input, total.cache_read, total.output


def test_exec_cannot_be_steered() -> None:
    talk = running()
    assert talk.last(ev.AgentReady).capabilities == ()
    assert (talk.phase, talk.activity) == ("streaming", THINKING)


def test_ids_of_two_processes_are_not_the_same() -> None:
    talk = running()
    item(talk, "completed", "agent_message", text="first")
    line(talk, "turn.completed", usage=usage(100, 20, 30))
    talk.feed("proc", {"event": "exit", "code": 0})
    talk.feed("proc", {"event": "start", "argv": ["codex", "exec", "resume", THREAD]})
    begun(talk)
    item(talk, "completed", "agent_message", text="second")
    line(talk, "turn.completed", usage=usage(250, 60, 50))
    assert talk.words("assistant") == ["first", "second"]
    assert spent(talk) == (190, 60, 50)


def test_a_thread_that_was_used_before_we_looked_is_not_counted_twice() -> None:
    talk = running("resume", THREAD)
    line(talk, "turn.completed", usage=usage(9000, 500, 900))
    assert spent(talk) == (0, 0, 0)
    begun(talk)
    line(talk, "turn.completed", usage=usage(9100, 520, 930))
    assert spent(talk) == (80, 20, 30)


def test_another_deck_goes_on_with_the_sum() -> None:
    talk = running()
    item(talk, "completed", "agent_message", text="first")
    line(talk, "turn.completed", usage=usage(100, 20, 30))
    talk.restarted()
    talk.feed("proc", {"event": "start", "argv": ["codex", "exec", "resume", THREAD]})
    begun(talk)
    item(talk, "completed", "agent_message", text="second")
    line(talk, "turn.completed", usage=usage(250, 60, 50))
    assert (spent(talk), talk.words("assistant")) == ((190, 60, 50), ["first", "second"])


@pytest.mark.parametrize(
    ("fields", "name", "phase"),
    [
        (
            {"type": "command_execution", "command": "/bin/bash -lc ls", "status": "completed", "exit_code": 0},
            "exec_command",
            "done",
        ),
        ({"type": "command_execution", "command": "ls", "status": "failed", "exit_code": 2}, "exec_command", "error"),
        ({"type": "command_execution", "command": "ls", "status": "declined"}, "exec_command", "error"),
        ({"type": "file_change", "changes": [], "status": "completed"}, "apply_patch", "done"),
        ({"type": "mcp_tool_call", "server": "s", "tool": "t", "status": "failed"}, "mcp__s__t", "error"),
        ({"type": "web_search", "query": "x"}, "web_search", "done"),
        ({"type": "collab_tool_call", "tool": "wait", "status": "completed"}, "wait_agent", "done"),
    ],
)
def test_calls_begin_and_end(fields: dict[str, Any], name: str, phase: str) -> None:
    talk = running()
    kind = fields.pop("type")
    item(talk, "started", kind, "item_1", **{**fields, "status": "in_progress", "exit_code": None})
    assert (talk.activity, talk.tools()) == (TOOL_USE, [(name, "running")])
    item(talk, "completed", kind, "item_1", **fields)
    assert (talk.activity, talk.tools(), talk.unknown) == (THINKING, [(name, phase)], 0)


def test_a_call_told_only_at_its_end_is_told_whole() -> None:
    talk = running()
    item(talk, "completed", "file_change", changes=[{"path": "a", "kind": "add"}], status="completed")
    assert talk.events_of(ev.ToolExecutionStart)[0].args == {"changes": [{"path": "a", "kind": "add"}]}
    assert talk.tools() == [("apply_patch", "done")]


def test_output_that_grows_is_told_in_pieces() -> None:
    talk = running()
    item(talk, "started", "command_execution", command="ls", aggregated_output="")
    item(talk, "updated", "command_execution", command="ls", aggregated_output="a\n")
    item(talk, "updated", "command_execution", command="ls", aggregated_output="a\nb\n")
    assert [body.delta for body in talk.events_of(ev.ToolExecutionOutput)] == ["a\n", "b\n"]


def test_todos_and_plans() -> None:
    talk = running()
    todos = [{"text": "read", "completed": True}, {"text": "write", "completed": False}]
    item(talk, "started", "todo_list", items=todos)
    item(talk, "updated", "todo_list", items=todos[:1])
    assert [(todo.content, todo.status) for todo in talk.state.todos] == [("read", "completed")]
    line(talk, "item.plan.delta", item_id="item_2", delta="# Pl")
    item(talk, "completed", "plan", "item_2", text="# Plan")
    assert (talk.state.plan and talk.state.plan.text, talk.words("assistant")) == ("# Plan", ["# Plan"])


def test_a_failed_turn_says_why() -> None:
    talk = running()
    line(talk, "error", message="Reconnecting... 3/5 (timeout)")
    assert (talk.last(ev.Retry).attempt, talk.last(ev.Retry).reason) == (3, "timeout")
    line(talk, "error", message="You've hit your usage limit.")
    line(talk, "turn.failed", error={"message": "You've hit your usage limit."})
    assert talk.state.error is not None
    assert (talk.state.error.kind, talk.phase) == ("usage_limit", "error")


def test_warnings_stop_nothing() -> None:
    talk = running()
    for name in ("item_0", "item_1"):
        item(talk, "completed", "error", name, message="hook trust is bypassed")
    assert (talk.words("system"), talk.phase) == (["hook trust is bypassed"], "streaming")


def test_what_is_new_is_counted() -> None:
    talk = running()
    line(talk, "turn.paused")
    item(talk, "started", "hologram")
    item(talk, "completed", "hologram")
    assert (talk.unknown, talk.phase) == (3, "streaming")


@pytest.mark.parametrize(("code", "phase"), [(0, "completed"), (1, "error"), (-15, "stopped")])
def test_leaving_in_the_middle(code: int, phase: str) -> None:
    talk = running()
    item(talk, "started", "command_execution", command="sleep 9")
    talk.feed("proc", {"event": "exit", "code": code})
    assert (talk.phase, talk.activity, talk.tools()) == (phase, "exited", [("exec_command", "error")])


def test_the_prompt_comes_from_whoever_tells_it_first_and_once() -> None:
    talk = running()
    talk.hook("UserPromptSubmit", prompt="do it", turn_id="t1")
    talk.record("user_prompt", prompt="do it")
    assert talk.words("user") == ["do it"]
    line(talk, "turn.completed", usage={})
    talk.record("user_prompt", prompt="do it")
    talk.hook("UserPromptSubmit", prompt="late", turn_id="t1")
    assert (talk.words("user"), talk.phase) == (["do it"], "completed")


def test_hooks_and_telemetry_name_calls_otherwise_and_add_nothing() -> None:
    talk = running()
    item(talk, "started", "command_execution", command="ls")
    talk.hook("PreToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_input={})
    talk.hook("PostToolUse", turn_id="t1", tool_name="Bash", tool_use_id="call_a", tool_response="")
    talk.result("call_a")
    assert talk.tools() == [("exec_command", "running")]


def test_an_interrupt_is_told_by_the_hook_before_the_exit() -> None:
    talk = running()
    talk.feed("proc", {"event": "signal", "signal": 2})
    talk.hook("Interrupt", turn_id="t1")
    assert (talk.phase, talk.activity) == ("stopped", "idle")
    talk.feed("proc", {"event": "exit", "code": 1})
    assert (talk.phase, talk.activity) == ("stopped", "exited")
