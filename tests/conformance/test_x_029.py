"""Show X-029: a built-in agent and every external agent that do the same work show the same activities and phases.

Two comparisons over whole sessions, from the first idle state to the exit of the process:

* Sessions written by hand, turn by turn, as events of 001, are compared with recordings of real agents that did the
  same. One difference is documented (3-068) and ignored: a tool is in use for an instant before its approval is
  requested, because PreToolUse comes first.
* Every recording, through every source that suffices alone, is converted to 001's events without the activities that the
  agent's own signals report (003). The activities that an engine reports for these events (8.2) must be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay, Row
from quarterdeck.kernel.view import View, fold
from tests.conformance.marks import case
from tests.support.tape import Tape, approval

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
TOOL: tuple[Body, ...] = (CALL, TOOL_USE, DONE, THINKING)
ALLOWED: tuple[Body, ...] = (
    approval("g1", call_id="c1"),
    WAITING,
    ev.ApprovalResolved(status="approved", gate_id="g1"),
    *TOOL,
)

TURNS: dict[str, tuple[Body, ...]] = {
    "text": (*BEGIN, *REPLY, *END),
    "tool": (*BEGIN, *TOOL, *REPLY, *END),
    "approval": (*BEGIN, *ALLOWED, *REPLY, *END),
    "approval, tool, approval": (*BEGIN, *ALLOWED, *TOOL, *ALLOWED, *REPLY, *END),
    "stopped": (*BEGIN, ev.MessageStart(message_id="a"), ev.AgentAbort(), IDLE),
    "failed": (*BEGIN, ev.TurnFailed(kind="api"), ev.AgentEnd(outcome="failed"), IDLE),
}

#: Agent, recording, and all of its turns.
EXTERNAL: list[tuple[str, str, tuple[str, ...]]] = [
    ("claude", "claude/2.1.325/02_thinking_text.jsonl", ("text",)),
    ("codex", "codex/0.166.0/app_simple.jsonl", ("text",)),
    ("gemini", "gemini/0.61.0/simple-think.jsonl", ("text", "text", "text")),
    ("opencode", "opencode/1.18.33/simple-think.jsonl", ("text", "text", "text")),
    ("kilo", "kilo/7.7.7/simple-think.jsonl", ("text", "text", "text")),
    ("cline", "cline/2.18.0/yolo-simple.jsonl", ("text",)),
    ("pi", "pi/0.73.1/simple.jsonl", ("text",)),
    ("pi", "pi/0.87.1/simple.jsonl", ("text",)),
    ("claude", "claude/2.1.325/03_tool_auto_allowed.jsonl", ("tool",)),
    ("codex", "codex/0.166.0/app_tool_auto.jsonl", ("tool",)),
    ("pi", "pi/1.5.0/tool-bash.jsonl", ("tool",)),
    ("claude", "claude/2.1.325/04a_perm_PermissionRequest_allow.jsonl", ("approval",)),
    ("codex", "codex/0.166.0/app_approval_accept.jsonl", ("approval",)),
    ("gemini", "gemini/0.61.0/load-other-minute-1.jsonl", ("approval", "text")),
    ("opencode", "opencode/1.18.33/perm-allow.jsonl", ("approval", "approval, tool, approval")),
    ("kilo", "kilo/7.7.7/perm-allow.jsonl", ("approval", "approval, tool, approval")),
    ("cline", "cline/1.0.10/command-approve.jsonl", ("approval",)),
    ("claude", "claude/2.1.325/10a_sigint_midstream_p.jsonl", ("stopped",)),
    ("codex", "codex/0.166.0/app_interrupt_stream.jsonl", ("stopped", "text")),
    ("gemini", "gemini/0.61.0/cancel-stream.jsonl", ("stopped", "text")),
    ("opencode", "opencode/1.18.33/cancel-stream.jsonl", ("stopped", "text")),
    ("kilo", "kilo/7.7.7/cancel-stream.jsonl", ("stopped", "text")),
    ("pi", "pi/1.5.0/abort-stream.jsonl", ("stopped", "text")),
    ("claude", "claude/2.1.325/12d_api_error_400_fatal.jsonl", ("failed",)),
    ("codex", "codex/0.166.0/app_api_error_final.jsonl", ("failed",)),
    ("gemini", "gemini/0.61.0/errors.jsonl", ("failed", "failed", "failed", "text")),
    ("opencode", "opencode/1.18.33/errors.jsonl", ("failed", "failed", "text", "text")),
    ("cline", "cline/2.18.0/err400.jsonl", ("failed",)),
    ("pi", "pi/1.5.0/error-err400.jsonl", ("failed",)),
    ("builtin", "builtin/0.1.0/text.jsonl", ("text",)),
    ("builtin", "builtin/0.1.0/tool.jsonl", ("tool",)),
    ("builtin", "builtin/0.1.0/approval.jsonl", ("approval",)),
    ("builtin", "builtin/0.1.0/stopped.jsonl", ("stopped", "text")),
    ("builtin", "builtin/0.1.0/failed.jsonl", ("failed",)),
]


def shown(view: View) -> tuple[str, str]:
    return view.state.activity.value, view.state.phase.value


def without_repetitions(pairs: Iterable[tuple[str, str]]) -> Sequence:
    found: Sequence = []
    for pair in pairs:
        if not found or pair != found[-1]:
            found.append(pair)
    return found


def session(pairs: Iterable[tuple[str, str]]) -> Sequence:
    """Start at the first idle state.

    If a process exits with its turn, there is no idle state between them. 3-068 is ignored.
    """
    found = without_repetitions(pairs)
    found = found[next(at for at, pair in enumerate(found) if pair[0] == "idle") :]
    return [
        pair
        for pair, after in zip(found, [*found[1:], ("", "")], strict=True)
        if (pair[0], after[0]) not in (("active/tool_use", "active/waiting_for_permission"), ("idle", "exited"))
    ]


def rows_of(agent: str, recording: Path, only: tuple[str, ...] = ()) -> list[Row]:
    with recording.open("rb") as lines:
        return list(Replay(translator(agent), agent, only).rows(lines))


# ------------------------------------------------------------------------------------------------- sessions by hand


def native(turns: tuple[str, ...], ended: Body) -> Sequence:
    """Compare after each state_change, which ends each step of the engine."""
    tape = Tape().opened().add(ev.ProcessStarting(), ev.AgentReady())
    pairs: Sequence = [shown(tape.view)]
    for turn in turns:
        for body in TURNS[turn]:
            tape.add(body)
            if isinstance(body, ev.StateChange):
                pairs.append(shown(tape.view))
    return session([*pairs, shown(tape.add(ended).view)])


@case("X-029")
@pytest.mark.parametrize(("agent", "recording", "turns"), EXTERNAL, ids=lambda value: str(value).replace("/", "-"))
def test_the_same_work_shows_the_same_states(agent: str, recording: str, turns: tuple[str, ...]) -> None:
    rows = rows_of(agent, TRACES / recording)
    (ended,) = [body for row in rows for body in row.bodies if isinstance(body, ev.ProcessExited)]
    assert session(shown(row.view) for row in rows) == native(turns, ended)


# ------------------------------------------------------------------------------------------------- every recording

RECORDINGS = sorted(TRACES.rglob("*.jsonl"))
#: Sources that suffice alone for a whole session, besides all of them together.
ENOUGH: dict[str, tuple[tuple[str, ...], ...]] = {
    "claude": (("hook", "proc"), ("stdout", "stdin", "proc")),
    "codex": (("stdout", "stdin", "proc"), ("hook", "proc"), ("otlp", "proc"), ("otlp", "notify", "proc")),
}
#: 3-021: by telemetry, tools are in use until the model's answer is seen. Here notify ends the turn before that.
LINGERS = ("app_tool_auto", ("otlp", "notify", "proc"))


def is_heard(path: Path, only: tuple[str, ...]) -> bool:
    """Return whether the recording has more from these sources than the start and exit of the process."""
    return not only or any(f'"src": "{source}' in path.read_text() for source in only if source != "proc")


HEARD = [
    pytest.param(path, only, id=f"{path.relative_to(TRACES).as_posix()} {'+'.join(only) or 'all'}")
    for path in RECORDINGS
    for only in ((), *ENOUGH.get(path.relative_to(TRACES).parts[0], ()))
    if is_heard(path, only)
]


class Engine:
    """Report the activity from 001's events alone (8.2): compacting, else gates, else calls, else the turn."""

    def __init__(self, agent: str) -> None:
        self.view = View()
        self.compacts = self.refused = self.batch = False
        self._fold(ev.SessionOpened(agent=agent))

    def _fold(self, body: Body) -> None:
        self.view = fold(self.view, Event("s1", self.view.index + 1, 0, "engine", body))

    def does(self, body: Body) -> None:
        self._fold(body)
        if not body.agent_path:
            self._remember(body)
            state = self.view.state
            if state.process.value == "up" and state.activity.value != "exited":
                self._fold(self._activity())

    def _remember(self, body: Body) -> None:
        """Update the flags. A rejected call is in use until its failed end, or until the agent moves on (8.2)."""
        if isinstance(body, ev.CompactStart | ev.CompactEnd | ev.AgentEnd | ev.AgentAbort):
            self.compacts = isinstance(body, ev.CompactStart)
        if isinstance(body, ev.ToolCalls | ev.RequestStart | ev.AgentEnd | ev.AgentAbort | ev.ToolBlocked):
            self.batch = isinstance(body, ev.ToolCalls)
        if isinstance(body, ev.ApprovalResolved):
            self.refused = body.status == "rejected"
        elif isinstance(body, AFTER_A_REFUSAL):
            self.refused = False

    def _activity(self) -> ev.StateChange:
        state = self.view.state
        if self.compacts:
            return ev.StateChange(state="active", sub="compacting")
        if any(not gate.path for gate in state.gates.open):
            return WAITING
        if not state.turn.is_open:
            return IDLE
        # A batch is in use from 001's tool_calls on, also before plugins allow its first call to start.
        return TOOL_USE if state.turn.calls or self.refused or self.batch else THINKING


AFTER_A_REFUSAL = (ev.ToolExecutionEnd, ev.ToolBlocked, ev.ToolKilled, ev.RequestStart, ev.MessageStart)


def engine(agent: str, rows: list[Row]) -> Iterable[tuple[str, str]]:
    """Return the states that an engine shows for these events, where the agent's own batches end."""
    ours = Engine(agent)
    for row in rows:
        for body in row.bodies:
            if not isinstance(body, ev.StateChange):
                ours.does(body)
        yield shown(ours.view)


@case("X-029")
@pytest.mark.parametrize(("path", "only"), HEARD)
def test_an_engine_that_does_the_same_shows_the_same(path: Path, only: tuple[str, ...]) -> None:
    agent = path.relative_to(TRACES).parts[0]
    rows = rows_of(agent, path, only)
    external = without_repetitions(shown(row.view) for row in rows)
    same = external == without_repetitions(engine(agent, rows))
    assert same != ((path.stem, only) == LINGERS)
