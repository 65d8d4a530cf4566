"""The floor of every step: 000's machine as one would write it by hand for speed, and the tape that it is stepped over.

A dictionary of (state, event), the guards that were found to hold, a new frozen struct for the new state, and nothing
else: no owners, no causes, no explanations, no export. It even leaves to others to find out which guard holds.
"""

from __future__ import annotations

import random

from msgspec import Struct

from bench.measure import Work
from quarterdeck.kernel import phase

TAPE_LENGTH = 149
_SEED = 8
#: What comes with an event; the other guards are judged by what was seen before.
_GIVEN = ("partial", "complete", "error", "success")


class Input(Struct, frozen=True):
    """One event of 000, what came with it, the guard that holds then, and the phase that follows."""

    event: str
    given: str | None
    guard: str | None
    after: str


class Bare(Struct, frozen=True, gc=False):
    """000's phase, and what its conditions look at."""

    value: str = "idle"
    created: bool = False
    requested: bool = False
    ask: str | None = None


def _table() -> dict[tuple[str, str], tuple[tuple[str | None, str], ...]]:
    grouped: dict[tuple[str, str], list[tuple[str | None, str]]] = {}
    for row in phase.MACHINE.rows:
        grouped.setdefault((row.source, row.event), []).append((row.guard, row.target))
    return {pair: tuple(rows) for pair, rows in grouped.items()}


TABLE = _table()


def step(state: Bare, event: str, guard: str | None) -> Bare:
    """One input."""
    for needed, target in TABLE.get((state.value, event), ()):
        if needed is None or needed == guard:
            return Bare(target, state.created, state.requested, event)
    return state


def tape(length: int = TAPE_LENGTH) -> tuple[Input, ...]:
    """A walk over the table, the same in every run: rows of the present phase, text more than others, and now and then
    an event for which the phase has no row."""
    choose = random.Random(_SEED)
    before = phase.Phase()
    inputs: list[Input] = []
    for _ in range(length):
        event, given = _next(choose, before.value)
        after = phase.step(before, event, given)
        inputs.append(Input(event, given, _holds(before, event, given), after.value))
        before = after
    return tuple(inputs)


def _next(choose: random.Random, value: str) -> tuple[str, str | None]:
    if choose.random() < 0.1:
        return choose.choice(phase.MACHINE.events), None
    if value == "streaming" and choose.random() < 0.4:
        return "say:text", "partial"
    row = choose.choice([row for row in phase.MACHINE.rows if row.source == value])
    if row.guard == "success_ask_open":
        return row.event, "success"
    return row.event, row.guard if row.guard in _GIVEN else None


def _holds(before: phase.Phase, event: str, given: str | None) -> str | None:
    """000's conditions, written down a second time: the tape must not depend on what it measures."""
    if event == "session_created":
        return "requested" if before.requested else "waiting"
    if event == "api_req_started":
        return "created" if before.created else "waiting"
    return "success_ask_open" if given == "success" and before.ask is not None else given


def floor() -> Work:
    """The bare step over the tape."""
    inputs = [(one.event, one.guard) for one in tape()]

    def run() -> None:
        state = Bare()
        for event, guard in inputs:
            state = step(state, event, guard)

    return Work(run, len(inputs))
