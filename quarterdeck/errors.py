"""Define the errors that users and callers of Quarterdeck handle.

Each error carries the fields of the API's JSON error: a `code` for programs, a `message` that states what happened, and
a `hint` that says what to do next. Unexpected input from an agent never raises one of these: it is recorded instead.
"""

from __future__ import annotations

from collections.abc import Collection


class QuarterdeckError(Exception):
    """The base class of every error that Quarterdeck raises on purpose."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


class MalformedEvent(QuarterdeckError):
    """Data that isn't an event: not JSON, not UTF-8, wrong types, or nested too deep. `where` locates the fault."""

    code = "malformed_event"

    def __init__(self, what: str, where: str = "$") -> None:
        super().__init__(
            f"malformed event at {where}: {what}", "Send one JSON object with the fields listed in docs/events.md."
        )
        self.what = what
        self.where = where


class NotAllowed(QuarterdeckError):
    """A command that the current state doesn't allow. Nothing was changed."""

    code = "not_allowed"

    def __init__(self, command: str, state: str, allowed: tuple[str, ...], why: str = "") -> None:
        listed = ", ".join(allowed) or "nothing"
        because = f": {why}" if why else ""
        super().__init__(f"{command} is not allowed while {state}{because}", f"Allowed now: {listed}.")
        self.command = command
        self.state = state
        self.allowed = allowed
        self.why = why

    def without(self, names: Collection[str]) -> NotAllowed:
        """Return this error with some commands removed from the allowed ones, for an agent that never supports them."""
        return NotAllowed(self.command, self.state, tuple(name for name in self.allowed if name not in names), self.why)


class AlreadyDecided(QuarterdeckError):
    """A second decision on a gate. The error names the first decision and who made it."""

    code = "already_decided"

    def __init__(self, gate_id: str, status: str, by: str) -> None:
        super().__init__(
            f"{gate_id} was already decided: {status} by {by or 'the agent'}",
            "Nothing to do: the first decision counts.",
        )
        self.gate_id = gate_id
        self.status = status
        self.by = by


class NoSuchGate(QuarterdeckError):
    """No gate with this id is open in this session."""

    code = "no_such_gate"

    def __init__(self, gate_id: str, open_gates: tuple[str, ...]) -> None:
        listed = ", ".join(open_gates) or "none"
        super().__init__(f"no gate {gate_id} in this session", f"Open gates: {listed}.")
        self.gate_id = gate_id


class QueueFull(QuarterdeckError):
    """The steering queue is full. The message wasn't queued and stays with the caller."""

    code = "queue_full"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the steering queue already holds {limit} messages",
            "Send it as a prompt, or wait for the agent's next step.",
        )
        self.limit = limit
