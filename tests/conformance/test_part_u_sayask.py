"""Show part U.0 of the acceptance list: the line parser and the say/ask translator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.lines import LineBuffer
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay
from quarterdeck.harness.sayask.calls import QUESTION_GRACE_S
from quarterdeck.harness.todos import progress_of
from tests.conformance.marks import case
from tests.support.claude_stream import StreamTalk


def message(name: str, ts: int, text: str = "", **fields: Any) -> dict[str, Any]:
    kind, _, what = name.partition(":")
    return {"timestamp": ts, "source": "extension", "type": kind, kind: what, "content": text, **fields}


def kilo() -> StreamTalk:
    return StreamTalk("sayask").out({"event": "session_created", "sessionId": "k1", "timestamp": 1})


def requested() -> StreamTalk:
    return kilo().out(message("say:text", 2, "go"), message("say:api_req_started", 3, metadata={"request": "r"}))


class TestLines:
    @case("U-001")
    def test_control_codes_are_stripped(self) -> None:
        assert LineBuffer().feed(b'\x1b[2K\x1b[33m{"type":"say","say":"text"}\x1b[0m\n') == [
            {"type": "say", "say": "text"}
        ]

    @case("U-002")
    def test_halves_are_joined_and_parsed_once(self) -> None:
        buffer = LineBuffer()
        assert buffer.feed(b'{"a":1}\n{"type":"sa') == [{"a": 1}]
        assert buffer.feed(b'y"}\n') == [{"type": "say"}]
        assert buffer.flush() == []

    @case("U-003")
    def test_each_object_of_a_line_is_its_own(self) -> None:
        assert LineBuffer().feed(b'{"a":1}{"b":"}{"}  {"c":3}\n') == [{"a": 1}, {"b": "}{"}, {"c": 3}]

    @case("U-004")
    def test_prose_is_plain_output_and_empty_lines_are_skipped(self) -> None:
        assert LineBuffer().feed(b"\x1b[1mWelcome\x1b[0m to it\n\n   \n\x1b[0m\n") == ["Welcome to it"]

    @case("U-005")
    @pytest.mark.parametrize("line", [b"42\n", b'"text"\n', b"true\n", b"null\n", b"1.5\n"])
    def test_a_primitive_is_no_event_object(self, line: bytes) -> None:
        assert not any(isinstance(item, dict) for item in LineBuffer().feed(line))

    @case("U-006")
    def test_flush_emits_what_is_left_and_reset_drops_it(self) -> None:
        buffer = LineBuffer()
        assert buffer.feed(b'{"a":1}') == []
        assert buffer.flush() == [{"a": 1}]
        assert buffer.feed(b'{"b":2}') == []
        buffer.reset()
        assert buffer.flush() == []


class TestRecords:
    @case("U-007")
    def test_session_created_without_a_time_happens_now(self) -> None:
        talk = StreamTalk("sayask").after(5).out({"event": "session_created", "sessionId": "k1"})
        assert talk.state.profile.native_session_id == "k1"
        assert talk.state.process.value == "up"
        assert talk.state.process.since == talk.view.at == int(talk.now * 1000)

    @case("U-008")
    def test_a_title_names_the_session(self) -> None:
        talk = kilo().out({"event": "session_title_generated", "sessionId": "k1", "title": "Fix it", "timestamp": 5})
        assert [event.title for event in talk.events_of(ev.TitleGenerated)] == ["Fix it"]
        assert (talk.state.profile.native_session_id, talk.state.profile.name) == ("k1", "Fix it")

    @case("U-009")
    @pytest.mark.parametrize(
        ("instructions", "payload"), [(["do a", "do b"], {"instructions": ["do a", "do b"]}), ([], {})]
    )
    def test_a_welcome_is_kept_whole_also_in_two_chunks(self, instructions: list[str], payload: dict[str, Any]) -> None:
        options = {"worktreeBranch": "fix-it", "worktreePath": "/w/fix-it", "instructions": instructions}
        line = (
            json.dumps({"type": "welcome", "source": "cli", "metadata": {"welcomeOptions": options}}).encode() + b"\n"
        )
        buffer = LineBuffer()
        talk = StreamTalk("sayask").out(*buffer.feed(line[:40]), *buffer.feed(line[40:]))
        assert [event.payload for event in talk.events_of(ev.PluginEvent)] == [
            {"worktreeBranch": "fix-it", "worktreePath": "/w/fix-it", **payload}
        ]

    @case("U-015")
    def test_a_checkpoint_has_no_text(self) -> None:
        talk = requested()
        before = talk.texts()
        talk.out(message("say:checkpoint_saved", 9, lastCheckpointHash="abc"))
        assert [event.checkpoint_id for event in talk.events_of(ev.CheckpointSaved)] == ["abc"]
        assert talk.texts() == before

    @case("U-085")
    def test_invalid_json_is_ignored(self) -> None:
        run = Replay(translator("sayask"), "sayask")
        lines = [b"{broken\n", b'{"t":1,"src":"stdout","data":"{\\"type\\": broken"}\n', b"\xff\n"]
        assert all(row.view.state.phase.value == "idle" for row in run.rows(lines))
        assert run.broken == 2


class TestMessages:
    @case("U-010")
    def test_a_text_before_the_first_request_is_the_echo_of_the_prompt(self) -> None:
        talk = requested().out(message("say:text", 4, "answer"))
        assert talk.texts("user", "assistant") == [("user", "go"), ("assistant", "answer")]

    @case("U-010")
    def test_the_echo_of_what_we_sent_is_dropped(self) -> None:
        talk = kilo().send({"type": "user_input", "content": "go", "id": "m1"}).out(message("say:text", 2, "go"))
        assert [(entry.id, entry.text) for entry in talk.entries] == [("m1", "go")]

    @case("U-011")
    def test_a_request_that_only_updates_tokens_is_usage(self) -> None:
        talk = requested()
        before = (talk.state.run, talk.state.phase, talk.state.activity)
        talk.out(message("say:api_req_started", 3, metadata={"request": "r", "tokensIn": 4, "tokensOut": 2}))
        talk.out(message("say:api_req_started", 9, metadata={"tokensIn": 5, "tokensOut": 2}))
        assert len(talk.events_of(ev.RequestStart)) == 1
        assert (talk.state.run, talk.state.phase, talk.state.activity) == before
        assert (talk.state.usage.total.input, talk.state.usage.total.output) == (5, 2)

    @case("U-012")
    def test_a_completion_that_is_whole_ends_the_turn_with_its_text(self) -> None:
        talk = requested().out(message("say:completion_result", 4, "all", partial=True))
        assert talk.phase == "streaming"
        talk.out(message("say:completion_result", 4, "all done"))
        assert (talk.phase, talk.texts("assistant")) == ("completed", [("assistant", "all done")])

    @case("U-013")
    def test_the_ask_for_feedback_ends_the_turn_and_shows_no_row(self) -> None:
        talk = requested()
        before = talk.texts()
        talk.out(message("ask:completion_result", 4))
        assert (talk.phase, talk.texts()) == ("completed", before)

    @case("U-016")
    def test_command_output_in_metadata_is_one_row_for_each_execution(self) -> None:
        talk = requested().out(message("say:command", 4, "make"))
        for output in ("one\n", "one\ntwo\n"):
            metadata = {"executionId": "e1", "status": "output", "output": output}
            talk.out(message("say:command_output", 5, partial=True, metadata=metadata))
        (entry,) = (entry for entry in talk.entries if entry.kind == "tool")
        assert entry.tool_step is not None
        assert entry.tool_step.result == "one\ntwo\n"

    @case("U-017")
    def test_one_row_and_a_whole_message_is_never_replaced_by_a_partial_one(self) -> None:
        talk = requested().out(message("say:text", 4, "Hel", partial=True), message("say:text", 4, "Hello"))
        talk.out(message("say:text", 4, "Hel", partial=True), message("say:text", 4, "Hello"))
        assert talk.texts("assistant") == [("assistant", "Hello")]
        talk.out(message("say:reasoning", 4, "same time, another kind"))
        assert len(talk.texts("assistant", "thinking")) == 2

    @case("U-018")
    def test_an_empty_partial_message_is_dropped(self) -> None:
        talk = requested()
        before = len(talk.bodies)
        talk.out(message("say:text", 4, "", partial=True), message("say:reasoning", 5, "", partial=True))
        assert talk.bodies[before:] == []

    @case("U-019")
    def test_a_partial_question_is_none_until_it_stops_growing(self) -> None:
        talk = requested().out(message("ask:followup", 4, metadata={"question": "Whi"}, partial=True))
        talk.after(QUESTION_GRACE_S / 2).out(message("ask:followup", 4, metadata={"question": "Which?"}, partial=True))
        talk.after(QUESTION_GRACE_S * 0.9)
        assert (talk.phase, len(talk.events_of(ev.AskUser))) == ("streaming", 0)
        talk.after(QUESTION_GRACE_S * 0.2)
        assert (talk.phase, [event.question for event in talk.events_of(ev.AskUser)]) == ("waiting_input", ["Which?"])

    @case("U-020")
    def test_the_whole_message_stays_and_a_longer_one_replaces_it(self) -> None:
        talk = requested().out(message("say:text", 4, "Hello"), message("say:text", 4, "Hell", partial=True))
        assert talk.texts("assistant") == [("assistant", "Hello")]
        talk.out(message("say:text", 4, "Hello and more"))
        assert talk.texts("assistant") == [("assistant", "Hello and more")]

    @case("U-021")
    def test_two_sessions_do_not_mix(self) -> None:
        first, second = requested(), requested()
        for number in range(3):
            first.out(message("say:text", 4, "one" * (number + 1), partial=True))
            second.out(message("say:text", 4, "two" * (number + 1), partial=True))
        first.out(message("ask:command", 5, "ls"))
        assert (first.texts("assistant"), second.texts("assistant")) == (
            [("assistant", "one" * 3)],
            [("assistant", "two" * 3)],
        )
        assert (first.phase, second.phase) == ("waiting_approval", "streaming")


class TestFailuresAndLists:
    @case("U-042")
    def test_a_401_is_an_authentication_failure_and_says_so_once(self) -> None:
        talk = requested().out(message("ask:api_req_failed", 4, "Provider error: 401 Unauthorized"))
        (failed,) = talk.events_of(ev.TurnFailed)
        assert (failed.kind, failed.message) == ("auth", "Authentication failed: Provider error: 401 Unauthorized")
        again = requested().out(message("ask:api_req_failed", 4, failed.message))
        assert [event.message for event in again.events_of(ev.TurnFailed)] == [failed.message]

    @case("U-042")
    @pytest.mark.parametrize("text", ["failed in line 403 of x", "used 402 tokens", "port 429 refused", "14010 bytes"])
    def test_other_numbers_are_no_status(self, text: str) -> None:
        talk = requested().out(message("ask:api_req_failed", 4, text))
        assert [(event.kind, event.message) for event in talk.events_of(ev.TurnFailed)] == [("api", text)]

    @case("U-045")
    def test_the_last_todo_list_wins_bad_json_is_ignored_and_it_is_counted(self) -> None:
        first = [{"id": "1", "content": "plan", "status": "pending"}]
        last = [
            {"id": "1", "content": "plan", "status": "completed"},
            {"id": "2", "content": "build", "status": "in_progress"},
            {"id": "3", "content": "test", "status": "pending"},
            {"id": "4", "content": "ship", "status": "pending"},
        ]
        talk = requested().out(message("ask:tool", 4, json.dumps({"tool": "updateTodoList", "todos": first})))
        talk.out(message("say:tool", 5, metadata={"tool": "updateTodoList", "todos": last}))
        talk.out(message("say:tool", 6, '{"tool":"updateTodoList","todos":[{"conte'))
        talk.out(message("say:tool", 7, metadata={"tool": "updateTodoList", "todos": "broken"}))
        assert [(todo.content, todo.status) for todo in talk.state.todos] == [
            ("plan", "completed"),
            ("build", "in_progress"),
            ("test", "pending"),
            ("ship", "pending"),
        ]
        progress = progress_of(talk.state.todos)
        assert (progress.total, progress.completed, progress.in_progress, progress.pending) == (4, 1, 1, 2)
        assert (progress.percent, progress.current, progress.all_done) == (25, "build", False)
        talk.out(message("say:task_progress", 8, "- [x] plan\n- [x] build"))
        assert progress_of(talk.state.todos).all_done
