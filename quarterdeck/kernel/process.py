"""Is there an agent process now? (seeds 002 and 000)

A process belongs to an active session only, so leaving `active` ends it here too: after a crash the log may hold nothing
but `session_suspended`, and no state may claim a process that start-up repair did not find. A process that reports an
error counts as gone; if it lives after all, the next sign of life brings it back.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from quarterdeck.kernel.machine import ANY, Machine, Row

STATES = ("none", "starting", "up")
#: Signals that mean "someone stopped it"; any other one is a crash.
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
    """How a process ended; it stands until the next one starts."""

    code: int | None
    signal: str | None


@lru_cache(64)  # said of the state and in the conversation, and few words are ever said
def last_words(code: int | None, signal: str | None) -> str:
    """How a process that failed is told."""
    return (
        f"The agent process ended with {signal or 'unknown'}"
        if code is None
        else f"The agent process ended with code {code}"
    )


def was_stopped(code: int | None, signal: str | None) -> bool:
    """Whether an exit that nobody of ours asked for was still somebody's wish."""
    return code is None and (signal is None or signal in STOP_SIGNALS)
