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
#: One of 000's events, with the guard that came with it.
Input: TypeAlias = tuple[str, str | None]

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
    name = NAMES[type(event.body)]
    after = machine.targets.get((held.value, name, guard))
    if after is None or after == held.value:
        return held
    return Cell(after, event.at, event.index, name, event.origin)


def shown(state: State, event: Event, gates: Gates, beneath: Phase) -> Cell:
    """The phase that shows with these gates over this one beneath."""
    value = phase.shown(beneath, gate.waiting_phase(gates)) if gates.open else beneath.value
    if value == state.phase.value:
        return state.phase
    return Cell(value, event.at, event.index, NAMES[type(event.body)], event.origin)


def with_profile(state: State, **changes: Any) -> State:
    """With these fields of the profile changed."""
    return replace(state, profile=replace(state.profile, **changes))


def of_main(one: Gate) -> bool:
    """A gate that the main agent waits on: when it goes on, the gate is answered."""
    return not one.path and one.kind != "dialog"


def turn_gates_closed(state: State, event: Event, status: str) -> Gates:
    """The gates of the turn close with it. What stays open: dialogs, which belong to an extension that goes on waiting,
    and a sub-agent's, while sub-agents go on in the background."""
    gates = state.gates
    for one in gates.open:
        if one.kind != "dialog" and not (one.path and "subagent" in [task.kind for task in state.background]):
            gates = gate.closed(gates, one, status, event.at)
    return gates


def call_gate_closed(gates: Gates, call_id: str, event: Event) -> Gates:
    """A call that runs, or has ended, is not waiting for an approval any more."""
    for one in gates.open:
        if one.call_id == call_id and one.kind == "approval" and call_id:
            gates = gate.closed(gates, one, "answered_elsewhere", event.at)
    return gates


def gates_settled(state: State, event: Event, chosen: Callable[[Gate], bool], status: str) -> State:
    """Without the gates that are meant, and with the phase that then shows; the same object when none was."""
    gates = gate.closed_where(state.gates, chosen, status, event.at)
    if gates is state.gates:
        return state
    return replace(state, gates=gates, phase=shown(state, event, gates, state.beneath))


def approvals_open(gates: Gates) -> bool:
    """Whether the main agent waits for an approval."""
    for one in gates.open:
        if one.kind == "approval" and not one.path:
            return True
    return False


def any_runs(open_turn: Turn, gates: Gates) -> bool:
    """Whether a call is running that does not itself wait for an approval. A tool that asks a question runs, told or not."""
    asking: list[str] = []
    for one in gates.open:
        if one.kind == "approval":
            asking.append(one.call_id)
        elif one.kind == "question" and not one.path:
            return True
    for call in open_turn.calls:
        if call.id not in asking:
            return True
    return False


def in_turn(open_turn: Turn) -> str | None:
    """The guard that holds while a turn is open."""
    return "turn_open" if open_turn.id else None


def reply_guard(open_turn: Turn, gates: Gates) -> str | None:
    """The guard that holds when nothing of the open turn runs, is held or asks: what the model says now is its reply."""
    if not open_turn.id or open_turn.calls:
        return None
    for one in gates.open:
        if of_main(one):
            return None
    return "free"


def resume_guard(open_turn: Turn, gates: Gates) -> str | None:
    """The guard that holds when a call of the open turn runs again, or nothing of it waits for an approval any more."""
    if not open_turn.id:
        return None
    if not gates.open:
        return "resumes_call" if open_turn.calls else "resumes"
    if any_runs(open_turn, gates):
        return "resumes_call"
    return None if approvals_open(gates) else "resumes"


def held_guard(open_turn: Turn, gates: Gates) -> str | None:
    """The guard that holds when an approval is open and nothing runs beside it."""
    if not gates.open or not approvals_open(gates):
        return None
    return None if any_runs(open_turn, gates) else "held"
