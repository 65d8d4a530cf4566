"""Rebuild a session's view from the log when it is loaded into memory.

The store keeps a snapshot of each session's state. Restoring reads that snapshot and folds the events that are newer than
it. If the snapshot is unreadable, or was folded by an older release, all events are folded from the start.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.deck.approvals import gate_number
from quarterdeck.kernel.state import FOLD_VERSION, State
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import Log, LogUnavailable, StoredSession, read_pages
from quarterdeck.log.rows import decode_snapshot


class RestoredSession(Struct, frozen=True):
    """A session as the log has it."""

    #: View as of the last event, without the timeline.
    view: View
    #: Highest gate number used so far. The catalogue row can be behind if a turn was interrupted.
    last_gate_number: int
    #: Set if this release folds the session to a different state than the one that wrote the snapshot.
    refolded: ev.ViewRefolded | None = None


async def restore_session(log: Log, stored: StoredSession) -> RestoredSession:
    """Load a session's state from its snapshot and the events after it.

    Raises:
        LogUnavailable: the events can't be read.
    """
    snapshot = _decode(stored.snapshot)
    if snapshot is not None and snapshot.fold_version == FOLD_VERSION:
        view = View(stored.snapshot_index, stored.row.last_active_at, snapshot)
        # Re-read the last event even if the snapshot covers it: the next event must not be dated before it.
        read_from = min(view.index, stored.last_index - 1)
        is_outdated = False
    else:
        view = View()
        read_from = 0
        is_outdated = snapshot is not None
    last_gate_number = stored.row.last_gate_number
    async for page in read_pages(log, stored.row.session_id, read_from):
        view = replace(fold_all(page, view), at=max(view.at, page[-1].at))
        last_gate_number = max(last_gate_number, *(gate_number(event.body) for event in page))
    refolded = _compare(snapshot, view.state) if snapshot is not None and is_outdated else None
    return RestoredSession(View(stored.last_index, view.at, view.state), last_gate_number, refolded)


def _decode(snapshot: bytes) -> State | None:
    """Return the stored state, or None if it can't be decoded and the events must be folded instead."""
    try:
        return decode_snapshot(snapshot)
    except LogUnavailable:
        return None


def _compare(before: State, after: State) -> ev.ViewRefolded:
    changed = tuple(name for name in State.__struct_fields__ if getattr(before, name) != getattr(after, name))
    return ev.ViewRefolded(to=FOLD_VERSION, from_=before.fold_version, changed=changed)
