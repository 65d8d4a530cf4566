"""Test telemetry of a Codex that the user started: what it can't say is a stale signal, never a false idle."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.codex.telemetry import IDLE_S, IGNORED_RECORDS, QUIET_S
from quarterdeck.kernel.activity import THINKING, TOOL_USE
from tests.support.codex_session import THREAD, CodexTalk


def prompted(**started: object) -> CodexTalk:
    talk = CodexTalk()
    talk.record("conversation_starts", **started)
    talk.record("user_prompt", prompt="hi")
    return talk


def answering() -> CodexTalk:
    talk = prompted()
    talk.sse("response.created")
    return talk


def stamped(talk: CodexTalk, seconds: float) -> dict[str, str]:
    """Return a record's creation time on the record's own clock, which starts at our time 0."""
    minutes, left = divmod(seconds, 60)
    return {"event.timestamp": f"2026-11-15T06:{int(minutes):02d}:{left:06.3f}Z"}


# ------------------------------------------------------------------------------------------------- missing records


@pytest.mark.parametrize("kind", ["response.function_call_arguments.done", "response.custom_tool_call_input.done"])
def test_a_response_with_a_call_is_not_the_end_and_may_be_a_wait(kind: str) -> None:
    talk = answering()
    talk.sse(kind)
    talk.completed()
    assert (talk.activity, talk.signal) == (THINKING, "live")
    talk.wait(IDLE_S)
    assert (talk.activity, talk.phase, talk.signal) == (THINKING, "streaming", "stale")
    talk.wait(3600)
    assert (talk.activity, talk.phase) == (THINKING, "streaming")
    talk.decided("approved", source="User")
    assert (talk.activity, talk.signal) == (TOOL_USE, "live")


def test_a_response_without_calls_is_the_end() -> None:
    talk = answering()
    talk.completed()
    talk.wait(IDLE_S)
    assert (talk.activity, talk.phase, talk.signal) == ("idle", "completed", "live")


def test_over_a_websocket_the_end_is_a_guess_and_says_so() -> None:
    talk = prompted()
    talk.record("websocket_request")
    talk.completed()
    talk.wait(IDLE_S)
    assert (talk.activity, talk.signal) == ("idle", "stale")
    talk.notify(text="Done")
    assert (talk.activity, talk.signal, talk.words("assistant")) == ("idle", "live", ["Done"])


def test_a_request_before_any_prompt_only_warms_the_connection_up() -> None:
    talk = CodexTalk()
    talk.record("conversation_starts")
    talk.record("websocket_request")
    talk.completed()
    talk.wait(10)
    assert (talk.activity, talk.phase, talk.state.usage.total.input) == ("idle", "idle", 0)


def test_silence_in_a_turn_makes_the_signal_stale_and_any_record_live() -> None:
    talk = answering()
    talk.decided("approved")
    talk.wait(QUIET_S)
    assert (talk.activity, talk.signal) == (TOOL_USE, "stale")
    talk.result()
    assert (talk.activity, talk.signal) == (TOOL_USE, "live")


def test_after_a_full_context_the_next_completion_may_be_a_compaction() -> None:
    talk = prompted(auto_compact_token_limit=50_000)
    talk.sse("response.created")
    talk.decided("approved")
    talk.completed(input_token_count="60000")
    talk.result()
    talk.sse("response.created")
    talk.completed()
    talk.wait(IDLE_S)
    assert (talk.activity, talk.signal) == ("idle", "stale")
    talk.sse("response.created")
    assert (talk.activity, talk.signal) == (THINKING, "live")


# ------------------------------------------------------------------------------------------------------ confirmation


def test_notify_ends_the_turn_though_its_last_records_are_on_their_way() -> None:
    talk = answering()
    talk.decided("approved")
    talk.notify(text="Done")
    assert (talk.activity, talk.phase, talk.signal) == ("idle", "completed", "live")
    talk.result(after=0.5)
    talk.sse("response.created")
    talk.completed()
    assert (talk.activity, talk.tools()) == ("idle", [("exec_command", "done")])
    talk.record("user_prompt", prompt="next")
    assert talk.activity == THINKING


def test_notify_may_come_before_all_records_of_its_turn() -> None:
    talk = CodexTalk()
    talk.record("conversation_starts")
    talk.notify(text="Done", after=5)
    talk.record("user_prompt", prompt="hi")
    talk.record("websocket_request")
    talk.completed()
    assert (talk.activity, talk.phase, talk.signal) == ("idle", "completed", "live")


def test_notify_of_others_says_nothing() -> None:
    talk = answering()
    assert talk.notify("thread-title", text="A title") == []
    assert talk.activity == THINKING
    talk.feed("notify", {"type": "something-new"})
    assert talk.unknown == 1


def test_notify_alone_names_the_session_and_its_last_words() -> None:
    talk = CodexTalk()
    talk.notify(text="Done")
    assert (talk.state.profile.native_session_id, talk.activity, talk.words("assistant")) == (THREAD, "idle", ["Done"])


def test_a_record_made_before_a_hook_told_more_moves_nothing() -> None:
    talk = CodexTalk()
    talk.record("conversation_starts", **stamped(talk, 0.1))
    talk.record("user_prompt", prompt="hi", after=1, **stamped(talk, 1.0))
    talk.hook("PermissionRequest", turn_id="t1", tool_name="Bash", tool_input={}, after=1)
    talk.sse("response.created", after=0.5, **stamped(talk, 1.3))
    assert len(talk.gates) == 1
    talk.sse("response.created", after=5, **stamped(talk, 7.4))
    assert (talk.gates, talk.activity) == ([], THINKING)


# ---------------------------------------------------------------------------------------------------- conversations


def test_another_conversation_never_moves_the_state() -> None:
    talk = answering()
    before = len(talk.bodies)
    for name in ("conversation_starts", "user_prompt", "websocket_request"):
        talk.record(name, "thread-title", prompt="Generate a concise title")
    talk.record("sse_event", "thread-title", **{"event.kind": "response.completed", "input_token_count": "100"})
    talk.record("tool_decision", "thread-title", decision="approved", call_id="x")
    assert (talk.bodies[before:], talk.activity, talk.unknown) == ([], THINKING, 0)


def test_a_sub_agents_tokens_are_counted_and_its_work_is_in_the_background() -> None:
    talk = answering()
    sent = {
        "kind": "spawn",
        "state": "send",
        "sender_thread_id": THREAD,
        "receiver_thread_id": "thread-c",
        "content": "go",
    }
    talk.feed("otlp.log", {"attributes": {"event.name": "codex.agent_communication", **sent}})
    assert talk.background == ["thread-c"]
    talk.record("sse_event", "thread-c", **{"event.kind": "response.completed", "input_token_count": "50"})
    assert talk.state.usage.by_agent[0].name == "thread-c"
    done = {"kind": "result", "state": "send", "sender_thread_id": "thread-c", "receiver_thread_id": THREAD}
    talk.feed("otlp.log", {"attributes": {"event.name": "codex.agent_communication", **done}})
    assert (talk.background, talk.activity) == ([], THINKING)


def test_a_conversation_that_starts_again_was_restarted() -> None:
    talk = answering()
    talk.decided("approved")
    talk.record("conversation_starts")
    assert (talk.activity, talk.phase, talk.tools()) == ("idle", "stopped", [("exec_command", "error")])


# ----------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("name", sorted(IGNORED_RECORDS))
def test_known_records_without_meaning(name: str) -> None:
    talk = answering()
    assert talk.record(name.removeprefix("codex.")) == []
    assert talk.unknown == 0


def test_records_without_a_conversation_are_ignored_and_new_ones_counted() -> None:
    talk = answering()
    assert talk.feed("otlp.log", {"attributes": {}}) == []
    assert talk.feed("otlp.log", {"attributes": {"event.name": "codex.user_prompt", "prompt": "x"}}) == []
    assert talk.unknown == 0
    talk.record("hologram")
    talk.feed("otlp.log", {"attributes": {"event.name": 5}})
    assert talk.unknown == 2


def test_a_prompt_that_is_kept_from_us_is_still_a_prompt() -> None:
    talk = CodexTalk()
    talk.record("conversation_starts")
    talk.record("user_prompt", prompt="[REDACTED]", prompt_length="12")
    assert talk.words("user") == ["(a prompt of 12 characters)"]
    other = CodexTalk()
    other.hook("UserPromptSubmit", turn_id="t1", prompt="the real one")
    other.record("user_prompt", prompt="[REDACTED]", prompt_length="12")
    assert other.words("user") == ["the real one"]


def test_a_steering_text_is_read_in_the_turn() -> None:
    talk = answering()
    talk.record("user_prompt", prompt="and this")
    assert (talk.words("user"), len(talk.events_of(ev.AgentStart))) == (["hi", "and this"], 1)


def test_a_prompt_while_a_call_is_open_is_the_next_turns() -> None:
    """Codex reads texts of a turn between calls, so the turn was interrupted without a record of it."""
    talk = answering()
    talk.decided("approved")
    talk.record("user_prompt", prompt="something else")
    assert (len(talk.events_of(ev.AgentStart)), len(talk.events_of(ev.AgentAbort))) == (2, 1)
    assert (talk.activity, talk.tools()) == (THINKING, [("exec_command", "error")])


def test_a_call_whose_result_was_lost_is_over_when_the_model_answers() -> None:
    talk = answering()
    talk.decided("approved")
    talk.sse("response.created")
    assert (talk.activity, talk.tools()) == (THINKING, [("exec_command", "done")])


def test_a_denied_call_is_told_as_failed() -> None:
    talk = answering()
    talk.decided("denied", source="Config")
    assert talk.activity == THINKING
    talk.result(success="false", output="denied")
    assert talk.tools() == [("exec_command", "error")]


@pytest.mark.parametrize(
    ("output", "phase"),
    [
        ("Chunk ID: 1\nProcess exited with code 3\nOutput:\n", "error"),
        ("Exit code: 0\nWall time: 0\n", "done"),
        ("Exit code: oops", "done"),
        ("", "done"),
    ],
)
def test_the_exit_code_stands_in_the_output(output: str, phase: str) -> None:
    talk = answering()
    talk.decided("approved")
    talk.result(output=output)
    assert talk.tools() == [("exec_command", phase)]


def test_an_mcp_tool_has_its_servers_name() -> None:
    talk = answering()
    talk.record("tool_result", call_id="c", tool_name="query", mcp_server="db", success="true", arguments='{"q": 1}')
    assert talk.tools() == [("mcp__db__query", "done")]
    assert talk.last(ev.ToolCall).args == {"q": 1}


def test_a_stream_that_breaks_is_tried_again() -> None:
    talk = answering()
    talk.sse("response.failed", **{"error.message": '{"response": {"error": {"message": "overloaded"}}}'})
    assert (talk.last(ev.Retry).reason, talk.activity) == ("overloaded", THINKING)
    talk.sse("response.created")
    talk.completed()
    talk.wait(60)
    assert (talk.phase, talk.activity) == ("completed", "idle")


def test_a_full_context_is_final() -> None:
    talk = answering()
    talk.sse("response.completed", **{"error.message": "Codex ran out of room in the model's context window."})
    assert (talk.phase, talk.activity) == ("error", "idle")


def test_a_limit_may_say_how_long_it_lasts() -> None:
    talk = answering()
    error = 'http 429: {"error": {"message": "usage limit", "resets_in_seconds": 60}}'
    stamp = {"event.timestamp": "1970-01-01T01:00:00Z"}
    talk.record("api_request", **{"http.response.status_code": 429, "error.message": error, **stamp})
    assert talk.state.error is not None
    assert (talk.state.error.kind, talk.state.error.resets_at) == ("usage_limit", 3_660_000)


def test_an_interrupted_process_is_not_woken_by_what_is_left() -> None:
    talk = answering()
    talk.feed("proc", {"event": "signal", "signal": 2})
    assert (talk.activity, talk.phase) == ("idle", "stopped")
    talk.decided("approved")
    assert talk.activity == "idle"


def test_records_after_the_exit_bring_nothing_back() -> None:
    talk = CodexTalk()
    talk.feed("proc", {"event": "start"})
    talk.record("conversation_starts", **stamped(talk, 0.01))
    talk.record("user_prompt", prompt="hi", **stamped(talk, 0.02))
    talk.feed("proc", {"event": "exit", "code": 0}, after=1)
    before = len(talk.bodies)
    talk.sse("response.created", **stamped(talk, 0.9))
    talk.completed(**stamped(talk, 0.95))
    assert (talk.bodies[before:], talk.activity) == ([], "exited")


def test_another_deck_goes_on_in_the_middle() -> None:
    talk = answering()
    talk.decided("approved")
    talk.restarted()
    talk.result(output="x")
    talk.sse("response.created")
    talk.completed()
    talk.wait(IDLE_S)
    assert (talk.activity, talk.phase, talk.tools()) == ("idle", "completed", [("exec_command", "done")])
    assert len(talk.events_of(ev.AgentStart)) == 1


def test_the_source_ends_without_a_word() -> None:
    talk = answering()
    talk.over()
    assert (talk.signal, talk.activity, talk.translator.deadline()) == ("lost", THINKING, None)
