"""Show part 0: the six flags of a phase, the notes of seed 000, and the cases that it leaves open."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.kernel import commands, phase, session_list
from quarterdeck.kernel.phase import APPROVAL_ASKS, ERROR_ASKS, STATES, Flags, Phase, ProcessStatus, Status, step
from quarterdeck.kernel.summary import Summary
from quarterdeck.kernel.view import fold_all, reconstructed
from tests.conformance.marks import case, cases_from
from tests.support.sessions import READY, in_phase, works
from tests.support.tape import Tape, approval

each_state = pytest.mark.parametrize("state", STATES)

# ---------------------------------------------------------------------------------------------- 0.F Derived UI state

TRUE_IN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "0-083": ("showSpinner", "", ("creating", "streaming")),
    "0-084": ("showCancelButton", "", ("creating", "streaming", "waiting_approval", "waiting_input")),
    "0-085": ("showResumeButton", "", ("paused", "stopped", "completed")),
    "0-086": ("showAutoModeWarning", "auto bypass", ("creating", "streaming")),
    "0-087": ("showAutoModeWarning", "ask plan edits", ()),
    "0-088": ("inputEnabled", "", ("waiting_input", "completed", "paused", "stopped")),
    "0-089": ("isActive", "", ("creating", "streaming", "waiting_approval", "waiting_input")),
}


@cases_from(TRUE_IN, "flag, modes, states")
def test_flag_in_all_nine_states(flag: str, modes: str, states: tuple[str, ...]) -> None:
    for mode in modes.split() or ["ask"]:
        tapes = {name: in_phase(name).add(ev.SettingChanged(mode=mode)) for name in STATES}
        assert {name: getattr(tape.row.flags, flag) for name, tape in tapes.items()} == {
            name: name in states for name in STATES
        }


def test_there_are_six_flags_and_no_other() -> None:
    assert Flags.__struct_fields__ == tuple(phase.FLAGS)
    assert {flag for flag, _, _ in TRUE_IN.values()} == set(phase.FLAGS)


# -------------------------------------------------------------------------------------------- 0.G Implementation notes


@case("0-090")
@pytest.mark.parametrize("ask", [*APPROVAL_ASKS, "ask:followup"])
def test_a_partial_ask_opens_no_waiting_state(ask: str) -> None:
    assert step(Phase("streaming"), ask, "partial") == Phase("streaming")
    assert works().add(ev.ToolCall(name="ask", call_id="c1", partial=True)).phase == "streaming"


@case("0-091")
def test_the_same_ask_made_complete_opens_waiting_once() -> None:
    announced = ev.ToolCall(name="shell", call_id="c1", partial=True)
    assert works().phases(announced, announced, approval("g1", "c1")) == ["streaming", "waiting_approval"]
    waiting = in_phase("waiting_approval").state.phase
    assert in_phase("waiting_approval").add(approval("g1", "c1")).state.phase == waiting


@case("0-092")
def test_a_wait_of_no_length_is_still_in_the_history() -> None:
    tape = works().add(ev.SettingChanged(mode="auto"))
    seen = [tape.phase]
    for body in (approval("g1", "c1"), ev.RequestStart()):
        tape.add(body, after=0)
        seen.append(tape.phase)
    assert seen == ["streaming", "waiting_approval", "streaming"]
    assert tape.events[-1].at == tape.events[-2].at


@case("0-094")
def test_what_one_session_is_asked_leaves_the_other_as_it_was() -> None:
    a, b = works(), works()
    before = b.view
    a.add(approval("g1", "c1"))
    assert a.phase == "waiting_approval"
    assert b.view is before
    assert b.row.flags.showSpinner


@case("0-095")
def test_every_session_has_its_own_phase_in_the_list() -> None:
    rows: list[Summary] = []
    for number, name in enumerate(STATES):
        tape = Tape(f"s{number}")
        for event in in_phase(name).events:
            tape.add(event.body)
        rows.append(tape.row)
    listed = session_list.page(rows, session_list.Filter()).sessions
    assert {row.id: row.phase for row in listed} == {f"s{number}": name for number, name in enumerate(STATES)}


Sources = tuple[Status, tuple[str | None, ...], tuple[ProcessStatus, ...], str]
STORED: dict[str, Sources] = {
    "0-096": ("creating", (None,), ("alive",), "creating"),
    "0-097": ("running", (None,), ("alive",), "streaming"),
    "0-098": ("running", APPROVAL_ASKS, ("alive",), "waiting_approval"),
    "0-099": ("running", ("ask:followup",), ("alive",), "waiting_input"),
    "0-100": ("running", ("ask:completion_result",), ("alive", "exited_zero"), "completed"),
    "0-101": ("running", ("ask:resume_task", "ask:resume_completed_task"), ("alive", "exited_zero"), "paused"),
    "0-102": ("running", ERROR_ASKS, ("alive", "exited_zero", "exited_nonzero"), "error"),
    "0-103": ("done", (None, "ask:completion_result"), ("alive", "exited_zero"), "completed"),
    "0-104": ("error", (None, "ask:api_req_failed"), ("alive", "exited_nonzero"), "error"),
    "0-105": ("stopped", (None, "ask:tool"), ("alive", "exited_zero", "exited_nonzero"), "stopped"),
}


@cases_from(STORED, "status, asks, processes, expected")
def test_rebuilt(
    status: Status, asks: tuple[str | None, ...], processes: tuple[ProcessStatus, ...], expected: str
) -> None:
    for ask in asks:
        for process in processes:
            assert phase.reconstruct(status, ask, process) == expected


@case("0-106")
def test_a_process_that_is_gone_decides_by_its_code_and_the_open_ask() -> None:
    assert phase.reconstruct("running", None, "exited_zero") == "completed"
    for ask in (None, *APPROVAL_ASKS, "ask:followup"):
        assert phase.reconstruct("running", ask, "exited_nonzero") == "error"
    for ask in (*APPROVAL_ASKS, "ask:followup"):
        assert phase.reconstruct("running", ask, "exited_zero") == "stopped"


@case("0-107")
def test_a_partial_message_after_the_ask_is_skipped() -> None:
    waiting = step(Phase("streaming"), "ask:tool", "complete")
    assert step(step(waiting, "say:text", "partial"), "ask:tool", "partial") == waiting
    assert phase.reconstruct(*phase.sources(waiting.value, waiting.ask)) == "waiting_approval"
    tape = in_phase("waiting_approval").add(ev.ToolCall(name="shell", call_id="c2", partial=True))
    assert reconstructed(tape.view) == tape.phase == "waiting_approval"


@case("0-108")
@each_state
def test_a_session_shows_the_same_after_a_switch_and_after_a_reload(state: str) -> None:
    tape, other = in_phase(state), Tape("s2").opened()
    rows = [tape.row, other.row]
    shown = [session_list.manager_phase(rows, selected)[0] for selected in ("s1", "s2", "s1")]
    assert shown == [state, "idle", state]
    assert fold_all(tape.events) == tape.view
    assert reconstructed(tape.view) == state


# ----------------------------------------------------------------------------------------------------- 0.H Totality


@case("0-109")
@each_state
def test_an_event_without_a_row_changes_nothing(state: str) -> None:
    with_row = {(row.event, row.guard) for row in phase.MACHINE.rows if row.source == state}
    guards = {row.guard for row in phase.MACHINE.rows}
    for event in (*phase.MACHINE.events, "say:checkpoint_saved", "no_such_event"):
        for guard in guards:
            if (event, guard) not in with_row and (event, None) not in with_row:
                assert phase.MACHINE.step(state, event, guard) is state
    assert step(Phase(state), "no_such_event") == Phase(state)


@case("0-109")
@each_state
def test_an_event_that_moves_nothing_is_still_in_the_log(state: str) -> None:
    tape = in_phase(state)
    before = tape.view
    tape.add(ev.Unknown(name="from_the_future"), ev.StatusUpdate(text="…"), ev.ToolAttached(name="x"))
    assert tape.view.state.phase is before.state.phase
    assert tape.view.index == before.index + 3 == len(tape.events)


@case("0-110")
def test_a_session_that_starts_can_be_cancelled() -> None:
    assert step(Phase("creating"), "cancel_session").value == "stopped"
    tape = in_phase("creating")
    commands.check(tape.state, commands.Abort())
    tape.add(ev.AgentAbort(reason="user"), ev.ProcessExited(signal="SIGTERM", asked=True))
    assert (tape.phase, tape.state.process.value) == ("stopped", "none")


LEFT_OPEN: dict[str, tuple[tuple[Phase, ...], str, str]] = {
    "0-111": ((Phase("creating", created=True),), "api_req_started", "streaming"),
    "0-112": ((Phase("completed", ask="ask:completion_result"),), "resume_session", "streaming"),
    "0-113": (
        tuple(map(Phase, ("waiting_input", "completed", "paused", "error", "stopped"))),
        "api_req_started",
        "streaming",
    ),
    "0-114": ((Phase("idle"),), "api_req_started", "streaming"),
}


@cases_from(LEFT_OPEN, "before, event, after")
def test_what_the_table_leaves_open(before: tuple[Phase, ...], event: str, after: str) -> None:
    assert {step(one, event).value for one in before} == {after}


@case("0-112")
def test_a_finished_session_resumes() -> None:
    tape = in_phase("completed")
    commands.check(tape.state, commands.Resume())
    assert tape.add(ev.TurnContinued()).phase == "streaming"


@case("0-113")
@pytest.mark.parametrize("state", ["waiting_input", "completed", "paused", "error", "stopped"])
def test_an_agent_that_sends_a_request_is_plainly_working(state: str) -> None:
    assert in_phase(state).add(ev.RequestStart()).phase == "streaming"


@case("0-114")
def test_a_session_that_was_started_elsewhere_is_seen_by_its_request_only() -> None:
    assert step(Phase("idle"), "session_created") == Phase("idle")
    tape = Tape().opened(agent="claude").add(READY)
    assert tape.phase == "idle"
    assert tape.add(ev.RequestStart()).phase == "streaming"


@case("0-115")
@pytest.mark.parametrize(
    "gone", [ev.ProcessExited(signal="SIGKILL", asked=True), ev.ProcessExited(code=143, asked=True)]
)
def test_a_stopped_session_stays_stopped_when_its_process_is_ended(gone: ev.ProcessExited) -> None:
    tape = in_phase("stopped").add(gone)
    assert (tape.phase, tape.state.process.value, tape.state.error) == ("stopped", "none", None)


@case("0-116")
@pytest.mark.parametrize("state", ["idle", "completed", "paused", "error", "stopped"])
@pytest.mark.parametrize("code", [0, 1, None])
def test_an_idle_process_that_is_ended_changes_no_phase(state: str, code: int | None) -> None:
    before = in_phase(state).state.phase
    assert in_phase(state).add(ev.ProcessExited(code=code, asked=True)).state.phase == before


@case("0-116")
@pytest.mark.parametrize("state", ["creating", "streaming", "waiting_approval", "waiting_input"])
def test_ending_a_busy_process_is_neither_of_the_two_exit_rows(state: str) -> None:
    """The reaper never stops a busy process.

    Any other requested exit means that the session was stopped: it neither failed nor finished.
    """
    assert in_phase(state).add(ev.ProcessExited(code=0, asked=True)).phase == "stopped"
    assert in_phase(state).add(ev.ProcessExited(code=1, asked=True)).phase == "stopped"


def test_ending_the_process_of_a_turn_that_was_only_promised_ends_the_spinner() -> None:
    tape = in_phase("completed").add(ev.PromptReceived(text="Go on"))
    assert tape.phase == "streaming"
    assert tape.add(ev.ProcessExited(code=0, asked=True)).phase == "stopped"


@case("0-117")
@pytest.mark.parametrize("state", ["waiting_approval", "waiting_input"])
def test_an_exit_with_an_open_ask_withdraws_it(state: str) -> None:
    ask = "ask:tool" if state == "waiting_approval" else "ask:followup"
    assert step(Phase(state, ask=ask), "process_exit", "success").value == "stopped"
    tape = in_phase(state).add(ev.ProcessExited(code=0))
    assert tape.phase == "stopped"
    assert tape.state.gates.open == ()
    assert [decision.status for decision in tape.state.gates.decided] == ["withdrawn"]
    assert tape.row.flags.showResumeButton


@case("0-117")
def test_a_paused_session_stays_paused_when_its_process_ends_well() -> None:
    assert in_phase("paused").add(ev.ProcessExited(code=0)).phase == "paused"


@case("0-118")
@pytest.mark.parametrize("ask", ERROR_ASKS)
def test_a_failed_request_stays_an_error_when_the_process_ends_well(ask: str) -> None:
    failed = step(Phase("streaming"), ask)
    assert step(failed, "process_exit", "success") == failed
    assert in_phase("error").add(ev.ProcessExited(code=0)).phase == "error"
