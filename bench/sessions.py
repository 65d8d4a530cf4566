"""Provide sessions to fold on, and plausible bodies of every event, one for each case in which it does much work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel.timeline import Timeline
from quarterdeck.kernel.view import View, fold

START_MS = 1_700_000_000_000
ARGS = {"file_path": "/home/dev/project/src/parser/lexer.py", "old_string": "return None", "new_string": "return []"}
OUTPUT = "src/parser/lexer.py:41: def tokens(self) -> list[Token]:\n" * 6
ANSWER = "The lexer returned None for an empty line, and the parser took that for the end of the file. " * 4
OPTIONS = (ev.Option(id="yes", label="Yes", kind="allow_once"), ev.Option(id="no", label="No", kind="reject_once"))


def next_event(view: View, body: Body) -> Event:
    """Return this body as the session's next event."""
    return Event("s1", view.index + 1, START_MS + view.index * 40, "stream", body)


def folded(view: View, *bodies: Body) -> View:
    for body in bodies:
        view = fold(view, next_event(view, body))
    return view


def grown(entries: int, opened: bool = True) -> View:
    """Return a session between two turns whose timeline has this many entries: prompts, texts and calls as they come, and
    an approval in every tenth turn."""
    view = (
        folded(View(), ev.SessionOpened(agent="claude", cwd="/home/dev/project"), ev.AgentReady()) if opened else View()
    )
    for turn in count():
        for body in _turn(turn):
            if length(view.timeline) == entries and isinstance(body, ev.PromptReceived | ev.MessageStart | ev.ToolCall):
                return folded(view, ev.AgentEnd())
            view = folded(view, body)
    raise AssertionError


def length(timeline: Timeline) -> int:
    return len(timeline.entries)


def _turn(number: int) -> Iterator[Body]:
    yield ev.PromptReceived(text="And the other one?", message_id=f"p{number}")
    yield ev.AgentStart()
    for step in range(3):
        message, call = f"msg_{number}_{step}", f"call_{number}_{step}"
        yield ev.RequestStart(model="m-large")
        yield ev.MessageStart(message_id=message)
        yield ev.MessageDelta(message_id=message, delta=ANSWER)
        yield ev.ResponseComplete(message_id=message, blocks=(ev.Block(text=ANSWER),))
        yield ev.ToolCall(name="Edit", call_id=call, args=ARGS)
        if number % 10 == step == 0:
            yield ev.ApprovalRequired(gate=ev.GateRequest(gate_id=f"g{number}", tool="Edit", call_id=call, args=ARGS))
            yield ev.ApprovalResolved(status="approved", gate_id=f"g{number}", by="ada")
        yield ev.ToolExecutionStart(name="Edit", call_id=call, args=ARGS)
        yield ev.ToolExecutionEnd(name="Edit", call_id=call, result=OUTPUT)
    yield ev.Usage(tokens=ev.TokenUsage(input=1200, output=300), message_id=f"msg_{number}_2", model="m-large")
    yield ev.AgentEnd()


#: An open turn: one text is queued, another one is steering, a task runs in the background, and a text is streaming.
_UNDER_WAY: tuple[Body, ...] = (
    ev.ProcessStarting(pid=4711),
    ev.AgentReady(native_session_id="n1", model="m-large"),
    ev.PromptReceived(text="Go on", message_id="p"),
    ev.AgentStart(turn_id="t"),
    ev.RequestStart(model="m-large"),
    ev.StateChange(state="active", sub="tool_use"),
    ev.PromptQueued(text="Then tell me", message_id="q"),
    ev.SteeringReceived(ref="r", text="Not that file"),
    ev.BackgroundStarted(kind="shell", id="bg", title="make watch"),
    ev.Usage(tokens=ev.TokenUsage(input=1200, output=300), message_id="m", model="m-large"),
    ev.MessageStart(message_id="m"),
    ev.MessageDelta(message_id="m", delta=ANSWER),
)
_ANNOUNCED = ev.ToolCall(name="Bash", call_id="c", args=ARGS)
_RUNNING = ev.ToolExecutionStart(name="Bash", call_id="c", args=ARGS)
_APPROVAL = ev.ApprovalRequired(
    gate=ev.GateRequest(gate_id="g", ref="r1", tool="Bash", call_id="c", args={"command": "make test"}, options=OPTIONS)
)
_QUESTION = ev.AskUser(question="Which of the two?", gate_id="g", ref="r1", options=OPTIONS)
_DIALOG = ev.DialogRequired(method="confirm", title="Overwrite?", gate_id="g", ref="r1", options=OPTIONS)


