"""Test the errors that users see: what happened, what to do next, and a code for programs."""

from __future__ import annotations

import pytest

from quarterdeck.errors import AlreadyDecided, MalformedEvent, NoSuchGate, NotAllowed, QuarterdeckError, QueueFull

#: (error, code, message, hint)
ERRORS = [
    (QuarterdeckError("It broke", "Mend it."), "error", "It broke", "Mend it."),
    (QuarterdeckError("It broke"), "error", "It broke", ""),
    (
        MalformedEvent("not JSON", "byte 3"),
        "malformed_event",
        "malformed event at byte 3: not JSON",
        "Send one JSON object with the fields listed in docs/events.md.",
    ),
    (
        NotAllowed("retry", "the session is idle", ("prompt", "steer"), "nothing failed"),
        "not_allowed",
        "retry is not allowed while the session is idle: nothing failed",
        "Allowed now: prompt, steer.",
    ),
    (
        NotAllowed("retry", "there is no session", ()),
        "not_allowed",
        "retry is not allowed while there is no session",
        "Allowed now: nothing.",
    ),
    (
        AlreadyDecided("g1", "approved", "ann"),
        "already_decided",
        "g1 was already decided: approved by ann",
        "Nothing to do: the first decision counts.",
    ),
    (
        AlreadyDecided("g1", "withdrawn", ""),
        "already_decided",
        "g1 was already decided: withdrawn by the agent",
        "Nothing to do: the first decision counts.",
    ),
    (NoSuchGate("g9", ("g1", "g2")), "no_such_gate", "no gate g9 in this session", "Open gates: g1, g2."),
    (NoSuchGate("g9", ()), "no_such_gate", "no gate g9 in this session", "Open gates: none."),
    (
        QueueFull(3),
        "queue_full",
        "the steering queue already holds 3 messages",
        "Send it as a prompt, or wait for the agent's next step.",
    ),
]


@pytest.mark.parametrize(("error", "code", "message", "hint"), ERRORS, ids=lambda value: str(value)[:50])
def test_an_error_says_what_happened_and_what_to_do_next(
    error: QuarterdeckError, code: str, message: str, hint: str
) -> None:
    assert error.as_json() == {"error": {"code": code, "message": message, "hint": hint}}
    assert str(error) == message
    assert isinstance(error, QuarterdeckError)


def test_what_an_error_is_about_can_be_read_by_a_program() -> None:
    refused = NotAllowed("retry", "the session is idle", ("prompt",))
    assert (refused.command, refused.state, refused.allowed) == ("retry", "the session is idle", ("prompt",))
    decided = AlreadyDecided("g1", "approved", "ann")
    assert (decided.gate_id, decided.status, decided.by) == ("g1", "approved", "ann")
    malformed = MalformedEvent("not JSON")
    assert (malformed.what, malformed.where) == ("not JSON", "$")
    assert NoSuchGate("g9", ()).gate_id == "g9"
    assert QueueFull(3).limit == 3


def test_the_code_of_what_is_not_there_begins_so_that_the_command_line_knows_its_exit_code() -> None:
    assert NoSuchGate("g9", ()).code.startswith("no_such_")
