"""Test ACP calls, permissions, texts, settings, and messages that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.acp.content import block_text, result_of, tool_info
from quarterdeck.harness.acp.profile import CLINE, GEMINI, KILO, NEUTRAL, OPENCODE, Profile
from quarterdeck.harness.base import Signal
from tests.support.acp_session import AcpTalk

CHANGE = {"path": "p", "oldText": None, "newText": "n"}


def out(text: str) -> dict[str, Any]:
    return {"content": [{"type": "content", "content": {"type": "text", "text": text}}]}


class TestNames:
    @pytest.mark.parametrize(
        ("profile", "call_id", "update", "name"),
        [
            (GEMINI, "run_shell_command__fc_1_0", {"title": "ls", "kind": "execute"}, "run_shell_command"),
            (GEMINI, "write_file-1700000000000-3", {"title": "Writing", "kind": "edit"}, "write_file"),
            (GEMINI, "fc_1", {"title": "ls"}, "ls"),
            (OPENCODE, "c1", {"title": "write", "kind": "edit"}, "write"),
            (KILO, "c1", {"title": "ls -l", "kind": "execute"}, "bash"),
            (CLINE, "c1", {"title": "Read file: a", "rawInput": {"tool": "readFile"}}, "readFile"),
            (CLINE, "c1", {"title": "Execute command: ls", "kind": "execute"}, "execute_command"),
            (NEUTRAL, "c1", {"title": "Ls", "_meta": {"claudeCode": {"toolName": "Bash"}}}, "Bash"),
            (NEUTRAL, "c1", {"kind": "think"}, "think"),
            (NEUTRAL, "c1", {}, "tool"),
        ],
    )
    def test_where_they_stand(self, profile: Profile, call_id: str, update: Any, name: str) -> None:
        assert tool_info(profile, call_id, update).name == name

    def test_an_agent_without_arguments_says_them_in_title_and_places(self) -> None:
        events = tool_info(GEMINI, "x__1", {"title": "ls", "kind": "execute", "locations": []})
        assert events.args == {"command": "ls"}
        events = tool_info(GEMINI, "x__1", {"title": "Writing", "kind": "edit", "locations": [{"path": "/a"}]})
        assert events.args == {"path": "/a", "description": "Writing"}

    def test_clines_mark_is_not_part_of_the_command(self) -> None:
        talk = AcpTalk("cline").prompted()
        talk.calls(title="Execute command: lsREQ_APP", rawInput={"command": "lsREQ_APP"})
        talk.asks(title="Execute command: lsREQ_APP", rawInput={"command": "lsREQ_APP"})
        (gate,) = talk.state.gates.open
        assert (gate.title, gate.payload["args"]) == ("ls", {"command": "ls"})

    @pytest.mark.parametrize(
        ("block", "text"),
        [
            ({"type": "text", "text": "a"}, "a"),
            ({"text": "a"}, "a"),
            ({"type": "resource_link", "uri": "file:///a"}, "file:///a"),
            ({"type": "resource", "resource": {"uri": "u", "text": "t"}}, "t"),
            ({"type": "image", "data": "…"}, "[image]"),
            ({}, ""),
        ],
    )
    def test_what_is_no_text_is_named(self, block: Any, text: str) -> None:
        assert block_text(block) == text

    @pytest.mark.parametrize(
        ("update", "result"),
        [
            ({**out("a"), "rawOutput": {"output": "b"}}, "a"),
            ({"rawOutput": {"error": "no"}}, "no"),
            ({"rawOutput": {"n": 1}}, {"n": 1}),
            ({"rawOutput": [1]}, [1]),
            ({"content": [{"type": "diff", **CHANGE}]}, [CHANGE]),
            ({"content": []}, None),
        ],
    )
    def test_results(self, update: Any, result: Any) -> None:
        assert result_of(update) == result


class TestCalls:
    def test_announced_running_output_and_end(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.calls(rawInput={"cwd": "/"})
        assert (talk.tools(), talk.activity, talk.state.run.value) == (
            [("bash", "calling")],
            "active/thinking",
            "running",
        )
        talk.call_is("in_progress", rawInput={"command": "ls"})
        assert (talk.tools(), talk.activity) == ([("bash", "running")], "active/tool_use")
        assert talk.state.turn.calls[0].target == "ls"
        talk.call_is("in_progress", **out("a\n"))
        talk.call_is("in_progress", **out("a\nb\n"))
        talk.call_is("in_progress")
        assert [body.delta for body in talk.events_of(ev.ToolExecutionOutput)] == ["a\n", "b\n"]
        talk.call_is("completed", **out("a\nb\n"))
        assert (talk.tools(), talk.activity, talk.state.run.value) == ([("bash", "done")], "active/thinking", "running")
        assert talk.events_of(ev.ToolExecutionEnd)[0].result == "a\nb\n"

    def test_calls_beside_each_other_are_counted(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls("c1", "in_progress")
        talk.calls("c2", "in_progress")
        talk.call_is("failed", "c2", **out("no"))
        assert talk.activity == "active/tool_use"
        talk.call_is("completed", "c1")
        assert (talk.activity, talk.tools()) == ("active/thinking", [("bash", "done"), ("bash", "error")])

    def test_an_update_of_a_call_that_nobody_announced_announces_it(self) -> None:
        talk = AcpTalk().prompted()
        talk.call_is("completed", title="Look", **out("x"))
        assert talk.tools() == [("Look", "done")]

    def test_what_is_over_is_over(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls("c1", "completed")
        talk.call_is("failed")
        talk.calls("c1", "in_progress")
        assert (talk.tools(), talk.activity) == ([("bash", "done")], "active/thinking")

    def test_arguments_of_any_depth_and_size_are_carried(self) -> None:
        deep: Any = []
        for _ in range(5000):
            deep = [deep]
        talk = AcpTalk().prompted()
        talk.calls(rawInput={"a": deep})
        talk.call_is("in_progress", rawInput={"a": [deep]})
        talk.call_is("completed", rawOutput={"b": "x" * 10_000_000})
        assert talk.tools() == [("bash", "done")]

    def test_outside_of_a_turn_no_call_begins(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls("c1", "in_progress")
        talk.cancel()
        talk.ends("cancelled")
        talk.call_is("completed")
        talk.calls("c2", "in_progress")
        assert (talk.phase, talk.activity, talk.tools()) == ("stopped", "idle", [("bash", "error")])

    def test_the_last_word_on_a_call_of_the_turn_before_is_not_a_call_of_this_one(self) -> None:
        talk = AcpTalk("cline").prompted()
        talk.calls("c1", "in_progress")
        talk.cancel()
        talk.ends("end_turn")
        talk.prompt("again")
        assert talk.call_is("failed", rawOutput={"reason": "cancelled"}) == []
        talk.calls("c2", "in_progress")
        assert talk.tools() == [("execute_command", "error"), ("execute_command", "running")]

    def test_clines_calls_end_when_it_goes_on(self) -> None:
        talk = AcpTalk("cline").prompted()
        talk.calls("c1", rawInput={"command": "ls"})
        talk.asks(0, "c1")
        talk.choose(0, "yes")
        talk.call_is("in_progress", "c1")
        talk.says("output")
        assert talk.activity == "active/tool_use"
        talk.calls("c2", rawInput={"command": "ls"})
        assert talk.tools() == [("execute_command", "done"), ("execute_command", "calling")]
        talk.asks(1, "c2")
        talk.choose(1, "yes")
        talk.ends()
        assert talk.tools() == [("execute_command", "done"), ("execute_command", "done")]
        assert talk.state.background == ()

    def test_a_list_that_a_tool_writes_is_the_agents_list(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.calls(title="todowrite", kind="other", rawInput={})
        todos = [{"id": "1", "content": "one", "status": "in_progress"}, {"content": "two", "status": "?"}, 7]
        talk.call_is("in_progress", rawInput={"todos": todos})
        assert [(todo.content, todo.status) for todo in talk.state.todos] == [
            ("one", "in_progress"),
            ("two", "pending"),
        ]

    def test_a_terminal_that_we_run_for_the_agent_shows_its_output(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls("c1", "in_progress", content=[{"type": "terminal", "terminalId": "t1"}])
        for text in ("a", "ab"):
            talk.wants("terminal/output", {"sessionId": "s1", "terminalId": "t1"}, 5)
            talk.reply(5, {"output": text, "truncated": False})
        assert [body.delta for body in talk.events_of(ev.ToolExecutionOutput)] == ["a", "b"]
        talk.call_is("completed")
        assert talk.events_of(ev.ToolExecutionEnd)[0].result == "ab"

    @pytest.mark.parametrize(
        "method", ["fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/release", "_vendor/x", "$/x"]
    )
    def test_other_requests_say_nothing_about_the_state(self, method: str) -> None:
        talk = AcpTalk().prompted()
        assert talk.wants(method, {"sessionId": "s1"}, 9) == []
        assert talk.reply(9, {}) == []
        assert talk.translator.unknown == 0


class TestPermission:
    def test_asked_allowed_and_run(self) -> None:
        talk = AcpTalk("gemini").prompted()
        talk.asks(0, "ls__1", content=[{"type": "content", "content": {"type": "text", "text": "(why)"}}])
        assert (talk.phase, talk.activity, talk.state.run.value) == (
            "waiting_approval",
            "active/waiting_for_permission",
            "idle",
        )
        (gate,) = talk.state.gates.open
        assert (gate.ref, gate.call_id, gate.ask, gate.payload["hint"]) == ("0", "ls__1", "ask:command", "(why)")
        assert (gate.options[0].id, gate.options[0].kind) == ("yes", "allow_once")
        assert talk.tools() == [("ls", "calling")]
        talk.choose(0, "yes")
        assert (talk.phase, talk.activity, talk.state.run.value) == ("streaming", "active/tool_use", "executing_tools")
        assert [(item.status, item.by) for item in talk.state.gates.decided] == [("approved", "user")]
        talk.call_is("completed", "ls__1")
        assert talk.activity == "active/thinking"
        assert talk.activities()[-3:] == ["active/waiting_for_permission", "active/tool_use", "active/thinking"]

    @pytest.mark.parametrize(("agent", "scope"), [("gemini", "session"), ("kilo", "user")])
    def test_always_reaches_as_far_as_the_agent_makes_it(self, agent: str, scope: str) -> None:
        talk = AcpTalk(agent).prompted()
        talk.asks()
        talk.choose(0, "always")
        assert [body.scope for body in talk.events_of(ev.ToolApprovedAlways)] == [scope]

    def test_a_refusal_that_gemini_never_mentions_again(self) -> None:
        talk = AcpTalk("gemini").prompted()
        talk.asks(0, "ls__1")
        talk.choose(0, "no")
        assert (talk.phase, talk.activity, talk.tools()) == ("streaming", "active/thinking", [("ls", "error")])
        assert talk.activities()[-2:] == ["active/tool_use", "active/thinking"]
        talk.says("Then not")
        talk.ends()
        assert talk.phase == "completed"

    @pytest.mark.parametrize("agent", ["opencode", "kilo", "cline"])
    def test_a_refusal_that_the_agent_confirms(self, agent: str) -> None:
        talk = AcpTalk(agent).prompted()
        talk.calls()
        talk.call_is("in_progress")
        talk.asks()
        talk.choose(0, "no")
        assert (talk.phase, talk.activity) == ("streaming", "active/tool_use")
        talk.call_is("failed", rawOutput={"reason": "rejected"})
        assert talk.activity == "active/thinking"
        talk.call_is("failed", rawOutput={"error": "again"})
        talk.ends()
        assert (talk.phase, [phase for _, phase in talk.tools()]) == ("completed", ["error"])

    def test_a_refusal_of_which_a_stranger_says_nothing(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls()
        talk.asks()
        talk.choose(0, "no")
        talk.says("Well then")
        assert (talk.activity, talk.tools()) == ("active/thinking", [("bash", "error")])

    def test_nor_at_the_end(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls()
        talk.asks()
        talk.choose(0, "no")
        talk.ends()
        assert (talk.phase, talk.tools(), talk.state.background) == ("completed", [("bash", "error")], ())

    @pytest.mark.parametrize(
        "reply",
        [
            {"result": {"outcome": {"outcome": "cancelled"}}},
            {"error": {"code": -32603, "message": "the client broke"}},
            {"result": {"outcome": "selected"}},
            {"result": {"outcome": {"outcome": "selected", "optionId": "reject-like"}}},
        ],
    )
    def test_no_answer_is_a_no(self, reply: Any) -> None:
        talk = AcpTalk().prompted()
        talk.asks()
        talk.feed("stdin", {"jsonrpc": "2.0", "id": 0, **reply})
        assert [item.status for item in talk.state.gates.decided] == ["rejected"]
        assert talk.phase == "streaming"

    def test_after_a_cancel_it_is_withdrawn(self) -> None:
        talk = AcpTalk("gemini").prompted()
        talk.asks(0, "ls__1")
        talk.cancel()
        assert talk.phase == "waiting_approval"
        talk.reply(0, {"outcome": {"outcome": "cancelled"}})
        assert [item.status for item in talk.state.gates.decided] == ["withdrawn"]
        talk.ends("cancelled")
        assert (talk.phase, talk.tools()) == ("stopped", [("ls", "error")])

    def test_a_turn_that_ends_first_takes_the_question_with_it_and_a_late_answer_is_nothing(self) -> None:
        talk = AcpTalk("cline").prompted()
        talk.calls()
        talk.asks()
        talk.cancel()
        talk.ends("end_turn")
        assert (talk.phase, talk.state.gates.open) == ("stopped", ())
        assert talk.reply(0, {"outcome": {"outcome": "cancelled"}}) == []
        assert talk.call_is("failed", rawOutput={"reason": "cancelled"}) == []

    def test_opencode_fails_the_call_of_a_cancelled_question_itself(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.calls()
        talk.asks()
        talk.cancel()
        talk.call_is("failed", rawOutput={"error": "Tool execution aborted"})
        assert [item.status for item in talk.state.gates.decided] == ["withdrawn"]
        talk.ends("cancelled")
        assert talk.reply(0, {"outcome": {"outcome": "cancelled"}}) == []
        assert (talk.phase, talk.tools()) == ("stopped", [("bash", "error")])

    def test_in_progress_around_the_question_does_not_answer_it(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.calls()
        talk.asks()
        talk.call_is("in_progress", rawInput={"command": "ls"})
        assert (talk.phase, len(talk.state.gates.open)) == ("waiting_approval", 1)
        talk.call_is("in_progress", **out("somebody else said yes"))
        assert (talk.phase, talk.activity) == ("streaming", "active/tool_use")
        assert talk.state.gates.decided[0].status == "answered_elsewhere"

    def test_an_end_of_the_call_answers_it(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.calls()
        talk.asks()
        talk.call_is("completed")
        assert (talk.phase, talk.state.gates.open, talk.tools()) == ("streaming", (), [("bash", "done")])

    def test_two_questions_each_have_their_own_answer(self) -> None:
        talk = AcpTalk().prompted()
        for key in (0, 1):
            talk.calls(f"c{key}")
            talk.asks(key, f"c{key}")
        talk.choose(1, "no")
        assert (talk.phase, len(talk.state.gates.open)) == ("waiting_approval", 1)
        talk.choose(0, "yes")
        assert (talk.phase, talk.activity) == ("streaming", "active/tool_use")

    def test_ids_of_the_two_sides_do_not_meet(self) -> None:
        talk = AcpTalk().opened()
        talk.prompt()
        talk.asks(talk.last_prompt)
        talk.choose(talk.last_prompt, "yes")
        assert talk.phase == "streaming"
        talk.ends()
        assert talk.phase == "completed"

    def test_changes_of_files_can_be_seen_in_the_question(self) -> None:
        talk = AcpTalk("gemini").prompted()
        change = {"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}
        talk.asks(0, "replace__1", kind="edit", content=[change], locations=[{"path": "/a"}])
        (gate,) = talk.state.gates.open
        assert gate.ask == "ask:tool"
        assert gate.payload["args"]["changes"] == [{"path": "/a", "oldText": "x", "newText": "y"}]

    @pytest.mark.parametrize(
        ("raw", "ask"),
        [
            ({"command": "ls"}, "ask:command"),
            ({"serverName": "x"}, "ask:use_mcp_server"),
            ({"url": "http://x"}, "ask:browser_action_launch"),
        ],
    )
    def test_what_kind_of_thing_is_asked(self, raw: Any, ask: str) -> None:
        talk = AcpTalk("cline").prompted()
        talk.asks(rawInput=raw)
        assert talk.state.gates.open[0].ask == ask

    def test_the_tools_name_may_come_after_the_question(self) -> None:
        talk = AcpTalk("kilo").prompted()
        talk.asks(0, "c1", kind="edit", title="/a/b.txt")
        assert talk.tools() == [("edit", "calling")]
        talk.calls("c1", title="write", kind="edit", rawInput={})
        assert (talk.tools(), talk.phase) == ([("write", "calling")], "waiting_approval")

    def test_a_sub_agents_question_is_shown_though_its_session_is_not_ours(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.calls("c1", "in_progress", title="task", kind="think")
        talk.asks(3, "c9", session="child")
        (gate,) = talk.state.gates.open
        assert (gate.path, talk.phase, talk.activity) == (("child",), "waiting_approval", "active/tool_use")
        talk.choose(3, "yes")
        assert talk.phase == "streaming"

    def test_another_sessions_question_is_not(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.answer(talk.request("session/new"), {"sessionId": "s2"})
        talk.asks(3, session="s2")
        assert (talk.phase, talk.state.gates.open) == ("streaming", ())

    def test_a_question_outside_of_a_prompt_is_asked_and_its_answer_ends_it(self) -> None:
        talk = AcpTalk().opened()
        talk.asks()
        assert talk.phase == "waiting_approval"
        talk.choose(0, "no")
        assert (talk.phase, talk.activity, talk.tools()) == ("completed", "idle", [("execute", "error")])


class TestTexts:
    def test_one_run_of_chunks_of_a_kind_is_one_text(self) -> None:
        talk = AcpTalk("gemini").prompted()
        talk.thinks("Hm")
        talk.says("One ")
        talk.says("two")
        talk.thinks("And")
        talk.says("three")
        talk.calls("ls__1", "in_progress")
        talk.call_is("completed", "ls__1")
        talk.says("four")
        talk.ends()
        kinds = [(entry.kind, entry.text) for entry in talk.entries if entry.kind != "tool"][1:]
        assert kinds == [
            ("thinking", "Hm"),
            ("assistant", "One two"),
            ("thinking", "And"),
            ("assistant", "three"),
            ("assistant", "four"),
        ]
        whole = [block.text for body in talk.events_of(ev.ResponseComplete) for block in body.blocks]
        assert whole == ["Hm", "One two", "And", "three", "four"]

    def test_one_message_id_for_a_thought_and_two_texts_is_three_entries(self) -> None:
        talk = AcpTalk("kilo").prompted()
        talk.thinks("Hm", messageId="m1")
        talk.says("One", messageId="m1")
        talk.calls("c1", "completed")
        talk.says("two", messageId="m1")
        assert [entry.id for entry in talk.entries if entry.kind in ("thinking", "assistant")] == [
            "m1:0",
            "m1:1",
            "m1:2",
        ]
        assert talk.words("thinking", "assistant") == ["Hm", "One", "two"]

    def test_what_is_said_outside_of_a_turn_is_told_and_begins_none(self) -> None:
        talk = AcpTalk().opened()
        talk.says("By ")
        talk.says("the way")
        talk.thinks("Hm")
        assert (talk.phase, talk.activity, talk.words()) == ("idle", "idle", ["By the way"])
        talk.prompt()
        talk.says("Hello")
        talk.ends()
        assert talk.words() == ["By the way", "hi", "Hello"]

    def test_geminis_word_on_its_mode_is_no_text(self) -> None:
        talk = AcpTalk("gemini").opened(modes={"currentModeId": "default"})
        assert talk.state.profile.mode == "ask"
        talk.says("[MODE_UPDATE] yolo")
        assert (talk.words(), talk.state.profile.mode, talk.state.profile.approves_itself) == ([], "bypass", True)

    def test_a_plan_a_title_and_a_mode(self) -> None:
        talk = AcpTalk().prompted()
        entries = [{"content": "a", "status": "completed"}, {"content": "b", "status": "odd"}]
        talk.update("plan", entries=entries)
        talk.update("session_info_update", title="Fix it")
        talk.update("current_mode_update", currentModeId="architect")
        talk.update("config_option_update", configOptions=[{"id": "model", "currentValue": "m2"}])
        state = talk.state
        assert state.plan is not None
        assert [(step.description, step.status) for step in state.plan.steps] == [("a", "completed"), ("b", "pending")]
        assert (state.profile.name, state.profile.mode, state.profile.model) == ("Fix it", "architect", "m2")

    def test_our_settings_hold_when_the_agent_says_yes(self) -> None:
        talk = AcpTalk("gemini").opened(models={"currentModelId": "a"})
        talk.answer(talk.request("session/set_model", {"sessionId": "s1", "modelId": "b"}), {})
        talk.answer(talk.request("session/set_mode", {"sessionId": "s1", "modeId": "plan"}), {})
        assert (talk.state.profile.model, talk.state.profile.mode) == ("b", "plan")
        assert [(body.from_, body.to) for body in talk.events_of(ev.ModelSwitched)] == [("a", "b")]
        key = talk.request("session/set_mode", {"sessionId": "s1", "modeId": "x"})
        talk.answer(key, error={"code": -32603, "message": "no such mode"})
        assert (talk.state.profile.mode, talk.words("error")) == ("plan", ["no such mode"])

    def test_settings_of_another_session_are_not_ours(self) -> None:
        talk = AcpTalk("gemini").opened()
        talk.answer(talk.request("session/set_mode", {"sessionId": "s9", "modeId": "yolo"}), {})
        assert talk.state.profile.mode == ""


class TestWhatIsNobodysBusiness:
    @pytest.mark.parametrize(
        ("data", "known"),
        [
            ("prose", True),
            ({"raw": "prose"}, True),
            ({"jsonrpc": "2.0", "id": 99, "result": {}}, True),
            ({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}, True),
            ({"jsonrpc": "2.0", "method": "_x.ai/session_notification", "params": {}}, True),
            ([{"jsonrpc": "2.0", "id": 98, "result": {}}], True),
            ({"jsonrpc": "2.0", "method": "session/brand_new", "params": {}}, False),
            (
                {"jsonrpc": "2.0", "method": "session/update", "params": {"update": {"sessionUpdate": "brand_new"}}},
                False,
            ),
            ({"jsonrpc": "2.0", "method": "session/update", "params": 7}, False),
            ({}, False),
            (7, False),
            (None, False),
        ],
    )
    def test_only_what_is_really_new_is_counted(self, data: Any, known: bool) -> None:
        talk = AcpTalk().prompted()
        talk.feed("stdout", data)
        assert (talk.translator.unknown, talk.phase) == (0 if known else 1, "streaming")

    def test_a_source_of_another_protocol_is_not_known(self) -> None:
        talk = AcpTalk()
        talk.translator.feed(Signal("otlp.log", {}), 0.0)
        assert talk.translator.unknown == 1

    def test_probing_for_sessions_leaves_no_line(self) -> None:
        talk = AcpTalk().opened()
        talk.answer(talk.request("session/list"), error={"code": -32601, "message": "Method not found"})
        assert talk.words() == []
        talk.answer(talk.request("session/list"), {"sessions": [{"sessionId": "s1", "title": "x"}]})
        assert talk.words() == []
