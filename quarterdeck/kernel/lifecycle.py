"""The durable lifecycle of a session (seed 002): may it be used, and is it listed?

Four states and four ways between them. A session does not complete: it can always be continued until a person archives
it. Nothing automatic ever archives, and the end of an agent process never changes this state: processes come and go.

    active ──session_suspended──▶ suspended ──session_resumed──▶ active
    active ──session_archived───▶ archived   (terminal, by a person only)
    active ──session_failed─────▶ error      (terminal, fatal errors only)

`cancel` is stored as archived with the end reason `cancelled`, because the type has no fifth value (design section 9).
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

#: What a person reads beside a session that takes no messages; the words are 002's.
HINTS = {
    "suspended": "may be resumable when agent supports it",
    "archived": "Session is archived",
    "error": "Session failed and cannot be continued",
}

#: 002's five-state model, for tables that come from it.
FORMER_STATES = {"completed": "active", "cancelled": "archived"}

DAY_MS = 24 * 60 * 60 * 1000


def migrated(status: str) -> str:
    """A status of the five-state model in the four-state one; run twice it changes nothing."""
    return FORMER_STATES.get(status, status)


def is_status(status: str) -> bool:
    """Whether a row may hold this status at all."""
    return status in STATES


def may_move(source: str, target: str) -> bool:
    """Whether any row leads from one status to the other."""
    return any(row.source == source and row.target == target for row in MACHINE.rows)


def kept_for_ms(status: str, resumable: bool) -> int | None:
    """How long after its last activity the daily clean-up keeps a session; None: for ever."""
    if status == "suspended":
        return (30 if resumable else 7) * DAY_MS
    if status == "error":
        return DAY_MS
    return None


def deletes_at(status: str, last_active_at: int, resumable: bool) -> int | None:
    """When the daily clean-up may delete this session, so that the date can be shown beforehand."""
    kept = kept_for_ms(status, resumable)
    return None if kept is None else last_active_at + kept


def is_expired(status: str, last_active_at: int, resumable: bool, now: int) -> bool:
    """Whether the daily clean-up deletes this session now."""
    at = deletes_at(status, last_active_at, resumable)
    return at is not None and now > at
