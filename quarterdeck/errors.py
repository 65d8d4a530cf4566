"""The errors that a user or a caller can meet, split by whose fault they are.

Every error carries what the contract's JSON error carries: a `code` for programs, a `message` that says what
happened, and a `hint` that says what to do next. Nothing here is raised for what an agent says: a strange agent
is recorded, never an exception.
"""

from __future__ import annotations

from collections.abc import Collection


class QuarterdeckError(Exception):
    """The root of everything that Quarterdeck raises on purpose."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


class MalformedEvent(QuarterdeckError):
    """Bytes that are not an event: not JSON, not UTF-8, of wrong types, nested too deep. `where` says at which place."""

    code = "malformed_event"

    def __init__(self, what: str, where: str = "$") -> None:
        super().__init__(
            f"malformed event at {where}: {what}", "Send one JSON object with the fields of docs/events.md."
        )
        self.what = what
        self.where = where


class NotAllowed(QuarterdeckError):
    """A command that the present state does not allow. Nothing was changed."""

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
        """The same where these commands are not possible whatever the state."""
        return NotAllowed(self.command, self.state, tuple(n for n in self.allowed if n not in names), self.why)


class AlreadyDecided(QuarterdeckError):
    """A gate is decided once; the second decision is told who decided what."""

    code = "already_decided"

    def __init__(self, gate_id: str, status: str, by: str) -> None:
        super().__init__(f"{gate_id} was already decided: {status} by {by or 'the agent'}", "Nothing is left to do.")
        self.gate_id = gate_id
        self.status = status
        self.by = by


class NoSuchGate(QuarterdeckError):
    """No gate of this name is open in this session."""

    code = "no_such_gate"

    def __init__(self, gate_id: str, open_gates: tuple[str, ...]) -> None:
        listed = ", ".join(open_gates) or "none"
        super().__init__(f"no gate {gate_id} in this session", f"Open gates: {listed}.")
        self.gate_id = gate_id


class QueueFull(QuarterdeckError):
    """The steering queue takes a few texts only; the text is not lost, it is handed back to the caller."""

    code = "queue_full"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the steering queue holds {limit} texts already", "Queue it as a prompt, or wait for a step.")
        self.limit = limit
