"""Track what a user should see and be able to press (seed 000): nine phases, 000's table and its six derived flags.

The inputs are 000's own. Its `(partial)`, `(complete)`, `(error)` and `(success)` are guards here, and so are the table's
conditions on earlier inputs (see Phase). The rows are in 000's order, followed by the rows that 000's drawing, its state
descriptions and the design add. moves/ says which event becomes which input.

An open gate covers the machine: while a gate is open a waiting phase is shown, and the machine keeps moving underneath.
When the last gate closes, the machine's own phase is shown again (`shown`). For a single gate in a turn this equals 000's
rows exactly, which a test checks. It also covers several gates at once, and a sub-agent's gate that outlives the turn.

The guards:
  partial, complete     an ask that is still streaming never opens a waiting state
  requested, created    the other one of the two signals that a start waits for has arrived
  waiting               it hasn't
  error, success        the exit code; success only if no ask is unanswered
  success_ask_open      exit code zero while an ask is unanswered: the ask is withdrawn
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from quarterdeck.kernel.machine import ANY, Machine, Row, rows_of

# ------------------------------------------------------------------------------------------- the table

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
#: The phases that are shown while a gate is open.
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
#: The phase that each unanswered ask leads to.
_PHASE_OF_ASK = {
    **dict.fromkeys(APPROVAL_ASKS, "waiting_approval"),
    "ask:followup": "waiting_input",
    "ask:completion_result": "completed",
    **dict.fromkeys(RESUME_ASKS, "paused"),
    **dict.fromkeys(ERROR_ASKS, "error"),
}

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
    # From 000's drawing; the first is the mirror image of its second row.
    Row("creating", "api_req_started", "streaming", "created"),
    Row("error", "resume_session", "streaming"),
    # Asks that 000 lists as events but omits from its table.
    *rows_of("streaming", "ask:invalid_model ask:payment_required_prompt ask:payment_required", "error"),
    Row("streaming", "ask:resume_completed_task", "paused"),
    *rows_of("streaming", "ask:browser_action_launch ask:use_mcp_server", "waiting_approval", "complete"),
    *rows_of(
        "streaming", "ask:command ask:browser_action_launch ask:use_mcp_server ask:followup", "streaming", "partial"
    ),
    Row("streaming", "say:completion_result", "completed", "complete"),
    # Every button that a phase shows must have an effect in that phase.
    Row("creating", "cancel_session", "stopped"),
    Row("completed", "resume_session", "streaming"),
    # The agent works again, or another client started it.
    *rows_of("idle waiting_input completed paused error stopped", "api_req_started", "streaming"),
    # The first message of a session that was created without a prompt.
    Row("idle", "send_message", "streaming"),
    # A process error leads to error from every phase.
    *rows_of("idle streaming waiting_approval waiting_input completed paused error stopped", "process_error", "error"),
    # A complete ask opens a waiting phase from every live phase. Approvals outrank questions.
    *[
        Row(state, ask, "waiting_approval", "complete")
        for state in ("idle", "creating", "waiting_input", "completed", "paused", "error", "stopped")
        for ask in APPROVAL_ASKS
    ],
    *rows_of("idle creating completed paused error stopped", "ask:followup", "waiting_input", "complete"),
    # Exit code zero while an ask is unanswered.
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


# ------------------------------------------------------------------------------------------- stepping


class Phase(Struct, frozen=True, gc=False):
    """A state of the machine, and the earlier inputs that the table's conditions need."""

    value: str = "idle"
    #: The two signals that a start waits for.
    created: bool = False
    requested: bool = False
    #: The last complete ask that is unanswered. It remains in a paused or failed session, and decides what an exit with
    #: code zero means.
    ask: str | None = None


