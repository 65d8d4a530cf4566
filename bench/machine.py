"""One step of a machine against the bare step, and the same table and tape in two well-known libraries."""

from __future__ import annotations

from collections.abc import Iterator

from bench import bare
from bench.figure import Figure
from bench.measure import Effort, Work, ratio
from quarterdeck.kernel import phase


def table_step(tape: tuple[bare.Input, ...]) -> Work:
    """`Machine.step`: the table alone."""
    inputs = [(one.event, one.guard) for one in tape]
    step = phase.MACHINE.step

    def run() -> str:
        state = "idle"
        for event, guard in inputs:
            state = step(state, event, guard)
        return state

    return Work(run, len(inputs))


def phase_step(tape: tuple[bare.Input, ...]) -> Work:
    """`phase.step`: the table, and 000's conditions on what was seen before."""
    inputs = [(one.event, one.given) for one in tape]
    step = phase.step

    def run() -> str:
        state = phase.Phase()
        for event, given in inputs:
            state = step(state, event, given)
        return state.value

    return Work(run, len(inputs))


def figures(effort: Effort) -> Iterator[Figure]:
    tape = bare.tape()
    check(tape)
    floor, table, whole = bare.floor(), table_step(tape), phase_step(tape)
    yield Figure("step", "Machine.step to a bare step", ratio(table, floor, effort), 1.2)
    yield Figure("step", "phase.step to a bare step", ratio(whole, floor, effort), 1.2)
    yield from _peer_figures(tape, whole, effort)


def _peer_figures(tape: tuple[bare.Input, ...], ours: Work, effort: Effort) -> Iterator[Figure]:
    """Ours is the whole `phase.step` here; the libraries are told which guard holds, and are spared finding out."""
    from bench import peers

    for name, peer, at_least in (
        ("transitions", peers.transitions_step(tape), 20),
        ("python-statemachine", peers.statemachine_step(tape), 200),
    ):
        yield Figure("step", f"{name} to phase.step", ratio(peer, ours, effort), at_least, "at least")


def check(tape: tuple[bare.Input, ...]) -> None:
    """All of them must walk the same way, or the figures compare nothing."""
    state, value = bare.Bare(), "idle"
    for one in tape:
        state = bare.step(state, one.event, one.guard)
        value = phase.MACHINE.step(value, one.event, one.guard)
        assert state.value == value == one.after, one
