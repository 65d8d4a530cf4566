"""Show part 0: the nine phases of seed 000, in the machine (`phase.step`) and in the folded view."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body, GateRequest
from quarterdeck.kernel import commands, phase, session_list
from quarterdeck.kernel.composer import composer
from quarterdeck.kernel.phase import STATES, Phase, step
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.summary import Now
from quarterdeck.kernel.view import View
from tests.conformance.marks import case, cases_from
from tests.support.sessions import READY, in_phase, works
from tests.support.tape import Tape, approval

each_state = pytest.mark.parametrize("state", STATES)

#: 000's asks for an approval, and what kind of action each is about.
ASKS = {
    "ask:tool": "tool",
    "ask:command": "command",
    "ask:browser_action_launch": "browser",
    "ask:use_mcp_server": "mcp",
}
FAILURES: dict[str, ev.TurnFailed] = {
    "ask:api_req_failed": ev.TurnFailed(kind="api", message="Overloaded"),
    "ask:mistake_limit_reached": ev.TurnFailed(kind="turn_limit", message="100 turns"),
    "ask:invalid_model": ev.TurnFailed(kind="invalid_model", message="No model gpt-9"),
    "ask:payment_required_prompt": ev.TurnFailed(kind="payment", message="No credits left"),
}


def asked(ask: str) -> ev.ApprovalRequired:
    """Create the event of a complete approval ask of 000."""
    request = GateRequest(gate_id="g1", call_id="c1", tool="shell", ask=ASKS[ask])  # pyright: ignore[reportArgumentType]
    return ev.ApprovalRequired(gate=request)


# ------------------------------------------------------------------------------------------------------ 0.A States


@case("0-001")
def test_without_a_session_the_manager_is_idle() -> None:
    assert View().state.phase.value == "idle"
    for rows, selected in (([], None), ([works().row], None), ([works().row], "no such session")):
        shown, flags = session_list.manager_phase(rows, selected)
        assert shown == "idle"
        assert not flags.showSpinner
        assert phase.spinner(shown) is None


@case("0-002")
def test_deselecting_a_session_is_no_event_to_it() -> None:
    tape = works()
    assert session_list.manager_phase([tape.row], "s1")[0] == "streaming"
    shown, flags = session_list.manager_phase([tape.row], None)
    assert (shown, flags.showSpinner) == ("idle", False)
    assert tape.phase == "streaming"


@case("0-003")
def test_a_prompt_begins_to_create_the_session() -> None:
    assert step(Phase(), "start_session").value == "creating"
    tape = Tape().opened("Fix the bug")
    assert tape.phase == "creating"
    assert tape.row.now == Now("Creating session...", "", tape.view.at)
    assert tape.row.flags.showSpinner
    assert phase.spinner(tape.phase) == "creating"


@case("0-004")
def test_creating_waits_for_the_session_however_long_it_takes() -> None:
    tape = in_phase("creating").add(ev.CheckpointSaved(), after=24 * 60 * 60 * 1000)
    assert tape.phase == "creating"
    assert tape.state.process.value == "starting"
    assert not tape.state.base_phase.created


@case("0-005")
def test_streaming_shows_the_text_as_it_comes() -> None:
    tape = works().add(ev.MessageStart(message_id="m1"))
    texts: list[str] = []
    for piece in ("Look", "ing", " at it"):
        tape.add(ev.MessageDelta(message_id="m1", delta=piece))
        texts.append(tape.entries[-1].text)
    assert texts == ["Look", "Looking", "Looking at it"]
    assert tape.row.flags.showSpinner
    assert phase.spinner(tape.phase) == "running"


@case("0-006")
def test_the_request_after_the_session_was_created_is_streaming() -> None:
    assert step(Phase("creating", created=True), "api_req_started").value == "streaming"
    assert in_phase("creating").add(READY).phase == "creating"
    assert in_phase("creating").add(READY, ev.RequestStart()).phase == "streaming"


@pytest.mark.parametrize(
    "ask", [pytest.param("ask:tool", marks=case("0-007")), pytest.param("ask:command", marks=case("0-008"))]
)
def test_a_complete_request_is_shown_as_needing_approval(ask: str) -> None:
    assert step(Phase("streaming"), ask, "complete").value == "waiting_approval"
    tape = works().add(ev.ToolCall(name="shell", call_id="c1", args={"command": "ls"}), asked(ask))
    assert tape.phase == "waiting_approval"
    shown = tape.entries[-1]
    assert shown.tool_step is not None
    assert shown.tool_step.tool_args == '{"command":"ls"}'
    assert shown.card is not None
    assert (shown.card.kind, shown.card.status) == ("approval", "open")
    assert not tape.row.flags.showSpinner


@case("0-009")
def test_with_auto_approve_waiting_ends_with_the_next_request() -> None:
    tape = works().add(ev.SettingChanged(mode="auto"), approval("g1", "c1"))
    assert tape.phase == "waiting_approval"
    assert tape.add(ev.RequestStart()).phase == "streaming"
    assert tape.state.gates.open == ()


@case("0-010")
def test_a_question_is_shown_and_typing_answers_it() -> None:
    tape = works().add(ev.AskUser(question="Which branch?", gate_id="g1"))
    assert tape.phase == "waiting_input"
    assert tape.entries[-1].text == "Which branch?"
    assert tape.row.flags.inputEnabled
    assert (composer(tape.state).enabled, composer(tape.state).action) == (True, "answer")
    assert not tape.row.flags.showSpinner


@case("0-011")
def test_a_finished_task_can_be_continued_or_followed_by_another() -> None:
    tape = works().add(ev.ResponseComplete(message_id="m1", blocks=(ev.Block(text="Done."),)), ev.AgentEnd())
    assert tape.phase == "completed"
    assert (tape.entries[-1].kind, tape.entries[-1].text) == ("assistant", "Done.")
    commands.check(tape.state, commands.Prompt(text="And now?"))
    commands.check(tape.state, commands.Prompt(text="Another task", new_task=True))
    assert not tape.row.flags.showSpinner


@pytest.mark.parametrize(
    ("ask", "finished"),
    [
        pytest.param("ask:resume_task", False, marks=case("0-012")),
        pytest.param("ask:resume_completed_task", True, marks=case("0-013")),
    ],
)
def test_what_can_be_resumed_offers_it(ask: str, finished: bool) -> None:
    assert step(Phase("streaming"), ask).value == "paused"
    tape = works().add(ev.TurnRestored(finished=finished))
    assert (tape.phase, tape.state.base_phase.ask) == ("paused", ask)
    assert tape.row.flags.showResumeButton
    assert "resume" in commands.allowed(tape.state)
    assert not tape.row.flags.showSpinner


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param("ask:api_req_failed", marks=case("0-014")),
        pytest.param("ask:mistake_limit_reached", marks=case("0-015")),
        pytest.param("ask:invalid_model", marks=case("0-016")),
    ],
)
def test_a_failure_offers_retry_and_cancel(ask: str) -> None:
    assert step(Phase("streaming"), ask).value == "error"
    tape = works().add(FAILURES[ask], ev.AgentEnd(outcome="failed"))
    row = tape.row
    assert row.phase == "error"
    assert row.error is not None
    assert row.error.message == FAILURES[ask].message
    assert tape.entries[-1].kind == "error"
    assert {"retry", "abort", "cancel"} <= set(commands.allowed(tape.state))
    assert not row.flags.showSpinner


@case("0-017")
@each_state
def test_a_process_error_ends_in_error_with_its_text(state: str) -> None:
    assert step(Phase(state), "process_error").value == "error"
    tape = in_phase(state).add(ev.ProcessError(message="spawn failed"))
    row = tape.row
    assert row.phase == "error"
    assert row.error is not None
    assert row.error.message == "spawn failed"


@case("0-018")
def test_stop_leaves_a_session_that_can_be_resumed() -> None:
    tape = works()
    commands.check(tape.state, commands.Abort())
    row = tape.add(ev.AgentAbort(reason="user"), origin="user").row
    assert row.phase == "stopped"
    assert row.flags.showResumeButton
    assert "resume" in commands.allowed(tape.state)
    assert not row.flags.showSpinner


# ------------------------------------------------------------------------------------ 0.B Events from the CLI process


@case("0-019")
def test_session_created_records_the_id_and_the_process_is_ready() -> None:
    tape = in_phase("creating").add(ev.AgentReady(native_session_id="n-42"), origin="process")
    assert tape.state.profile.native_session_id == "n-42"
    assert (tape.state.process.value, tape.state.process.origin) == ("up", "process")


@case("0-020")
def test_api_req_started_is_remembered_while_creating() -> None:
    assert step(Phase("creating"), "api_req_started") == Phase("creating", requested=True)
    assert in_phase("creating").add(ev.RequestStart()).state.base_phase.requested


@case("0-021")
def test_a_text_grows_and_is_final_and_the_phase_stays() -> None:
    tape = works().add(ev.MessageStart(message_id="m1"), ev.MessageDelta(message_id="m1", delta="Hel"))
    before = tape.state.phase
    assert tape.entries[-1].text == "Hel"
    tape.add(ev.ResponseComplete(message_id="m1", blocks=(ev.Block(text="Hello"),)))
    tape.add(ev.MessageDelta(message_id="m1", delta="too late"))
    assert tape.entries[-1].text == "Hello"
    assert tape.state.phase is before
    for guard in ("partial", "complete"):
        assert step(Phase("streaming"), "say:text", guard) == Phase("streaming")


@case("0-022")
def test_both_completion_events_have_the_same_outcome() -> None:
    said = step(Phase("streaming"), "say:completion_result", "complete")
    assert said.value == step(Phase("streaming"), "ask:completion_result").value == "completed"
    assert step(Phase("streaming"), "say:completion_result", "partial").value == "streaming"
    tape = works().add(ev.ResponseComplete(message_id="m1", blocks=(ev.Block(text="All green."),)))
    tape.add(ev.AgentEnd(), origin="stream")
    assert (tape.phase, tape.state.phase.origin) == ("completed", "stream")
    assert tape.entries[-1].text == "All green."


@case("0-023")
@each_state
def test_a_checkpoint_is_recorded_and_shown_nowhere(state: str) -> None:
    assert step(Phase(state), "say:checkpoint_saved") == Phase(state)
    tape = in_phase(state)
    before = tape.view
    tape.add(ev.CheckpointSaved(checkpoint_id="abc"))
    assert tape.view.index == before.index + 1
    assert tape.view.state is before.state
    assert tape.view.timeline is before.timeline


RECOGNISED: dict[str, tuple[str, Body, str]] = {
    "0-024": ("ask:tool", asked("ask:tool"), "waiting_approval"),
    "0-025": ("ask:command", asked("ask:command"), "waiting_approval"),
    "0-026": ("ask:followup", ev.AskUser(question="Which branch?", gate_id="g1"), "waiting_input"),
    "0-027": ("ask:completion_result", ev.AgentEnd(), "completed"),
    "0-028": ("ask:api_req_failed", FAILURES["ask:api_req_failed"], "error"),
    "0-029": ("ask:resume_task", ev.TurnRestored(), "paused"),
    "0-030": ("ask:resume_completed_task", ev.TurnRestored(finished=True), "paused"),
    "0-031": ("ask:mistake_limit_reached", FAILURES["ask:mistake_limit_reached"], "error"),
    "0-032": ("ask:payment_required_prompt", FAILURES["ask:payment_required_prompt"], "error"),
    "0-033": ("ask:invalid_model", FAILURES["ask:invalid_model"], "error"),
    "0-034": ("ask:browser_action_launch", asked("ask:browser_action_launch"), "waiting_approval"),
    "0-035": ("ask:use_mcp_server", asked("ask:use_mcp_server"), "waiting_approval"),
}


@cases_from(RECOGNISED, "ask, body, after")
def test_an_ask_is_recognised_and_its_source_noted(ask: str, body: Body, after: str) -> None:
    assert ask in phase.MACHINE.events
    assert step(Phase("streaming"), ask, "complete") == Phase(after, ask=ask)
    tape = works().add(body, origin="stream")
    assert tape.phase == after
    assert (tape.state.phase.index, tape.state.phase.origin) == (tape.view.index, "stream")
    gates = tape.state.gates.open
    assert (gates[0].ask if gates else tape.state.base_phase.ask) == ask
    if isinstance(body, ev.TurnFailed):
        assert tape.state.error is not None
        assert (tape.state.error.kind, tape.state.error.message) == (body.kind, body.message)


@case("0-034", "0-035")
@pytest.mark.parametrize("ask", ["ask:browser_action_launch", "ask:use_mcp_server"])
def test_a_partial_browser_or_server_request_is_still_streaming(ask: str) -> None:
    assert step(Phase("streaming"), ask, "partial") == Phase("streaming")
    assert works().add(ev.ToolCall(name="browser", call_id="c1", partial=True)).phase == "streaming"


@case("0-036", "0-074")
@each_state
def test_an_exit_with_a_code_is_an_error_and_the_code_is_kept(state: str) -> None:
    assert step(Phase(state), "process_exit", "error").value == "error"
    tape = in_phase(state).add(ev.ProcessExited(code=3), origin="process")
    assert tape.phase == "error"
    assert tape.state.exit == Exit(3, None)
    assert tape.state.error is not None
    assert "3" in tape.state.error.message
    assert tape.state.process.value == "none"


@case("0-036", "0-075")
@each_state
def test_an_exit_with_code_zero_is_completed_when_nothing_is_asked(state: str) -> None:
    assert step(Phase(state, created=True, requested=True), "process_exit", "success").value == "completed"


@case("0-036", "0-075")
@pytest.mark.parametrize("state", ["idle", "creating", "streaming", "completed", "stopped"])
def test_an_exit_with_code_zero_is_seen_as_completed(state: str) -> None:
    tape = in_phase(state).add(ev.ProcessExited(code=0), origin="process")
    assert tape.phase == "completed"
    assert tape.state.exit == Exit(0, None)


@case("0-037")
def test_a_process_error_while_creating_keeps_its_text() -> None:
    tape = in_phase("creating").add(ev.ProcessError(message="command not found"), origin="process")
    assert (tape.phase, tape.state.phase.origin) == ("error", "process")
    assert tape.state.error is not None
    assert tape.state.error.message == "command not found"


# -------------------------------------------------------------------------------------------- 0.C Events from the user


@case("0-038")
def test_a_session_starts_with_a_prompt() -> None:
    assert Tape().opened("Fix the bug").phase == "creating"
    assert step(Phase("idle"), "start_session").value == "creating"


@case("0-042")
def test_cancel_stops_the_run() -> None:
    tape = works()
    commands.check(tape.state, commands.Abort())
    tape.add(ev.AgentAbort(), origin="user")
    assert (tape.state.run.value, tape.state.turn.is_open, tape.phase) == ("idle", False, "stopped")


@case("0-043")
def test_resume_goes_on() -> None:
    tape = in_phase("paused")
    commands.check(tape.state, commands.Resume())
    assert tape.add(ev.TurnContinued(), origin="user").phase == "streaming"
    assert tape.add(ev.AgentStart()).state.run.value == "running"


# --------------------------------------------------------------------------------------------- 0.D Transition table

Given = tuple[Phase, str, str | None, Phase]
RESTARTED = Phase("completed", created=True, requested=True, ask="ask:completion_result")
ROWS: dict[str, Given] = {
    "0-044": (Phase("idle"), "start_session", None, Phase("creating")),
    "0-045": (Phase("creating", requested=True), "session_created", None, Phase("streaming", True, True)),
    "0-046": (Phase("creating"), "session_created", None, Phase("creating", created=True)),
    "0-047": (Phase("creating"), "api_req_started", None, Phase("creating", requested=True)),
    "0-048": (Phase("creating"), "process_error", None, Phase("error")),
    "0-049": (Phase("streaming"), "say:text", "partial", Phase("streaming")),
    "0-050": (Phase("streaming"), "say:text", "complete", Phase("streaming")),
    "0-051": (Phase("streaming"), "ask:tool", "partial", Phase("streaming")),
    "0-052": (Phase("streaming"), "ask:tool", "complete", Phase("waiting_approval", ask="ask:tool")),
    "0-053": (Phase("streaming"), "ask:command", "complete", Phase("waiting_approval", ask="ask:command")),
    "0-054": (Phase("streaming"), "ask:followup", "complete", Phase("waiting_input", ask="ask:followup")),
    "0-055": (Phase("streaming"), "ask:completion_result", None, Phase("completed", ask="ask:completion_result")),
    "0-056": (Phase("streaming"), "ask:api_req_failed", None, Phase("error", ask="ask:api_req_failed")),
    "0-057": (Phase("streaming"), "ask:mistake_limit_reached", None, Phase("error", ask="ask:mistake_limit_reached")),
    "0-058": (Phase("streaming"), "ask:resume_task", None, Phase("paused", ask="ask:resume_task")),
    "0-059": (Phase("streaming"), "cancel_session", None, Phase("stopped")),
    "0-060": (Phase("waiting_approval", ask="ask:tool"), "approve_action", None, Phase("streaming")),
    "0-061": (Phase("waiting_approval", ask="ask:tool"), "reject_action", None, Phase("streaming")),
    "0-062": (Phase("waiting_approval", ask="ask:tool"), "api_req_started", None, Phase("streaming", requested=True)),
    "0-063": (Phase("waiting_approval", ask="ask:tool"), "cancel_session", None, Phase("stopped")),
    "0-064": (Phase("waiting_input", ask="ask:followup"), "send_message", None, Phase("streaming")),
    "0-065": (Phase("waiting_input", ask="ask:followup"), "cancel_session", None, Phase("stopped")),
    "0-066": (RESTARTED, "send_message", None, Phase("streaming", True, True)),
    "0-067": (RESTARTED, "start_session", None, Phase("creating")),
    "0-068": (Phase("paused", ask="ask:resume_task"), "resume_session", None, Phase("streaming")),
    "0-069": (Phase("paused", ask="ask:resume_task"), "cancel_session", None, Phase("stopped")),
    "0-070": (Phase("error", ask="ask:api_req_failed"), "retry", None, Phase("streaming")),
    "0-071": (Phase("error", ask="ask:api_req_failed"), "cancel_session", None, Phase("stopped")),
    "0-072": (Phase("stopped"), "resume_session", None, Phase("streaming")),
    "0-073": (Phase("stopped", True, True), "start_session", None, Phase("creating")),
}


@cases_from(ROWS, "before, event, guard, after")
def test_row(before: Phase, event: str, guard: str | None, after: Phase) -> None:
    assert step(before, event, guard) == after


@case("0-046")
def test_the_id_of_a_session_that_still_starts_is_remembered() -> None:
    tape = in_phase("creating").add(ev.AgentReady(native_session_id="n-42"))
    assert (tape.phase, tape.state.profile.native_session_id) == ("creating", "n-42")


@case("0-067", "0-073")
@pytest.mark.parametrize("state", ["completed", "stopped"])
def test_a_new_task_waits_for_both_signals_again(state: str) -> None:
    tape = in_phase(state).add(ev.PromptReceived(text="Another task", new_task=True))
    assert tape.state.base_phase == Phase("creating")
    assert tape.phases(ev.RequestStart(), READY) == ["creating", "streaming"]


@case("0-067")
def test_a_new_task_forgets_the_old_error() -> None:
    tape = works().add(ev.ProcessError(message="gone"), ev.ProcessExited(code=0))
    assert tape.phase == "completed"
    tape.add(ev.PromptReceived(text="Another task", new_task=True))
    assert (tape.phase, tape.state.error) == ("creating", None)


# -------------------------------------------------------------------------------------------------- 0.E Diagram edges


@case("0-076")
@pytest.mark.parametrize("signals", [(READY, ev.RequestStart()), (ev.RequestStart(), READY)])
def test_both_signals_in_either_order_lead_from_creating_to_streaming(signals: tuple[Body, Body]) -> None:
    assert Tape().phases(ev.SessionOpened(agent="a", prompt="Go"), *signals) == ["idle", "creating", "streaming"]


EDGES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "0-077": ("streaming", ("ask:invalid_model",), "error"),
    "0-078": ("streaming", ("ask:payment_required", "ask:payment_required_prompt"), "error"),
    "0-079": ("error", ("retry", "resume_session"), "streaming"),
    "0-081": ("completed", ("send_message",), "streaming"),
}


@cases_from(EDGES, "before, events, after")
def test_edge(before: str, events: tuple[str, ...], after: str) -> None:
    assert {step(Phase(before), event).value for event in events} == {after}


@case("0-079")
@pytest.mark.parametrize("pressed", [ev.TurnRetried(), ev.TurnContinued()])
def test_retry_and_resume_both_leave_an_error(pressed: Body) -> None:
    assert in_phase("error").add(pressed).phase == "streaming"


@case("0-080")
def test_a_rule_that_approves_leads_back_to_streaming() -> None:
    yes = ev.ApprovalResolved(gate_id="g1", status="approved", by="rule", rule="allow ls")
    assert works().phases(approval("g1", "c1"), yes) == ["streaming", "waiting_approval", "streaming"]


@case("0-082")
def test_a_stopped_session_that_is_deselected_stays_stopped() -> None:
    tape = in_phase("stopped")
    assert session_list.manager_phase([tape.row], None)[0] == "idle"
    assert tape.phase == "stopped"
