"""Check that the store's rows and snapshots are what the events fold to, and compute them again if they aren't.

Snapshots that an older release folded are not compared: an idle session keeps what it showed until it is restored
(`State.fold_version`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.deck import approvals
from quarterdeck.errors import MalformedEvent
from quarterdeck.events import Event
from quarterdeck.kernel.state import FOLD_VERSION, State
from quarterdeck.kernel.view import View, fold
from quarterdeck.log.base import CatalogueRow, LogUnavailable, NoSuchSession
from quarterdeck.log.rows import catalogue_row, decode_snapshot, encode_snapshot
from quarterdeck.log.sqlite.inspect import Inspection, rewrite_projections

#: Fields of a row whose column in the store has another name.
_COLUMNS = {"session_id": "id", "last_gate_number": "last_gate"}


class Difference(Struct, frozen=True):
    """Something that the store says and the events don't."""

    session: str
    what: str
    stored: str = ""
    folded: str = ""
    #: Whether computing the row and the snapshot again would repair it.
    curable: bool = True


class _FoldedSession(Struct, frozen=True):
    """A session as its events describe it."""

    #: The view after the last event, and the state at the index of the stored snapshot.
    view: View
    state_at_snapshot: State
    #: The values of `last_active_at` that a row may have, and the gate number that it must know. In an open turn, a row may
    #: be as old as the snapshot.
    active_times: frozenset[int]
    gate_number_at_snapshot: int
    last_gate_number: int
    event_count: int
    #: What is wrong with the events themselves.
    faults: tuple[str, ...]


def check(inspection: Inspection, report: Callable[[int, int], None]) -> tuple[list[Difference], int]:
    """Compare all sessions with their events. `report` gets the number of sessions done and in all.

    Returns:
        all differences, and the number of events that were folded.

    Raises:
        LogUnavailable: the store can't be read.
    """
    session_ids = inspection.session_ids()
    differences: list[Difference] = []
    event_count = 0
    for done, session_id in enumerate(session_ids, 1):
        try:
            of_session, events = check_session(inspection, session_id)
        except NoSuchSession:
            continue  # It was deleted after the ids were read.
        differences += of_session
        event_count += events
        report(done, len(session_ids))
    differences += [Difference("", stray, curable=False) for stray in inspection.strays()]
    return differences, event_count


def check_session(inspection: Inspection, session_id: str) -> tuple[list[Difference], int]:
    """Compare what the store says about one session with its events.

    Returns:
        the differences, and the number of events.

    Raises:
        NoSuchSession: the store has no session with this id.
        LogUnavailable: the store can't be read.
    """
    with inspection.snapshot():
        row, last_index, snapshot, snapshot_index = inspection.stored(session_id)
        try:
            folded = _fold_session(inspection.events(session_id), snapshot_index)
        except MalformedEvent as error:
            return [Difference(session_id, "an event", str(error), curable=False)], 0
    differences = [Difference(session_id, fault, curable=False) for fault in folded.faults]
    if folded.view.index != last_index:
        differences.append(Difference(session_id, "last_index", str(last_index), str(folded.view.index)))
    differences += _compare_snapshot(session_id, snapshot, folded)
    if not _has_older_fold(snapshot):
        differences += _compare_row(row, _expected_row(folded, row))
    return differences, folded.event_count


def repair(path: Path, session_id: str) -> None:
    """Compute the row and the snapshot of a session from its events and store them.

    Raises:
        NoSuchSession: the store has no session with this id.
        LogUnavailable: the store can't be written.
    """

    def compute(inspection: Inspection) -> tuple[CatalogueRow, bytes, int, int]:
        row, _, _, _ = inspection.stored(session_id)
        folded = _fold_session(inspection.events(session_id), sys.maxsize)
        index = folded.view.index
        return _expected_row(folded, row), encode_snapshot(folded.view.state), index, index

    rewrite_projections(path, session_id, compute)


def _fold_session(events: Iterator[Event], snapshot_index: int) -> _FoldedSession:
    view, view_at_snapshot = View(), View()
    gate_number = gate_number_at_snapshot = event_count = 0
    active_times: set[int] = set()
    faults: list[str] = []
    previous: Event | None = None
    for event in events:
        faults += _order_faults(previous, event)
        view, previous = fold(view, event), event
        gate_number = max(gate_number, approvals.gate_number(event.body))
        event_count += 1
        if event.index <= snapshot_index:
            view_at_snapshot, gate_number_at_snapshot = view, gate_number
        else:
            active_times.add(view.state.last_active_at)
    active_times.add(view_at_snapshot.state.last_active_at)
    return _FoldedSession(
        view,
        view_at_snapshot.state,
        frozenset(active_times),
        gate_number_at_snapshot,
        gate_number,
        event_count,
        tuple(faults),
    )


def _order_faults(previous: Event | None, event: Event) -> Iterator[str]:
    """Check that indexes start at 1, and that cursors and times never go back."""
    if previous is None:
        if event.index != 1:
            yield f"the first event has index {event.index}"
        return
    if event.cursor <= previous.cursor:
        yield f"the cursor of event {event.index} is not after that of {previous.index}"
    if event.at < previous.at:
        yield f"event {event.index} is older than {previous.index}"


def _expected_row(folded: _FoldedSession, stored: CatalogueRow) -> CatalogueRow:
    """Return the row that the store should have, with the stored value where several are right.

    A higher gate number is fine: numbers must only never be reused.
    """
    row = catalogue_row(folded.view.state)
    knows_gates = stored.last_gate_number >= folded.gate_number_at_snapshot
    return replace(
        row,
        last_gate_number=stored.last_gate_number if knows_gates else folded.last_gate_number,
        last_active_at=stored.last_active_at if stored.last_active_at in folded.active_times else row.last_active_at,
    )


def _compare_row(stored: CatalogueRow, expected: CatalogueRow) -> Iterator[Difference]:
    for field in CatalogueRow.__struct_fields__:
        before, after = getattr(stored, field), getattr(expected, field)
        if before != after:
            yield Difference(stored.session_id, _COLUMNS.get(field, field), str(before), str(after))


def _compare_snapshot(session_id: str, snapshot: bytes, folded: _FoldedSession) -> Iterator[Difference]:
    try:
        stored = decode_snapshot(snapshot)
    except LogUnavailable as error:
        yield Difference(session_id, "view", error.message, "a view")
        return
    if stored.fold_version != FOLD_VERSION or stored == folded.state_at_snapshot:
        return
    for field in State.__struct_fields__:
        before, after = getattr(stored, field), getattr(folded.state_at_snapshot, field)
        if before != after:
            yield Difference(session_id, f"view.{field}", str(before), str(after))


def _has_older_fold(snapshot: bytes) -> bool:
    try:
        return decode_snapshot(snapshot).fold_version != FOLD_VERSION
    except LogUnavailable:
        return False
