"""Test say/ask agents where no recording exists or can show it: our answers, pauses, restarts, Kilo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.sayask.calls import OUTPUT_GRACE_S, QUESTION_GRACE_S
from quarterdeck.harness.sayask.message import message_of, partial_message_of, results_in
from quarterdeck.harness.sayask.translate import HOLD_S
from tests.support.claude_stream import StreamTalk

NEW_REQUEST = '{"request":"<task>go</task>"}'


def message(name: str, ts: Any, text: str = "", partial: bool | None = None, **fields: Any) -> dict[str, Any]:
    kind, _, what = name.partition(":")
    raw: dict[str, Any] = {"ts": ts, "type": kind, kind: what, **fields}
    if text:
        raw["text"] = text
    return raw if partial is None else raw | {"partial": partial}


def said(text: str, ts: int = 20, partial: bool | None = None) -> dict[str, Any]:
    return message("say:text", ts, text, partial)


def request(ts: int, text: str = NEW_REQUEST) -> dict[str, Any]:
    return message("say:api_req_started", ts, text)


def told_model(result: str) -> str:
    return json.dumps({"request": f"[a_tool for 'x'] Result:\n{result}\n\n# task_progress RECOMMENDED"})


def tool(name: str = "editedExistingFile", **fields: Any) -> str:
    return json.dumps({"tool": name, "path": "a.txt", **fields})


def working() -> StreamTalk:
    """Start a task and its first request."""
    return StreamTalk("sayask").out({"type": "task_started", "taskId": "7"}, message("say:task", 5, "go"), request(10))


def asking(name: str = "ask:command", text: str = "make testREQ_APP", ts: int = 30) -> StreamTalk:
    return working().out(message(name, ts, text))


class TestShapes:
    def test_three_shapes_of_the_same_message(self) -> None:
        shapes = [
            message_of({"ts": 7, "type": "ask", "ask": "tool", "text": "x"}),
            partial_message_of({"ts": "7", "ask": "TOOL", "say": "TEXT", "text": "x"}),
            message_of({"timestamp": 7, "source": "extension", "type": "ask", "ask": "tool", "content": "x"}),
        ]
        assert [(item.key, item.text, item.partial) for item in shapes if item is not None] == [
            (("7", "ask:tool"), "x", False)
        ] * 3

    @pytest.mark.parametrize(
        ("raw", "kind", "what"),
        [
            ({"ts": "1", "say": "TEXT"}, "ask", "followup"),
            ({"ts": "1", "ask": "PLAN_MODE_RESPOND", "say": "TEXT"}, "ask", "plan_mode_respond"),
            ({"ts": "1", "type": "SAY"}, "say", "task"),
            ({"ts": "1", "type": "SAY", "say": "COMPLETION_RESULT_SAY"}, "say", "completion_result"),
            ({"ts": "1", "type": "SAY", "say": "TOOL_SAY"}, "say", "tool"),
        ],
    )
    def test_what_protobuf_leaves_out(self, raw: dict[str, Any], kind: str, what: str) -> None:
        parsed = partial_message_of(raw)
        assert (parsed.kind, parsed.subtype, parsed.partial) == (kind, what, False)

    @pytest.mark.parametrize("raw", [{}, {"type": "say"}, {"type": "say", "say": 5}, {"type": "welcome"}, {"type": []}])
    def test_what_is_no_message(self, raw: dict[str, Any]) -> None:
        assert message_of(raw) is None

    @pytest.mark.parametrize(
        ("ts", "key"), [("9", "9"), (9, "9"), (9.0, "9"), (True, ""), ([], ""), (None, ""), ("", "")]
    )
    def test_times(self, ts: Any, key: str) -> None:
        parsed = message_of({"ts": ts, "type": "say", "say": "text"})
        assert parsed is not None
        assert parsed.ts == key

    def test_results_are_read_off_the_next_request(self) -> None:
        text = "[a for 'x'] Result:\nThe user denied this operation.\n\n[b] Result:\nfine\n\n\n# task_progress x"
        assert [(item.ok, item.denied, item.text) for item in results_in(text)] == [
            (False, True, "The user denied this operation."),
            (True, False, "fine"),
        ]
        assert results_in("no result") == []

    def test_messages_without_a_time_are_each_their_own(self) -> None:
        talk = working().out(message("say:text", None, "a"), message("say:text", None, "b"))
        assert talk.texts("assistant") == [("assistant", "a"), ("assistant", "b")]


class TestAnswersOfOurs:
    @pytest.mark.parametrize(
        "answer",
        [
            {"type": "askResponse", "askResponse": "yesButtonClicked"},
            {"type": "respondToApproval", "approved": True},
            {"call": "TaskService.askResponse", "responseType": "yesButtonClicked", "text": ""},
            {"schemaVersion": "1.0.0", "type": "approval"},
            {"type": "askResponse", "askResponse": "objectResponse", "text": '{"a.txt": true, "b.txt": false}'},
        ],
    )
    def test_yes_lets_the_call_run_at_once(self, answer: dict[str, Any]) -> None:
        talk = asking()
        assert (talk.phase, talk.activity) == ("waiting_approval", "active/waiting_for_permission")
        talk.send(answer)
        assert (talk.phase, talk.activity, talk.tools()) == ("streaming", "active/tool_use", [("command", "running")])
        assert [(event.status, event.by) for event in talk.events_of(ev.ApprovalResolved)] == [("approved", "user")]
        talk.out(message("ask:command_output", 31, "ok\n"), request(40, told_model("Command executed.")))
        assert (talk.activity, talk.tools()) == ("active/thinking", [("command", "done")])

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            ({"type": "askResponse", "askResponse": "noButtonClicked"}, ""),
            ({"type": "askResponse", "askResponse": "messageResponse", "text": "not so"}, "not so"),
            ({"type": "respondToApproval", "approved": False}, ""),
            ({"schemaVersion": "1.0.0", "type": "rejection", "content": "no"}, "no"),
            ({"type": "askResponse", "askResponse": "objectResponse", "text": '{"a": false}'}, '{"a": false}'),
        ],
    )
    def test_no_keeps_it_from_running_and_the_turn_goes_on(self, answer: dict[str, Any], reason: str) -> None:
        talk = asking().send(answer)
        assert (talk.phase, talk.activity, talk.tools()) == ("streaming", "active/thinking", [("command", "error")])
        (decided,) = talk.events_of(ev.ApprovalResolved)
        assert (decided.status, decided.by, decided.reason) == ("rejected", "user", reason)
        talk.out(request(40, told_model("The user denied this operation.")))
        assert talk.tools() == [("command", "error")]

    def test_a_text_answers_a_question_and_its_echo_is_not_told_again(self) -> None:
        talk = asking("ask:followup", '{"question":"Which?","options":["Red","Blue"]}')
        assert talk.phase == "waiting_input"
        assert [option.label for option in talk.events_of(ev.AskUser)[-1].options] == ["Red", "Blue"]
        talk.send({"type": "askResponse", "askResponse": "messageResponse", "text": "Red"})
        assert talk.phase == "streaming"
        talk.out(message("say:user_feedback", 40, "Red"), request(50))
        assert talk.texts("user") == [("user", "go"), ("user", "Red")]

    def test_a_text_outside_of_a_turn_is_a_prompt_under_our_own_id(self) -> None:
        talk = working().out(message("say:completion_result", 20, "done"))
        talk.send({"type": "user_input", "content": "more", "id": "m7"})
        assert talk.phase == "streaming"
        talk.out(message("say:user_feedback", 30, "more"))
        assert [entry.id for entry in talk.entries if entry.kind == "user"] == ["5", "m7"]

    def test_a_button_without_a_gate_is_no_prompt(self) -> None:
        talk = working().out(message("say:completion_result", 20, "done"))
        talk.send({"type": "askResponse", "askResponse": "yesButtonClicked", "text": "x"})
        assert talk.phase == "completed"

    def test_our_cancel_stops_it_as_soon_as_the_agent_says_that_it_was_cut_off(self) -> None:
        talk = working().out(message("say:command", 20, "sleep 9")).send({"type": "cancelTask"})
        assert talk.phase == "streaming"
        talk.out(message("ask:resume_task", 30))
        assert (talk.phase, talk.tools()) == ("stopped", [("command", "error")])

    def test_what_we_never_send_is_counted_and_text_is_not(self) -> None:
        talk = working().send({"type": "nonsense"}, "free text")
        assert talk.unknown == 1


class TestAsks:
    @pytest.mark.parametrize(
        ("name", "text", "ask", "tool_name"),
        [
            ("ask:tool", tool(), "tool", "editedExistingFile"),
            ("ask:command", "lsREQ_APP", "command", "command"),
            ("ask:browser_action_launch", "http://x", "browser", "browser_action_launch"),
            ("ask:use_mcp_server", '{"serverName":"s","toolName":"t","arguments":"{\\"a\\":1}"}', "mcp", "t"),
            ("ask:new_task", "context", "tool", "new_task"),
        ],
    )
    def test_what_asks_for_a_yes(self, name: str, text: str, ask: str, tool_name: str) -> None:
        talk = working().out(message(name, 30, text, True))
        assert talk.phase == "streaming"
        talk.out(message(name, 30, text, False))
        assert talk.phase == "waiting_approval"
        (asked,) = talk.events_of(ev.ApprovalRequired)
        assert (asked.gate.ask, asked.gate.tool, asked.gate.ref) == (ask, tool_name, "30")
        assert "REQ_APP" not in str(asked.gate.args)

    def test_asked_on_both_streams_it_is_asked_once(self) -> None:
        talk = asking("ask:tool", tool())
        talk.out({"ts": "30", "ask": "TOOL", "say": "TEXT", "text": tool()}, src="stdout.partial")
        assert len(talk.events_of(ev.ApprovalRequired)) == 1

    @pytest.mark.parametrize(("name", "phase"), [("newFileCreated", "streaming"), ("readFile", "waiting_approval")])
    def test_cline_1_shows_an_edit_in_its_state_once_it_was_answered(self, name: str, phase: str) -> None:
        talk = working().out({"ts": "30", "ask": "TOOL", "say": "TEXT", "text": tool(name)}, src="stdout.partial")
        assert talk.phase == "waiting_approval"
        talk.out(message("ask:tool", 30, tool(name), False), src="stdout.state")
        assert talk.phase == phase
        talk.out(request(40, told_model("The content was saved.")))
        assert (talk.phase, talk.tools()) == ("streaming", [(name, "done")])

    def test_one_that_was_answered_is_not_asked(self) -> None:
        talk = working().out(message("ask:tool", 30, tool(), isAnswered=True))
        assert (talk.phase, talk.tools()) == ("streaming", [("editedExistingFile", "running")])

    def test_one_that_is_answered_later_runs(self) -> None:
        talk = asking("ask:tool", tool()).out(message("ask:tool", 30, tool(), isAnswered=True))
        assert (talk.phase, talk.tools()) == ("streaming", [("editedExistingFile", "running")])

    def test_the_next_ask_shows_that_the_one_before_was_answered(self) -> None:
        talk = asking("ask:tool", tool()).out(message("ask:tool", 40, tool("readFile")))
        assert [event.status for event in talk.events_of(ev.ApprovalResolved)] == ["answered_elsewhere"]
        assert len(talk.state.gates.open) == 1

    def test_an_older_message_does_not_close_it(self) -> None:
        talk = asking("ask:tool", tool()).out(said("late", 29))
        assert talk.phase == "waiting_approval"

    def test_a_person_who_changed_the_file_allowed_it(self) -> None:
        talk = asking("ask:tool", tool()).out(message("say:user_feedback_diff", 31, '{"diff":"x"}'))
        assert [event.status for event in talk.events_of(ev.ApprovalResolved)] == ["approved"]

    def test_a_server_that_is_asked_was_allowed(self) -> None:
        talk = asking("ask:use_mcp_server", '{"toolName":"t","arguments":{}}')
        talk.out(message("say:mcp_server_request_started", 31))
        assert talk.tools() == [("t", "running")]
        talk.out(message("say:mcp_server_response", 32, "the answer"))
        assert talk.tools() == [("t", "done")]

    def test_a_chosen_option_closes_the_question(self) -> None:
        text = '{"question":"Which?","options":["Red","Blue"]}'
        talk = asking("ask:followup", text).out(message("ask:followup", 30, text[:-1] + ',"selected":"Blue"}'))
        assert [(event.response, event.status) for event in talk.events_of(ev.UserResponded)] == [("Blue", "answered")]
        assert talk.phase == "streaming"

    def test_kilo_suggests_answers_as_objects(self) -> None:
        talk = asking("ask:followup", '{"question":"Which?","suggest":[{"answer":"Red"},{"answer":""},5]}')
        assert [option.label for option in talk.events_of(ev.AskUser)[-1].options] == ["Red"]

    def test_a_question_that_stays_partial_is_asked_after_a_while(self) -> None:
        talk = working().out(message("ask:followup", 30, '{"question":"Wh"}', True)).after(QUESTION_GRACE_S - 1)
        talk.out(message("ask:followup", 30, '{"question":"Which?"}', True)).after(QUESTION_GRACE_S - 1)
        assert talk.phase == "streaming"
        talk.after(2)
        assert (talk.phase, talk.state.gates.open[0].title) == ("waiting_input", "Which?")
        talk.out(message("ask:followup", 30, '{"question":"Which one?"}', False))
        assert [gate.title for gate in talk.state.gates.open] == ["Which one?"]

    def test_a_partial_question_that_the_agent_moves_past_is_none(self) -> None:
        talk = working().out(
            message("ask:followup", 30, '{"question":"Which?"}', True), message("say:info", 31, "auto")
        )
        talk.after(60)
        assert (talk.phase, len(talk.events_of(ev.AskUser))) == ("streaming", 0)

    def test_a_draft_that_needs_no_yes_is_one_call(self) -> None:
        talk = working().out(message("ask:tool", 30, tool("readFile"), True), message("say:tool", 35, tool("readFile")))
        assert talk.tools() == [("readFile", "running")]
        assert not talk.events_of(ev.ApprovalRequired)

    def test_a_draft_that_never_ran_is_over_with_the_next_request(self) -> None:
        talk = working().out(message("ask:tool", 30, tool(), True), request(40, '{"request":"[ERROR] again"}'))
        assert talk.tools() == [("editedExistingFile", "error")]

    def test_several_calls_of_one_reply_take_their_results_in_order(self) -> None:
        talk = working().out(message("say:tool", 20, tool("readFile")), message("say:tool", 21, tool("listFiles")))
        results = "[read] Result:\nThe tool execution failed with x\n\n[list] Result:\na.txt"
        talk.out(request(40, json.dumps({"request": results})))
        assert talk.tools() == [("readFile", "error"), ("listFiles", "done")]


class TestOutput:
    def test_each_row_adds_and_a_row_that_grows_is_one_row(self) -> None:
        talk = working().out(message("say:command", 20, "make"))
        talk.out(message("say:command_output", 21, "a\n", True), message("say:command_output", 21, "a\nb", True))
        talk.out(message("ask:command_output", 22, "c"))
        assert [event.delta for event in talk.events_of(ev.ToolExecutionOutput)] == ["a\n", "b", "\nc"]

    def test_output_in_metadata(self) -> None:
        talk = working().out(message("say:command", 20, "make"))
        for text in ("one", "one two"):
            metadata = {"executionId": "x", "status": "output", "output": text}
            talk.out({"timestamp": 21, "type": "say", "say": "command_output", "metadata": metadata, "partial": True})
        assert [event.delta for event in talk.events_of(ev.ToolExecutionOutput)] == ["one", " two"]

    def test_a_command_that_prints_json_of_its_own(self) -> None:
        talk = working().out(message("say:command", 20, "cat a.json"))
        talk.out(message("say:command_output", 21, '{"output": "x"}'))
        talk.out({"timestamp": 22, "type": "say", "say": "command_output", "metadata": [{"output": "y"}]})
        started = {"executionId": "x", "status": "started", "pid": 7}
        talk.out({"timestamp": 23, "type": "say", "say": "command_output", "metadata": started})
        assert [event.delta for event in talk.events_of(ev.ToolExecutionOutput)] == [
            '{"output": "x"}',
            '\n[{"output":"y"}]',
        ]

    def test_the_command_is_over_a_moment_after_it_says_so(self) -> None:
        talk = asking().out(message("ask:command_output", 31, "a\n"))
        talk.out(
            message("ask:command", 30, "make testREQ_APP", commandCompleted=True),
            message("ask:command_output", 32, "b"),
        )
        assert talk.activity == "active/tool_use"
        talk.after(OUTPUT_GRACE_S)
        assert (talk.activity, talk.tools()) == ("active/thinking", [("command", "done")])
        assert [event.result for event in talk.events_of(ev.ToolExecutionEnd)] == ["a\nb"]

    def test_output_without_a_command_is_nobodys(self) -> None:
        assert working().out(message("ask:command_output", 31, "x")).tools() == []

    def test_an_error_ends_the_call_and_without_one_it_is_a_notice(self) -> None:
        talk = working().out(message("say:tool", 20, tool("readFile")), message("say:error", 21, "not found"))
        assert talk.tools() == [("readFile", "error")]
        talk.out(message("say:error", 22, "something else"))
        assert talk.texts("error") == [("error", "something else")]


class TestEnds:
    @pytest.mark.parametrize(
        ("name", "text", "kind", "words"),
        [
            ("ask:api_req_failed", '{"message":"boom","status":500}', "api", "boom"),
            ("ask:api_req_failed", '{"message":"no","status":401}', "auth", "Authentication failed: no"),
            ("ask:api_req_failed", "429 slow down", "rate_limit", "429 slow down"),
            ("ask:mistake_limit_reached", "too many", "turn_limit", "too many"),
            ("ask:auto_approval_max_req_reached", "20 requests", "turn_limit", "20 requests"),
            ("ask:payment_required_prompt", '{"title":"Low credits"}', "payment", "Low credits"),
            ("ask:invalid_model", "which?", "invalid_model", "which?"),
        ],
    )
    def test_asks_that_mean_failure(self, name: str, text: str, kind: str, words: str) -> None:
        talk = working().out(message(name, 30, text))
        assert (talk.phase, talk.activity) == ("error", "idle")
        assert [(event.kind, event.message) for event in talk.events_of(ev.TurnFailed)] == [(kind, words)]
        talk.out(message("say:api_req_retried", 40))
        assert talk.phase == "streaming"

    def test_without_a_person_too_many_mistakes_are_an_error_message(self) -> None:
        talk = working().out(message("say:error", 30, "[YOLO MODE] Task failed: Too many consecutive mistakes (3)."))
        assert (talk.phase, [event.kind for event in talk.events_of(ev.TurnFailed)]) == ("error", ["turn_limit"])

    def test_the_same_failure_is_told_once(self) -> None:
        talk = working().out(
            message("ask:payment_required_prompt", 30, "pay"), message("ask:payment_required_prompt", 31, "pay")
        )
        talk.out({"type": "error", "message": "402 pay"})
        assert len(talk.events_of(ev.TurnFailed)) == 1
        assert talk.texts("error") == [("error", "pay")]

    def test_an_error_line_alone_fails_the_turn(self) -> None:
        talk = working().out(
            message("say:command", 20, "x"), {"type": "error", "message": '{"message":"no","status":403}'}
        )
        assert (talk.phase, talk.tools()) == ("error", [("command", "error")])
        assert [event.kind for event in talk.events_of(ev.TurnFailed)] == ["auth"]

    def test_retries_are_no_failure(self) -> None:
        text = '{"attempt":2,"maxAttempts":3,"delaySeconds":4,"errorMessage":"{\\"message\\":\\"500 x\\"}"}'
        talk = working().out(
            message("say:error_retry", 20, text), message("say:api_req_retry_delayed", 21, "Retrying in 5\n")
        )
        assert talk.phase == "streaming"
        assert [(event.attempt, event.delay_ms, event.reason) for event in talk.events_of(ev.Retry)] == [
            (2, 4000, "500 x"),
            (1, 0, "Retrying in 5"),
        ]

    def test_a_stream_that_broke_is_paused_when_the_agent_offers_to_resume(self) -> None:
        text = '{"request":"r","cancelReason":"streaming_failed","streamingFailedMessage":"cut"}'
        talk = working().out(request(10, text), message("ask:resume_task", 30))
        assert [event.reason for event in talk.events_of(ev.StreamError)] == ["cut"]
        assert (talk.phase, talk.activity) == ("paused", "idle")
        assert talk.proc("exit", code=0).phase == "paused"

    def test_after_a_cancel_nothing_old_becomes_a_question(self) -> None:
        cancelled = '{"request":"r","tokensIn":0,"cancelReason":"user_cancelled"}'
        talk = working().out(message("ask:tool", 30, tool(), True), request(10, cancelled))
        assert (talk.phase, talk.tools()) == ("stopped", [("editedExistingFile", "error")])
        talk.out(
            message("ask:tool", 30, tool(), False), message("ask:followup", 31, '{"question":"x"}'), said("new", 32)
        )
        talk.out(message("ask:resume_task", 33), message("ask:resume_task", 34))
        assert (talk.phase, talk.texts("assistant")) == ("stopped", [])
        assert talk.out(request(40)).phase == "streaming"

    def test_a_cancel_of_an_older_request_is_not_this_ones(self) -> None:
        talk = working().out(request(20), request(10, '{"request":"r","cancelReason":"user_cancelled"}'))
        assert talk.phase == "streaming"

    def test_an_open_question_is_withdrawn_when_the_task_is_cut_off(self) -> None:
        talk = asking("ask:followup", '{"question":"Which?"}').out(message("ask:resume_task", 40))
        assert (talk.phase, [event.status for event in talk.events_of(ev.UserResponded)]) == ("stopped", ["withdrawn"])

    def test_a_text_after_the_end_is_shown_and_begins_nothing(self) -> None:
        talk = working().out(message("say:completion_result", 20, "done"), said("by the way", 21))
        assert (talk.phase, talk.texts("assistant")[-1]) == ("completed", ("assistant", "by the way"))

    def test_compaction(self) -> None:
        talk = working().out(message("say:condense_context", 20, "", True))
        assert talk.activity == "active/compacting"
        talk.out(message("say:condense_context", 20, "", False), message("say:condense_context", 21, "", True))
        talk.out(message("say:condense_context_error", 22, "no"))
        assert [event.ok for event in talk.events_of(ev.CompactEnd)] == [True, False]
        assert talk.activity == "active/thinking"

    @pytest.mark.parametrize(("code", "phase"), [(0, "completed"), (1, "error"), (143, "stopped"), (None, "stopped")])
    def test_an_exit_in_a_turn(self, code: int | None, phase: str) -> None:
        assert working().proc("exit", code=code).phase == phase

    def test_a_stop_of_ours_is_never_an_error(self) -> None:
        assert working().proc("signal", signal="SIGTERM").proc("exit", code=1).phase == "stopped"

    def test_a_source_that_ends_without_a_word_is_lost(self) -> None:
        talk = working()
        talk.over()
        assert (talk.state.signal.value, talk.activity) == ("lost", "active/thinking")


class TestThePast:
    USED = '{"request":"<task>go</task>","tokensIn":5,"tokensOut":6}'
    PAST = (
        message("say:task", 5, "go"),
        message("say:api_req_started", 10, USED),
        message("say:reasoning", 11, "hm"),
        message("say:tool", 12, tool("readFile")),
        message("say:completion_result", 13, "done"),
    )

    def test_a_past_with_an_offer_is_no_new_work(self) -> None:
        talk = StreamTalk("sayask").out(*self.PAST)
        assert talk.entries == []
        talk.out(message("ask:resume_task", 90))
        assert (talk.phase, talk.activity, talk.state.usage.total.input) == ("idle", "idle", 0)
        assert talk.texts() == [("user", "go"), ("thinking", "hm"), ("tool", "readFile"), ("assistant", "done")]
        assert [event.finished for event in talk.events_of(ev.TurnRestored)] == [True]
        talk.out(*self.PAST)
        assert len(talk.entries) == 4

    def test_without_an_offer_it_was_new_work_after_all(self) -> None:
        talk = StreamTalk("sayask").out(*self.PAST).after(5)
        assert (talk.phase, talk.state.usage.total.input) == ("completed", 5)

    def test_a_prompt_alone_is_held_for_a_moment_only(self) -> None:
        talk = StreamTalk("sayask").out(message("say:task", 5, "go"))
        assert talk.phase == "idle"
        assert talk.after(HOLD_S).phase == "streaming"

    def test_the_first_live_sign_ends_the_hold(self) -> None:
        assert StreamTalk("sayask").out(message("say:task", 5, "go"), request(10)).phase == "streaming"

    def test_an_exit_ends_it_too(self) -> None:
        talk = StreamTalk("sayask").out(message("say:task", 5, "go")).proc("exit", code=1)
        assert (talk.phase, talk.texts("user")) == ("error", [("user", "go")])

    def test_another_deck_process_knows_what_was_told(self) -> None:
        talk = asking("ask:tool", tool()).restarted()
        talk.out(message("say:task", 5, "go"), said("old", 20), message("ask:tool", 30, tool()))
        assert len(talk.events_of(ev.ApprovalRequired)) == 1
        assert talk.texts("user", "assistant") == [("user", "go")]
        talk.send({"type": "askResponse", "askResponse": "yesButtonClicked"})
        assert talk.tools() == [("editedExistingFile", "running")]
        talk.out(request(40, told_model("ok")), message("say:completion_result", 50, "done"))
        assert (talk.phase, talk.tools()) == ("completed", [("editedExistingFile", "done")])

    def test_the_next_process_may_bring_the_past_again(self) -> None:
        talk = working().out(message("say:completion_result", 20, "done")).proc("exit", code=0).proc("start")
        talk.out({"type": "task_started", "taskId": "7"}, message("say:task", 5, "go"), message("ask:resume_task", 90))
        assert (talk.activity, talk.texts("user")) == ("idle", [("user", "go")])

    def test_another_task_is_opened(self) -> None:
        talk = working().out(message("say:completion_result", 20, "done")).send({"call": "TaskService.showTaskWithId"})
        talk.out(message("say:task", 1005, "other"), message("ask:resume_completed_task", 1010))
        assert [event.finished for event in talk.events_of(ev.TurnRestored)] == [True]
        assert talk.phase == "completed"


class TestKilo:
    def test_a_whole_session(self) -> None:
        def line(name: str, at: int, **fields: Any) -> dict[str, Any]:
            kind, _, what = name.partition(":")
            return {"timestamp": at, "source": "extension", "type": kind, kind: what, **fields}

        talk = StreamTalk("sayask").proc("start")
        talk.out({"event": "session_created", "sessionId": "k1", "timestamp": 1})
        talk.out(line("say:text", 2, content="go"), line("say:api_req_started", 3, metadata={"request": "r"}))
        talk.out({"event": "session_title_generated", "sessionId": "k1", "title": "My task"})
        talk.out(line("ask:tool", 4, metadata={"tool": "newFileCreated", "path": "x"}, partial=True))
        assert talk.phase == "streaming"
        talk.out(line("ask:tool", 4, metadata={"tool": "newFileCreated", "path": "x"}, partial=False))
        assert talk.phase == "waiting_approval"
        talk.send({"type": "respondToApproval", "approved": True})
        talk.out(line("say:api_req_started", 3, metadata={"request": "r", "tokensIn": 7, "tokensOut": 2, "cost": 0.5}))
        talk.out(
            line("say:api_req_started", 5, metadata={"request": "r2"}), line("say:text", 6, content="so", partial=True)
        )
        talk.out(line("say:text", 6, content="so it is", partial=False), line("ask:completion_result", 7))
        profile = talk.state.profile
        assert (profile.native_session_id, profile.name, profile.resumable) == ("k1", "My task", True)
        assert (talk.phase, talk.tools()) == ("completed", [("newFileCreated", "done")])
        assert talk.texts("user", "assistant") == [("user", "go"), ("assistant", "so it is")]
        total = talk.state.usage.total
        assert (total.input, total.output, total.cost_usd, talk.unknown) == (7, 2, 0.5, 0)

    def test_words_that_happen_to_be_json_are_moved_to_metadata_and_still_shown(self) -> None:
        talk = StreamTalk("sayask").out({"timestamp": 2, "type": "say", "say": "text", "metadata": {"do": "it"}})
        talk.out({"timestamp": 3, "type": "say", "say": "api_req_started", "metadata": {"request": "r"}})
        talk.out({"timestamp": 4, "type": "say", "say": "text", "metadata": ["a", 1], "partial": False})
        talk.out({"timestamp": 5, "type": "say", "say": "completion_result", "metadata": {"ok": True}})
        assert talk.texts("user", "assistant") == [
            ("user", '{"do":"it"}'),
            ("assistant", '["a",1]'),
            ("assistant", '{"ok":true}'),
        ]
        assert (talk.phase, talk.unknown) == ("completed", 0)

    def test_the_prompt_is_echoed_before_the_first_request_and_a_request_with_figures_alone_is_none(self) -> None:
        talk = StreamTalk("sayask").out({"timestamp": 2, "type": "say", "say": "text", "content": "go"})
        talk.out({"timestamp": 3, "type": "say", "say": "api_req_started", "metadata": {"request": "r"}})
        talk.out({"timestamp": 4, "type": "ask", "ask": "completion_result"})
        talk.out({"timestamp": 5, "type": "say", "say": "api_req_started", "metadata": {"tokensIn": 5, "tokensOut": 2}})
        assert (talk.phase, len(talk.events_of(ev.RequestStart)), talk.state.usage.total.input) == ("completed", 1, 5)

    def test_lines_of_its_own_interface(self) -> None:
        talk = StreamTalk("sayask").out({"source": "cli", "type": "system", "content": "hello", "timestamp": 1})
        talk.out({"source": "cli", "type": "error", "content": "bad"}, {"source": "cli", "type": "empty"})
        talk.out({"event": "mode_changed", "mode": "plan"})
        assert talk.texts() == [("system", "hello"), ("error", "bad")]
        assert (talk.state.profile.mode, talk.phase, talk.unknown) == ("plan", "idle", 0)

    def test_several_messages_in_one_list_or_one_line(self) -> None:
        lines = [message("say:task", 5, "go"), request(10)]
        assert StreamTalk("sayask").out(lines).phase == "streaming"
        text = "\x1b[2m" + json.dumps(lines[0]) + json.dumps(lines[1]) + "\x1b[0m"
        assert StreamTalk("sayask").out(text).phase == "streaming"
        assert StreamTalk("sayask").out({"raw": text}).phase == "streaming"

    @pytest.mark.parametrize(
        "line", [{"type": "news"}, {}, 5, [], [1], None, message("say:news", 3), message("ask:news", 3)]
    )
    def test_what_nobody_knows_is_counted(self, line: Any) -> None:
        talk = working().out(line)
        assert (talk.phase, talk.unknown) == ("streaming", 1)

    def test_model_and_mode_stand_on_the_messages(self) -> None:
        info = {"modelId": "m1", "mode": "plan"}
        talk = working().out(message("say:text", 20, "a", modelInfo=info))
        talk.out(message("say:text", 21, "b", modelInfo={"modelId": "m2", "mode": "act"}))
        assert (talk.state.profile.model, talk.state.profile.mode) == ("m2", "ask")
        assert [(event.from_, event.to) for event in talk.events_of(ev.ModelSwitched)] == [("m1", "m2")]

    def test_notices(self) -> None:
        talk = working().out(message("say:info", 20, "note"), message("say:shell_integration_warning", 21, "careful"))
        talk.out(message("say:hook_status", 22, "x"), message("say:api_req_finished", 23))
        assert talk.texts("system") == [("system", "note"), ("system", "careful")]
        assert talk.unknown == 0
