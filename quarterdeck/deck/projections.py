"""The catalogue and the small views are what the events fold to. Here that is proved, and made so again.

A view that an older fold wrote is not compared: sessions at rest keep what they showed (`State.fold_version`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.deck.approvals import gate_number
from quarterdeck.errors import MalformedEvent
from quarterdeck.events import Event
from quarterdeck.kernel.state import FOLD_VERSION, State
from quarterdeck.kernel.view import View, fold
from quarterdeck.log.base import CatalogueRow, LogUnavailable, NoSuchSession
from quarterdeck.log.rows import catalogue_row, decode_snapshot, encode_snapshot
from quarterdeck.log.sqlite.inspect import Inspection, rewritten


class Difference(Struct, frozen=True):
    """Something that the store says and the events do not."""

    session: str
    what: str
    stored: str = ""
    folded: str = ""
    #: Whether writing the projections again would cure it.
    curable: bool = True


class Folded(Struct, frozen=True):
    """A session as its events tell it: the view at the end, and the state where the stored view stands. The row is as new as
    that, at least: when it may say that the session was last active, and the last gate that it must know."""

    view: View
    state: State
    active: frozenset[int]
    known_gate: int
    last_gate: int
    events: int
    faults: tuple[str, ...]


def check(look: Inspection, told: Callable[[int, int], None]) -> tuple[list[Difference], int]:
    """All differences of all sessions, and how many events were folded. `told` hears how far it is."""
    names = look.session_ids()
    found: list[Difference] = []
    events = 0
    for place, session_id in enumerate(names, 1):
        try:
            differences, folded = differences_of(look, session_id)
        except NoSuchSession:
            continue  # deleted since we listed it
        found += differences
        events += folded
        told(place, len(names))
    found += (Difference("", what, curable=False) for what in look.strays())
    return found, events


def differences_of(look: Inspection, session_id: str) -> tuple[list[Difference], int]:
    """What the store says of one session, held against its events; and how many these are."""
    with look.moment():
        row, last_index, blob, view_index = look.stored(session_id)
        try:
            folded = _folded(look.events(session_id), view_index)
        except MalformedEvent as error:
            return [Difference(session_id, "an event", str(error), curable=False)], 0
    found = [Difference(session_id, fault, curable=False) for fault in folded.faults]
    if folded.view.index != last_index:
        found.append(Difference(session_id, "last_index", str(last_index), str(folded.view.index)))
    found += _state_differences(session_id, blob, folded)
    if not _is_of_older_fold(blob):
        found += _row_differences(row, _row(folded, row))
    return found, folded.events


def repair(path: Path, session_id: str) -> None:
    """The projections of this session, from its events again."""

    def folded(look: Inspection) -> tuple[CatalogueRow, bytes, int, int]:
        row, _, _, _ = look.stored(session_id)
        one = _folded(look.events(session_id), sys.maxsize)
        return _row(one, row), encode_snapshot(one.view.state), one.view.index, one.view.index

    rewritten(path, session_id, folded)


def _folded(events: Iterator[Event], upto: int) -> Folded:
    view, at_view, gate, known_gate, count = View(), View(), 0, 0, 0
    active: set[int] = set()
    faults: list[str] = []
    last: Event | None = None
    for event in events:
        faults += _faults(last, event)
        view, last = fold(view, event), event
        gate, count = max(gate, gate_number(event.body)), count + 1
        if event.index <= upto:
            at_view, known_gate = view, gate
        else:
            active.add(view.state.last_active_at)
    active.add(at_view.state.last_active_at)
    return Folded(view, at_view.state, frozenset(active), known_gate, gate, count, tuple(faults))


def _faults(before: Event | None, event: Event) -> Iterator[str]:
    """What must hold of a log's order: it begins with its opening; cursors and times never go back."""
    if before is None:
        if event.index != 1:
            yield f"the first event has index {event.index}"
        return
    if event.cursor <= before.cursor:
        yield f"the cursor of event {event.index} is not after that of {before.index}"
    if event.at < before.at:
        yield f"event {event.index} is older than {before.index}"


def _row(folded: Folded, stored: CatalogueRow) -> CatalogueRow:
    """The row as the events tell it. A higher number of gates does no harm: it must only never come again."""
    row = catalogue_row(folded.view.state)
    return replace(
        row,
        last_gate_number=stored.last_gate_number if stored.last_gate_number >= folded.known_gate else folded.last_gate,
        last_active_at=stored.last_active_at if stored.last_active_at in folded.active else row.last_active_at,
    )


#: Fields whose column in the store has another name.
_COLUMNS = {"session_id": "id", "last_gate_number": "last_gate"}


def _row_differences(stored: CatalogueRow, folded: CatalogueRow) -> Iterator[Difference]:
    for name in CatalogueRow.__struct_fields__:
        was, is_now = getattr(stored, name), getattr(folded, name)
        if was != is_now:
            yield Difference(stored.session_id, _COLUMNS.get(name, name), str(was), str(is_now))


def _state_differences(session_id: str, blob: bytes, folded: Folded) -> Iterator[Difference]:
    try:
        stored = decode_snapshot(blob)
    except LogUnavailable as error:
        yield Difference(session_id, "view", error.message, "a view")
        return
    if stored.fold_version != FOLD_VERSION or stored == folded.state:
        return
    for name in State.__struct_fields__:
        was, is_now = getattr(stored, name), getattr(folded.state, name)
        if was != is_now:
            yield Difference(session_id, f"view.{name}", str(was), str(is_now))


def _is_of_older_fold(blob: bytes) -> bool:
    try:
        return decode_snapshot(blob).fold_version != FOLD_VERSION
    except LogUnavailable:
        return False
