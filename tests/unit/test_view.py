"""Test the fold, the moves of inactive sessions, and `why`."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel.machine import MACHINE_NAMES, load_machine
from quarterdeck.kernel.state import EMPTY, OWNERS
from quarterdeck.kernel.view import Cause, View, Why, fold, fold_all, reconstructed, stepped, why
from tests.support.sessions import IN_PHASE, in_lifecycle, in_phase, works
from tests.support.tape import Tape, approval

CHILD = ("helper",)


def reasons(tape: Tape) -> dict[str, Why]:
    return {reason.owner: reason for reason in why(tape.view)}


# --------------------------------------------------------------------------------------------------------- folding


def test_an_event_that_was_seen_changes_nothing() -> None:
    tape = works()
    for event in tape.events:
        assert fold(tape.view, event) is tape.view


def test_a_gap_in_the_indexes_is_no_gap_in_the_view() -> None:
    """The log may drop deltas that were restated. The remaining events keep their indexes."""
    view = fold(works().view, Event("s1", 900, works().view.at, "engine", ev.AgentEnd()))
    assert (view.index, view.state.phase.value) == (900, "completed")


def test_folding_goes_on_from_any_view() -> None:
    tape = works()
    assert fold_all(tape.events[3:], fold_all(tape.events[:3])) == tape.view
    assert fold_all([]) == View()


def test_the_old_view_stays_as_it_was() -> None:
    before = works().view
    fold_all([Event("s1", before.index + 1, before.at, "engine", ev.AgentEnd())], before)
    assert before == works().view


# --------------------------------------------------------------------------------------------------- sub-agents, rest


@pytest.mark.parametrize("status", ["suspended", "archived", "error"])
def test_nothing_that_a_child_says_wakes_or_renames_a_session_at_rest(status: str) -> None:
    tape = in_lifecycle(status)
    before = tape.state
    tape.add(
        ev.SessionResumed(agent_path=CHILD),
        ev.SessionRenamed(name="x", agent_path=CHILD),
        ev.PromptQueued(text="x", agent_path=CHILD),
        approval("g9", path=CHILD),
    )
    assert tape.state is before


def test_what_a_child_used_is_counted_even_at_rest() -> None:
    tape = in_lifecycle("suspended").add(ev.Usage(tokens=ev.TokenUsage(input=5), agent_path=CHILD))
    assert tape.state.usage.total.input == 5


@pytest.mark.parametrize("status", ["suspended", "archived", "error"])
def test_a_session_at_rest_claims_no_life(status: str) -> None:
    tape = in_lifecycle(status)
    before = tape.state
    tape.add(ev.ProcessStarting(), ev.AgentReady(), ev.AgentStart(), ev.StateChange(state="active"), approval("g9"))
    assert tape.state is before


def test_what_a_child_says_is_told_and_its_turns_are_not() -> None:
    tape = works().add(
        ev.AgentAbort(agent_path=CHILD),
        ev.PromptReceived(text="Look it up", agent_path=CHILD),
        ev.ResponseComplete(message_id="m9", blocks=(ev.Block(text="Found."),), agent_path=CHILD),
    )
    assert tape.view.timeline.streaming
    assert [(entry.text, entry.path) for entry in tape.entries[1:]] == [("Found.", CHILD)]


# ------------------------------------------------------------------------------------------------------------- why


def test_every_owner_names_its_value_its_cause_and_its_end() -> None:
    tape = works()
    reason = reasons(tape)["phase"]
    assert (reason.value, reason.since) == ("streaming", tape.state.phase.since)
    assert reason.cause == Cause(5, "agent_start", "engine")
    assert {"cancel_session", "ask:tool (complete)", "process_exit (error)"} <= set(reason.ends)


@pytest.mark.parametrize("name", IN_PHASE)
def test_what_would_end_a_state_is_what_its_machine_says(name: str) -> None:
    for reason in why(in_phase(name).view):
        if reason.owner in MACHINE_NAMES:
            rows = load_machine(reason.owner).explain(reason.value)
            assert {end.partition(" (")[0] for end in reason.ends} == {row.event for row in rows}


def test_a_state_that_nothing_brought_has_no_cause() -> None:
    assert [reason.owner for reason in why(View())] == list(OWNERS)
    assert all(reason.cause is None for reason in why(View()))


def test_evidence_ends_with_other_evidence() -> None:
    tape = works().add(ev.SignalChanged(signal="stale"))
    assert (reasons(tape)["signal"].value, reasons(tape)["signal"].ends) == ("stale", ("signal_changed",))
    before = tape.state.signal
    assert tape.add(ev.SignalChanged(signal="stale", reason="still")).state.signal is before


def test_open_gates_and_background_work_are_reasons_too() -> None:
    tape = in_phase("waiting_approval").add(ev.BackgroundStarted(kind="shell", id="b1", title="npm run dev"))
    found = reasons(tape)
    assert found["gate"].value == "approval g1: shell"
    assert "your decision" in found["gate"].ends
    assert found["background"].value == "shell b1: npm run dev"
    assert found["background"].ends == ("background_ended", "process_exited")


@pytest.mark.parametrize("name", IN_PHASE)
def test_the_three_sources_of_000_agree(name: str) -> None:
    assert reconstructed(in_phase(name).view) == name


def test_the_state_alone_steps_as_the_whole_view_does() -> None:
    state = EMPTY
    for event in works().events:
        state = stepped(state, event)
    assert state == works().view.state
