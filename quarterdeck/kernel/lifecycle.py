"""Track the durable lifecycle of a session (seed 002): can it be used, and is it listed?

    active ──session_suspended──▶ suspended ──session_resumed──▶ active
    active ──session_archived───▶ archived   (terminal, only by a user)
    active ──session_failed─────▶ error      (terminal, only for fatal errors)

A session never completes: it can be continued until a user archives it. Nothing archives a session automatically, and
the exit of an agent process doesn't change its lifecycle.

`cancel` is stored as archived with the end reason `cancelled`, because 002 has no fifth state for it.
"""

from __future__ import annotations

from quarterdeck.kernel.machine import Machine, Row

STATES = ("active", "suspended", "archived", "error")

MACHINE = Machine(
    "lifecycle",
    STATES,
    "active",
    [
        Row("active", "session_suspended", "suspended"),
        Row("active", "session_archived", "archived"),
        Row("active", "session_failed", "error"),
        Row("suspended", "session_resumed", "active"),
    ],
    flags={
        "listed": ("active", "suspended"),
        "listedWithArchived": ("active", "suspended", "archived"),
        "counted": ("active", "suspended"),
        "inputEnabled": ("active",),
        "viewable": ("active", "suspended", "archived"),
    },
)

#: The text beside a session that takes no messages. The wording is prescribed by 002.
HINTS = {
    "suspended": "may be resumable when agent supports it",
    "archived": "Session is archived",
    "error": "Session failed and cannot be continued",
}

#: Statuses of 002's older model with five states, which imported tables may contain.
FORMER_STATES = {"completed": "active", "cancelled": "archived"}

DAY_MS = 24 * 60 * 60 * 1000


def migrated(status: str) -> str:
    """Convert a status of the five-state model to this one. Converting twice changes nothing."""
    return FORMER_STATES.get(status, status)


def is_status(status: str) -> bool:
    return status in STATES


def may_move(source: str, target: str) -> bool:
    """Return whether any row leads from one status to the other."""
    return any(row.source == source and row.target == target for row in MACHINE.rows)


def retention_ms(status: str, resumable: bool) -> int | None:
    """Return how long after its last activity the daily clean-up deletes a session, or None if it never does."""
    if status == "suspended":
        return (30 if resumable else 7) * DAY_MS
    if status == "error":
        return DAY_MS
    return None


def deletes_at(status: str, last_active_at: int, resumable: bool) -> int | None:
    """Return when the daily clean-up may delete this session, so that clients can show the date in advance."""
    retention = retention_ms(status, resumable)
    return None if retention is None else last_active_at + retention


def is_expired(status: str, last_active_at: int, resumable: bool, now: int) -> bool:
    """Return whether the daily clean-up deletes this session now."""
    at = deletes_at(status, last_active_at, resumable)
    return at is not None and now > at
