"""Create sessions in every phase and lifecycle, from the events that lead there in reality."""

from __future__ import annotations

from collections.abc import Callable

from quarterdeck import events as ev
from quarterdeck.kernel import lifecycle, phase
from tests.support.tape import Tape, approval

READY = ev.AgentReady(native_session_id="n1", model="opus", capabilities=("steer",), resumable=True)
FAILED = (ev.TurnFailed(kind="api", message="Overloaded"), ev.AgentEnd(outcome="failed"))


def waits_for_its_first_prompt() -> Tape:
    """Create a session without a prompt whose agent is ready."""
    return Tape().opened().add(ev.ProcessStarting(), READY)


def starts() -> Tape:
    """Create a session with a prompt whose process is starting."""
    return Tape().opened("Fix the bug").add(ev.ProcessStarting())


def works() -> Tape:
    """Create a session in a turn that waits for the model's reply."""
    return starts().add(READY, ev.PromptReceived(text="Fix the bug", message_id="m0"), ev.AgentStart(), _request())


def asks_for_approval() -> Tape:
    """Create a session with a call that waits for approval."""
    return works().add(ev.ToolCall(name="shell", call_id="c1"), approval("g1", "c1"))


def asks_a_question() -> Tape:
    """Create a session with an open question."""
    return works().add(ev.AskUser(question="Which branch?", gate_id="g1", ref="q1"))


def is_finished() -> Tape:
    """Create a session whose turn finished."""
    return works().add(ev.ResponseComplete(message_id="m1", blocks=(ev.Block(text="Done."),)), ev.AgentEnd())


def is_interrupted() -> Tape:
    """Create a session whose server restarted during a turn. Its agent can resume."""
    suspended = works().add(ev.SessionSuspended())
    return suspended.add(ev.SessionResumed(), ev.ProcessStarting(), READY, ev.TurnRestored())


def has_failed() -> Tape:
    """Create a session whose request failed."""
    return works().add(*FAILED)


def is_stopped() -> Tape:
    """Create a session whose turn a user stopped."""
    return works().add(ev.AgentAbort(reason="user"))


IN_PHASE: dict[str, Callable[[], Tape]] = {
    "idle": waits_for_its_first_prompt,
    "creating": starts,
    "streaming": works,
    "waiting_approval": asks_for_approval,
    "waiting_input": asks_a_question,
    "completed": is_finished,
    "paused": is_interrupted,
    "error": has_failed,
    "stopped": is_stopped,
}
_ENDINGS: dict[str, tuple[ev.Body, ...]] = {
    "active": (),
    "suspended": (ev.SessionSuspended(),),
    "archived": (ev.SessionArchived(),),
    "error": (ev.SessionFailed(message="The disk is gone"),),
}


def in_phase(name: str) -> Tape:
    """Create an active session in this phase."""
    tape = IN_PHASE[name]()
    assert tape.phase == name
    return tape


def in_lifecycle(status: str, name: str = "completed") -> Tape:
    """Create a session with this status that was in this phase before."""
    tape = in_phase(name).add(*_ENDINGS[status])
    assert tape.state.lifecycle.value == status
    return tape


def _request() -> ev.RequestStart:
    return ev.RequestStart(model="opus")


assert set(IN_PHASE) == set(phase.STATES)
assert set(_ENDINGS) == set(lifecycle.STATES)
