"""Provide the floor of every step: 000's machine written by hand for speed, and the tape of inputs for it.

It is a dictionary of (state, event), guards that look at the state and at the event's argument, and a new frozen struct for
each new state. It records no owners and no causes, and can't explain or export anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec import Struct

from bench.measure import Work
from quarterdeck.kernel import phase
from quarterdeck.kernel.machine import Row

TAPE_LENGTH = 149
_SEED = 8


class Input(Struct, frozen=True):
    """One event of 000, its argument (partial, complete, error, success), the guard that holds, and the phase after the
    event."""

    event: str
    given: str | None
    guard: str | None
    after: str


class Bare(Struct, frozen=True, gc=False):
    """000's phase, and the state that its conditions read."""

    value: str = "idle"
    created: bool = False
    requested: bool = False
    ask: str | None = None


Guard = Callable[[Bare, str | None], bool]
GUARDS: dict[str, Guard] = {
    "requested": lambda state, _: state.requested,
    "created": lambda state, _: state.created,
    "partial": lambda _, given: given == "partial",
    "complete": lambda _, given: given == "complete",
    "error": lambda _, given: given == "error",
    "success": lambda state, given: given == "success" and state.ask is None,
    "success_ask_open": lambda state, given: given == "success" and state.ask is not None,
    # This must be the last guard: it holds if no other one does.
    "waiting": lambda _, __: True,
}
_ORDER = (None, *GUARDS)

#: Guard, target, and the state to remember. The two signals of a start count only while the session is being created.
_BareRow = tuple[Guard | None, str, bool, bool, str | None]


def _bare_row(row: Row) -> _BareRow:
    guard = GUARDS[row.guard] if row.guard else None
    waits = row.target == "creating"
    ask = row.event if row.event.startswith("ask:") and row.guard != "partial" else None
    return guard, row.target, waits and row.event == "session_created", waits and row.event == "api_req_started", ask


def _table() -> dict[tuple[str, str], tuple[_BareRow, ...]]:
    table: dict[tuple[str, str], tuple[_BareRow, ...]] = {}
    for row in sorted(phase.MACHINE.rows, key=lambda row: _ORDER.index(row.guard)):
        pair = (row.source, row.event)
        table[pair] = (*table.get(pair, ()), _bare_row(row))
    return table


TABLE = _table()


def step(state: Bare, event: str, given: str | None) -> Bare:
    """Apply one input."""
    for guard, target, created, requested, ask in TABLE.get((state.value, event), ()):
        if guard is None or guard(state, given):
            return Bare(target, created, requested, ask)
    return state


def tape(length: int = TAPE_LENGTH) -> tuple[Input, ...]:
    """Return a walk over the table, the same in every run: rows of the current phase, text more often than others, and now
    and then an event for which the phase has no row."""
    choose = random.Random(_SEED)
    before = Bare()
    inputs: list[Input] = []
    for _ in range(length):
        event, given = _next(choose, before.value)
        after = step(before, event, given)
        inputs.append(Input(event, given, _holds(before, event, given), after.value))
        before = after
    return tuple(inputs)


def _next(choose: random.Random, value: str) -> tuple[str, str | None]:
    if choose.random() < 0.1:
        return choose.choice(phase.MACHINE.events), None
    if value == "streaming" and choose.random() < 0.4:
        return "say:text", "partial"
    row = choose.choice([row for row in phase.MACHINE.rows if row.source == value])
    if row.guard in ("success", "success_ask_open"):
        return row.event, "success"
    return row.event, row.guard if row.guard in ("partial", "complete", "error") else None


def _holds(before: Bare, event: str, given: str | None) -> str | None:
    """Return the name of the guard that holds, for libraries that take it as an argument."""
    if event == "session_created":
        return "requested" if before.requested else "waiting"
    if event == "api_req_started":
        return "created" if before.created else "waiting"
    return "success_ask_open" if given == "success" and before.ask is not None else given


def floor() -> Work:
    """Measure the bare step over the tape."""
    inputs = [(one.event, one.given) for one in tape()]

    def run() -> None:
        state = Bare()
        for event, given in inputs:
            state = step(state, event, given)

    return Work(run, len(inputs))


def lookup() -> Work:
    """Measure one lookup for each input, without guards and states. It is below the floor, and printed for orientation."""
    inputs = [one.event for one in tape()]
    targets = {(row.source, row.event): row.target for row in phase.MACHINE.rows}

    def look_up(state: str, event: str) -> str:
        return targets.get((state, event), state)

    def run() -> None:
        state = "idle"
        for event in inputs:
            state = look_up(state, event)

    return Work(run, len(inputs))