def views(entries: int) -> dict[str, View]:
    """Return the states in which events do the most work, each with this many entries and a few open ones."""
    at_rest, unopened = grown(entries), grown(entries, opened=False)
    announced = folded(at_rest, *_UNDER_WAY, _ANNOUNCED)
    busy = folded(announced, _RUNNING)
    return {
        "busy": busy,
        "busy, approval open": folded(busy, _APPROVAL),
        "busy, question open": folded(busy, _QUESTION),
        "busy, dialog open": folded(busy, _DIALOG),
        "call with output": folded(busy, _WHOLE, ev.ToolExecutionOutput(call_id="c", delta=OUTPUT)),
        "call announced": announced,
        "call announced, approval open": folded(announced, _APPROVAL),
        "own command": folded(
            at_rest, ev.BashStart(bash_id="b", command="ls"), ev.BashOutput(bash_id="b", delta=OUTPUT)
        ),
        "at rest": at_rest,
        "suspended": folded(busy, ev.SessionSuspended()),
        "starting": folded(unopened, ev.SessionOpened(agent="claude", prompt="Go"), ev.ProcessStarting()),
        "unopened": unopened,
    }


_TEXT_AND_CALL = (
    ev.Block(text=ANSWER),
    ev.Block(block=1, kind="tool_call", call_id="c", name="Bash", args=ARGS),
)
_WHOLE = ev.ResponseComplete(message_id="m", blocks=_TEXT_AND_CALL, stop_reason="tool_use", turn_id="t")
_NEW_TEXT_AND_CALL = (
    ev.Block(text=ANSWER),
    ev.Block(block=1, kind="tool_call", call_id="new", name="Edit", args=ARGS),
)

