"""Test pi where no recording exists or can show it: pauses, races, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.pi.dialogs import EDITOR_NOTICE
from quarterdeck.harness.pi.run import SETTLE_S
from tests.support.claude_stream import StreamTalk

START = {"type": "agent_start"}
TURN = {"type": "turn_start"}
OLD_END = {"type": "agent_end", "messages": []}
END = {"type": "agent_end", "messages": [], "willRetry": False}
RETRYING = {"type": "agent_end", "messages": [], "willRetry": True}
TOOL = {"type": "tool_execution_start", "toolCallId": "c1", "toolName": "bash", "args": {"command": "ls"}}


def settled(**fields: Any) -> dict[str, Any]:
    return {"type": "agent_settled", **fields}


def user(text: str, stamp: int = 1) -> dict[str, Any]:
    parts = [{"type": "text", "text": text}]
    return {"type": "message_start", "message": {"role": "user", "content": parts, "timestamp": stamp}}


def begins(stamp: int = 2) -> dict[str, Any]:
    return {"type": "message_start", "message": {"role": "assistant", "content": [], "timestamp": stamp}}


def delta(text: str, block: int = 0, kind: str = "text_delta") -> dict[str, Any]:
    return {"type": "message_update", "assistantMessageEvent": {"type": kind, "contentIndex": block, "delta": text}}


def reply(text: str = "", stop: str = "stop", stamp: int = 2, error: str = "", **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "stopReason": stop, "timestamp": stamp, **fields}
    message.setdefault("content", [{"type": "text", "text": text}] if text else [])
    if error:
        message["errorMessage"] = error
    return {"type": "message_end", "message": message}


def response(command: str, ref: str = "", data: Any = None, error: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "response", "command": command, "success": not error}
    return (
        fields | ({"id": ref} if ref else {}) | ({"data": data} if data else {}) | ({"error": error} if error else {})
    )


def queue(steering: list[str], follow: list[str]) -> dict[str, Any]:
    return {"type": "queue_update", "steering": steering, "followUp": follow}


def dialog(ref: str = "d1", method: str = "select", **fields: Any) -> dict[str, Any]:
    return {"type": "extension_ui_request", "id": ref, "method": method, "title": "Sure?", **fields}


def running() -> StreamTalk:
    """Start a turn."""
    talk = StreamTalk("pi").send({"id": "r1", "type": "prompt", "message": "go"})
    return talk.out(response("prompt", "r1"), START, TURN, user("go"))


class TestTheEnd:
    def test_where_pi_settles_agent_end_is_not_the_end_however_long_it_takes(self) -> None:
        talk = running().out(begins(), reply("done"), END).after(60)
        assert (talk.phase, talk.activity) == ("streaming", "active/thinking")
        talk.out(settled(aborted=False))
        assert (talk.phase, talk.activity) == ("completed", "idle")

    def test_where_it_does_not_a_short_pause_decides(self) -> None:
        talk = running().out(begins(), reply("done"), OLD_END).after(SETTLE_S - 0.01)
        assert talk.phase == "streaming"
        talk.after(0.02)
        assert (talk.phase, talk.activity) == ("completed", "idle")

    @pytest.mark.parametrize(
        "follows",
        [
            {"type": "auto_retry_start", "attempt": 1, "delayMs": 2000, "errorMessage": "500"},
            {"type": "compaction_start", "reason": "threshold"},
            START,
        ],
    )
    def test_what_begins_in_the_pause_goes_on_with_the_turn(self, follows: dict[str, Any]) -> None:
        talk = running().out(begins(), reply("done"), OLD_END, follows).after(5)
        assert talk.phase == "streaming"
        assert len(talk.events_of(ev.AgentStart)) == 1

    def test_a_prompt_that_is_accepted_in_the_pause_ends_it(self) -> None:
        talk = running().out(begins(), reply("done"), OLD_END)
        talk.send({"id": "r2", "type": "prompt", "message": "more"}).out(response("prompt", "r2"))
        assert talk.phase == "completed"
        talk.out(START, TURN, user("more", 3))
        assert talk.phase == "streaming"
        assert len(talk.events_of(ev.AgentStart)) == 2
        assert [entry.id for entry in talk.entries if entry.kind == "user"] == ["r1", "r2"]

    def test_pi_itself_may_say_in_the_pause_that_it_is_idle(self) -> None:
        talk = running().out(begins(), reply("done"), OLD_END, response("get_state", data={"isStreaming": False}))
        assert talk.phase == "completed"

    def test_in_0_73_an_abort_needs_no_pause(self) -> None:
        talk = running().send({"id": "r2", "type": "abort"})
        talk.out(begins(), reply(stop="aborted", error="Request was aborted."), OLD_END)
        assert (talk.phase, talk.activity) == ("stopped", "idle")

    def test_in_0_73_the_last_failed_try_has_an_end_of_its_own(self) -> None:
        talk = running().out(begins(), reply(stop="error", error="500 x"), OLD_END)
        talk.out({"type": "auto_retry_start", "attempt": 1, "delayMs": 1, "errorMessage": "500 x"})
        talk.out(START, TURN, begins(4), reply(stop="error", error="500 x", stamp=4), OLD_END)
        talk.out({"type": "auto_retry_end", "success": False, "attempt": 1, "finalError": "500 x"}).after(SETTLE_S)
        assert (talk.phase, talk.activity) == ("error", "idle")
        assert [event.kind for event in talk.events_of(ev.TurnFailed)] == ["api"]

    def test_in_0_73_a_retry_that_is_called_off_stops_the_turn(self) -> None:
        talk = running().out(begins(), reply(stop="error", error="500 x"), OLD_END)
        talk.out({"type": "auto_retry_start", "attempt": 1, "delayMs": 9000, "errorMessage": "500 x"}).after(1)
        assert talk.phase == "streaming"
        talk.send({"id": "r2", "type": "abort_retry"})
        talk.out({"type": "auto_retry_end", "success": False, "attempt": 1, "finalError": "Retry cancelled"})
        assert (talk.phase, talk.activity) == ("stopped", "idle")

    def test_a_reply_that_was_whole_before_the_abort_came_is_done(self) -> None:
        talk = running().out(begins(), reply("done")).send({"id": "r2", "type": "abort"}).out(END, settled())
        assert talk.phase == "completed"

    @pytest.mark.parametrize("line", [{}, {"aborted": True}])
    def test_an_abort_in_a_call_ends_with_an_error_that_is_none(self, line: dict[str, Any]) -> None:
        talk = running().out(begins(), reply(stop="toolUse"), TOOL)
        assert talk.activity == "active/tool_use"
        talk.send({"id": "r2", "type": "abort"})
        talk.out({"type": "tool_execution_end", "toolCallId": "c1", "isError": True, "result": {"content": []}})
        talk.out(
            TURN, begins(4), reply(stop="error", error="This operation was aborted", stamp=4), END, settled(**line)
        )
        assert (talk.phase, talk.activity) == ("stopped", "idle")
        assert not talk.events_of(ev.TurnFailed)

    def test_somebody_elses_abort_is_known_by_its_words(self) -> None:
        talk = running().out(begins(), reply(stop="error", error="This operation was aborted"), END, settled())
        assert talk.phase == "stopped"

    def test_a_call_whose_end_was_missed_does_not_run_for_ever(self) -> None:
        talk = running().out(TOOL, END, settled(aborted=False))
        assert talk.tools() == [("bash", "error")]
        assert talk.state.background == ()

    def test_the_result_that_the_model_reads_ends_a_call_too(self) -> None:
        result = {"role": "toolResult", "toolCallId": "c1", "toolName": "bash", "content": "ok", "isError": False}
        talk = running().out(TOOL, {"type": "message_end", "message": {**result, "durationMs": 5, "timestamp": 1005}})
        assert talk.tools() == [("bash", "done")]
        assert [(event.started_at_ms, event.duration_ms) for event in talk.events_of(ev.ToolExecutionMetrics)] == [
            (1000, 5)
        ]

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ("400 bad request", "api"),
            ('401: {"message":"invalid api key"}', "auth"),
            ("402: pay", "payment"),
            ('429: {"message":"rate limit exceeded"}', "rate_limit"),
            ("429 usage limit reached", "usage_limit"),
            ("503: overloaded", "api"),
            ("connect ECONNREFUSED 127.0.0.1:1", "network"),
            ("404: model x not found", "invalid_model"),
        ],
    )
    def test_a_failure_has_its_kind(self, error: str, kind: str) -> None:
        talk = running().out(begins(), reply(stop="error", error=error), END, settled(aborted=False))
        assert talk.phase == "error"
        assert [event.kind for event in talk.events_of(ev.TurnFailed)] == [kind]


class TestTries:
    def test_what_a_failed_try_said_is_taken_back_when_it_is_made_again(self) -> None:
        talk = running().out(begins(), delta("Once up"), reply("Once up", "error", error="cut"), RETRYING)
        assert talk.texts("assistant") == [("assistant", "Once up")]
        talk.out({"type": "auto_retry_start", "attempt": 1, "delayMs": 300, "errorMessage": "cut"})
        assert talk.texts("assistant") == []
        assert [(event.attempt, event.delay_ms) for event in talk.events_of(ev.Retry)] == [(1, 300)]
        talk.out(START, TURN, begins(4), delta("Once upon a time"), reply("Once upon a time", stamp=4))
        talk.out({"type": "auto_retry_end", "success": True, "attempt": 1}, END, settled(aborted=False))
        assert talk.texts("assistant") == [("assistant", "Once upon a time")]
        assert (talk.phase, len(talk.events_of(ev.AgentStart))) == ("completed", 1)

    def test_the_calls_of_a_reply_that_was_cut_never_run(self) -> None:
        start = {"type": "toolcall_start", "contentIndex": 0, "id": "c1", "toolName": "bash"}
        talk = running().out(begins(), {"type": "message_update", "assistantMessageEvent": start})
        talk.out(reply(stop="error", error="cut"), RETRYING)
        talk.out({"type": "auto_retry_start", "attempt": 1, "delayMs": 300, "errorMessage": "cut"})
        assert talk.tools() == [("bash", "error")]

    def test_the_last_try_keeps_its_text(self) -> None:
        talk = running().out(begins(), delta("Once up"), reply("Once up", "error", error="cut"), END, settled())
        assert talk.texts("assistant", "error") == [("assistant", "Once up"), ("error", "cut")]

    def test_an_overflow_that_compaction_cures_is_one_turn(self) -> None:
        talk = running().out(begins(), reply(stop="error", error="400: maximum context length"), END)
        talk.out({"type": "compaction_start", "reason": "overflow"})
        assert (talk.phase, talk.activity) == ("streaming", "active/compacting")
        talk.out({"type": "compaction_end", "reason": "overflow", "result": {"summary": "s"}, "willRetry": True})
        talk.out(START, TURN, begins(5), reply("better", stamp=5), END, settled(aborted=False))
        assert (talk.phase, len(talk.events_of(ev.AgentStart))) == ("completed", 1)
        assert len(talk.events_of(ev.ContextOverflow)) == 1

    def test_a_compaction_that_was_aborted_is_given_up(self) -> None:
        talk = StreamTalk("pi").out({"type": "compaction_start", "reason": "manual"})
        talk.out({"type": "compaction_end", "reason": "manual", "aborted": True})
        assert [event.ok for event in talk.events_of(ev.CompactEnd)] == [False]
        assert talk.activity == "idle"

    def test_the_abort_of_a_compaction_does_not_abort_the_next_turn(self) -> None:
        talk = StreamTalk("pi").out({"type": "compaction_start", "reason": "manual"}).send({"id": "a", "type": "abort"})
        talk.out({"type": "compaction_end", "reason": "manual", "aborted": True}, response("abort", "a"))
        talk.send({"id": "r1", "type": "prompt", "message": "go"})
        talk.out(response("prompt", "r1"), START, TURN, user("go"), begins(), reply(stop="error", error="400 x"))
        assert talk.out(END, settled()).phase == "error"

    def test_calling_off_a_retry_where_none_waits_aborts_nothing(self) -> None:
        talk = running().send({"id": "r2", "type": "abort_retry"}).out(response("abort_retry", "r2"))
        assert talk.out(begins(), reply("cut", stop="length"), END, settled()).phase == "completed"

    def test_a_summary_may_be_tried_again_too(self) -> None:
        talk = StreamTalk("pi").out({"type": "compaction_start", "reason": "manual"})
        talk.out({"type": "summarization_retry_scheduled", "attempt": 2, "delayMs": 50, "errorMessage": "busy"})
        talk.out({"type": "summarization_retry_attempt_start"}, {"type": "summarization_retry_finished"})
        assert [(event.attempt, event.delay_ms, event.reason) for event in talk.events_of(ev.Retry)] == [
            (2, 50, "busy")
        ]
        assert talk.unknown == 0


class TestTextsThatWait:
    def test_texts_keep_their_ids_while_the_lists_change_around_them(self) -> None:
        talk = running()
        for ref, kind, text in (("s1", "steer", "same"), ("s2", "steer", "same"), ("f1", "follow_up", "later")):
            talk.send({"id": ref, "type": kind, "message": text})
        talk.out(queue(["same"], []), queue(["same", "same"], []), queue(["same", "same"], ["later"]))
        assert [(item.id, item.kind) for item in talk.state.queue] == [
            ("s1", "steer"),
            ("s2", "steer"),
            ("f1", "prompt"),
        ]
        talk.out(TURN, queue(["same"], ["later"]), user("same", 5))
        assert [item.id for item in talk.state.queue] == ["s2", "f1"]
        talk.out(TURN, queue([], ["later"]), user("same", 6), TURN, queue([], []), user("later", 7))
        assert talk.state.queue == ()
        assert [entry.id for entry in talk.entries if entry.kind == "user"] == ["r1", "s1", "s2", "f1"]
        assert len(talk.events_of(ev.AgentStart)) == 1

    def test_a_text_of_somebody_else_gets_an_id_of_its_own(self) -> None:
        talk = running().out(queue(["hi"], ["hi"]))
        ids = [item.id for item in talk.state.queue]
        assert len(set(ids)) == 2
        talk.out(TURN, queue([], ["hi"]), user("hi", 5))
        assert [item.id for item in talk.state.queue] == ids[1:]

    def test_a_text_that_pi_rewrote_is_still_the_one_that_left_the_queue(self) -> None:
        talk = running().send({"id": "s1", "type": "steer", "message": "/fix"})
        talk.out(queue(["/fix"], []), TURN, queue([], []), user("Fix everything", 5))
        assert [entry.id for entry in talk.entries if entry.kind == "user"] == ["r1", "s1"]

    def test_a_cleared_text_is_given_back(self) -> None:
        talk = running().send({"id": "s1", "type": "steer", "message": "a"}, {"id": "q", "type": "clear_queue"})
        talk.out(queue(["a"], []), queue([], []), response("clear_queue", "q", {"steering": ["a"], "followUp": []}))
        assert [(event.text, event.message_id) for event in talk.events_of(ev.PromptDropped)] == [("a", "s1")]
        assert talk.state.queue == ()

    def test_an_abort_leaves_the_queue_as_it_is(self) -> None:
        talk = running().send({"id": "f1", "type": "follow_up", "message": "later"}).out(queue([], ["later"]))
        talk.send({"id": "r2", "type": "abort"}).out(begins(), reply(stop="aborted"), END, settled(aborted=True))
        assert talk.phase == "stopped"
        assert [(item.id, item.text) for item in talk.state.queue] == [("f1", "later")]

    def test_a_prompt_with_a_behaviour_that_starts_at_once_is_a_prompt(self) -> None:
        talk = StreamTalk("pi").send({"id": "r1", "type": "prompt", "message": "go", "streamingBehavior": "steer"})
        talk.out(response("prompt", "r1", {"disposition": "started"}), START, TURN, user("go"))
        assert [(entry.kind, entry.id) for entry in talk.entries] == [("user", "r1")]
        assert talk.state.queue == ()

    def test_the_queue_survives_a_restart(self) -> None:
        talk = running().send({"id": "s1", "type": "steer", "message": "a"}).out(queue(["a"], [])).restarted()
        talk.out(TURN, queue([], []), user("a", 5))
        assert [entry.id for entry in talk.entries if entry.kind == "user"] == ["r1", "s1"]
        assert talk.state.queue == ()


class TestDialogs:
    def test_our_answer_closes_it(self) -> None:
        talk = running().out(TOOL, dialog(options=["Allow", "Block"]))
        assert (talk.phase, talk.activity) == ("waiting_input", "active/waiting_for_permission")
        talk.send({"type": "extension_ui_response", "id": "d1", "value": "Allow"})
        assert (talk.phase, talk.activity) == ("streaming", "active/tool_use")
        (closed,) = talk.events_of(ev.DialogResolved)
        assert (closed.value, closed.status, closed.by) == ("Allow", "answered", "user")

    @pytest.mark.parametrize(
        ("answer", "value", "status"),
        [
            ({"confirmed": True}, True, "answered"),
            ({"confirmed": False}, False, "answered"),
            ({"cancelled": True}, None, "cancelled"),
        ],
    )
    def test_a_confirmation_has_two_answers_and_a_way_out(
        self, answer: dict[str, Any], value: Any, status: str
    ) -> None:
        talk = StreamTalk("pi").out(dialog(method="confirm", message="really"))
        (asked,) = talk.events_of(ev.DialogRequired)
        assert ([option.id for option in asked.options], asked.message) == (["yes", "no"], "really")
        talk.send({"type": "extension_ui_response", "id": "d1", **answer})
        (closed,) = talk.events_of(ev.DialogResolved)
        assert (closed.value, closed.status) == (value, status)
        assert talk.phase == "idle"

    def test_it_gives_up_by_itself(self) -> None:
        talk = running().out(TOOL, dialog(timeout=5000), dialog("d2", timeout=1000)).after(0.9)
        assert len(talk.state.gates.open) == 2
        talk.after(0.2)
        assert [gate.ref for gate in talk.state.gates.open] == ["d1"]
        talk.after(5)
        assert [(event.ref, event.status) for event in talk.events_of(ev.DialogResolved)] == [
            ("d2", "timeout"),
            ("d1", "timeout"),
        ]
        assert talk.phase == "streaming"

    def test_a_call_that_goes_on_was_not_held_any_more(self) -> None:
        update = {"type": "tool_execution_update", "toolCallId": "c1", "partialResult": {"content": []}}
        talk = running().out(TOOL, dialog(), update)
        assert [event.status for event in talk.events_of(ev.DialogResolved)] == ["answered_elsewhere"]

    def test_beside_another_call_it_stays_until_no_call_can_be_waiting(self) -> None:
        other = {**TOOL, "toolCallId": "c2"}
        ends = [{"type": "tool_execution_end", "toolCallId": name, "result": {}} for name in ("c1", "c2")]
        talk = running().out(TOOL, other, dialog(), ends[0])
        assert talk.phase == "waiting_input"
        talk.out(ends[1])
        assert talk.phase == "streaming"

    def test_an_abort_withdraws_it(self) -> None:
        talk = running().out(dialog()).send({"id": "r2", "type": "abort"}).out(END, settled(aborted=True))
        assert [event.status for event in talk.events_of(ev.DialogResolved)] == ["withdrawn"]
        assert talk.phase == "stopped"

    def test_the_end_of_a_turn_leaves_a_commands_dialog_open(self) -> None:
        talk = running().out(begins(), dialog(method="input", placeholder="type"), reply("ok"), END, settled())
        assert talk.phase == "waiting_input"
        talk.out(response("prompt", "r9", {"disposition": "handled"}))
        assert talk.phase == "completed"

    def test_notices_and_decoration(self) -> None:
        notice = {"type": "extension_ui_request", "id": "x"}
        talk = StreamTalk("pi").out({**notice, "method": "notify", "message": "hello", "notifyType": "warning"})
        talk.out({**notice, "method": "set_editor_text", "text": "t"}, {**notice, "method": "setStatus"})
        talk.out({**notice, "method": "setWidget"}, {**notice, "method": "setTitle", "title": "t"})
        talk.out({"type": "extension_error", "extensionPath": "/x.js", "event": "e", "error": "boom"})
        assert talk.texts() == [("system", "hello"), ("system", EDITOR_NOTICE), ("error", "boom")]
        assert talk.unknown == 0


STATE: dict[str, Any] = {
    "sessionId": "one",
    "sessionFile": "/s/one.jsonl",
    "model": {"provider": "p", "id": "m", "contextWindow": 1000},
    "thinkingLevel": "high",
    "isStreaming": False,
}


class TestSessions:
    def test_ready_tells_session_model_and_what_pi_can(self) -> None:
        talk = StreamTalk("pi").out(response("get_state", data=STATE))
        profile = talk.state.profile
        assert (profile.native_session_id, profile.model, profile.thinking) == ("one", "p/m", "high")
        assert profile.capabilities == ("steer",)
        assert profile.resumable
        assert len(talk.events_of(ev.AgentReady)) == 1
        talk.out(response("get_state", data=STATE))
        assert len(talk.events_of(ev.AgentReady)) == 1

    def test_another_session_is_bound(self) -> None:
        talk = running().out(response("get_state", data=STATE))
        talk.send({"id": "w", "type": "switch_session", "sessionPath": "/s/2026_two.jsonl"})
        talk.out(response("switch_session", "w", {"cancelled": False}))
        assert (talk.state.profile.native_session_id, talk.phase) == ("two", "stopped")

    def test_one_that_was_called_off_changes_nothing(self) -> None:
        talk = running().out(response("new_session", data={"cancelled": True}))
        assert talk.phase == "streaming"
        assert len(talk.events_of(ev.AgentReady)) == 1

    def test_the_past_is_told_once_and_is_no_new_work(self) -> None:
        call = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
        messages = [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "do it", "timestamp": 1},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call], "timestamp": 2},
            {
                "role": "toolResult",
                "toolCallId": "c1",
                "toolName": "bash",
                "content": "no",
                "isError": True,
                "timestamp": 3,
            },
            {"role": "bashExecution", "command": "pwd", "output": "/x", "exitCode": 0, "timestamp": 4},
            {"role": "compactionSummary", "summary": "short", "timestamp": 5},
            {"role": "assistant", "content": [{"type": "text", "text": "done"}], "stopReason": "stop", "timestamp": 6},
        ]
        talk = StreamTalk("pi").out(response("get_messages", data={"messages": messages}))
        assert (talk.phase, talk.activity) == ("idle", "idle")
        assert talk.texts() == [
            ("user", "do it"),
            ("thinking", "hm"),
            ("tool", "bash"),
            ("bash", "pwd"),
            ("system", "short"),
            ("assistant", "done"),
        ]
        assert [event.finished for event in talk.events_of(ev.TurnRestored)] == [True]
        talk.out(response("get_messages", data={"messages": messages}))
        assert len(talk.events_of(ev.TurnRestored)) == 1

    @pytest.mark.parametrize(("stop", "finished"), [("stop", True), ("aborted", False), ("toolUse", False)])
    def test_a_past_that_was_cut_off_is_not_finished(self, stop: str, finished: bool) -> None:
        message = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "stopReason": stop}
        entries = [{"type": "model_change"}, {"type": "message", "id": "e1", "message": message}]
        talk = StreamTalk("pi").out(response("get_entries", data={"entries": entries}))
        assert [event.finished for event in talk.events_of(ev.TurnRestored)] == [finished]

    def test_later_entries_are_not_a_past(self) -> None:
        message = {"role": "user", "content": "x", "timestamp": 1}
        talk = StreamTalk("pi").send({"id": "g", "type": "get_entries", "since": "e1"})
        talk.out(response("get_entries", "g", {"entries": [{"type": "message", "message": message}]}))
        assert talk.entries == []

    def test_what_we_saw_ourselves_is_not_read_back(self) -> None:
        talk = running().out(begins(), reply("done"), END, settled())
        talk.out(response("get_messages", data={"messages": [{"role": "user", "content": "go"}]}))
        assert not talk.events_of(ev.TurnRestored)

    def test_model_thinking_name_and_context(self) -> None:
        talk = StreamTalk("pi").out(response("get_state", data=STATE))
        talk.out(response("set_model", data={"provider": "q", "id": "n", "contextWindow": 500}))
        talk.out(response("cycle_model", data={"model": {"provider": "p", "id": "m"}, "thinkingLevel": "low"}))
        talk.out(
            {"type": "thinking_level_changed", "level": "off"}, {"type": "session_info_changed", "name": "My work"}
        )
        talk.out(
            response("get_session_stats", data={"contextUsage": {"tokens": 50, "contextWindow": 500, "percent": 10}})
        )
        profile = talk.state.profile
        assert (profile.model, profile.thinking, profile.name) == ("p/m", "off", "My work")
        assert profile.context is not None
        assert (profile.context.tokens, profile.context.limit, profile.context.percent) == (50, 500, 10)
        assert [(event.from_, event.to) for event in talk.events_of(ev.ModelSwitched)] == [
            ("p/m", "q/n"),
            ("q/n", "p/m"),
        ]

    def test_tokens_are_counted_once_for_each_reply(self) -> None:
        usage = {"input": 10, "output": 2, "cacheRead": 30, "cacheWrite": 4, "cost": {"total": 0.5}}
        talk = StreamTalk("pi").out(response("get_state", data=STATE), START, TURN, begins(), reply("a", usage=usage))
        talk.out(reply("a", usage=usage), END, settled())
        total = talk.state.usage.total
        assert (total.input, total.output, total.cache_read, total.cache_write, total.cost_usd) == (10, 2, 30, 4, 0.5)
        assert talk.state.profile.context is not None
        assert (talk.state.profile.context.tokens, talk.state.profile.context.percent) == (46, 4.6)

    @pytest.mark.parametrize("cost", [0, 0.0, None, "1", True, -1, 10**400, float("nan")])
    def test_a_cost_that_nobody_can_know_is_unknown(self, cost: Any) -> None:
        talk = running().out(begins(), reply("a", usage={"input": 1, "output": 1, "cost": {"total": cost}}))
        assert (talk.state.usage.total.input, talk.state.usage.total.cost_usd) == (1, None)


class TestCommands:
    def test_a_command_that_is_refused_says_so(self) -> None:
        talk = running().out(response("set_model", "r5", error="Model not found"))
        assert [(event.command_id, event.message) for event in talk.events_of(ev.CommandFailed)] == [
            ("r5", "Model not found")
        ]
        assert talk.phase == "streaming"

    def test_a_prompt_that_is_refused_outside_of_a_turn_has_failed(self) -> None:
        talk = StreamTalk("pi").proc("start").send({"id": "r1", "type": "prompt", "message": "go"})
        talk.out(response("prompt", "r1", error="No API key found"))
        assert talk.phase == "error"
        assert [event.kind for event in talk.events_of(ev.TurnFailed)] == ["auth"]

    def test_a_steering_text_that_is_refused_is_not_expected_any_more(self) -> None:
        talk = running().send({"id": "s1", "type": "steer", "message": "a"}).out(response("steer", "s1", error="no"))
        talk.out(queue(["a"], []))
        assert [item.id for item in talk.state.queue] != ["s1"]

    def test_the_persons_own_command(self) -> None:
        talk = StreamTalk("pi").send({"id": "b1", "type": "bash", "command": "ls"})
        talk.out({"type": "bash_execution_update", "id": "b1", "delta": "x\n"})
        (entry,) = talk.entries
        assert entry.bash_result is not None
        assert (entry.bash_result.output, entry.bash_result.running) == ("x\n", True)
        talk.out(response("bash", "b1", {"output": "x\n", "exitCode": 4}))
        (entry,) = talk.entries
        assert entry.bash_result is not None
        assert (entry.bash_result.exit_code, entry.bash_result.running, talk.phase) == (4, False, "idle")

    def test_one_that_was_ended_has_no_exit_code(self) -> None:
        talk = StreamTalk("pi").send(
            {"id": "b1", "type": "bash", "command": "ls"}, {"id": "b2", "type": "bash", "command": "w"}
        )
        talk.out(response("bash", "b1", {"output": "", "cancelled": True}), response("bash", "b2", error="busy"))
        talk.send({"id": "b3", "type": "bash", "command": "sleep 9"}).proc("exit", code=-9)
        assert [(event.bash_id, event.exit_code) for event in talk.events_of(ev.BashEnd)] == [
            ("b1", None),
            ("b2", None),
            ("b3", None),
        ]

    def test_a_message_of_somebody_else_is_added_once(self) -> None:
        talk = StreamTalk("pi").out(START, TURN, user("from elsewhere", 77))
        assert [(entry.id, entry.text) for entry in talk.entries] == [("user-77", "from elsewhere")]

    def test_a_prompt_with_images_keeps_them(self) -> None:
        parts = [{"type": "text", "text": "look"}, {"type": "image", "data": "abc", "mimeType": "image/png"}]
        talk = StreamTalk("pi").out(START, {"type": "message_start", "message": {"role": "user", "content": parts}})
        assert [(image.media_type, image.data) for image in talk.entries[0].images] == [("image/png", "abc")]

    def test_an_extensions_message_is_shown_if_it_wants(self) -> None:
        message = {"role": "custom", "customType": "x", "content": "look here"}
        talk = running().out({"type": "message_end", "message": {**message, "display": True}})
        talk.out({"type": "message_end", "message": {**message, "display": False}})
        assert talk.texts("system") == [("system", "look here")]


class TestTheProcess:
    @pytest.mark.parametrize("code", [143, 129, -2, -9, "no exit in 4s"])
    def test_a_signal_in_a_call_stops_it(self, code: Any) -> None:
        talk = running().out(TOOL).proc("exit", code=code)
        assert (talk.phase, talk.activity, talk.tools()) == ("stopped", "exited", [("bash", "error")])

    def test_input_that_is_closed_in_a_call_stops_it_though_the_code_is_zero(self) -> None:
        assert running().out(TOOL).proc("exit", code=0).phase == "stopped"

    def test_after_a_turn_it_changes_nothing(self) -> None:
        assert running().out(begins(), reply("x"), END, settled()).proc("exit", code=0).phase == "completed"
        assert running().out(END, settled(aborted=True)).proc("exit", code=0).phase == "stopped"

    def test_an_exit_in_the_pause_is_an_exit_after_the_turn(self) -> None:
        assert running().out(begins(), reply("x"), OLD_END).proc("exit", code=0).phase == "completed"

    def test_a_crash_is_an_error(self) -> None:
        assert running().proc("exit", code=1).phase == "error"

    def test_the_next_process_begins_anew(self) -> None:
        talk = running().out(TOOL, dialog(timeout=1000)).proc("exit", code=1).proc("start").after(5)
        assert (talk.state.process.value, talk.activity) == ("starting", "initialized")
        talk.out(START, TURN, begins(9), reply("back", stamp=9), OLD_END).after(1)
        assert talk.phase == "completed"

    def test_a_source_that_ends_without_a_word_is_lost_not_idle(self) -> None:
        talk = running()
        talk.over()
        assert (talk.state.signal.value, talk.activity) == ("lost", "active/thinking")

    def test_another_deck_process_takes_over_in_the_middle(self) -> None:
        talk = running().out(begins(), delta("Hel"), TOOL, dialog()).restarted()
        talk.send({"type": "extension_ui_response", "id": "d1", "value": "Allow"})
        assert talk.activity == "active/tool_use"
        talk.out({"type": "tool_execution_end", "toolCallId": "c1", "result": {"content": []}, "isError": False})
        talk.out(delta("lo", 1), reply("Hello", stamp=2), END, settled())
        assert (talk.phase, talk.tools()) == ("completed", [("bash", "done")])


class TestLines:
    def test_prose_means_nothing_and_an_object_in_disguise_is_read(self) -> None:
        talk = StreamTalk("pi").out("console.log of an extension", {"raw": "\x1b[31mwarning\x1b[0m"})
        assert (talk.bodies[1:], talk.unknown) == ([], 0)
        talk.out('{"type":"agent_start"}', {"raw": '{"type":"turn_start"}'})
        assert talk.phase == "streaming"

    @pytest.mark.parametrize("line", [{"type": "something_new"}, 5, None, ["x"], {"type": ["x"]}, {}])
    def test_what_nobody_knows_is_counted(self, line: Any) -> None:
        talk = running().out(line)
        assert (talk.phase, talk.unknown) == ("streaming", 1)

    def test_a_very_long_line_is_a_line(self) -> None:
        huge = "x" * 300_000
        call = {"type": "toolCall", "id": "c1", "name": "write", "arguments": {"path": "f", "content": huge}}
        update = {"type": "toolcall_end", "contentIndex": 0, "toolCall": call}
        talk = running().out(begins(), {"type": "message_update", "assistantMessageEvent": update})
        talk.out(reply(content=[call], stop="toolUse"))
        assert talk.tools() == [("write", "calling")]
        assert [len(str(event.blocks)) < 1000 for event in talk.events_of(ev.ResponseComplete)] == [True]

    def test_a_reply_whose_beginning_was_missed_is_told(self) -> None:
        talk = StreamTalk("pi").out(START, TURN, delta("Hel"), delta("lo"), delta("hm", 1, "thinking_delta"))
        assert talk.texts() == [("assistant", "Hello"), ("thinking", "hm")]
        assert [event.message_id for event in talk.events_of(ev.MessageStart)] == ["reply-1"]

    def test_0_73_names_a_call_in_the_message_that_it_repeats(self) -> None:
        message = {"role": "assistant", "content": [{"type": "toolCall", "id": "c1", "name": "read"}], "timestamp": 2}
        event = {"type": "toolcall_start", "contentIndex": 0}
        talk = running().out({"type": "message_update", "assistantMessageEvent": event, "message": message})
        assert talk.tools() == [("read", "calling")]

    def test_a_result_that_is_not_text_alone_loses_its_bytes(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "image", "data": "xxx", "mimeType": "image/png"}]
        end = {"type": "tool_execution_end", "toolCallId": "c1", "toolName": "shot", "result": {"content": parts}}
        talk = running().out(TOOL, end)
        assert [event.result for event in talk.events_of(ev.ToolExecutionEnd)] == [
            [{"type": "text", "text": "a"}, {"type": "image", "mimeType": "image/png"}]
        ]
