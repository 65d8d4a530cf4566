"""Hold the tables of moves, and the steps and guards that several handlers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from quarterdeck.events import NAMES, Body, Event
from quarterdeck.kernel import gate, phase
from quarterdeck.kernel.gate import Gate, Gates
from quarterdeck.kernel.machine import Machine
from quarterdeck.kernel.state import Cell, State
from quarterdeck.kernel.turn import Turn

#: A step of the state. The third argument is the event's body, of the type that the move is registered for.
Move: TypeAlias = Callable[[State, Event, Any], State]
_B = TypeVar("_B", bound=Body)
_Handler: TypeAlias = Callable[[State, Event, _B], State]

MOVES: dict[type[Body], Move] = {}
SUB_MOVES: dict[type[Body], Move] = {}
INACTIVE_MOVES: dict[type[Body], Move] = {}


def on(*kinds: type[_B], to: tuple[dict[type[Body], Move], ...] = (MOVES,)) -> Callable[[_Handler[_B]], _Handler[_B]]:
    """Register a handler for these event types, in these tables."""

    def register(handler: _Handler[_B]) -> _Handler[_B]:
        for kind in kinds:
            for table in to:
                table[kind] = handler
        return handler

    return register


# ------------------------------------------------------------------------------------------------- steps


def cell(event: Event, value: str) -> Cell:
    """Create a cell whose value this event caused."""
    return Cell(value, event.at, event.index, event.type, event.origin)


def moved(machine: Machine, current: Cell, event: Event, guard: str | None = None) -> Cell:
    """Step a machine. Return the same cell if its value doesn't change."""
    value = machine.step(current.value, NAMES[type(event.body)], guard)
    return current if value == current.value else cell(event, value)


def updated(state: State, event: Event, **changes: Any) -> State:
    """Return the state with these changes, and with the phase that is shown after them."""
    after = replace(state, **changes)
    value = phase.shown(after.base_phase, gate.waiting_phase(after.gates))
    return after if value == after.phase.value else replace(after, phase=cell(event, value))


def with_run(state: State, run: Cell) -> State:
    """Return the state with this cell of the run, or the same object if it is the same cell."""
    return state if run is state.run else replace(state, run=run)


def with_profile(state: State, **changes: Any) -> State:
    """Return the state with these fields of the profile changed."""
    return replace(state, profile=replace(state.profile, **changes))


# --------------------------------------------------------------------------------- closing several gates


def blocks_main_agent(gate: Gate) -> bool:
    """Return whether the main agent waits for this gate, so that the gate is answered when the agent moves on."""
    return not gate.path and gate.kind != "dialog"


def turn_gates_closed(state: State, event: Event, status: str) -> Gates:
    """Close the gates of the turn.

    Dialogs stay open, because the extension that requested them still waits. Gates of sub-agents stay open while a
    sub-agent continues in the background.
    """
    has_subagents = any(task.kind == "subagent" for task in state.background)
    return gate.closed_where(
        state.gates, lambda gate: gate.kind != "dialog" and not (gate.path and has_subagents), status, event.at
    )


def call_gate_closed(gates: Gates, call_id: str, event: Event) -> Gates:
    """Close the approval of a call that runs or has ended. Return the same object if there is none."""
    if not call_id:
        return gates
    return gate.closed_where(
        gates, lambda gate: gate.call_id == call_id and gate.kind == "approval", "answered_elsewhere", event.at
    )


def gates_closed_where(state: State, event: Event, predicate: Callable[[Gate], bool], status: str) -> State:
    """Close every gate for which the predicate is true. Return the same object if there is none."""
    gates = gate.closed_where(state.gates, predicate, status, event.at)
    return state if gates is state.gates else updated(state, event, gates=gates)


# -------------------------------------------------------------------------------------- guards of the run


def turn_guard(turn: Turn) -> str | None:
    """Return the guard that holds while a turn is open."""
    return "turn_open" if turn.is_open else None


def reply_guard(turn: Turn, gates: Gates) -> str | None:
    """Return the guard that holds if nothing of the open turn runs, is held or asks: a text is the model's reply."""
    if not turn.is_open or turn.calls or any(map(blocks_main_agent, gates.open)):
        return None
    return "free"


def resume_guard(turn: Turn, gates: Gates) -> str | None:
    """Return the guard that holds if a call of the open turn runs again, or if the turn has no open approval left."""
    if not turn.is_open:
        return None
    if is_any_call_running(turn, gates):
        return "resumes_call"
    return None if has_open_approval(gates) else "resumes"


def held_guard(turn: Turn, gates: Gates) -> str | None:
    """Return the guard that holds if an approval is open and nothing runs beside it."""
    return "held" if has_open_approval(gates) and not is_any_call_running(turn, gates) else None


def has_open_approval(gates: Gates) -> bool:
    """Return whether the main agent waits for an approval."""
    return any(gate.kind == "approval" and not gate.path for gate in gates.open)


def is_any_call_running(turn: Turn, gates: Gates) -> bool:
    """Return whether a call runs that isn't held.

    A tool that asks a question runs while it waits for the answer, whether or not the agent reported its start.
    """
    if any(gate.kind == "question" and not gate.path for gate in gates.open):
        return True
    held_calls = {gate.call_id for gate in gates.open if gate.kind == "approval"}
    return any(call.id not in held_calls for call in turn.calls)