#: Where an event's subject can be known or new, both cases are here.
_BODIES: tuple[Body, ...] = (
    ev.SessionOpened(agent="claude", cwd="/home/dev", prompt="Fix the lexer", message_id="first", model="m-large"),
    ev.SessionResumed(by="ada"),
    ev.SessionSuspended(reason="shutdown"),
    ev.SessionArchived(end_reason="cancelled"),
    ev.SessionFailed(message="the log is damaged"),
    ev.SessionRenamed(name="Lexer"),
    ev.SessionMarked(pinned=True, read_index=12),
    ev.SessionDeleted(),
    ev.OwnerChanged(epoch=3, owner="terminal"),
    ev.ProcessStarting(pid=4712, started_at=START_MS, nonce="n"),
    ev.ProcessError(message="no such program"),
    ev.ProcessExited(code=1),
    ev.ProcessExited(code=0),
    ev.ProcessExited(signal="SIGSEGV"),
    ev.AgentReady(native_session_id="n2", model="m-small", version="2.0", capabilities=("resume", "steer")),
    ev.AgentEnded(reason="clear"),
    ev.StateChange(state="active", sub="compacting"),
    ev.SignalChanged(signal="stale", reason="no hook for 60 s"),
    ev.AgentStart(turn_id="t2"),
    ev.AgentEnd(usage=ev.TokenUsage(input=1, output=2)),
    ev.AgentEnd(outcome="failed"),
    ev.AgentAbort(reason="user"),
    ev.AgentResumed(trigger="tool_approved"),
    ev.PromptReceived(text="And now the parser", message_id="q"),
    ev.PromptReceived(text="And now the parser", message_id="p2"),
    ev.PromptQueued(text="Later", message_id="q2"),
    ev.PromptEdited(message_id="q", text="Then tell them"),
    ev.PromptDropped(text="Then tell me", message_id="q"),
    ev.PromptRejected(reason="too long", message_id="q"),
    ev.DeliveryChanged(message_id="q", status="delivered"),
    ev.TurnContinued(),
    ev.TurnRetried(),
    ev.TurnRestored(finished=True, history=(ev.HistoryMessage(message_id="h", role="user"),)),
    ev.TurnFailed(kind="rate_limit", message="Slow down", resets_at=START_MS),
    ev.CommandFailed(command_id="k", message="not now"),
    ev.MessageStart(message_id="m2", turn_id="t"),
    ev.MessageDelta(message_id="m", delta="and so ", turn_id="t"),
    ev.MessageDelta(message_id="m3", delta="and so ", turn_id="t"),
    _WHOLE,
    ev.ResponseComplete(message_id="m2", blocks=_NEW_TEXT_AND_CALL, stop_reason="tool_use", turn_id="t"),
    ev.MessageAborted(message_id="m"),
    ev.MessageAborted(message_id="m", keep=True, blocks=_TEXT_AND_CALL),
    ev.ThinkingStart(message_id="m2", turn_id="t"),
    ev.ThinkingDelta(message_id="m", delta="if so, ", turn_id="t"),
    ev.ThinkingDelta(message_id="m3", delta="if so, ", turn_id="t"),
    ev.StatusUpdate(text="Reading the lexer"),
    ev.TitleGenerated(title="Fix the lexer"),
    ev.RequestStart(model="m-large", messages=12),
    ev.StreamError(reason="connection reset"),
    ev.StreamStalled(elapsed_s=31.5),
    ev.Retry(attempt=2, delay_ms=400, reason="overloaded"),
    ev.ContextOverflow(reason="prompt is too long"),
    ev.ToolCalls(count=2),
    _ANNOUNCED,
    ev.ToolCall(name="Edit", call_id="new", args=ARGS),
    _RUNNING,
    ev.ToolExecutionStart(name="Edit", call_id="new", args=ARGS),
    ev.ToolExecutionOutput(call_id="c", delta="1 passed\n"),
    ev.ToolExecutionEnd(name="Bash", call_id="c", result=OUTPUT),
    ev.ToolExecutionEnd(name="Bash", call_id="new", result=OUTPUT),
    ev.ToolExecutionMetrics(name="Bash", call_id="c", started_at_ms=1, ended_at_ms=2, duration_ms=1),
    ev.ToolBlocked(name="Bash", call_id="c", reason="not in this folder"),
    ev.ToolBlocked(name="Bash", call_id="new", reason="not in this folder"),
    ev.ToolKilled(name="Bash", call_id="c", reason="abort"),
    ev.ToolKilled(name="Bash", call_id="new", reason="abort"),
    ev.ToolSkippedForSteering(name="Bash", call_id="c", reason="steering"),
    ev.ToolSkippedForSteering(name="Bash", call_id="new", reason="steering"),
    ev.ToolAttached(name="search"),
    ev.ToolDetached(name="search"),
    ev.ToolsUpdated(attached=("search",), detached=("fetch",)),
    ev.ToolCallUnknown(name="Bash", call_id="c"),
    ev.ToolCallUnknown(name="Bash", call_id="new"),
    ev.LoopDetected(loop="file_loop_warn"),
    ev.BashStart(bash_id="b2", command="ls"),
    ev.BashOutput(bash_id="b", delta="lexer.py\n"),
    ev.BashEnd(bash_id="b", exit_code=0, output=OUTPUT),
    ev.BashEnd(bash_id="b2", exit_code=0, output=OUTPUT, command="ls"),
    _APPROVAL,
    ev.ApprovalRequired(gate=ev.GateRequest(gate_id="g2", tool="Edit", call_id="new", args=ARGS, options=OPTIONS)),
    ev.ApprovalResolved(status="approved", gate_id="g", by="ada"),
    ev.ToolApprovedAlways(tool="Bash", command_family="make", rule="Bash(make:*)"),
    ev.RuleRemoved(rule="Bash(make:*)"),
    _QUESTION,
    ev.AskUser(question="Which of the two?", gate_id="g2", options=OPTIONS),
    ev.UserResponded(response="The first", gate_id="g", message_id="a", by="ada"),
    _DIALOG,
    ev.DialogRequired(method="confirm", title="Overwrite?", gate_id="g2", options=OPTIONS),
    ev.DialogResolved(value=True, gate_id="g", by="ada"),
    ev.SteeringReceived(ref="r2", text="And the tests"),
    ev.SteeringReceived(ref="r2", text="And the tests", status="rejected_full"),
    ev.SteeringApplied(refs=("r",), count=1),
    ev.CompactStart(trigger="auto"),
    ev.CompactEnd(removed_count=40, summary="The lexer was fixed."),
    ev.BeforeCompact(messages=44),
    ev.SubagentStart(child_sid="s2", description="look for callers", call_id="c"),
    ev.SubagentEnd(child_sid="s2", result="three"),
    ev.SubAgentEvent(call_id="c", child_sid="s2", event={"type": "agent_start"}),
    ev.BackgroundStarted(kind="subagent", id="bg2", title="callers"),
    ev.BackgroundEnded(kind="shell", id="bg", ok=True),
    ev.ModelSwitched(to="m-small", from_="m-large"),
    ev.TodoChange(todos=(ev.Todo(id="1", content="lexer"), ev.Todo(id="2", content="parser"))),
    ev.PlanGenerated(plan=ev.Plan(steps=(ev.PlanStep(description="lexer"), ev.PlanStep(description="parser")))),
    ev.MemoryFlushed(facts=("uses tabs",), count=1),
    ev.LargeResultOffloaded(tool="Bash", call_id="c", path="/tmp/r1", bytes=1_000_000),
    ev.ContentPolicyViolated(summary="a key was in the text", triggered_policies=("secrets",)),
    ev.PluginEvent(name="lint", payload={"warnings": 3}),
    ev.PluginState(name="lint", state={"warnings": 3}),
    ev.Intervention(prompt="Run the tests first."),
    ev.Notice(text="The plugin failed", level="error", source="lint"),
    ev.ContextUsage(tokens=41_000, limit=200_000, percent=20.5),
    ev.SettingChanged(auto_approve=True, mode="auto"),
    ev.Usage(tokens=ev.TokenUsage(input=1300, output=320), message_id="m", model="m-large"),
    ev.Usage(tokens=ev.TokenUsage(input=1300, output=320), message_id="m2", model="m-large"),
    ev.ChangesUpdated(files=2, added=40, removed=3),
    ev.CheckpointSaved(checkpoint_id="k1"),
    ev.PluginState(name="planning", state={"steps": 3}),
    ev.CommandReceipt(client_id="k1", command="prompt", answer={"ok": True}),
    ev.ViewRefolded(to=2, from_=1, changed=("phase",)),
)


def bodies() -> Iterable[Body]:
    """Return at least one body of each type."""
    missing = set(ev.TYPES) - set(map(type, _BODIES))
    assert not missing, f"no body to measure of {sorted(kind.__name__ for kind in missing)}"
    return _BODIES
