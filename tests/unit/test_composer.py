"""Test the text field: when it is disabled, what Enter does, and the line that says so."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.kernel.composer import Composer, composer
from quarterdeck.kernel.view import View
from tests.support.sessions import in_lifecycle, in_phase, works
from tests.support.tape import Tape


@pytest.mark.parametrize(
    ("name", "action", "reason"),
    [
        ("idle", "prompt", ""),
        ("creating", "queue", "Read when the turn is over"),
        ("streaming", "steer", "Read at the next step"),
        ("waiting_approval", "queue", "Read when the approval is decided and the turn is over"),
        ("waiting_input", "answer", "Answers the question"),
        ("completed", "prompt", ""),
        ("paused", "resume_and_send", "Resumes and sends"),
        ("error", "retry_with", "Tries again with this text"),
        ("stopped", "resume_and_send", "Resumes and sends"),
    ],
)
def test_in_an_active_session_it_is_on_and_says_what_enter_does(name: str, action: str, reason: str) -> None:
    box = composer(in_phase(name).state)
    assert (box.enabled, box.action, box.reason) == (True, action, reason)


@pytest.mark.parametrize(
    ("status", "reason"),
    [("archived", "Session is archived"), ("error", "Session failed and cannot be continued")],
)
def test_a_session_that_is_over_has_it_off(status: str, reason: str) -> None:
    assert composer(in_lifecycle(status).state) == Composer(False, "prompt", reason)


@pytest.mark.parametrize("name", ["idle", "streaming", "waiting_input", "error"])
def test_a_suspended_session_resumes_and_sends_whatever_it_did(name: str) -> None:
    assert composer(in_lifecycle("suspended", name).state) == Composer(True, "resume_and_send", "Resumes and sends")


def test_a_suspended_session_that_cannot_resume_goes_on_in_a_new_one() -> None:
    tape = Tape().opened().add(ev.AgentReady(), ev.SessionSuspended())
    assert composer(tape.state) == Composer(True, "prompt", "Continues in a new session with this text")


@pytest.mark.parametrize(
    "happened", [(), (ev.AgentStart(),), (ev.AgentStart(), ev.AgentEnd()), (ev.SessionSuspended(),)]
)
def test_nothing_is_sent_to_an_agent_on_a_terminal(happened: tuple[ev.Body, ...]) -> None:
    opened = ev.SessionOpened(agent="claude", owner="terminal")
    tape = Tape().add(opened, ev.AgentReady(capabilities=("questions",), resumable=True), *happened)
    expected = Composer(True, "prompt", "Runs in a terminal; continues in a new session with this text")
    assert composer(tape.state) == expected
    if happened == (ev.AgentStart(),):
        asked = tape.add(ev.AskUser(question="?", gate_id="q1"))
        assert composer(asked.state) == Composer(True, "answer", "Answers the question")
    assert composer(tape.add(ev.OwnerChanged(epoch=2, owner="deck")).state) != expected


def test_without_a_session_a_text_begins_one() -> None:
    box = composer(View().state)
    assert (box.enabled, box.action) == (True, "prompt")


def test_an_agent_that_cannot_be_steered_gets_the_text_later() -> None:
    tape = Tape().opened().add(ev.AgentReady(), ev.AgentStart())
    assert composer(tape.state) == Composer(True, "queue", "Read when the turn is over")


def test_a_full_steering_queue_is_told() -> None:
    tape = works().add(*(ev.SteeringReceived(ref=f"r{number}", text="x") for number in range(3)))
    assert composer(tape.state) == Composer(True, "queue", "Steering queue is full; read when the turn is over")
