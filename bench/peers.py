"""Build 000's table in `transitions` and `python-statemachine`, written as in their own documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statemachine import State, StateMachine
from transitions import Machine

from bench.bare import Input
from bench.measure import Work
from quarterdeck.kernel import phase

Tape = tuple[Input, ...]
_ROWS = phase.MACHINE.rows


class Model:
    """The model that `transitions` moves."""

    state: str
    trigger: Callable[..., bool]


def transitions_step(tape: Tape) -> Work:
    """Measure one model, stepped by `trigger`."""
    model = Model()
    machine: Any = Machine  # The library's stubs are narrower than its documentation.
    machine(
        model,
        states=list(phase.STATES),
        initial="idle",
        auto_transitions=False,
        ignore_invalid_triggers=True,
        transitions=[
            {"trigger": row.event, "source": row.source, "dest": row.target, "conditions": _conditions(row.guard)}
            for row in _ROWS
        ],
    )

    def run() -> list[str]:
        model.state = "idle"
        seen: list[str] = []
        for one in tape:
            model.trigger(one.event, guard=one.guard)
            seen.append(model.state)
        return seen

    return _checked(run, tape)


def statemachine_step(tape: Tape) -> Work:
    """Measure one machine, stepped by `send`."""
    machine: Any = _phase_class()()
    inputs = [(_python_name(one.event), one.guard) for one in tape]

    def run() -> list[str]:
        machine.current_state_value = "idle"
        seen: list[str] = []
        for event, guard in inputs:
            machine.send(event, guard=guard)
            seen.append(machine.current_state_value)
        return seen

    return _checked(run, tape)


def _phase_class() -> type[StateMachine]:
    states = {name: State(initial=name == "idle") for name in phase.STATES}
    events: dict[str, Any] = {}
    for row in _ROWS:
        name = _python_name(row.event)
        one = states[row.source].to(states[row.target], cond=_conditions(row.guard))
        events[name] = events[name] | one if name in events else one
    return type("PhaseMachine", (StateMachine,), {"allow_event_without_transition": True, **states, **events})


def _python_name(event: str) -> str:
    return event.replace(":", "_")


def _conditions(name: str | None) -> list[Callable[..., bool]]:
    def condition(guard: str | None) -> bool:
        return guard == name

    return [condition] if name else []


def _checked(run: Callable[[], list[str]], tape: Tape) -> Work:
    """Check that a library takes the same path. Otherwise the comparison would mean nothing."""
    assert run() == [one.after for one in tape]
    assert run() == [one.after for one in tape]
    return Work(run, len(tape))
