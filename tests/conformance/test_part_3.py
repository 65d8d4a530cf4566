"""Show part 3 (seed 003, the agent's activity): the monitor, and the two diagrams as tables.

The cases about signals are shown with the translators.
"""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body, Origin
from quarterdeck.kernel import activity
from quarterdeck.kernel.activity import CLAUDE, CODEX, COMPACTING, STATES, SUB_STATES, THINKING, TOOL_USE, WAITING
from quarterdeck.kernel.state import OWNERS, State
from tests.conformance.marks import case
from tests.support.tape import Tape, approval

ORIGINS: tuple[Origin, ...] = get_args(Origin)
ACTIVE = (THINKING, TOOL_USE, WAITING, COMPACTING)

#: A turn with every activity, as a translator reports it.
TURN: tuple[Body, ...] = (
    ev.ProcessStarting(),
    ev.AgentReady(native_session_id="n1"),
    ev.StateChange(state="idle"),
    ev.PromptReceived(text="Fix the bug"),
    ev.AgentStart(),
    ev.StateChange(state="active", sub="thinking"),
    ev.RequestStart(),
    ev.MessageStart(message_id="m1"),
    ev.ToolCall(name="shell", call_id="c1"),
    ev.StateChange(state="active", sub="waiting_for_permission"),
    approval("g1", "c1"),
    ev.ApprovalResolved(gate_id="g1", status="approved", by="user"),
    ev.StateChange(state="active", sub="tool_use"),
    ev.ToolExecutionStart(name="shell", call_id="c1"),
    ev.ToolExecutionEnd(name="shell", call_id="c1"),
    ev.StateChange(state="active", sub="compacting"),
    ev.CompactStart(),
    ev.StateChange(state="active"),
    ev.AgentEnd(),
    ev.StateChange(state="idle"),
    ev.AgentEnded(reason="exit"),
    ev.ProcessExited(code=0),
)


def values(state: State) -> dict[str, str]:
    return {owner: getattr(state, owner).value for owner in OWNERS}


def history(bodies: tuple[Body, ...], origin: Origin) -> list[dict[str, str]]:
    """Return the values of all owners after each of these events, all from one source."""
    tape = Tape().opened()
    return [values(tape.add(body, origin=origin).state) for body in bodies]


# ------------------------------------------------------------------------------------------------------ 3.A, 3.B


@case("3-002", "3-003")
def test_the_same_events_from_any_source_give_the_same_states() -> None:
    histories = [history(TURN, origin) for origin in ORIGINS]
    assert len(histories) == 9
    assert all(one == histories[0] for one in histories)
    assert {row["activity"] for row in histories[0]} == set(STATES)


@case("3-002")
@pytest.mark.parametrize(("state", "sub"), [("idle", None), ("exited", None), *product(["active"], SUB_STATES)])
def test_the_monitor_takes_the_state_that_it_is_told(state: str, sub: str | None) -> None:
    for before in STATES:
        tape = Tape().opened().add(ev.StateChange(state=activity.split(before)[0], sub=activity.split(before)[1]))  # pyright: ignore[reportArgumentType]
        assert tape.state.activity.value == before
        tape.add(ev.StateChange(state=state, sub=sub), origin="otlp")  # pyright: ignore[reportArgumentType]
        assert tape.state.activity.value == activity.joined(state, sub)


def test_a_state_that_is_told_again_keeps_its_first_cause() -> None:
    tape = Tape().opened().add(ev.StateChange(state="active", sub="thinking"))
    before = tape.state.activity
    assert (
        tape.add(ev.StateChange(state="active", sub="thinking"), ev.StateChange(state="active")).state.activity
        is before
    )


@case("3-004")
def test_active_has_four_sub_states() -> None:
    assert SUB_STATES == ("thinking", "tool_use", "waiting_for_permission", "compacting")
    assert tuple(activity.split(state)[1] for state in STATES if state.startswith("active")) == SUB_STATES


@case("3-005")
@pytest.mark.parametrize("state", ["initialized", "idle", "exited"])
def test_no_other_state_has_a_sub_state(state: str) -> None:
    assert activity.split(state) == (state, None)
    assert activity.joined(state, "thinking") == state
    assert {split for name in STATES if (split := activity.split(name))[0] != "active"} == {
        (name, None) for name in ("initialized", "idle", "exited")
    }


# ------------------------------------------------------------------------------------ 3.D the Codex diagram as a table

DEBOUNCED = "response.completed, debounced"
CODEX_EDGES = [
    ("initialized", "codex.conversation_starts", None, "idle"),
    ("idle", "codex.user_prompt", None, THINKING),
    (THINKING, "codex.tool_decision", "approved", TOOL_USE),
    (THINKING, "codex.tool_decision", "ask_user", WAITING),
    (WAITING, "codex.tool_decision", "not_ask_user", TOOL_USE),
    (TOOL_USE, "codex.sse_event", "response.created", THINKING),
    (THINKING, "codex.sse_event", DEBOUNCED, "idle"),
    # A completion that is followed by more events doesn't change the state, and neither does any result.
    (TOOL_USE, "codex.sse_event", DEBOUNCED, TOOL_USE),
    (TOOL_USE, "codex.tool_result", None, TOOL_USE),
    (THINKING, "codex.tool_result", None, THINKING),
    (THINKING, "codex.sse_event", "response.output_text.delta", THINKING),
    # For totality: a prompt leads to thinking from every state.
    *((state, "codex.user_prompt", None, THINKING) for state in (*ACTIVE, "exited")),
]


