"""Measure one step of a machine against the bare step, and the same table and tape in two well-known libraries."""

from __future__ import annotations

from collections.abc import Iterator

from bench import bare
from bench.figure import Figure
from bench.measure import Effort, Work, ratio
from quarterdeck.kernel import phase

#: The packages that this group compares with, from requirements-bench.txt.
NEEDS = ("transitions", "statemachine")
Tape = tuple[bare.Input, ...]


def figures(effort: Effort) -> Iterator[Figure]:
    """Compare both of our steps with the floor, then the libraries with the slower of ours."""
    tape = bare.tape()
    floor, table, whole = bare.floor(), table_step(tape), phase_step(tape)
    yield Figure("machine", "bare step to one dictionary lookup", ratio(floor, bare.lookup(), effort))
    yield Figure("machine", "Machine.step to a bare step", ratio(table, floor, effort))
    yield Figure("machine", "phase.step to a bare step", ratio(whole, floor, effort))
    yield from _peer_figures(tape, whole, effort)


def _peer_figures(tape: Tape, ours: Work, effort: Effort) -> Iterator[Figure]:
    """Compare the libraries with ours. They get the name of the guard that holds and don't have to find it."""
    from bench import peers

    for name, peer, at_least in (
        ("transitions", peers.transitions_step(tape), 20),
        ("python-statemachine", peers.statemachine_step(tape), 200),
    ):
        yield Figure("machine", f"{name} to phase.step", ratio(peer, ours, effort), at_least, "at least")


def table_step(tape: Tape) -> Work:
    """Measure `Machine.step`: the table alone."""
    inputs = [(one.event, one.guard) for one in tape]
    step = phase.MACHINE.step

    def run() -> None:
        state = "idle"
        for event, guard in inputs:
            state = step(state, event, guard)

    state = "idle"
    for one in tape:
        state = step(state, one.event, one.guard)
        assert state == one.after, one
    return Work(run, len(inputs))


def phase_step(tape: Tape) -> Work:
    """Measure `phase.step`: the table, and 000's conditions on earlier events."""
    inputs = [(one.event, one.given) for one in tape]
    step = phase.step

    def run() -> None:
        state = phase.Phase()
        for event, given in inputs:
            state = step(state, event, given)

    state = phase.Phase()
    for one in tape:
        state = step(state, one.event, one.given)
        assert state.value == one.after, one
    return Work(run, len(inputs))
