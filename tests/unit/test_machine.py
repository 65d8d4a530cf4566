"""Test that every machine follows its table: each pair leads to a known state, without a row to the same one."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product

import pytest

from quarterdeck.kernel import activity
from quarterdeck.kernel.machine import ANY, MACHINE_NAMES, Machine, Row, load_machine, rows_of

DOOR = Machine(
    "door",
    ("open", "closed", "locked", "cell/deep"),
    "closed",
    [
        Row("closed", "push", "open"),
        Row("open", "push", "closed", "hard"),
        Row("open", "push", "open", "soft"),
        Row("closed", "turn_key", "locked", "right_key"),
        Row("closed", "turn_key", "closed"),
        Row(ANY, "kick", "open"),
        Row("locked", "kick", "locked"),
        *rows_of("open closed", "sink fall", "cell/deep"),
    ],
    flags={"passable": ("open",)},
)

ALL = [*map(load_machine, MACHINE_NAMES), activity.CODEX, activity.CLAUDE]
by_name = pytest.mark.parametrize("machine", ALL, ids=[machine.name for machine in ALL])


def guards_of(machine: Machine) -> list[str | None]:
    """Return every guard of the table, no guard, and an unknown one."""
    return [*{row.guard for row in machine.rows if row.guard}, None, "no such guard"]


def expected_target(machine: Machine, state: str, event: str, guard: str | None) -> str | None:
    """Look up the target in the rows: the row with this guard, else the row without a guard, else None."""
    for wanted in (guard, None):
        for row in machine.rows:
            if (row.source, row.event, row.guard) == (state, event, wanted):
                return row.target
    return None


# ------------------------------------------------------------------------------------------------ Machine itself


def test_a_row_leads_to_its_target() -> None:
    assert DOOR.step("closed", "push") == "open"


@pytest.mark.parametrize(("guard", "after"), [("hard", "closed"), ("soft", "open"), ("gentle", "open"), (None, "open")])
def test_a_guarded_row_needs_its_guard(guard: str | None, after: str) -> None:
    assert DOOR.step("open", "push", guard) == after


@pytest.mark.parametrize(("guard", "after"), [("right_key", "locked"), ("wrong_key", "closed"), (None, "closed")])
def test_an_unguarded_row_holds_where_no_guarded_one_does(guard: str | None, after: str) -> None:
    assert DOOR.step("closed", "turn_key", guard) == after


def test_a_wildcard_stands_for_every_state_that_has_no_row_of_its_own() -> None:
    assert {state: DOOR.step(state, "kick") for state in DOOR.states} == {
        "open": "open",
        "closed": "open",
        "locked": "locked",
        "cell/deep": "open",
    }
    assert ANY not in {row.source for row in DOOR.rows}


def test_a_wildcard_of_another_guard_is_not_overruled() -> None:
    machine = Machine("m", ("a", "b"), "a", [Row("a", "go", "a", "slow"), Row(ANY, "go", "b", "fast")])
    assert machine.step("a", "go", "fast") == "b"
    assert machine.step("a", "go", "slow") == "a"


def test_several_sources_and_events_are_written_in_one_line() -> None:
    assert rows_of("a b", "x y", "c", "g") == [Row(s, e, "c", "g") for s in ("a", "b") for e in ("x", "y")]


@pytest.mark.parametrize(("state", "event"), [("locked", "push"), ("closed", "sing"), ("no such state", "push")])
def test_what_has_no_row_stays(state: str, event: str) -> None:
    assert DOOR.step(state, event) is state


def test_explain_names_only_what_ends_the_state() -> None:
    assert {(row.event, row.guard, row.target) for row in DOOR.explain("open")} == {
        ("push", "hard", "closed"),
        ("sink", None, "cell/deep"),
        ("fall", None, "cell/deep"),
    }
    assert DOOR.explain("locked") == ()


def test_the_export_has_the_shape_of_the_contract() -> None:
    exported = DOOR.export()
    assert list(exported) == ["name", "states", "initial", "events", "transitions", "flags"]
    assert exported["name"] == "door"
    assert exported["states"] == ["open", "closed", "locked", "cell/deep"]
    assert exported["initial"] == "closed"
    assert exported["events"] == ["push", "turn_key", "kick", "sink", "fall"]
    assert exported["flags"] == {"passable": ["open"]}
    assert exported["transitions"][1] == {"from": "open", "event": "push", "guard": "hard", "to": "closed"}
    assert json.loads(json.dumps(exported)) == exported


def test_a_machine_without_flags_exports_none() -> None:
    assert Machine("m", ("a",), "a", []).export()["flags"] == {}


def test_the_diagram_joins_rows_of_the_same_way_and_leaves_out_those_that_stay() -> None:
    assert DOOR.mermaid() == (
        "stateDiagram-v2\n"
        '    state "cell/deep" as cell_deep\n'
        "    [*] --> closed\n"
        "    closed --> open: push, kick\n"
        "    open --> closed: push (hard)\n"
        "    closed --> locked: turn_key (right_key)\n"
        "    cell_deep --> open: kick\n"
        "    open --> cell_deep: sink, fall\n"
        "    closed --> cell_deep: sink, fall\n"
    )


# ------------------------------------------------------------------------------------------------- the five tables


def test_the_machines_are_loaded_by_name() -> None:
    assert [load_machine(name).name for name in MACHINE_NAMES] == list(MACHINE_NAMES)
    assert MACHINE_NAMES == ("lifecycle", "process", "run", "activity", "phase")


@pytest.mark.parametrize("name", ["timeline", "", "machine", "Phase"])
def test_no_other_name_is_loaded(name: str) -> None:
    with pytest.raises(KeyError):
        load_machine(name)


@by_name
def test_the_initial_state_and_all_states_of_rows_and_flags_are_known(machine: Machine) -> None:
    assert machine.initial in machine.states
    assert len(set(machine.states)) == len(machine.states)
    used = {state for row in machine.rows for state in (row.source, row.target)}
    used |= {state for states in machine.flags.values() for state in states}
    assert used <= set(machine.states)


@by_name
def test_no_two_rows_answer_the_same_question(machine: Machine) -> None:
    counts = Counter((row.source, row.event, row.guard) for row in machine.rows)
    assert [question for question, count in counts.items() if count > 1] == []


@by_name
def test_every_pair_leads_to_a_known_state_and_a_pair_without_a_row_leaves_it(machine: Machine) -> None:
    for state, event, guard in product(machine.states, (*machine.events, "no such event"), guards_of(machine)):
        after = machine.step(state, event, guard)
        target = expected_target(machine, state, event, guard)
        if target is None:
            assert after is state, (state, event, guard)
        else:
            assert after == target, (state, event, guard)
            assert after in machine.states


@by_name
def test_stepping_twice_gives_the_same(machine: Machine) -> None:
    for state, event, guard in product(machine.states, machine.events, guards_of(machine)):
        assert machine.step(state, event, guard) == machine.step(state, event, guard)


@by_name
def test_explain_lists_exactly_the_rows_that_leave(machine: Machine) -> None:
    for state in machine.states:
        leaving = {(row.event, row.guard, row.target) for row in machine.explain(state)}
        for event, guard, target in leaving:
            assert machine.step(state, event, guard) == target != state
        assert leaving == {
            (row.event, row.guard, row.target) for row in machine.rows if row.source == state and row.target != state
        }


@by_name
def test_the_export_holds_every_row(machine: Machine) -> None:
    exported = machine.export()
    assert [Row(t["from"], t["event"], t["to"], t["guard"]) for t in exported["transitions"]] == list(machine.rows)
    assert set(exported["events"]) == {row.event for row in machine.rows}


@by_name
def test_the_diagram_draws_every_way_between_two_states(machine: Machine) -> None:
    lines = machine.mermaid().splitlines()
    for row in machine.rows:
        start = f"    {row.source} --> {row.target}: ".replace("/", "_")
        drawn = any(line.startswith(start) and row.event in line for line in lines)
        assert drawn == (row.source != row.target), row


@by_name
def test_every_state_can_be_reached_from_the_first(machine: Machine) -> None:
    reached = {machine.initial}
    while more := {row.target for row in machine.rows if row.source in reached} - reached:
        reached |= more
    # In seed 003 Codex has no exit and no compaction, because OTLP has no records of them.
    unreachable = {"exited", "active/compacting"} if machine is activity.CODEX else set()
    assert reached == set(machine.states) - unreachable
