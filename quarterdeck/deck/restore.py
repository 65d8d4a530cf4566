"""A session that was at rest, as the log has it: the stored view, and the events that are newer folded on top of it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.deck.gates import number_of
from quarterdeck.kernel.state import FOLD_VERSION, State
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import PAGE, Log, LogUnavailable, StoredSession
from quarterdeck.log.rows import decode_snapshot


class Woken(Struct, frozen=True):
    """The view as of the last event, without the timeline, and the number of the last gate, which the row does not know if a
    turn was cut off. `refolded` says what an older release showed otherwise."""

    view: View
    last_gate: int
    refolded: ev.ViewRefolded | None = None


async def woken(log: Log, stored: StoredSession) -> Woken:
    before, last_gate = _readable(stored.snapshot), stored.row.last_gate_number
    is_old = before is None or before.fold_version != FOLD_VERSION
    view = View() if before is None or is_old else View(stored.snapshot_index, stored.row.last_active_at, before)
    # one event back: its time is the one that the next must not be before
    since = view.index if is_old else min(view.index, stored.last_index - 1)
    while since < stored.last_index:
        events = await log.read(stored.row.session_id, since, PAGE)
        if not events:
            break
        since = events[-1].index
        last_gate = max(last_gate, *(number_of(event.body) for event in events))
        view = replace(fold_all(events, view), at=max(view.at, events[-1].at))
    whole = View(stored.last_index, view.at, view.state)
    return Woken(whole, last_gate, _refolded(before, view.state) if before is not None and is_old else None)


def _readable(view: bytes) -> State | None:
    """What the log kept beside the events; None when only they can still say what it was."""
    try:
        return decode_snapshot(view)
    except LogUnavailable:
        return None


def _refolded(before: State, after: State) -> ev.ViewRefolded:
    changed = tuple(name for name in State.__struct_fields__ if getattr(before, name) != getattr(after, name))
    return ev.ViewRefolded(to=FOLD_VERSION, from_=before.fold_version, changed=changed)
