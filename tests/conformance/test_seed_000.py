"""Compare seed 000's text with the machine: its two tables, its gates, and its reconstruction of a phase."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.kernel import phase
from quarterdeck.kernel.phase import Phase, ProcessStatus, Status
from tests.conformance.marks import case
from tests.support.sessions import works
from tests.support.tape import approval

SEED = (Path(__file__).parent / "seed_000_tables.md").read_text(encoding="utf-8")
#: The seed's entries in its column "Condition" that are guards of the machine.
CONDITIONS = {
    "`api_req_started` already received": "requested",
    "waiting for `api_req_started`": "waiting",
    "waiting for `session_created`": "waiting",
}


def table(title: str) -> list[list[str]]:
    """Return the cells of the table under this heading, without its header."""
    section = SEED.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def transitions_of_the_seed() -> list[dict[str, str | None]]:
    """Return the seed's rows in the form of `qd machine phase --json`, with `*` expanded."""
    rows: list[dict[str, str | None]] = []
    for source, event, target, condition in table("Transition Table"):
        kind = re.search(r"\((\w+)\)", event)
        guard = kind[1] if kind else CONDITIONS.get(condition)
        sources = phase.STATES if names_in(source) == ["*"] else names_in(source)
        rows.extend(
            {"from": one, "event": names_in(event)[0], "guard": guard, "to": names_in(target)[0]} for one in sources
        )
    return rows


# ------------------------------------------------------------------------------------------------------- its tables


def test_the_seed_has_32_rows_of_which_two_hold_in_every_state() -> None:
    assert len(table("Transition Table")) == 32
    assert len(transitions_of_the_seed()) == 30 + 2 * len(phase.STATES)


def test_every_row_of_the_seed_is_in_the_machine() -> None:
    exported = phase.MACHINE.export()["transitions"]
    assert [row for row in transitions_of_the_seed() if row not in exported] == []


def test_no_row_of_the_machine_contradicts_the_seed() -> None:
    """If the seed has a row for a state, an event and a condition, the machine has no other row for them."""
    wanted = {(row["from"], row["event"], row["guard"]): row["to"] for row in transitions_of_the_seed()}
    for row in phase.MACHINE.export()["transitions"]:
        question = (row["from"], row["event"], row["guard"])
        assert wanted.get(question, row["to"]) == row["to"], question


def test_the_flags_are_the_seeds_table() -> None:
    derived = {names_in(name)[0]: names_in(states) for name, states in table("Derived UI State")}
    assert phase.MACHINE.export()["flags"] == derived
    assert len(derived) == 6


# ------------------------------------------------------------------------------------------------- its gates
#
# 000 moves into a waiting state and out of it again. Here an open gate covers the base phase. For a single gate in an
# open turn both show the same.

YES = ev.ApprovalResolved(gate_id="g1", status="approved", by="user")
NO = ev.ApprovalResolved(gate_id="g1", status="rejected", by="user")
#: 000's input, its guard, and the canonical event that it comes from.
SAME: dict[str, tuple[str, str | None, Body]] = {
    "ask for a tool": ("ask:tool", "complete", approval("g1", "c1")),
    "ask for a command": (
        "ask:command",
        "complete",
        ev.ApprovalRequired(gate=ev.GateRequest(gate_id="g1", call_id="c1", ask="command")),
    ),
    "ask a question": ("ask:followup", "complete", ev.AskUser(question="Which branch?", gate_id="g1")),
    "approve": ("approve_action", None, YES),
    "reject": ("reject_action", None, NO),
    "answer": ("send_message", None, ev.UserResponded(gate_id="g1", response="main")),
    "request": ("api_req_started", None, ev.RequestStart()),
    "cancel": ("cancel_session", None, ev.AgentAbort()),
}
ROWS_OF_GATES = {
    9: ("ask for a tool",),
    10: ("ask for a command",),
    11: ("ask a question",),
    17: ("ask for a tool", "approve"),
    18: ("ask for a tool", "reject"),
    19: ("ask for a tool", "request"),
    20: ("ask for a tool", "cancel"),
    21: ("ask a question", "answer"),
    22: ("ask a question", "cancel"),
}


