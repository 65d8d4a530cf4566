"""What a person should see and be able to press (seed 000): nine phases, 000's table, its six derived flags.

The input alphabet is 000's own. `(partial)`, `(complete)`, `(error)` and `(success)` are guards, and so are the table's
conditions on what was seen before (Phase). The rows stand in 000's order; below them, marked, those that 000's drawing,
its state descriptions and design section 9 add. How the canonical events become these inputs is in moves.py.

Open gates lie over the machine: while one is open a waiting phase shows, and what lies beneath goes on moving; when the
last one closes, what lies beneath shows again (`shown`). For one gate in one turn that is 000's rows to the letter, and a
test holds the two against each other; for several gates, and for gates of sub-agents that outlive the turn, it is what
design section 5 asks for.

The guards:
  partial, complete     an ask that is still being streamed never opens a waiting state
  requested, created    the other one of the two signals that a start waits for was seen
  waiting               it was not
  error, success        the exit code; success only when no ask is unanswered
  success_ask_open      exit code zero while an ask is unanswered: the ask is withdrawn
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from quarterdeck.kernel.machine import ANY, Machine, Row, rows_of

STATES = (
    "idle",
    "creating",
    "streaming",
    "waiting_approval",
    "waiting_input",
    "completed",
    "paused",
    "error",
    "stopped",
)
#: Phases in which a gate is open.
WAITING = frozenset({"waiting_approval", "waiting_input"})

APPROVAL_ASKS = ("ask:tool", "ask:command", "ask:browser_action_launch", "ask:use_mcp_server")
ERROR_ASKS = (
    "ask:api_req_failed",
    "ask:mistake_limit_reached",
    "ask:invalid_model",
    "ask:payment_required_prompt",
    "ask:payment_required",
)
RESUME_ASKS = ("ask:resume_task", "ask:resume_completed_task")
#: Where an unanswered ask holds a session.
_PHASE_OF_ASK = {
    **dict.fromkeys(APPROVAL_ASKS, "waiting_approval"),
    "ask:followup": "waiting_input",
    "ask:completion_result": "completed",
    **dict.fromkeys(RESUME_ASKS, "paused"),
    **dict.fromkeys(ERROR_ASKS, "error"),
}
_START_INPUTS = frozenset({"start_session", "session_created", "api_req_started"})

_SEED_ROWS = [
    Row("idle", "start_session", "creating"),
    Row("creating", "session_created", "streaming", "requested"),
    Row("creating", "session_created", "creating", "waiting"),
    Row("creating", "api_req_started", "creating", "waiting"),
    Row("creating", "process_error", "error"),
    Row("streaming", "say:text", "streaming", "partial"),
    Row("streaming", "say:text", "streaming", "complete"),
    Row("streaming", "ask:tool", "streaming", "partial"),
    Row("streaming", "ask:tool", "waiting_approval", "complete"),
    Row("streaming", "ask:command", "waiting_approval", "complete"),
    Row("streaming", "ask:followup", "waiting_input", "complete"),
    Row("streaming", "ask:completion_result", "completed"),
    Row("streaming", "ask:api_req_failed", "error"),
    Row("streaming", "ask:mistake_limit_reached", "error"),
    Row("streaming", "ask:resume_task", "paused"),
    Row("streaming", "cancel_session", "stopped"),
    Row("waiting_approval", "approve_action", "streaming"),
    Row("waiting_approval", "reject_action", "streaming"),
    Row("waiting_approval", "api_req_started", "streaming"),
    Row("waiting_approval", "cancel_session", "stopped"),
    Row("waiting_input", "send_message", "streaming"),
    Row("waiting_input", "cancel_session", "stopped"),
    Row("completed", "send_message", "streaming"),
    Row("completed", "start_session", "creating"),
    Row("paused", "resume_session", "streaming"),
    Row("paused", "cancel_session", "stopped"),
    Row("error", "retry", "streaming"),
    Row("error", "cancel_session", "stopped"),
    Row("stopped", "resume_session", "streaming"),
    Row("stopped", "start_session", "creating"),
    Row(ANY, "process_exit", "error", "error"),
    Row(ANY, "process_exit", "completed", "success"),
]

_ADDED_ROWS = [
    # the drawing, and the mirror of row 2
    Row("creating", "api_req_started", "streaming", "created"),
    Row("error", "resume_session", "streaming"),
    # asks that the event list names and the table forgot
    *rows_of("streaming", "ask:invalid_model ask:payment_required_prompt ask:payment_required", "error"),
    Row("streaming", "ask:resume_completed_task", "paused"),
    *rows_of("streaming", "ask:browser_action_launch ask:use_mcp_server", "waiting_approval", "complete"),
    *rows_of(
        "streaming", "ask:command ask:browser_action_launch ask:use_mcp_server ask:followup", "streaming", "partial"
    ),
    Row("streaming", "say:completion_result", "completed", "complete"),
    # buttons that are shown must work
    Row("creating", "cancel_session", "stopped"),
    Row("completed", "resume_session", "streaming"),
    # the agent is plainly working again, or was started elsewhere
    *rows_of("idle waiting_input completed paused error stopped", "api_req_started", "streaming"),
    # a session made without a prompt: its first message is a send
    Row("idle", "send_message", "streaming"),
    # any process error ends in error
    *rows_of("idle streaming waiting_approval waiting_input completed paused error stopped", "process_error", "error"),
    # a complete ask in any live state opens waiting; approvals outrank questions
    *[
        Row(state, ask, "waiting_approval", "complete")
        for state in ("idle", "creating", "waiting_input", "completed", "paused", "error", "stopped")
        for ask in APPROVAL_ASKS
    ],
    *rows_of("idle creating completed paused error stopped", "ask:followup", "waiting_input", "complete"),
    # exit code zero while an ask is unanswered
    *rows_of("waiting_approval waiting_input", "process_exit", "stopped", "success_ask_open"),
]

FLAGS = {
    "showSpinner": ("creating", "streaming"),
    "showCancelButton": ("creating", "streaming", "waiting_approval", "waiting_input"),
    "showResumeButton": ("paused", "stopped", "completed"),
    "showAutoModeWarning": ("creating", "streaming"),
    "inputEnabled": ("waiting_input", "completed", "paused", "stopped"),
    "isActive": ("creating", "streaming", "waiting_approval", "waiting_input"),
}

MACHINE = Machine("phase", STATES, "idle", [*_SEED_ROWS, *_ADDED_ROWS], FLAGS)
_TARGETS = MACHINE.targets


class Phase(Struct, frozen=True, gc=False):
    """A state of the machine, with what the table's conditions need besides it.

    `created` and `requested` are the two signals that a start waits for. `ask` is the last complete ask that nobody
    answered; it survives in a paused or failed session, and decides what an exit with code zero means.
    """

    value: str = "idle"
    created: bool = False
    requested: bool = False
    ask: str | None = None


def shown(phase: Phase, waiting: str | None) -> str:
    """The phase that a person sees: the strongest open gate's, else the machine's own."""
    return waiting or phase.value


class Flags(Struct, frozen=True, gc=False):
    """000's derived values, under its own names."""

    showSpinner: bool  # noqa: N815
    showCancelButton: bool  # noqa: N815
    showResumeButton: bool  # noqa: N815
    showAutoModeWarning: bool  # noqa: N815
    inputEnabled: bool  # noqa: N815
    isActive: bool  # noqa: N815


