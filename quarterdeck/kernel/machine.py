"""A state machine as data: a table of rows that is stepped, explained and drawn.

Rule 1: the rows are the only place where a state of a machine changes. Whoever wants another behaviour changes a row.
Rule 2: a machine has no memory and no clock. What a row depends on besides (state, event) is a guard, a name; the
caller says which one holds now, so the table stays a table.
Rule 3: a pair that has no row leaves the state as it was. That is how events work: the world is not wrong. Commands
are another matter (commands.py): one that is not allowed is refused with a typed error.

The same rows make `qd machine`, the diagrams in docs/machines.md and the sentence that says what would end a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

ANY = "*"


class Row(Struct, frozen=True, gc=False):
    """In `source`, on `event`, if `guard` holds (None: always), go to `target`."""

    source: str
    event: str
    target: str
    guard: str | None = None


class Machine:
    """A named table. `flags` are properties that hold in some of the states (000's derived values)."""

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
        self.rows = tuple(_expanded(rows, states))
        self.flags = dict(flags or {})
        self.events = tuple(dict.fromkeys(row.event for row in self.rows))
        self.guards = frozenset(row.guard for row in self.rows) | {None}
        #: (state, event, guard that holds) → target. For a guard that no row names ask `step`.
        self.targets = _compiled(self.rows, self.guards)

    def step(self, state: str, event: str, guard: str | None = None) -> str:
        """The state after `event`; the same one where the table has no row for it and for the guard that holds."""
        target = self.targets.get((state, event, guard))
        if target is not None:
            return target
        return state if guard in self.guards else self.step(state, event)

    def explain(self, state: str) -> tuple[Row, ...]:
        """The rows that would end this state."""
        return tuple(row for row in self.rows if row.source == state and row.target != state)

    def export(self) -> dict[str, Any]:
        """The contract's JSON of `qd machine NAME --json`."""
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
        """A state diagram; rows between the same two states share one arrow."""
        arrows: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.source != row.target:
                arrows.setdefault((row.source, row.target), []).append(_label(row))
        lines = [
            f"    {_node(a)} --> {_node(b)}: {', '.join(dict.fromkeys(names))}" for (a, b), names in arrows.items()
        ]
        aliases = [f'    state "{state}" as {_node(state)}' for state in self.states if _node(state) != state]
        return "\n".join(["stateDiagram-v2", *aliases, f"    [*] --> {_node(self.initial)}", *lines]) + "\n"


def rows_of(source: str, event: str, target: str, guard: str | None = None) -> list[Row]:
    """Rows for several sources or events at once, written `a b c`."""
    return [Row(one, name, target, guard) for one in source.split() for name in event.split()]


def _expanded(rows: Iterable[Row], states: tuple[str, ...]) -> Iterable[Row]:
    """`*` stands for every state; a row that names its state was written on purpose and wins over it."""
    listed = list(rows)
    named = {(row.source, row.event, row.guard) for row in listed if row.source != ANY}
    for row in listed:
        if row.source != ANY:
            yield row
            continue
        for state in states:
            if (state, row.event, row.guard) not in named:
                yield Row(state, row.event, row.target, row.guard)


def _compiled(rows: tuple[Row, ...], guards: frozenset[str | None]) -> dict[tuple[str, str, str | None], str]:
    """One lookup a step: a row without a guard is written out for every guard that has no row of its own."""
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
    """Mermaid wants plain names."""
    return state.replace("/", "_")
