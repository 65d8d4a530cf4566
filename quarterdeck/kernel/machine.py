"""Represent a state machine as a table of rows that can be stepped, explained and drawn.

1. The rows are the only place where a machine's state changes. To change a behaviour, change a row.
2. A machine has no memory and no clock. Where a row depends on more than (state, event), it names a guard. The caller
   passes the name of the guard that holds.
3. If no row matches, the state stays the same. Events report facts, so no event is an error. Commands are different:
   commands.py refuses those that aren't allowed.

The same rows are the source of `qd machine`, of the diagrams in docs/machines.md, and of the list of events that would
end a state (`why`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from msgspec import Struct

#: As a row's source: every state.
ANY = "*"

#: The modules of the session's machines. Each has its table in `MACHINE`.
MACHINE_NAMES = ("lifecycle", "process", "run", "activity", "phase")


class Row(Struct, frozen=True, gc=False):
    """In state `source`, on `event`, if `guard` holds (None: always), go to `target`."""

    source: str
    event: str
    target: str
    guard: str | None = None


class Machine:
    """A named table of transitions. `flags` maps a property's name to the states in which it is true."""

    def __init__(
        self,
        name: str,
        states: tuple[str, ...],
        initial: str,
        rows: Iterable[Row],
        flags: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.name = name
        self.states = states
        self.initial = initial
        self.rows = tuple(_expand_any(rows, states))
        self.flags = dict(flags or {})
        self.events = tuple(dict.fromkeys(row.event for row in self.rows))
        self.guards = frozenset(row.guard for row in self.rows) | {None}
        self._targets = _index_rows(self.rows, self.guards)

    def step(self, state: str, event: str, guard: str | None = None) -> str:
        """Return the state after `event`, or the same state if no row matches.

        A guard that no row of the table names counts as no guard.
        """
        if guard not in self.guards:
            guard = None
        return self._targets.get((state, event, guard), state)

    def explain(self, state: str) -> tuple[Row, ...]:
        """Return the rows that would end this state."""
        return tuple(row for row in self.rows if row.source == state and row.target != state)

    def export(self) -> dict[str, Any]:
        """Return the JSON of `qd machine NAME --json`."""
        return {
            "name": self.name,
            "states": list(self.states),
            "initial": self.initial,
            "events": list(self.events),
            "transitions": [
                {"from": row.source, "event": row.event, "guard": row.guard, "to": row.target} for row in self.rows
            ],
            "flags": {name: list(states) for name, states in self.flags.items()},
        }

    def mermaid(self) -> str:
        """Draw the machine as a Mermaid state diagram. Rows between the same two states share one arrow."""
        arrows: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.source != row.target:
                arrows.setdefault((row.source, row.target), []).append(_label(row))
        lines = [
            f"    {_node(a)} --> {_node(b)}: {', '.join(dict.fromkeys(names))}" for (a, b), names in arrows.items()
        ]
        aliases = [f'    state "{state}" as {_node(state)}' for state in self.states if _node(state) != state]
        return "\n".join(["stateDiagram-v2", *aliases, f"    [*] --> {_node(self.initial)}", *lines]) + "\n"


def rows_of(sources: str, events: str, target: str, guard: str | None = None) -> list[Row]:
    """Create a row for each pair of several sources and events, both separated by blanks: `a b c`."""
    return [Row(source, event, target, guard) for source in sources.split() for event in events.split()]


def load_machine(name: str) -> Machine:
    """Import one of MACHINE_NAMES. The import is deferred so that `qd machine` loads only the requested one.

    Raises:
        KeyError: no machine has this name.
    """
    if name not in MACHINE_NAMES:
        raise KeyError(name)
    return import_module(f"quarterdeck.kernel.{name}").MACHINE


def _expand_any(rows: Iterable[Row], states: tuple[str, ...]) -> Iterable[Row]:
    """Replace each row from `*` by one row per state. A row that names its source takes precedence over `*`."""
    listed = list(rows)
    explicit = {(row.source, row.event, row.guard) for row in listed if row.source != ANY}
    for row in listed:
        if row.source != ANY:
            yield row
            continue
        for state in states:
            if (state, row.event, row.guard) not in explicit:
                yield Row(state, row.event, row.target, row.guard)


def _index_rows(rows: tuple[Row, ...], guards: frozenset[str | None]) -> dict[tuple[str, str, str | None], str]:
    """Map (state, event, guard) to the target.

    A row without a guard holds whichever guard the caller passes, unless that guard has a row of its own.
    """
    targets: dict[tuple[str, str, str | None], str] = {}
    for row in rows:
        targets.setdefault((row.source, row.event, row.guard), row.target)
    for row in rows:
        if row.guard is None:
            for guard in guards:
                targets.setdefault((row.source, row.event, guard), row.target)
    return targets


def _label(row: Row) -> str:
    return f"{row.event} ({row.guard})" if row.guard else row.event


def _node(state: str) -> str:
    """Return the name of a state's node. Mermaid doesn't accept slashes in it."""
    return state.replace("/", "_")
