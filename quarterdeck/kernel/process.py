"""Track whether an agent process exists (seeds 002 and 000).

Only an active session has a process, so every event that ends `active` also ends the process. After a crash the log may
contain nothing but `session_suspended`, and no state may claim a process that recovery didn't find.

A process that reports an error counts as exited. If it still runs, the next sign of life brings it back.
"""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.kernel.machine import ANY, Machine, Row

STATES = ("none", "starting", "up")
#: Signals that a user or the system sends to stop a process. Every other signal is a crash.
STOP_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGKILL", "SIGHUP"})

MACHINE = Machine(
    "process",
    STATES,
    "none",
    [
        Row("none", "process_starting", "starting"),
        Row("up", "process_starting", "starting"),
        Row("none", "agent_ready", "up"),
        Row("starting", "agent_ready", "up"),
        Row(ANY, "process_error", "none"),
        Row(ANY, "process_exited", "none"),
        Row(ANY, "session_suspended", "none"),
        Row(ANY, "session_archived", "none"),
        Row(ANY, "session_failed", "none"),
    ],
)


class Exit(Struct, frozen=True, gc=False):
    """How the last process exited. Cleared when the next one starts."""

    code: int | None
    signal: str | None


def exit_message(code: int | None, signal: str | None) -> str:
    """Describe a failed exit for the user."""
    how = f"with {signal or 'unknown'}" if code is None else f"with code {code}"
    return f"The agent process ended {how}"


def was_stopped(code: int | None, signal: str | None) -> bool:
    """Return whether an exit that the deck didn't request was still intended by its user, and isn't a crash."""
    return code is None and (signal is None or signal in STOP_SIGNALS)