def step(phase: Phase, event: str, guard: str | None = None, over: str = "") -> Phase:
    """Apply one input. Return the same object if nothing changed.

    `over` is the shown phase, for inputs that act on it instead of the machine's own phase.
    """
    if event == "start_session":
        return _started(phase)
    if event == "session_created":
        return _created(phase)
    if event == "api_req_started":
        return requested(phase)
    before = over or phase.value
    if guard == "success" and phase.ask is not None:
        guard = "success_ask_open"
    after = MACHINE.step(before, event, guard)
    if event in _PHASE_OF_ASK and guard != "partial" and after == _PHASE_OF_ASK[event]:
        return Phase(after, phase.created, phase.requested, event)
    return phase if after == before and not over else Phase(after, phase.created, phase.requested)


def _started(phase: Phase) -> Phase:
    """Apply `start_session`: a new task waits for both signals again and has no unanswered ask."""
    after = MACHINE.step(phase.value, "start_session")
    return phase if after == phase.value else Phase(after)


def _created(phase: Phase) -> Phase:
    """Apply `session_created`. The guard is whether the other signal has arrived."""
    if phase.value != "creating":
        return phase
    after = MACHINE.step(phase.value, "session_created", "requested" if phase.requested else "waiting")
    return Phase(after, True, phase.requested)


def requested(phase: Phase) -> Phase:
    """Apply `api_req_started`. The guard is whether the other signal has arrived."""
    after = MACHINE.step(phase.value, "api_req_started", "created" if phase.created else "waiting")
    is_unchanged = after == phase.value and phase.requested and phase.ask is None
    return phase if is_unchanged else Phase(after, phase.created, True)


# --------------------------------------------------------------------------------------- derived values


def shown(phase: Phase, waiting: str | None) -> str:
    """Return the phase that a user sees: the waiting phase of the open gates, else the machine's own."""
    return waiting or phase.value


class Flags(Struct, frozen=True, gc=False):
    """000's derived values, under their original names."""

    showSpinner: bool  # noqa: N815
    showCancelButton: bool  # noqa: N815
    showResumeButton: bool  # noqa: N815
    showAutoModeWarning: bool  # noqa: N815
    inputEnabled: bool  # noqa: N815
    isActive: bool  # noqa: N815


def flags(phase: str, auto_approve: bool = False) -> Flags:
    """Return the six flags of a phase. The auto mode warning also requires that calls are approved automatically."""
    values = {name: phase in states for name, states in FLAGS.items()}
    values["showAutoModeWarning"] = values["showAutoModeWarning"] and auto_approve
    return Flags(**values)


def spinner(phase: str) -> Literal["creating", "running"] | None:
    """Return which of 000's two spinners is shown."""
    if phase == "creating":
        return "creating"
    return "running" if phase == "streaming" else None


# ------------------------------------------------------------------------ reconstruction from the store

Status = Literal["creating", "running", "done", "error", "stopped"]
ProcessStatus = Literal["alive", "exited_zero", "exited_nonzero"]

_STATUS_OF: dict[str, Status] = {
    "creating": "creating",
    "completed": "done",
    "error": "error",
    "stopped": "stopped",
}


def reconstruct(status: Status | None, last_ask: str | None, process: ProcessStatus = "alive") -> str:
    """Derive the phase from 000's three sources: the stored status, the last complete ask, and the process."""
    if status is None:
        return "idle"
    if status != "running":
        return "completed" if status == "done" else status
    by_ask = _phase_by_ask(last_ask)
    if process == "exited_nonzero":
        return "error"
    if process == "exited_zero":
        return "stopped" if by_ask in WAITING else "completed" if by_ask == "streaming" else by_ask
    return by_ask


def _phase_by_ask(ask: str | None) -> str:
    return "streaming" if ask is None else _PHASE_OF_ASK.get(ask, "streaming")


def sources(phase: str, ask: str | None) -> tuple[Status | None, str | None]:
    """Return the stored status and last ask from which `reconstruct` derives this phase."""
    if phase == "idle":
        return None, None
    if ask is not None and _phase_by_ask(ask) == phase:
        return "running", ask
    return _STATUS_OF.get(phase, "running"), None