@pytest.mark.parametrize(("before", "signal", "guard", "after"), CODEX_EDGES)
def test_codex_edge(before: str, signal: str, guard: str | None, after: str) -> None:
    assert CODEX.step(before, signal, guard) == after


@pytest.mark.parametrize("decision", ["approved", "approved_for_session", "denied", "abort", "unknown"])
def test_once_a_person_is_asked_every_other_decision_means_a_tool(decision: str) -> None:
    assert CODEX.step(WAITING, "codex.tool_decision", activity.decision_guard(WAITING, decision)) == TOOL_USE


@pytest.mark.parametrize("state", STATES)
def test_asking_the_user_is_said_by_one_word_only(state: str) -> None:
    assert activity.decision_guard(state, "ask_user") == "ask_user"
    wanted = state if state == COMPACTING else WAITING
    assert CODEX.step(state, "codex.tool_decision", "ask_user") == wanted


@pytest.mark.parametrize("decision", ["denied", "abort"])
def test_before_a_person_is_asked_only_approved_means_a_tool(decision: str) -> None:
    assert CODEX.step(THINKING, "codex.tool_decision", activity.decision_guard(THINKING, decision)) == THINKING


# ------------------------------------------------------------------------------ 3.G the Claude Code diagram as a table

CLAUDE_EDGES = [
    ("initialized", "SessionStart", None, "idle"),
    ("idle", "UserPromptSubmit", None, THINKING),
    (THINKING, "PreToolUse", None, TOOL_USE),
    (TOOL_USE, "PostToolUse", None, THINKING),
    (TOOL_USE, "PostToolUseFailure", None, THINKING),
    (THINKING, "PermissionRequest", None, WAITING),
    (WAITING, "permission_decision", "ask_user", WAITING),
    (WAITING, "permission_decision", "not_ask_user", TOOL_USE),
    *((state, "PreCompact", None, COMPACTING) for state in (THINKING, TOOL_USE, WAITING)),
    *((state, signal, None, "idle") for state, signal in product(ACTIVE, ("Stop", "Interrupt"))),
    *((state, "SessionEnd", None, "exited") for state in ("idle", *ACTIVE)),
    # Rows that the diagram lacks, for totality.
    (TOOL_USE, "PermissionRequest", None, WAITING),
    (COMPACTING, "SessionStart", "compacted in a turn", THINKING),
    ("idle", "PreCompact", None, COMPACTING),
    (COMPACTING, "SessionStart", "compacted by hand", "idle"),
    *((state, "UserPromptSubmit", None, THINKING) for state in ACTIVE),
    # SessionStart means idle only before any other activity is known.
    *((state, "SessionStart", None, state) for state in ("idle", THINKING, TOOL_USE, WAITING)),
    # 003 doesn't list these hooks.
    *((state, "SubagentStop", None, state) for state in STATES),
]


@pytest.mark.parametrize(("before", "signal", "guard", "after"), CLAUDE_EDGES)
def test_claude_edge(before: str, signal: str, guard: str | None, after: str) -> None:
    assert CLAUDE.step(before, signal, guard) == after


@pytest.mark.parametrize("machine", [CODEX, CLAUDE], ids=lambda machine: machine.name)
def test_a_live_signal_leaves_exited(machine: activity.Machine) -> None:
    assert {row.target for row in machine.explain("exited")} == {
        row.target for row in machine.explain("initialized")
    } - {"exited"}


@pytest.mark.parametrize("machine", [CODEX, CLAUDE], ids=lambda machine: machine.name)
def test_the_machine_that_is_shown_holds_both_diagrams(machine: activity.Machine) -> None:
    assert set(machine.rows) <= set(activity.MACHINE.rows)


# -------------------------------------------------------------------- events besides state_change that move the monitor


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (ev.ProcessStarting(), "initialized"),
        (ev.AgentEnded(), "exited"),
        (ev.ProcessExited(code=0), "exited"),
        (ev.ProcessError(), "exited"),
        (ev.SessionSuspended(), "exited"),
        (ev.SessionArchived(), "exited"),
        (ev.SessionFailed(), "exited"),
    ],
)
@pytest.mark.parametrize("before", STATES)
def test_the_coming_and_going_of_the_agent_moves_it(before: str, body: Body, after: str) -> None:
    state, sub = activity.split(before)
    tape = Tape().opened().add(ev.StateChange(state=state, sub=sub), body)  # pyright: ignore[reportArgumentType]
    assert tape.state.activity.value == after


@pytest.mark.parametrize("before", STATES)
def test_an_agent_that_is_ready_waits_unless_it_is_known_to_work(before: str) -> None:
    state, sub = activity.split(before)
    tape = Tape().opened().add(ev.StateChange(state=state, sub=sub), ev.AgentReady())  # pyright: ignore[reportArgumentType]
    assert tape.state.activity.value == ("idle" if before in ("initialized", "exited") else before)
