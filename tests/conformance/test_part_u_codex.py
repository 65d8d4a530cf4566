"""Show part U.3 for Codex: tokens, limits and errors in telemetry, and the watchdog."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.codex.hooks import GIVE_UP_S
from quarterdeck.harness.codex.telemetry import IDLE_S, WATCHDOG_S
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay, end_json
from quarterdeck.kernel.activity import THINKING, TOOL_USE
from tests.conformance.marks import case
from tests.support.codex_session import CodexTalk
from tests.support.translator_session import kinds

LIMIT = '{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached","resets_at":1794800000}}'


def prompted() -> CodexTalk:
    talk = CodexTalk()
    talk.record("conversation_starts")
    talk.record("user_prompt", prompt="Fix it")
    return talk


def failed_with(status: int, message: str = "") -> CodexTalk:
    talk = prompted()
    fields = {"http.response.status_code": status, "error.message": message or f"http {status}", "attempt": 0}
    talk.record("api_request", **{name: value for name, value in fields.items() if value})
    return talk


def limited() -> CodexTalk:
    return failed_with(429, LIMIT)


@case("U-080")
def test_the_second_input_is_the_difference_and_a_decrease_begins_anew() -> None:
    talk = prompted()
    usages = []
    for count, cached, output in (("1000", 200, "30"), ("1600", 500, "20"), ("400", 100, "10")):
        talk.sse("response.created")
        talk.decided("approved", f"call_{count}")
        talk.completed(input_token_count=count, cached_token_count=cached, output_token_count=output)
        usages.append(talk.last(ev.Usage).tokens)
    assert [(tokens.input, tokens.cache_read, tokens.output) for tokens in usages] == [
        (800, 200, 30),
        (300, 300, 20),
        (300, 100, 10),
    ]


@case("U-081")
def test_a_usage_limit_is_idle_with_its_reason_and_reset_time() -> None:
    talk = limited()
    assert talk.activity == "idle"
    error = talk.state.error
    assert error is not None
    assert (error.kind, error.resets_at) == ("usage_limit", 1_794_800_000_000)
    assert error.message == "The usage limit has been reached"


@case("U-081")
def test_the_text_of_a_limit_in_a_completion_without_tokens_is_one_too() -> None:
    talk = prompted()
    talk.sse("response.created")
    talk.sse("response.completed", **{"input_token_count": "0", "error.message": "You've hit your usage limit."})
    assert (talk.activity, talk.phase) == ("idle", "error")
    assert talk.state.error is not None
    assert (talk.state.error.kind, talk.state.error.resets_at) == ("usage_limit", None)


@case("U-081")
def test_a_plain_429_is_no_usage_limit() -> None:
    talk = failed_with(429)
    assert (talk.activity, talk.phase) == (THINKING, "streaming")
    talk.wait(GIVE_UP_S)
    assert talk.state.error is not None
    assert talk.state.error.kind == "rate_limit"


@case("U-082")
def test_a_prompt_while_limited_is_counted_without_a_flash_of_active() -> None:
    talk = limited()
    events = talk.record("user_prompt", prompt="Please")
    assert "prompt_received" in kinds(events)
    assert "state_change" not in kinds(events)
    assert (talk.activity, talk.phase) == ("idle", "error")
    assert talk.state.error is not None
    assert talk.state.error.resets_at == 1_794_800_000_000


def test_a_limit_is_over_when_the_model_answers() -> None:
    talk = limited()
    talk.record("user_prompt", prompt="Please")
    talk.sse("response.created")
    assert (talk.activity, talk.phase, talk.state.error) == (THINKING, "streaming", None)


@case("U-083")
@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [(401, "", "auth"), (500, "", "api"), (503, "", "api"), (0, "tcp connect error: Connection refused", "network")],
)
def test_an_error_is_idle_with_its_reason(status: int, message: str, kind: str) -> None:
    talk = failed_with(status, message)
    talk.wait(GIVE_UP_S)
    assert (talk.activity, talk.phase) == ("idle", "error")
    assert talk.state.error is not None
    assert talk.state.error.kind == kind


@case("U-083")
def test_a_server_error_stays_through_a_turn_without_tokens_and_is_cleared_by_one_with() -> None:
    talk = failed_with(500)
    talk.wait(GIVE_UP_S)
    talk.record("user_prompt", prompt="Again")
    talk.sse("response.completed", input_token_count="0", output_token_count="0")
    talk.wait(GIVE_UP_S)
    assert (talk.activity, talk.phase) == ("idle", "error")
    assert talk.state.error is not None
    assert talk.state.error.kind == "api"
    talk.record("user_prompt", prompt="Once more")
    talk.sse("response.created")
    talk.completed()
    talk.wait(IDLE_S)
    assert (talk.activity, talk.phase, talk.state.error) == ("idle", "completed", None)


@case("U-084")
def test_giving_up_without_a_stop_hook_is_not_stuck_active() -> None:
    talk = CodexTalk()
    talk.hook("UserPromptSubmit", turn_id="t1", prompt="hi")
    talk.hook("PreModelRequest", turn_id="t1")
    talk.hook("PostModelRequest", turn_id="t1", status="failed", error="exceeded retry limit, last status: 502")
    assert talk.activity == THINKING
    talk.wait(GIVE_UP_S)
    assert (talk.activity, talk.phase) == ("idle", "error")


@case("U-085")
def test_invalid_json_is_ignored() -> None:
    lines = [
        b'{"t": 0, "src": "stdout", "data": {"type": "thread.started", "thread_id": "a"}}\n',
        b'{"t": 1, "src": "stdout", "data": {"type": "turn.star\n',
        b'{"t": 2, "src": "stdout", "data": "Reading additional input"}\n',
        b"\xff\xfe{{{\n",
        b'{"t": 3, "src": "stdout", "data": {"type": "turn.started"}}\n',
    ]
    run = Replay(translator("codex"), "codex")
    rows = list(run.rows(lines))
    assert len(rows) == 2
    assert end_json(run)["phase"] == "streaming"
    assert end_json(run)["unknown"] == 2


@case("U-086")
def test_a_result_changes_no_state_and_the_watchdog_keeps_it_from_hanging() -> None:
    talk = prompted()
    talk.sse("response.created")
    talk.decided("approved")
    talk.completed()
    talk.result()
    assert talk.activity == TOOL_USE
    talk.wait(WATCHDOG_S - 0.1)
    assert talk.activity == TOOL_USE
    talk.wait(0.2)
    assert talk.activity == THINKING
    talk.wait(IDLE_S * 2)
    assert talk.activity == "idle"


@case("U-100")
def test_a_hook_of_another_session_is_recognised_and_not_applied() -> None:
    talk = CodexTalk()
    talk.hook("UserPromptSubmit", turn_id="t1", prompt="hi")
    assert talk.hook("Stop", session="someone-else", turn_id="t9") == []
    assert talk.hook("UserPromptSubmit", session="someone-else", prompt="no") == []
    assert (talk.activity, talk.translator.unknown) == (THINKING, 0)