def flags(phase: str, auto_approve: bool = False) -> Flags:
    """The six flags of a phase. The warning shows only while something is approved by itself."""
    on = {name: phase in states for name, states in FLAGS.items()}
    on["showAutoModeWarning"] = on["showAutoModeWarning"] and auto_approve
    return Flags(**on)


def spinner(phase: str) -> Literal["creating", "running"] | None:
    """Which of 000's two spinners turns."""
    if phase == "creating":
        return "creating"
    return "running" if phase == "streaming" else None


def step(phase: Phase, event: str, guard: str | None = None, over: str = "") -> Phase:
    """One input; the same object when it changed nothing. `over` is the phase that it meets instead of what lies beneath."""
    if event in _START_INPUTS:
        return _start_step(phase, event)
    before = over or phase.value
    if guard == "success" and phase.ask is not None:
        guard = "success_ask_open"
    after = _TARGETS.get((before, event, guard), before)
    if event in _PHASE_OF_ASK and guard != "partial" and after == _PHASE_OF_ASK[event]:
        return Phase(after, phase.created, phase.requested, event)
    return phase if after == before and not over else Phase(after, phase.created, phase.requested)


def _start_step(phase: Phase, event: str) -> Phase:
    """A start, or one of the two signals that it waits for: their guard is whether the other one was seen."""
    if event == "api_req_started":
        return requested(phase)
    before = phase.value
    if event == "session_created":
        after = _TARGETS.get((before, event, "requested" if phase.requested else "waiting"), before)
        return Phase(after, True, phase.requested) if before == "creating" else phase
    after = _TARGETS.get((before, event, None), before)
    # a new task waits for both signals again, and the old ask is forgotten
    return phase if after == before else Phase(after)


def requested(phase: Phase) -> Phase:
    """`api_req_started`, which is told more often than all others."""
    before = phase.value
    after = _TARGETS.get((before, "api_req_started", "created" if phase.created else "waiting"), before)
    is_known = after == before and phase.requested and phase.ask is None
    return phase if is_known else Phase(after, phase.created, True)


Status = Literal["creating", "running", "done", "error", "stopped"]
ProcessStatus = Literal["alive", "exited_zero", "exited_nonzero"]


_STATUS_OF: dict[str, Status] = {
    "creating": "creating",
    "completed": "done",
    "error": "error",
    "stopped": "stopped",
}


def reconstruct(status: Status | None, last_ask: str | None, process: ProcessStatus = "alive") -> str:
    """The phase from 000's three sources: the stored status, the last complete ask, the process."""
    if status is None:
        return "idle"
    if status != "running":
        return "completed" if status == "done" else status
    by_ask = _by_ask(last_ask)
    if process == "exited_nonzero":
        return "error"
    if process == "exited_zero":
        return "stopped" if by_ask in WAITING else "completed" if by_ask == "streaming" else by_ask
    return by_ask


def _by_ask(ask: str | None) -> str:
    return "streaming" if ask is None else _PHASE_OF_ASK.get(ask, "streaming")


def sources(phase: str, ask: str | None) -> tuple[Status | None, str | None]:
    """The stored status and last ask from which `reconstruct` finds this phase again."""
    if phase == "idle":
        return None, None
    if ask is not None and _by_ask(ask) == phase:
        return "running", ask
    return _STATUS_OF.get(phase, "running"), None