def shown_by_both(steps: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the phases of 000's machine alone and of the view, after each of these steps of an open turn."""
    tape, machine = works(), works().state.base_phase
    by_machine, by_view = [machine.value], [tape.phase]
    for name in steps:
        event, guard, body = SAME[name]
        machine = phase.step(machine, event, guard)
        tape.add(body)
        by_machine.append(machine.value)
        by_view.append(tape.phase)
    return by_machine, by_view


@pytest.mark.parametrize(("row", "steps"), ROWS_OF_GATES.items(), ids=str)
def test_a_gate_over_the_machine_is_000s_row(row: int, steps: tuple[str, ...]) -> None:
    by_machine, by_view = shown_by_both(steps)
    assert by_view == by_machine
    assert by_view[-1] == transitions_of_the_seed()[row - 1]["to"]


ROUNDS = [
    ("ask for a tool", "approve"),
    ("ask for a tool", "reject"),
    ("ask for a command", "request"),
    ("ask a question", "answer"),
    ("ask a question", "request"),
    ("request",),
]


@given(st.lists(st.sampled_from(ROUNDS), max_size=8), st.booleans())
def test_one_gate_after_the_other_is_000_all_along(rounds: list[tuple[str, ...]], cancelled: bool) -> None:
    steps = tuple(name for one in rounds for name in one) + (("cancel",) if cancelled else ())
    by_machine, by_view = shown_by_both(steps)
    assert by_view == by_machine


# ----------------------------------------------------------------------------------- its way to rebuild a phase


class Stored:
    """The data that 000 stores for a session: status, last complete ask, process."""

    def __init__(self) -> None:
        self.status: Status | None = None
        self.ask: str | None = None
        self.process: ProcessStatus = "alive"
        self.signals: set[str] = set()

    def note(self, event: str, guard: str | None) -> None:
        if event == "process_exit":
            self._note_exit(ok=guard == "success")
        elif guard != "partial":
            self.process = "alive"
            # Every complete message replaces the one before it. Both completion events ask for feedback.
            said = event.replace("say:completion_result", "ask:completion_result")
            self.ask = said if said.startswith("ask:") else None
            self.status = self._status_after(event)

    def _status_after(self, event: str) -> Status:
        if event == "start_session":
            self.signals = set()
            return "creating"
        if event in ("session_created", "api_req_started") and self.status == "creating":
            self.signals.add(event)
            return "running" if len(self.signals) == 2 else "creating"
        by_name: dict[str, Status] = {"cancel_session": "stopped", "process_error": "error"}
        return by_name.get(event, "running")

    def _note_exit(self, ok: bool) -> None:
        """Note an exit. While a session runs, its process is a separate source. Otherwise the exit becomes the status."""
        self.process = "exited_zero" if ok else "exited_nonzero"
        if self.status != "running":
            self.status = "done" if ok else "error"


def possible_inputs(before: Phase, stored: Stored) -> list[tuple[str, str | None]]:
    """Return the possible inputs according to the table. A process exits once, reports only how, and doesn't fail twice."""
    remembered = {"requested": None, "waiting": None, "created": None, "success_ask_open": "success"}
    rows = [row for row in phase.MACHINE.rows if row.source == before.value and (row.guard or row.target != row.source)]
    inputs = {(row.event, remembered.get(row.guard, row.guard) if row.guard else None) for row in rows}
    return sorted((one for one in inputs if one[0] != "process_exit" or stored.process == "alive"), key=str)


@case("0-096", "0-097", "0-098", "0-099", "0-100", "0-101", "0-102")
@case("0-103", "0-104", "0-105", "0-106", "0-107", "0-108")
@given(st.data())
def test_the_three_sources_rebuild_what_the_fold_shows(data: st.DataObject) -> None:
    live, stored = Phase(), Stored()
    for _ in range(data.draw(st.integers(1, 16))):
        event, guard = data.draw(st.sampled_from(possible_inputs(live, stored)))
        live = phase.step(live, event, guard)
        stored.note(event, guard)
        assert phase.reconstruct(stored.status, stored.ask, stored.process) == live.value, (event, guard)
