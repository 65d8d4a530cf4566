"""The tables of moves, and the steps that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from quarterdeck.events import NAMES, Body, Event
from quarterdeck.kernel import gate, phase
from quarterdeck.kernel.gate import Gate, Gates
from quarterdeck.kernel.machine import Machine
from quarterdeck.kernel.phase import Phase
from quarterdeck.kernel.state import Cell, State
from quarterdeck.kernel.turn import Turn

#: A step of the state. The third argument is the event's body, of the type that the move is registered for.
Move: TypeAlias = Callable[[State, Event, Any], State]
_B = TypeVar("_B", bound=Body)
_Handler: TypeAlias = Callable[[State, Event, _B], State]

MOVES: dict[type[Body], Move] = {}
SUB_MOVES: dict[type[Body], Move] = {}
AT_REST: dict[type[Body], Move] = {}


def on(*kinds: type[_B], to: tuple[dict[type[Body], Move], ...] = (MOVES,)) -> Callable[[_Handler[_B]], _Handler[_B]]:
    """Registers a handler for these types, in these tables."""

    def register(handler: _Handler[_B]) -> _Handler[_B]:
        for kind in kinds:
            for table in to:
                table[kind] = handler
        return handler

    return register


def cell(event: Event, value: str) -> Cell:
    """A value that this event brought."""
    return Cell(value, event.at, event.index, NAMES[type(event.body)], event.origin)


def moved(machine: Machine, held: Cell, event: Event, guard: str | None = None) -> Cell:
    """The owner's cell after this event; the same one if its table has no row."""
    after = machine.step(held.value, NAMES[type(event.body)], guard)
    return held if after == held.value else cell(event, after)


def fed(state: State, event: Event, gates: Gates, *inputs: tuple[str, str | None]) -> tuple[Phase, Cell]:
    """The phase beneath, and the one that shows, after these inputs and with these gates."""
    beneath = state.beneath
    for name, guard in inputs:
        beneath = phase.step(beneath, name, guard)
    value = phase.shown(beneath, gate.waiting_phase(gates) if gates.open else None)
    return beneath, state.phase if value == state.phase.value else cell(event, value)


def with_profile(state: State, **changes: Any) -> State:
    """With these fields of the profile changed."""
    return replace(state, profile=replace(state.profile, **changes))


def of_main(one: Gate) -> bool:
    """A gate that the main agent waits on: when it goes on, the gate is answered."""
    return not one.path and one.kind != "dialog"


def all_gates_closed(state: State, event: Event, status: str) -> Gates:
    """Nobody is left who waits."""
    return gate.closed_where(state.gates, lambda _: True, status, event.at)


def turn_gates_closed(state: State, event: Event, status: str) -> Gates:
    """The gates of the turn close with it; a sub-agent's stay while sub-agents go on in the background."""
    gates = state.gates
    if not gates.open:
        return gates
    outliving = any(task.kind == "subagent" for task in state.background)
    return gate.closed_where(gates, lambda one: not one.path or not outliving, status, event.at)


def call_gate_closed(gates: Gates, call_id: str, event: Event) -> Gates:
    """A call that runs, or has ended, is not waiting for an approval any more."""
    if not gates.open or not call_id:
        return gates
    return gate.closed_where(
        gates, lambda one: one.kind == "approval" and one.call_id == call_id, "answered_elsewhere", event.at
    )


def approvals_open(gates: Gates) -> bool:
    """Whether the main agent waits for an approval."""
    return any(one.kind == "approval" and not one.path for one in gates.open)


def any_runs(open_turn: Turn, gates: Gates) -> bool:
    """Whether a call is running that does not itself wait for an approval."""
    if not gates.open:
        return bool(open_turn.calls)
    asking = {one.call_id for one in gates.open if one.kind == "approval"}
    return any(call.id not in asking for call in open_turn.calls)


def in_turn(open_turn: Turn) -> str | None:
    """The guard that holds while a turn is open."""
    return "turn_open" if open_turn.id else None


def resume_guard(state: State) -> str | None:
    """The guard that holds when nothing of the open turn waits for an approval any more."""
    if not state.turn.id or approvals_open(state.gates):
        return None
    return "resumes_call" if state.turn.calls else "resumes"
