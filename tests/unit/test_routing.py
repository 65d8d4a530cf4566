"""Test what a message means: refused, resume, answer, steer, queue or prompt."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.kernel.routing import Intent, Route, is_busy, is_held, open_question, route
from quarterdeck.kernel.view import View
from tests.support.sessions import in_lifecycle, in_phase, waits_for_its_first_prompt, works
from tests.support.tape import Tape, approval

INTENTS: tuple[Intent, ...] = ("message", "steer", "queue")
each_intent = pytest.mark.parametrize("intent", INTENTS)


def question(gate_id: str, path: tuple[str, ...] = ()) -> ev.AskUser:
    return ev.AskUser(question="Which branch?", gate_id=gate_id, agent_path=path)


def cannot_steer() -> Tape:
    return Tape().opened().add(ev.AgentReady(), ev.AgentStart())


# --------------------------------------------------------------------------------------------------- outside `active`


@each_intent
@pytest.mark.parametrize(
    ("status", "reason"),
    [("archived", "Session is archived"), ("error", "Session failed and cannot be continued")],
)
def test_a_session_that_is_over_refuses_every_text(status: str, reason: str, intent: Intent) -> None:
    assert route(in_lifecycle(status).state, intent) == Route("refused", reason)


@each_intent
def test_a_suspended_session_is_resumed_first(intent: Intent) -> None:
    assert route(in_lifecycle("suspended").state, intent) == Route("resume_then_prompt", "Resumes and sends")


@each_intent
def test_a_suspended_session_that_cannot_be_resumed_refuses_and_says_what_to_do(intent: Intent) -> None:
    tape = Tape().opened().add(ev.AgentReady(resumable=False), ev.SessionSuspended())
    assert route(tape.state, intent) == Route("refused", "This session cannot be resumed; continue in a new one")


@each_intent
def test_one_whose_agent_was_never_ready_is_simply_started(intent: Intent) -> None:
    tape = Tape().opened().add(ev.SessionSuspended())
    assert route(tape.state, intent).meaning == "resume_then_prompt"


@each_intent
def test_without_a_session_there_is_nobody_to_write_to(intent: Intent) -> None:
    assert route(View().state, intent) == Route("refused", "There is no such session")


# ------------------------------------------------------------------------------------------------------ in an active one


@pytest.mark.parametrize("name", ["idle", "completed", "paused", "error", "stopped"])
@each_intent
def test_when_nothing_runs_every_text_is_a_prompt(name: str, intent: Intent) -> None:
    assert route(in_phase(name).state, intent) == Route("prompt")


def test_a_running_turn_is_steered() -> None:
    assert route(works().state) == route(works().state, "steer") == Route("steer", "Read at the next step")


@pytest.mark.parametrize("name", ["creating", "streaming", "waiting_approval", "waiting_input"])
def test_queueing_on_purpose_waits_for_the_end_of_the_turn(name: str) -> None:
    assert route(in_phase(name).state, "queue") == Route("queue", "Read when the turn is over")


@pytest.mark.parametrize("intent", ["message", "steer"])
def test_an_agent_that_cannot_be_steered_reads_it_later(intent: Intent) -> None:
    assert route(cannot_steer().state, intent) == Route("queue", "Read when the turn is over")


@pytest.mark.parametrize(("limit", "texts"), [(3, 3), (1, 1), (0, 0)])
@pytest.mark.parametrize("intent", ["message", "steer"])
def test_past_its_limit_the_steering_queue_takes_no_more(limit: int, texts: int, intent: Intent) -> None:
    tape = works().add(*(ev.SteeringReceived(ref=f"r{number}", text="x") for number in range(texts)))
    full = Route("queue", "Steering queue is full; read when the turn is over")
    assert route(tape.state, intent, limit=limit) == full
    assert route(tape.state, intent, limit=limit + 1).meaning == "steer"


def test_queued_prompts_leave_room_for_steering() -> None:
    tape = works().add(*(ev.PromptQueued(text="x", message_id=f"m{number}") for number in range(5)))
    assert route(tape.state).meaning == "steer"


@pytest.mark.parametrize("intent", ["message", "steer"])
def test_a_held_turn_reads_it_after_the_decision(intent: Intent) -> None:
    tape = in_phase("waiting_approval")
    assert is_held(tape.state)
    expected = Route("queue", "Read when the approval is decided and the turn is over")
    assert route(tape.state, intent) == expected


def test_a_turn_with_a_running_call_beside_the_approval_is_not_held() -> None:
    tape = works().add(ev.ToolExecutionStart(name="read", call_id="c2"), approval("g1", "c1"))
    assert not is_held(tape.state)
    assert route(tape.state).meaning == "steer"


def test_an_open_question_takes_the_message_as_its_answer() -> None:
    assert route(in_phase("waiting_input").state) == Route("answer", "Answers the question", "g1")


def test_steering_on_purpose_is_not_an_answer() -> None:
    assert route(in_phase("waiting_input").state, "steer").meaning == "steer"


def test_a_question_outside_a_turn_is_answered_too() -> None:
    tape = waits_for_its_first_prompt().add(question("q1"))
    assert (route(tape.state).meaning, route(tape.state, "steer").meaning) == ("answer", "prompt")


def test_a_dialog_takes_no_typed_text() -> None:
    tape = works().add(ev.DialogRequired(method="input", title="Name?", gate_id="d1"))
    assert open_question(tape.state) is None
    assert route(tape.state).meaning == "steer"


def test_the_oldest_question_of_the_main_agent_is_answered_first() -> None:
    tape = works().add(question("q1", ("helper",)), question("q2"), question("q3"))
    assert route(tape.state).gate_id == "q2"
    tape.add(ev.UserResponded(gate_id="q2"), ev.UserResponded(gate_id="q3"))
    assert route(tape.state).gate_id == "q1"


@pytest.mark.parametrize("name", ["creating", "streaming", "waiting_approval", "waiting_input"])
def test_a_turn_that_is_open_or_on_its_way_is_busy(name: str) -> None:
    assert is_busy(in_phase(name).state)


def test_a_promised_turn_is_busy_before_it_begins() -> None:
    tape = in_phase("completed").add(ev.PromptReceived(text="Go on"))
    assert not tape.state.turn.is_open
    assert is_busy(tape.state)
