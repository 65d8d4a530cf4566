"""Show part 3 for Codex: OTLP log records under seed 003's rules (3.C, 3.D, 3.E and the decisions beside them)."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.harness.codex.telemetry import IDLE_S, WATCHDOG_S
from quarterdeck.kernel.activity import CODEX, THINKING, TOOL_USE, WAITING, decision_guard
from tests.conformance.marks import case
from tests.support.codex_session import THREAD, CodexTalk
from tests.support.translator_session import kinds


def idle() -> CodexTalk:
    talk = CodexTalk()
    talk.record("conversation_starts", model="gpt-5.5")
    return talk


def thinking() -> CodexTalk:
    talk = idle()
    talk.record("user_prompt", prompt="Fix it")
    talk.sse("response.created")
    return talk


def using_a_tool() -> CodexTalk:
    talk = thinking()
    talk.decided("approved")
    return talk


def waiting() -> CodexTalk:
    talk = thinking()
    talk.decided("ask_user")
    return talk


def states(bodies: list[Body]) -> list[tuple[str, str | None]]:
    return [(body.state, body.sub) for body in bodies if isinstance(body, ev.StateChange)]


def unknown(talk: CodexTalk) -> int:
    return talk.translator.unknown


# --------------------------------------------------------------------------------------------------------- 3.A, 3.C


@case("3-001")
def test_nothing_raw_goes_further_than_the_translator() -> None:
    talk = CodexTalk()
    bodies = talk.record("conversation_starts") + talk.record("user_prompt", prompt="hi") + talk.completed()
    bodies += talk.hook("Stop", turn_id="t1") + talk.notify()
    assert bodies
    assert all(type(body) in ev.TYPES for body in bodies)
    assert not any("codex." in name for name in kinds(bodies))


@case("3-006")
def test_conversation_starts_is_recognised() -> None:
    talk = CodexTalk()
    ready = talk.record("conversation_starts", model="gpt-5.5", **{"app.version": "0.166.0"})[0]
    assert isinstance(ready, ev.AgentReady)
    assert (ready.native_session_id, ready.model, ready.version, ready.resumable) == (
        THREAD,
        "gpt-5.5",
        "0.166.0",
        True,
    )
    assert unknown(talk) == 0


@case("3-007")
def test_user_prompt_is_recognised() -> None:
    talk = idle()
    events = talk.record("user_prompt", prompt="Fix it")
    assert [body.text for body in events if isinstance(body, ev.PromptReceived)] == ["Fix it"]
    assert unknown(talk) == 0


@case("3-008")
@pytest.mark.parametrize("decision", ["approved", "ask_user", "denied", "something_new"])
def test_tool_decision_is_recognised_and_its_value_is_kept(decision: str) -> None:
    talk = thinking()
    talk.decided(decision)
    asked = waiting()
    events = asked.decided(decision)
    assert unknown(talk) == unknown(asked) == 0
    assert talk.activity == {"approved": TOOL_USE, "ask_user": WAITING}.get(decision, THINKING)
    reasons = [body.reason for body in events if isinstance(body, ev.ApprovalResolved)]
    assert reasons == ([] if decision == "ask_user" else [decision])


@case("3-009")
def test_tool_result_is_recognised() -> None:
    talk = using_a_tool()
    assert "tool_execution_end" in kinds(talk.result(output="done"))
    assert unknown(talk) == 0


@case("3-010")
def test_response_created_is_recognised() -> None:
    talk = idle()
    assert "request_start" in kinds(talk.sse("response.created"))
    assert unknown(talk) == 0


@case("3-011")
def test_response_completed_is_recognised() -> None:
    talk = thinking()
    assert kinds(talk.completed()) == ["usage"]
    assert unknown(talk) == 0


@case("3-012")
@pytest.mark.parametrize(
    "kind", ["response.output_text.delta", "response.output_item.done", "response.from_the_future"]
)
@pytest.mark.parametrize("start", [idle, thinking, using_a_tool, waiting])
def test_every_other_kind_of_stream_event_is_ignored(kind: str, start: type[CodexTalk]) -> None:
    talk = start()
    before = talk.activity
    assert talk.sse(kind) == []
    assert (talk.activity, unknown(talk)) == (before, 0)


# -------------------------------------------------------------------------------------------------------------- 3.D


@case("3-013")
def test_at_first_it_is_initialized() -> None:
    assert CodexTalk().activity == "initialized"


@case("3-014")
def test_a_conversation_that_starts_is_idle() -> None:
    talk = CodexTalk()
    assert kinds(talk.record("conversation_starts"))[0] == "agent_ready"
    assert talk.activity == "idle"


@case("3-015")
def test_a_prompt_makes_it_think() -> None:
    talk = idle()
    events = talk.record("user_prompt", prompt="Fix it")
    assert "prompt_received" in kinds(events)
    assert states(events) == [("active", "thinking")]
    assert talk.activity == THINKING


@case("3-016")
def test_an_approved_call_is_tool_use() -> None:
    talk = thinking()
    events = talk.decided("approved")
    assert "tool_execution_start" in kinds(events)
    assert states(events) == [("active", "tool_use")]
    assert talk.activity == TOOL_USE


@case("3-017")
def test_a_call_that_asks_is_waiting_for_permission() -> None:
    talk = thinking()
    events = talk.decided("ask_user")
    assert "approval_required" in kinds(events)
    assert states(events) == [("active", "waiting_for_permission")]
    assert (talk.activity, talk.phase) == (WAITING, "waiting_approval")


@case("3-018")
@pytest.mark.parametrize("decision", ["approved", "approved_for_session", "denied", "abort", "unknown"])
def test_any_decision_but_ask_user_leaves_waiting_for_tool_use(decision: str) -> None:
    talk = waiting()
    assert states(talk.decided(decision)) == [("active", "tool_use")]
    assert (talk.activity, talk.gates) == (TOOL_USE, [])


@case("3-019")
def test_the_model_answers_again_after_a_tool() -> None:
    talk = using_a_tool()
    assert states(talk.sse("response.created")) == [("active", "thinking")]
    assert talk.activity == THINKING


@case("3-020")
def test_a_completion_with_tokens_is_the_end_after_the_debounce() -> None:
    talk = thinking()
    assert kinds(talk.completed()) == ["usage"]
    assert talk.activity == THINKING
    assert states(talk.wait(IDLE_S)) == [("idle", None)]
    assert (talk.activity, talk.phase) == ("idle", "completed")


@case("3-021")
def test_a_result_in_tool_use_changes_no_state() -> None:
    talk = using_a_tool()
    events = talk.result()
    assert kinds(events) == ["tool_execution_end"]
    assert talk.activity == TOOL_USE


@case("3-022")
def test_a_result_while_thinking_changes_no_state() -> None:
    talk = thinking()
    events = talk.result("call_z", output="hello")
    assert kinds(events) == ["tool_call", "tool_execution_end"]
    assert (talk.activity, talk.tools()) == (THINKING, [("exec_command", "done")])


@case("3-023")
def test_a_completion_in_tool_use_is_counted_and_nothing_else() -> None:
    talk = using_a_tool()
    assert kinds(talk.completed()) == ["usage"]
    assert talk.activity == TOOL_USE


# -------------------------------------------------------------------------------------------------------------- 3.E


@case("3-024")
@pytest.mark.parametrize("start", [idle, thinking, using_a_tool, waiting])
def test_results_and_then_silence_never_mean_idle(start: type[CodexTalk]) -> None:
    talk = start()
    before = talk.activity
    for call in ("call_a", "call_b", "call_c"):
        talk.result(call)
    seen = {body.state for body in talk.wait(600) if isinstance(body, ev.StateChange)}
    assert "idle" not in seen
    assert before == "idle" or talk.activity != "idle"


@case("3-025")
def test_records_give_normalised_events_and_the_kernel_derives_the_state() -> None:
    talk = using_a_tool()
    assert set(kinds(talk.bodies)) >= {
        "agent_ready",
        "prompt_received",
        "agent_start",
        "request_start",
        "tool_execution_start",
        "state_change",
    }
    assert talk.state.activity.type == "state_change"


@case("3-026")
def test_a_completion_in_tool_use_is_one_of_several_even_after_the_debounce() -> None:
    talk = using_a_tool()
    talk.completed()
    assert talk.wait(IDLE_S * 5) == []
    assert (talk.activity, talk.phase) == (TOOL_USE, "streaming")


@case("3-027")
def test_after_tools_in_a_row_only_the_models_answer_is_thinking() -> None:
    talk = using_a_tool()
    talk.decided("approved", "call_b")
    talk.result("call_a")
    talk.result("call_b")
    talk.sse("response.output_text.delta")
    assert talk.activity == TOOL_USE
    talk.sse("response.created")
    assert talk.activity == THINKING


@case("3-028")
def test_a_decision_within_the_debounce_cancels_the_idle() -> None:
    talk = thinking()
    before = len(talk.bodies)
    talk.completed()
    talk.wait(IDLE_S - 0.05)
    talk.decided("approved")
    talk.wait(IDLE_S * 3)
    assert talk.activity == TOOL_USE
    assert ("idle", None) not in states(talk.bodies[before:])


@case("3-029")
def test_the_debounce_ends_in_idle_once() -> None:
    talk = thinking()
    talk.completed()
    assert talk.activity == THINKING
    assert states(talk.wait(60)) == [("idle", None)]
    assert talk.translator.deadline() is None


@case("3-030")
@pytest.mark.parametrize("tokens", [{}, {"input_token_count": "0", "output_token_count": "0"}])
def test_a_completion_without_tokens_is_none(tokens: dict[str, str]) -> None:
    talk = thinking()
    assert talk.sse("response.completed", **tokens) == []
    events = talk.wait(IDLE_S * 5)
    assert (talk.activity, events) == (THINKING, [])


# -------------------------------------------------------------------------------------------------------------- 3.H


@case("3-073")
@pytest.mark.parametrize("start", [idle, thinking, using_a_tool, waiting])
def test_a_prompt_is_thinking_from_anywhere(start: type[CodexTalk]) -> None:
    talk = start()
    events = talk.record("user_prompt", prompt="And another thing")
    assert "prompt_received" in kinds(events)
    assert talk.activity == THINKING


@case("3-075")
@pytest.mark.parametrize("late", ["response.created", "approved"])
def test_what_is_left_of_an_interrupted_turn_does_not_begin_another(late: str) -> None:
    talk = thinking()
    talk.hook("Interrupt")
    assert (talk.activity, talk.phase) == ("idle", "stopped")
    events = talk.sse(late, 0.4) if late.startswith("response") else talk.decided(late)
    assert (events, talk.activity) == ([], "idle")
    talk.sse("response.created", 0.6)
    assert talk.activity == THINKING


# -------------------------------------------------------------------- the documented table matches the records

START = {"idle": idle, THINKING: thinking, TOOL_USE: using_a_tool, WAITING: waiting}


@pytest.mark.parametrize("before", START)
@pytest.mark.parametrize("decision", ["approved", "ask_user", "denied"])
def test_every_decision_does_what_the_table_says(before: str, decision: str) -> None:
    talk = START[before]()
    talk.decided(decision, "call_n" if before in ("idle", THINKING) else "call_a")
    assert talk.activity == CODEX.step(before, "codex.tool_decision", decision_guard(before, decision))


def test_the_watchdog_thinks_when_all_calls_are_answered_and_nothing_comes() -> None:
    talk = using_a_tool()
    talk.result()
    talk.wait(WATCHDOG_S - 0.1)
    assert talk.activity == TOOL_USE
    talk.wait(0.2)
    assert talk.activity == THINKING
