"""Show part U.3 for Claude Code: limits, failures, and sources that send nonsense."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from tests.conformance.marks import case
from tests.support.claude_session import Session, text

LIMIT = "Claude AI usage limit reached|1755806400"


def failing(words: str, status: int | None = None, error: str = "unknown") -> Session:
    """Create a turn that fails permanently, as the stream reports it."""
    agent = Session().starts().init()
    agent.line(
        "assistant",
        message={"id": "f2", "model": "<synthetic>", "content": [text(words)]},
        is_api_error_message=True,
        error=error,
        api_error_status=status,
    )
    return agent.result(is_error=True, result=words, api_error_status=status, terminal_reason="api_error")


@case("U-081")
def test_a_usage_limit_is_idle_with_its_reason_and_reset_time() -> None:
    for agent in (failing(LIMIT, 429), Session().opens().prompts().hook("StopFailure", last_assistant_message=LIMIT)):
        assert agent.activity == "idle"
        assert agent.phase == "error"
        error = agent.state.error
        assert error is not None
        assert (error.kind, error.resets_at) == ("usage_limit", 1755806400000)


@case("U-081")
def test_a_plain_429_is_no_usage_limit() -> None:
    agent = failing("API Error: 429 too many requests", 429, "rate_limit")
    error = agent.state.error
    assert error is not None
    assert (error.kind, error.resets_at) == ("rate_limit", None)


@case("U-081")
def test_a_reset_time_may_come_on_a_line_of_its_own() -> None:
    agent = Session().starts().init()
    agent.line("rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": 1755806400})
    agent.result(is_error=True, result="You've hit your limit · resets 3pm", api_error_status=429)
    error = agent.state.error
    assert error is not None
    assert (error.kind, error.resets_at) == ("usage_limit", 1755806400000)


@case("U-082")
@pytest.mark.parametrize("by", ["hooks", "stream"])
def test_a_prompt_under_a_usage_limit_is_counted_without_a_flash_of_activity(by: str) -> None:
    agent = Session().opens().prompts("one").hook("StopFailure", last_assistant_message=LIMIT)
    before = len(agent.events_of(ev.PromptReceived))
    if by == "hooks":
        agent.prompts("two", "p2")
        seen = [agent.activity]
        agent.hook("StopFailure", last_assistant_message=LIMIT)
    else:
        agent.sends("two").init().system("status", status="requesting")
        seen = [agent.activity]
        agent.result(is_error=True, result=LIMIT, api_error_status=429)
    seen.append(agent.activity)
    assert seen == ["idle", "idle"]
    assert agent.phase == "error"
    assert len(agent.events_of(ev.PromptReceived)) == before + 1
    assert agent.words("user") == ["one", "two"]


@case("U-082")
def test_a_prompt_that_is_worked_on_after_all_is_told_at_once_or_after_a_second() -> None:
    agent = Session().opens().prompts("one").hook("StopFailure", last_assistant_message=LIMIT).prompts("two", "p2")
    assert agent.phase == "error"
    assert agent.passes(1.5).phase == "streaming"
    agent = Session().opens().prompts("one").hook("StopFailure", last_assistant_message=LIMIT).prompts("two", "p2")
    assert agent.calls().phase == "streaming"
    assert agent.words("user") == ["one", "two"]


@case("U-083")
@pytest.mark.parametrize(
    ("words", "status", "error", "kind"),
    [
        ("Invalid API key · Please run /login", 401, "authentication_failed", "auth"),
        ("API Error: 401 nope", 401, "unknown", "auth"),
        ("API Error: 500 internal", 500, "server_error", "api"),
        ("API Error: Repeated 529 Overloaded errors", 529, "overloaded", "api"),
        ("API Error: Connection error.", None, "unknown", "network"),
        ("API Error: connect ECONNREFUSED 127.0.0.1:9", None, "unknown", "network"),
        ("Credit balance is too low", 400, "billing_error", "payment"),
        ("API Error: 402 payment required", 402, "unknown", "payment"),
        ("There's an issue with the selected model (x). It may not exist", 404, "invalid_request", "invalid_model"),
        ("Prompt is too long", 400, "invalid_request", "api"),
    ],
)
def test_a_failure_is_idle_with_its_reason(words: str, status: int | None, error: str, kind: str) -> None:
    for agent in (
        failing(words, status, error),
        Session().opens().prompts().hook("StopFailure", error=error, last_assistant_message=words),
    ):
        assert agent.activity == "idle"
        assert agent.phase == "error"
        assert agent.state.error is not None
        assert agent.state.error.kind == kind


@case("U-083")
def test_a_failure_is_over_with_the_next_turn_that_works_and_not_before() -> None:
    agent = failing("API Error: 500 internal", 500, "server_error")
    agent.sends("again").init().result(is_error=True, result="API Error: 500 internal", api_error_status=500)
    assert agent.state.error is not None
    agent.sends("again").init().replies(text("fine"), message_id="m9").result()
    assert agent.state.error is None
    assert agent.phase == "completed"


@case("U-084")
def test_an_agent_that_gave_up_without_a_hook_is_not_stuck() -> None:
    status = {"pid": 7, "sessionId": "5e55", "status": "busy"}
    agent = Session().opens().prompts().feed("file", status)
    assert agent.passes(5).activity == "active/thinking"
    agent.feed("file", {**status, "status": "idle"})
    assert agent.passes(1).activity == "idle"


@case("U-085")
@pytest.mark.parametrize("src", ["stdout", "stdin", "hook", "hook.reply", "file", "stderr", "otlp.log", "notify"])
@pytest.mark.parametrize("junk", [None, "{not json", 7, [], {"raw": "{half a li"}])
def test_what_is_no_message_is_ignored(src: str, junk: object) -> None:
    agent = Session().opens().prompts()
    shown = agent.view
    agent.feed(src, junk)
    assert agent.said == []
    assert agent.view is shown
