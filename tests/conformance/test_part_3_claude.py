"""Show part 3 for Claude Code: seed 003's signals and every edge of its diagram, through hooks alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quarterdeck import events as ev
from tests.conformance.marks import case, cases_from
from tests.support.claude_session import Session

THINKING = "active/thinking"
TOOL_USE = "active/tool_use"
WAITING = "active/waiting_for_permission"
COMPACTING = "active/compacting"


def idle() -> Session:
    return Session().opens()


def thinking() -> Session:
    return idle().prompts()


def tool_use() -> Session:
    return thinking().calls()


def waiting() -> Session:
    return tool_use().asks()


def compacting() -> Session:
    return thinking().hook("PreCompact", trigger="auto")


STATES: dict[str, Callable[[], Session]] = {
    "idle": idle,
    THINKING: thinking,
    TOOL_USE: tool_use,
    WAITING: waiting,
    COMPACTING: compacting,
}

SIGNALS = {
    "3-031": "UserPromptSubmit",
    "3-032": "PreToolUse",
    "3-033": "PostToolUse",
    "3-034": "PostToolUseFailure",
    "3-035": "PermissionRequest",
    "3-037": "PreCompact",
    "3-038": "SessionStart",
    "3-039": "Stop",
    "3-040": "Interrupt",
    "3-041": "SessionEnd",
}


@cases_from(SIGNALS, "name")
def test_a_signal_is_recognised(name: str) -> None:
    agent = Session().starts().hook(name, tool_name="Write", tool_use_id="c1", prompt="go")
    assert agent.translator.unknown == 0
    assert agent.said


@case("3-036")
def test_a_decision_is_recognised_and_told_once() -> None:
    agent = waiting().hook("permission_decision", decision="allow")
    assert agent.translator.unknown == 0
    assert agent.kinds[0] == "approval_resolved"
    agent.hook("permission_decision", decision="allow").decides("allow")
    assert len(agent.events_of(ev.ApprovalResolved)) == 1


@case("3-042")
def test_a_hook_of_another_name_is_reported_and_changes_nothing() -> None:
    agent = thinking().hook("SomethingNew", tool_name="Write")
    assert agent.translator.unknown == 1
    assert agent.said == []
    assert agent.activity == THINKING


@case("3-043")
def test_the_handler_starts_initialized() -> None:
    assert Session().activity == "initialized"
    assert Session().starts().activity == "initialized"


@case("3-044")
def test_a_session_that_starts_is_idle() -> None:
    agent = Session().starts().hook("SessionStart", source="startup", model="opus")
    # agent_ready alone changes the activity from initialized to idle.
    assert agent.kinds == ["agent_ready"]
    assert agent.activity == "idle"


@case("3-045")
def test_a_prompt_brings_thinking() -> None:
    agent = idle().prompts("hello")
    assert [body.text for body in agent.events_of(ev.PromptReceived)] == ["hello"]
    assert agent.changes == [THINKING]
    assert agent.activity == THINKING


@case("3-046")
def test_a_call_brings_tool_use() -> None:
    agent = thinking().calls("c1", "Bash", command="ls")
    started = agent.events_of(ev.ToolExecutionStart)
    assert [(body.name, body.call_id, body.args) for body in started] == [("Bash", "c1", {"command": "ls"})]
    assert agent.changes == [TOOL_USE]


@pytest.mark.parametrize(
    ("name", "fields", "ok"),
    [
        pytest.param("PostToolUse", {"tool_response": {"stdout": "out"}}, True, marks=case("3-047")),
        pytest.param("PostToolUseFailure", {"error": "Exit code 3"}, False, marks=case("3-048")),
    ],
)
def test_a_call_that_ended_brings_thinking(name: str, fields: dict[str, Any], ok: bool) -> None:
    agent = tool_use().hook(name, tool_name="Write", tool_use_id="c1", **fields)
    assert [(body.call_id, body.ok) for body in agent.events_of(ev.ToolExecutionEnd)] == [("c1", ok)]
    assert agent.changes == [THINKING]


@case("3-049")
def test_a_permission_is_asked_while_thinking() -> None:
    agent = thinking().asks()
    assert [body.gate.tool for body in agent.events_of(ev.ApprovalRequired)] == ["Write"]
    assert agent.changes == [WAITING]
    assert agent.phase == "waiting_approval"


@case("3-050")
def test_a_reviewer_that_asks_the_user_leaves_it_waiting() -> None:
    agent = waiting().hook("permission_decision", decision="ask_user")
    assert agent.activity == WAITING
    assert agent.gates == 1
    assert agent.decides("ask").activity == WAITING


@case("3-051")
@pytest.mark.parametrize("asked", [waiting, lambda: thinking().asks()])
@pytest.mark.parametrize("word", ["allow", "approved", "approved_for_session", "something"])
def test_any_other_decision_brings_tool_use(asked: Callable[[], Session], word: str) -> None:
    agent = asked().hook("permission_decision", decision=word)
    assert agent.changes == [TOOL_USE]
    assert agent.activity == TOOL_USE


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(THINKING, marks=case("3-052")),
        pytest.param(TOOL_USE, marks=case("3-053")),
        pytest.param(WAITING, marks=case("3-054")),
    ],
)
def test_compaction_begins_in_any_state(before: str) -> None:
    agent = STATES[before]().hook("PreCompact", trigger="auto")
    assert agent.changes == [COMPACTING]


@pytest.mark.parametrize(
    ("before", "name"),
    [
        pytest.param(THINKING, "Stop", marks=case("3-055")),
        pytest.param(THINKING, "Interrupt", marks=case("3-056")),
        pytest.param(TOOL_USE, "Stop", marks=case("3-057")),
        pytest.param(TOOL_USE, "Interrupt", marks=case("3-058")),
        pytest.param(WAITING, "Stop", marks=case("3-059")),
        pytest.param(WAITING, "Interrupt", marks=case("3-060")),
        pytest.param(COMPACTING, "Stop", marks=case("3-061")),
        pytest.param(COMPACTING, "Interrupt", marks=case("3-062")),
    ],
)
def test_the_end_of_a_turn_is_idle(before: str, name: str) -> None:
    agent = STATES[before]()
    assert agent.activity == before
    agent.hook(name, prompt_id="p1")
    assert agent.changes[-1] == "idle"
    assert agent.activity == "idle"
    assert agent.phase == ("completed" if name == "Stop" else "stopped")
    assert agent.gates == 0


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("idle", marks=case("3-063")),
        pytest.param(THINKING, marks=case("3-064")),
        pytest.param(TOOL_USE, marks=case("3-065")),
        pytest.param(WAITING, marks=case("3-066")),
        pytest.param(COMPACTING, marks=case("3-067")),
    ],
)
def test_the_end_of_a_session_is_exited(before: str) -> None:
    agent = STATES[before]().hook("SessionEnd", reason="other")
    assert [body.reason for body in agent.events_of(ev.AgentEnded)] == ["other"]
    assert agent.activity == "exited"


@case("3-068")
def test_a_permission_is_asked_after_the_call_began() -> None:
    agent = tool_use().asks()
    assert [body.gate.call_id for body in agent.events_of(ev.ApprovalRequired)] == ["c1"]
    assert agent.activity == WAITING


@case("3-069", "U-087")
@pytest.mark.parametrize("told", ["hook", "reply"])
def test_a_refusal_is_tool_use_and_then_thinking(told: str) -> None:
    agent = waiting()
    agent.hook("permission_decision", decision="deny") if told == "hook" else agent.decides("deny", message="no")
    assert agent.changes == [TOOL_USE, THINKING]
    assert [(body.call_id, body.ok) for body in agent.events_of(ev.ToolExecutionEnd)] == [("c1", False)]


@case("3-070")
def test_a_compaction_in_a_turn_ends_in_thinking() -> None:
    agent = compacting().hook("SessionStart", source="compact")
    assert agent.activity == THINKING
    assert agent.phase == "streaming"


@case("3-071")
def test_a_compaction_by_hand_ends_in_idle() -> None:
    agent = idle().hook("PreCompact", trigger="manual")
    assert agent.activity == COMPACTING
    assert agent.hook("SessionStart", source="compact").activity == "idle"


LIVE = {
    "UserPromptSubmit": THINKING,
    "PreToolUse": TOOL_USE,
    "PostToolUse": THINKING,
    "PermissionRequest": WAITING,
    "PreCompact": COMPACTING,
    "Stop": "idle",
    "SessionStart": "idle",
}


@case("3-072")
@pytest.mark.parametrize(("name", "after"), LIVE.items())
def test_whoever_was_taken_for_gone_is_followed_again(name: str, after: str) -> None:
    agent = idle().hook("SessionEnd", reason="clear")
    assert agent.activity == "exited"
    agent.hook(name, tool_name="Write", tool_use_id="c9", tool_input={}, prompt="go", source="startup")
    assert agent.activity == after


@case("3-073")
@pytest.mark.parametrize("before", [THINKING, TOOL_USE, WAITING, COMPACTING])
@pytest.mark.parametrize("prompt_id", ["p1", "p2", ""])
def test_a_prompt_in_any_active_state_brings_thinking(before: str, prompt_id: str) -> None:
    agent = STATES[before]().prompts("more", prompt_id)
    assert agent.activity == THINKING
    assert agent.words("user") == ["go", "more"]


@case("3-074", "U-100")
@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("name", ["UserPromptSubmit", "PreToolUse", "PermissionRequest", "Stop", "SessionEnd"])
def test_another_session_never_moves_this_one(before: str, name: str) -> None:
    agent = STATES[before]()
    shown = agent.view
    agent.hook(name, session_id="another", tool_name="Write", tool_use_id="c7", prompt="review this")
    assert agent.translator.unknown == 0
    assert agent.said == []
    assert agent.view is shown


@case("3-074")
def test_a_sub_agent_never_moves_its_parent() -> None:
    agent = thinking().calls("a1", "Agent", description="look")
    agent.hook("SubagentStart", agent_id="sub", agent_type="Explore")
    for name in ("PreToolUse", "PostToolUse", "PermissionRequest", "Stop", "UserPromptSubmit", "SessionEnd"):
        agent.hook(name, agent_id="sub", agent_type="Explore", tool_name="Bash", tool_use_id="s1", tool_input={})
        assert agent.activity == TOOL_USE
        assert agent.changes == []
