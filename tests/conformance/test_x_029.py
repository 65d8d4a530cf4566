"""X-029: an agent of our own and every external one, doing the same work, show the same activities and phases.

The native sequence is what 001's events give. One difference is the agents' own and documented (3-068): Claude's tools are
in use for an instant before the approval is asked, because PreToolUse comes first; it is left out of the comparison.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay
from quarterdeck.kernel.view import View
from tests.conformance.marks import case
from tests.tape import Tape, approval

TRACES = Path(__file__).parent / "traces"
Sequence = list[tuple[str, str]]

THINKING = ev.StateChange(state="active", sub="thinking")
TOOL_USE = ev.StateChange(state="active", sub="tool_use")
WAITING = ev.StateChange(state="active", sub="waiting_for_permission")
IDLE = ev.StateChange(state="idle")
BEGIN: tuple[Body, ...] = (ev.PromptReceived(text="go", message_id="m1"), ev.AgentStart(), THINKING, ev.RequestStart())
REPLY: tuple[Body, ...] = (
    ev.RequestStart(),
    ev.MessageStart(message_id="a"),
    ev.ResponseComplete(message_id="a", blocks=(ev.Block(text="done"),)),
)
CALL = ev.ToolExecutionStart(name="shell", call_id="c1")
DONE = ev.ToolExecutionEnd(name="shell", call_id="c1")
END: tuple[Body, ...] = (ev.AgentEnd(), IDLE)

NATIVE: dict[str, tuple[Body, ...]] = {
    "a text": (*BEGIN, *REPLY, *END),
    "a tool that needs no approval": (*BEGIN, CALL, TOOL_USE, DONE, THINKING, *REPLY, *END),
    "an approval, allowed": (
        *BEGIN,
        approval("g1", call_id="c1"),
        WAITING,
        ev.ApprovalResolved(status="approved", gate_id="g1"),
        CALL,
        TOOL_USE,
        DONE,
        THINKING,
        *REPLY,
        *END,
    ),
    "stopped in the middle of a text": (*BEGIN, ev.MessageStart(message_id="a"), ev.AgentAbort(), IDLE),
    "a request that fails for good": (*BEGIN, ev.TurnFailed(kind="api"), ev.AgentEnd(outcome="failed"), IDLE),
}

EXTERNAL = [
    ("a text", "claude", "claude/2.1.325/02_thinking_text.jsonl"),
    ("a text", "codex", "codex/0.166.0/app_simple.jsonl"),
    ("a text", "gemini", "gemini/0.61.0/simple-think.jsonl"),
    ("a text", "opencode", "opencode/1.18.33/simple-think.jsonl"),
    ("a text", "kilo", "kilo/7.7.7/simple-think.jsonl"),
    ("a text", "cline", "cline/2.18.0/yolo-simple.jsonl"),
    ("a text", "pi", "pi/0.73.1/simple.jsonl"),
    ("a text", "pi", "pi/0.87.1/simple.jsonl"),
    ("a tool that needs no approval", "claude", "claude/2.1.325/03_tool_auto_allowed.jsonl"),
    ("a tool that needs no approval", "codex", "codex/0.166.0/app_tool_auto.jsonl"),
    ("a tool that needs no approval", "pi", "pi/1.5.0/tool-bash.jsonl"),
    ("an approval, allowed", "claude", "claude/2.1.325/04a_perm_PermissionRequest_allow.jsonl"),
    ("an approval, allowed", "codex", "codex/0.166.0/app_approval_accept.jsonl"),
    ("an approval, allowed", "gemini", "gemini/0.61.0/load-other-minute-1.jsonl"),
    ("an approval, allowed", "opencode", "opencode/1.18.33/perm-allow.jsonl"),
    ("an approval, allowed", "kilo", "kilo/7.7.7/perm-allow.jsonl"),
    ("an approval, allowed", "cline", "cline/1.0.10/command-approve.jsonl"),
    ("stopped in the middle of a text", "claude", "claude/2.1.325/10a_sigint_midstream_p.jsonl"),
    ("stopped in the middle of a text", "codex", "codex/0.166.0/app_interrupt_stream.jsonl"),
    ("stopped in the middle of a text", "gemini", "gemini/0.61.0/cancel-stream.jsonl"),
    ("stopped in the middle of a text", "opencode", "opencode/1.18.33/cancel-stream.jsonl"),
    ("stopped in the middle of a text", "kilo", "kilo/7.7.7/cancel-stream.jsonl"),
    ("stopped in the middle of a text", "pi", "pi/1.5.0/abort-stream.jsonl"),
    ("a request that fails for good", "claude", "claude/2.1.325/12d_api_error_400_fatal.jsonl"),
    ("a request that fails for good", "codex", "codex/0.166.0/app_api_error_final.jsonl"),
    ("a request that fails for good", "gemini", "gemini/0.61.0/errors.jsonl"),
    ("a request that fails for good", "opencode", "opencode/1.18.33/errors.jsonl"),
    ("a request that fails for good", "cline", "cline/2.18.0/err400.jsonl"),
    ("a request that fails for good", "pi", "pi/1.5.0/error-err400.jsonl"),
]


def shown(view: View) -> tuple[str, str]:
    return view.state.activity.value, view.state.phase.value


def first_turn(pairs: Sequence) -> Sequence:
    """From the first thought to the first rest, without repetitions, without what 3-068 puts before an approval."""
    begin = next(at for at, pair in enumerate(pairs) if pair[0] == "active/thinking")
    turn: Sequence = []
    for pair in pairs[begin:]:
        if not turn or pair != turn[-1]:
            turn.append(pair)
        if pair[0] in ("idle", "exited"):
            break
    return [
        pair
        for pair, after in zip(turn, [*turn[1:], ("", "")], strict=True)
        if not (pair[0] == "active/tool_use" and after[0] == "active/waiting_for_permission")
    ]


def at_rest(sequence: Sequence) -> Sequence:
    """A process that ends with its turn says exited where another says idle."""
    return [("idle" if activity == "exited" else activity, phase) for activity, phase in sequence]


def native(scenario: str) -> Sequence:
    """Judged where a batch ends: after a state_change, which closes each step of the engine."""
    tape = Tape().opened().add(ev.ProcessStarting(), ev.AgentReady())
    pairs: Sequence = []
    for body in NATIVE[scenario]:
        tape.add(body)
        if isinstance(body, ev.StateChange):
            pairs.append(shown(tape.view))
    return first_turn(pairs)


def external(agent: str, recording: str) -> Sequence:
    run = Replay(translator(agent), agent)
    with (TRACES / recording).open("rb") as lines:
        return first_turn([shown(row.view) for row in run.rows(lines)])


@case("X-029")
@pytest.mark.parametrize(("scenario", "agent", "recording"), EXTERNAL, ids=lambda value: str(value).replace("/", "-"))
def test_the_same_work_shows_the_same_states(scenario: str, agent: str, recording: str) -> None:
    assert at_rest(external(agent, recording)) == at_rest(native(scenario))
