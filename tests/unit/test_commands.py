"""Test every command in every state: it is allowed, or refused with a typed error, and checking changes nothing."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from quarterdeck import events as ev
from quarterdeck.errors import AlreadyDecided, NoSuchGate, NotAllowed, QuarterdeckError, QueueFull
from quarterdeck.kernel import commands, phase
from quarterdeck.kernel.commands import BY_LIFECYCLE, Command, InvalidCommand, allowed, check
from quarterdeck.kernel.view import View
from tests.support.sessions import in_lifecycle, in_phase, works
from tests.support.tape import Tape, approval

#: A valid command of every kind. The gate is the one that sessions.py opens.
WELL_FORMED: list[Command] = [
    commands.Prompt(text="Hello"),
    commands.Steer(text="Left"),
    commands.Abort(),
    commands.Approve(gate_id="g1"),
    commands.Reject(gate_id="g1"),
    commands.Respond(gate_id="g1", answer="main"),
    commands.Retry(),
    commands.Resume(),
    commands.Cancel(),
    commands.Archive(),
    commands.Delete(),
    commands.Rename(name="Fix"),
    commands.SwitchModel(model="opus"),
    commands.SwitchMode(mode="plan"),
    commands.Bash(command="ls"),
    commands.Compact(),
]
ALWAYS = {"prompt", "steer", "abort", "cancel", "archive", "rename", "switch_model", "switch_mode", "bash", "compact"}
BESIDES: dict[str, set[str]] = {
    "waiting_approval": {"approve", "reject"},
    "waiting_input": {"respond"},
    "completed": {"resume"},
    "paused": {"resume"},
    "stopped": {"resume"},
    "error": {"retry"},
}


def cannot_resume() -> Tape:
    return Tape().opened().add(ev.AgentReady(), ev.SessionSuspended())


#: state → its description in errors, the session, and the commands that it allows.
STATES: dict[str, tuple[str, Tape, set[str]]] = {
    "none": ("there is no session", Tape(), set()),
    **{name: (f"the session is {name}", in_phase(name), ALWAYS | BESIDES.get(name, set())) for name in phase.STATES},
    "suspended": ("the session is suspended", in_lifecycle("suspended"), {"prompt", "resume", "delete", "rename"}),
    "suspended for good": ("the session is suspended", cannot_resume(), {"delete", "rename"}),
    "archived": ("the session is archived", in_lifecycle("archived"), {"delete"}),
    "fatal": ("the session is error", in_lifecycle("error"), {"delete"}),
}
each_state = pytest.mark.parametrize("name", STATES)
MATRIX = list(product(STATES, WELL_FORMED))


def test_there_is_one_of_every_command() -> None:
    assert [type(command) for command in WELL_FORMED] == list(commands.STATE_COMMANDS)
    assert {command.command_name for command in WELL_FORMED} == {
        name for names in BY_LIFECYCLE.values() for name in names
    }


@each_state
def test_what_a_state_allows(name: str) -> None:
    _, tape, expected = STATES[name]
    assert set(allowed(tape.state)) == expected


@pytest.mark.parametrize(
    ("name", "command"), MATRIX, ids=lambda value: value if isinstance(value, str) else value.command_name
)
def test_a_command_is_allowed_or_refused_with_the_state_and_what_is_allowed(name: str, command: Command) -> None:
    described, tape, expected = STATES[name]
    before = tape.view, msgspec.json.encode(tape.state)
    if command.command_name in expected:
        check(tape.state, command)
    else:
        with pytest.raises(NotAllowed) as refused:
            check(tape.state, command)
        error = refused.value
        assert (error.code, error.command) == ("not_allowed", command.command_name)
        if not error.state.startswith("g1 is a"):
            assert (error.state, set(error.allowed)) == (described, expected)
        assert error.state in error.message
        assert all(one in error.hint for one in error.allowed or ("nothing",))
    assert (tape.view, msgspec.json.encode(tape.state)) == before


# ------------------------------------------------------------------------------------------------------- gates


def test_nothing_is_decided_where_nothing_was_asked() -> None:
    with pytest.raises(
        NotAllowed, match="approve is not allowed while the session is streaming: nothing is waiting for a decision"
    ):
        check(works().state, commands.Approve(gate_id="g1"))


@pytest.mark.parametrize("command", [commands.Approve(gate_id="g7"), commands.Respond(gate_id="g7", answer=1)])
def test_a_gate_that_is_not_there_is_named_beside_those_that_are(command: Command) -> None:
    tape = works().add(approval("g1"), ev.AskUser(question="?", gate_id="q1"))
    with pytest.raises(NoSuchGate, match="g7") as unknown:
        check(tape.state, command)
    assert unknown.value.hint == "Open gates: g1, q1."


@pytest.mark.parametrize("command", [commands.Approve(gate_id="g1"), commands.Reject(gate_id="g1")])
def test_the_second_decision_is_told_of_the_first(command: Command) -> None:
    tape = works().add(approval("g1"), ev.ApprovalResolved(gate_id="g1", status="approved", by="page"))
    with pytest.raises(AlreadyDecided, match="g1 was already decided: approved by page"):
        check(tape.state, command)


@pytest.mark.parametrize(
    ("name", "command", "kind", "instead"),
    [
        ("waiting_approval", commands.Respond(gate_id="g1", answer=1), "an approval", ("approve", "reject")),
        ("waiting_input", commands.Approve(gate_id="g1"), "a question", ("respond",)),
        ("waiting_input", commands.Reject(gate_id="g1"), "a question", ("respond",)),
    ],
)
def test_a_gate_is_decided_in_its_own_way(name: str, command: Command, kind: str, instead: tuple[str, ...]) -> None:
    with pytest.raises(NotAllowed, match=f"g1 is {kind}") as refused:
        check(in_phase(name).state, command)
    assert refused.value.allowed == instead


def test_a_dialog_is_responded_to() -> None:
    tape = works().add(ev.DialogRequired(method="input", gate_id="d1"))
    check(tape.state, commands.Respond(gate_id="d1", answer="main"))
    assert "respond" in allowed(tape.state)


# ----------------------------------------------------------------------------------------------- steering and prompts


def full() -> Tape:
    return works().add(*(ev.SteeringReceived(ref=f"r{number}", text="x") for number in range(3)))


def test_a_full_steering_queue_refuses_a_steer_and_keeps_the_prompt() -> None:
    with pytest.raises(QueueFull) as refused:
        check(full().state, commands.Steer(text="Fourth"))
    assert (refused.value.code, refused.value.limit) == ("queue_full", 3)
    assert "steer" not in allowed(full().state)
    check(full().state, commands.Prompt(text="Fourth"))


def test_the_limit_is_a_setting() -> None:
    check(full().state, commands.Steer(text="Fourth"), steering_limit=4)
    assert "steer" in allowed(full().state, steering_limit=4)
    with pytest.raises(QueueFull):
        check(works().state, commands.Steer(text="First"), steering_limit=0)


def test_a_steer_when_nothing_runs_needs_no_room() -> None:
    check(full().add(ev.AgentEnd()).state, commands.Steer(text="Fourth"))


def test_a_prompt_may_be_told_not_to_resume() -> None:
    tape = in_lifecycle("suspended")
    check(tape.state, commands.Prompt(text="Hello"))
    with pytest.raises(NotAllowed, match="resume is off"):
        check(tape.state, commands.Prompt(text="Hello", resume=False))
    check(in_phase("completed").state, commands.Prompt(text="Hello", resume=False))


def test_a_refusal_says_why() -> None:
    with pytest.raises(NotAllowed, match="cannot be resumed; continue in a new one"):
        check(cannot_resume().state, commands.Prompt(text="Hello"))
    with pytest.raises(NotAllowed, match="the agent can't resume this session"):
        check(cannot_resume().state, commands.Resume())
    with pytest.raises(NotAllowed, match="nothing failed"):
        check(works().state, commands.Retry())
    with pytest.raises(NotAllowed, match="nothing is paused, stopped or completed"):
        check(works().state, commands.Resume())


# ----------------------------------------------------------------------------------------------------------- content

WRONG: list[tuple[Command, str]] = [
    (commands.Rename(name=""), "name has 0 characters"),
    (commands.Rename(name="   "), "name has 3 characters"),
    (commands.Rename(name="x" * 101), "name has 101 characters"),
    (commands.SwitchMode(mode="yolo"), "there is no mode 'yolo'"),
    (commands.Prompt(text=""), "the text is empty"),
    (commands.Prompt(text=" \n"), "the text is empty"),
    (commands.Steer(text=""), "the text is empty"),
]


@each_state
@pytest.mark.parametrize(("command", "message"), WRONG)
def test_what_is_wrong_in_every_state_is_said_in_every_state(name: str, command: Command, message: str) -> None:
    with pytest.raises(InvalidCommand, match=message) as refused:
        check(STATES[name][1].state, command)
    assert refused.value.hint


@pytest.mark.parametrize(
    "command",
    [
        commands.Rename(name="x"),
        commands.Rename(name="x" * 100),
        commands.Prompt(text="", images=(ev.Image(media_type="image/png", data="AA=="),)),
        *(commands.SwitchMode(mode=mode) for mode in ("plan", "ask", "edits", "auto", "bypass")),
    ],
)
def test_what_is_just_right_is_taken(command: Command) -> None:
    tape = in_phase("completed")
    check(tape.state, command)
    assert command.command_name in allowed(tape.state)


def test_without_a_session_there_is_nothing_to_ask_for() -> None:
    assert allowed(View().state) == ()
    with pytest.raises(NotAllowed) as refused:
        check(View().state, commands.Prompt(text="Hello"))
    assert refused.value.as_json()["error"]["hint"] == "Allowed now: nothing."
    assert isinstance(refused.value, QuarterdeckError)
