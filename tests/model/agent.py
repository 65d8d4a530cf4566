"""Model the main agent: how a turn starts, continues and ends.

Each batch has the events that a translator or the engine writes. The steps of a turn are:

    no turn ── starts ──▶ asking ── chunks ──▶ writing ── calls ──▶ tools ── all answered ──▶ asking …
                             └── compacts ─▶ compacting          └── calls run, ask, are allowed, end, two at a time

It may compact in any of these steps (003: PreCompact in thinking, tool_use and waiting), and send text beside its
calls. A turn finishes, fails, or is interrupted in the agent's own terminal, from nearly everywhere. A gate may close
without a decision of ours, because the user answered in the terminal or because the agent moved on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, FailureKind
from tests.model.truth import Bounds, Call, Move, Question, Status, Truth, World, gate_of, without_turn

#: 000 has four asks for a failed turn; each search step takes one kind of each.
FAILURES: tuple[tuple[FailureKind, ...], ...] = (
    ("api", "usage_limit", "rate_limit", "auth", "network", "internal"),
    ("payment",),
    ("invalid_model",),
    ("turn_limit",),
)
#: 000 has four asks for an approval.
ASKS: tuple[Literal["tool", "command", "browser", "mcp"], ...] = ("tool", "command", "browser", "mcp")


def moves(world: World, bounds: Bounds) -> Iterator[Move]:
    """Return everything that the main agent may do now."""
    truth, new = world.truth, str(world.view.index + 1)
    if not truth.is_live:
        return
    if not truth.step:
        yield from _begins(truth)
        return
    yield from _STEPS[truth.step](truth, new, bounds)
    yield from _is_interrupted(truth)


# --- a turn begins

BEGINNING: tuple[Body, ...] = (ev.AgentStart(), ev.RequestStart(model="m"))


def begun(truth: Truth) -> Truth:
    """Open a turn and send its first request."""
    return replace(truth, step="asking", promise="")


def prompted(name: str = "") -> tuple[Body, ...]:
    """Start a turn with a message of the user or of the agent itself."""
    return (ev.PromptReceived(text="go", message_id=name, source="user" if name else "agent"), *BEGINNING)


def _begins(truth: Truth) -> Iterator[Move]:
    if truth.promise == "first":
        after = replace(truth, prompts=truth.prompts[1:])
        yield Move("the first prompt is taken", "agent", prompted(truth.prompts[0]), begun(after))
    elif truth.promise in ("text", "go_on"):
        yield Move("the turn begins", "agent", BEGINNING, begun(truth))
    elif truth.promise == "anew":
        ready = ev.AgentReady(native_session_id="another")
        yield Move("the agent starts over", "agent", (ready,), replace(truth, promise="text"))
    elif not truth.promise:
        yield Move("a turn starts by itself", "agent", prompted(), begun(truth))
        compacting = replace(truth, step="compacting")
        yield Move("it compacts by hand", "agent", (ev.AgentStart(), ev.CompactStart(trigger="manual")), compacting)


# --- a request is out, or its answer comes


def _asks_the_model(truth: Truth, new: str, bounds: Bounds) -> Iterator[Move]:
    yield from _speaks(truth, new)
    yield Move("the stream breaks, it tries again", "agent", (ev.StreamError(), ev.Retry(attempt=1)), truth)
    overflow = (ev.ContextOverflow(), ev.BeforeCompact(), ev.CompactStart(trigger="auto"))
    yield Move("it compacts", "agent", overflow, replace(truth, step="compacting"))
    yield from _goes_on(truth, new, bounds, ())


def _writes(truth: Truth, new: str, bounds: Bounds) -> Iterator[Move]:
    whole = (ev.ResponseComplete(message_id=new, blocks=(ev.Block(text="done"),)),)
    asking = replace(truth, step="asking")
    again = (ev.StreamStalled(elapsed_s=9), ev.MessageAborted(message_id=new), ev.Retry(attempt=1), ev.RequestStart())
    yield Move("the stream stalls, it asks again", "agent", again, asking)
    yield Move("it says more", "agent", (*whole, *_text(f"{new}b")), truth)
    yield Move("it compacts", "agent", (*whole, ev.CompactStart(trigger="auto")), replace(truth, step="compacting"))
    if truth.steers:
        applied = ev.SteeringApplied(refs=truth.steers)
        yield Move("it is steered", "agent", (*whole, applied, ev.RequestStart()), replace(asking, steers=()))
    yield from _goes_on(truth, new, bounds, whole)


def _goes_on(truth: Truth, new: str, bounds: Bounds, whole: tuple[Body, ...]) -> Iterator[Move]:
    """Complete the reply: calls, or the end of the turn."""
    yield from _opens_calls(truth, new, bounds, whole)
    yield _ends(truth, whole)
    for kinds in FAILURES:
        yield _fails(truth, kinds[int(new) % len(kinds)])


def _speaks(truth: Truth, new: str) -> Iterator[Move]:
    writing = replace(truth, step="writing", lingers=False)
    thinks = (ev.ThinkingStart(message_id=new), ev.ThinkingDelta(message_id=new, delta="hm"))
    yield Move("it thinks", "agent", thinks, writing)
    yield Move("it writes", "agent", _text(new), writing)


def _text(name: str) -> tuple[Body, ...]:
    return (ev.MessageStart(message_id=name), ev.MessageDelta(message_id=name, delta="I"))


def _compacts(truth: Truth, _new: str, _bounds: Bounds) -> Iterator[Move]:
    done = ev.CompactEnd(removed_count=3)
    if truth.calls:
        yield Move("compacted, its calls go on", "agent", (done,), replace(truth, step="tools"))
        for call in truth.calls:
            if call.status == "runs":
                yield from _call_runs(truth, call)
        return
    yield Move("compacted, it goes on", "agent", (done, ev.RequestStart()), replace(truth, step="asking"))
    yield _ends(truth, (done,))
    yield _fails(truth, "api", (ev.CompactEnd(ok=False),))


# --- calls


def _opens_calls(truth: Truth, new: str, bounds: Bounds, whole: tuple[Body, ...] = ()) -> Iterator[Move]:
    """Start a call, a second call beside an open one, or a question."""
    tools = replace(truth, step="tools", lingers=False)
    if len(truth.calls) < bounds.calls:
        announced = ev.ToolCall(name="shell", call_id=new)
        # The engine announces the number of calls and holds a call before it starts. Other agents do neither.
        ways: tuple[tuple[str, Status, tuple[Body, ...]], ...] = (
            ("the engine's call runs", "runs", (ev.ToolCalls(count=1), announced, _start(new))),
            ("the engine's call asks", "asks", (ev.ToolCalls(count=1), announced, _approval(new))),
            ("a call runs", "runs", (_start(new),)),
            ("a call asks", "asks", (announced, _approval(new))),
            ("a call runs and asks then", "asks_late", (_start(new), _approval(new))),
        )
        for label, status, bodies in ways:
            after = replace(tools, calls=(*truth.calls, Call(new, status)))
            yield Move(label, "agent", (*whole, *bodies), after)
    if truth.question is None:
        for label, call in (("it asks by a tool", f"q{new}"), ("it asks without a tool", "")):
            started = (_start(call, "ask"),) if call else ()
            question = ev.AskUser(question="which?", gate_id=gate_of(f"{new}q"), ref=f"{new}q", call_id=call)
            after = replace(tools, question=Question(f"{new}q", call))
            yield Move(label, "agent", (*whole, *started, question), after)


def _start(call: str, name: str = "shell") -> Body:
    return ev.ToolExecutionStart(name=name, call_id=call)


def _end(call: str, name: str = "shell") -> Body:
    return ev.ToolExecutionEnd(name=name, call_id=call)


def _approval(call: str) -> Body:
    ask = ASKS[int(call) % len(ASKS)]
    return ev.ApprovalRequired(
        gate=ev.GateRequest(gate_id=gate_of(call), ref=call, tool="shell", call_id=call, ask=ask)
    )


def resolved(call: str, status: ev.GateStatus, by: str = "") -> Body:
    """Decide the approval of this call."""
    return ev.ApprovalResolved(gate_id=gate_of(call), status=status, by=by)


def blocked(call: str) -> Body:
    """End a rejected call: it gets a result too."""
    return ev.ToolBlocked(name="shell", call_id=call, reason="refused")


def with_call(truth: Truth, call: Call) -> Truth:
    """Replace the call with the same name."""
    return replace(truth, calls=tuple(call if one.id == call.id else one for one in truth.calls))


def without_call(truth: Truth, call: str) -> Truth:
    """Remove this call."""
    return replace(truth, calls=tuple(one for one in truth.calls if one.id != call))


def answered(move: Move, *, ran: bool = False) -> Iterator[Move]:
    """Continue after a call or question was answered: with the other calls, or with the next request after the last one.

    The request is sent in the same batch (the engine), or seen later. Until then Claude's hooks report thinking, and Codex's
    rule for calls that `ran` reports tool_use.
    """
    truth = move.truth
    if truth.step != "tools" or truth.calls or truth.question is not None:
        yield move
        return
    steered = (ev.SteeringApplied(refs=truth.steers),) if truth.steers else ()
    bodies = (*move.bodies, *steered, ev.RequestStart())
    yield move._replace(
        label=f"{move.label}; the next request", bodies=bodies, truth=replace(truth, step="asking", steers=())
    )
    yield move._replace(label=f"{move.label}; it thinks")
    if ran:
        yield move._replace(label=f"{move.label}; it lingers", truth=replace(truth, lingers=True))


def _works(truth: Truth, new: str, bounds: Bounds) -> Iterator[Move]:
    for call in truth.calls:
        yield from _CALLS[call.status](truth, call)
    if truth.question is not None:
        yield from _question_closes(truth, truth.question)
        yield Move("it speaks beside its question", "agent", _text(new), truth)
    if any(call.status in ("asks", "asks_late", "runs") for call in truth.calls):
        yield Move("it speaks beside its calls", "agent", _text(new), truth)
    if truth.question is None or not truth.question.call:
        yield _compacts_beside_calls(truth)
    yield from _opens_calls(truth, new, bounds)
    yield from _leaves_tools(truth, new, bounds)
    if bounds.shells and not truth.shell:
        yield from _leaves_calls_behind(truth)


def _compacts_beside_calls(truth: Truth) -> Move:
    """Compact. As for any request, the gates were answered; a call that was reported as running continues."""
    statuses: dict[str, Status] = {"asks": "allowed", "asks_late": "runs"}
    calls = tuple(replace(call, status=statuses.get(call.status, call.status)) for call in truth.calls)
    after = replace(truth, step="compacting", calls=calls, question=None, lingers=False)
    return Move("it compacts", "agent", (ev.CompactStart(trigger="auto"),), after)


def _leaves_calls_behind(truth: Truth) -> Iterator[Move]:
    """Continue the turn without a command that goes on in the background (Codex)."""
    for call in truth.calls:
        if call.status == "runs" and not call.sub:
            after = replace(without_call(truth, call.id), shell=call.id)
            yield from answered(Move("a call is left behind", "agent", (_left_behind(call.id),), after))


def _left_behind(call: str) -> Body:
    return ev.BackgroundStarted(kind="shell", id=call)


def _call_asks(truth: Truth, call: Call) -> Iterator[Move]:
    """Close approvals without a decision of ours: answered in the terminal, rejected by a rule, timed out."""
    elsewhere = resolved(call.id, "answered_elsewhere")
    gone = without_call(truth, call.id)
    yield Move("the call starts after all", "agent", (_start(call.id),), with_call(truth, replace(call, status="runs")))
    yield Move(
        "the approval is answered elsewhere", "agent", (elsewhere,), with_call(truth, replace(call, status="allowed"))
    )
    whole = (elsewhere, _start(call.id), _end(call.id))
    yield from answered(Move("the call ran after all", "agent", whole, gone))
    yield from answered(Move("a rule blocks the call", "agent", (blocked(call.id),), gone))
    late = (resolved(call.id, "timeout"), *resumed(gone, "tool_approval_timeout"), blocked(call.id))
    yield from answered(Move("the approval times out", "agent", late, gone))


def resumed(truth: Truth, trigger: str) -> tuple[Body, ...]:
    """Continue a held turn, unless another approval still holds it."""
    held = any(call.status in ("asks", "asks_late") for call in truth.calls)
    return () if held else (ev.AgentResumed(trigger=trigger),)  # type: ignore[arg-type]


def _call_asks_late(truth: Truth, call: Call) -> Iterator[Move]:
    runs = with_call(truth, replace(call, status="runs"))
    yield Move("the approval is answered elsewhere", "agent", (resolved(call.id, "answered_elsewhere"),), runs)
    yield from answered(Move("the call ends after all", "agent", (_end(call.id),), without_call(truth, call.id)))


def _call_is_allowed(truth: Truth, call: Call) -> Iterator[Move]:
    yield Move("the call starts", "agent", (_start(call.id),), with_call(truth, replace(call, status="runs")))


def _call_is_refused(truth: Truth, call: Call) -> Iterator[Move]:
    yield from answered(Move("the refused call ends", "agent", (blocked(call.id),), without_call(truth, call.id)))


def _call_runs(truth: Truth, call: Call) -> Iterator[Move]:
    if call.sub:
        return
    gone = without_call(truth, call.id)
    yield from answered(Move("a call ends", "agent", (_end(call.id),), gone), ran=True)
    if truth.steers:
        skipped = ev.ToolSkippedForSteering(name="shell", call_id=call.id)
        yield from answered(Move("a call gives way to steering", "agent", (skipped,), gone))


def _question_closes(truth: Truth, question: Question) -> Iterator[Move]:
    closed = ev.UserResponded(gate_id=gate_of(question.id), status="answered_elsewhere")
    ended = (_end(question.call, "ask"),) if question.call else ()
    yield from answered(
        Move("the question is answered elsewhere", "agent", (closed, *ended), replace(truth, question=None))
    )


def _leaves_tools(truth: Truth, new: str, bounds: Bounds) -> Iterator[Move]:
    """Move on: no call runs any more, and the gates are closed."""
    open_calls = [call for call in truth.calls if call.status != "asks"]
    if truth.question is not None and truth.question.call:
        return
    if not open_calls:
        bare = replace(truth, calls=(), question=None, lingers=False)
        yield Move("it moves on", "agent", (ev.RequestStart(),), replace(bare, step="asking"))
        yield _ends(truth, ())
        yield _fails(truth, "turn_limit")
        if not truth.calls and truth.question is None:
            yield from _speaks(truth, new)
    elif bounds.shells and not truth.shell and [(call.status, call.sub) for call in truth.calls] == [("runs", "")]:
        call = truth.calls[0].id
        yield _ends(replace(truth, shell=call), (_left_behind(call),))


_CALLS = {
    "asks": _call_asks,
    "asks_late": _call_asks_late,
    "allowed": _call_is_allowed,
    "refused": _call_is_refused,
    "runs": _call_runs,
}
_STEPS = {"asking": _asks_the_model, "writing": _writes, "tools": _works, "compacting": _compacts}

# --- a turn ends


def _ends(truth: Truth, whole: tuple[Body, ...]) -> Move:
    after = without_turn(truth)
    return Move("the turn ends", "agent", (*whole, ev.AgentEnd()), after, "completed")


def _fails(truth: Truth, kind: FailureKind, before: tuple[Body, ...] = ()) -> Move:
    failed = ev.TurnFailed(kind=kind, message="no")
    bodies = (*before, failed, ev.AgentEnd(outcome="failed"))
    return Move(f"the turn fails ({kind})", "agent", bodies, without_turn(truth), "error")


def cut_short(truth: Truth) -> tuple[Body, ...]:
    """Report what an interrupt ends before it closes the turn: sub-agents end, calls are killed."""
    ends = [ev.SubagentEnd(child_sid=sub.id, ok=False) for sub in truth.subs if not sub.in_background]
    running = [call.id for call in truth.calls if call.status in ("runs", "asks_late")]
    if truth.question is not None and truth.question.call:
        running.append(truth.question.call)
    return (*ends, *(ev.ToolKilled(name="shell", call_id=call, reason="interrupted") for call in running))


def _is_interrupted(truth: Truth) -> Iterator[Move]:
    """Interrupt the turn in the agent's terminal.

    Some agents report what they interrupted, some only the end of the turn.
    """
    after = without_turn(truth)
    yield Move("it is interrupted", "agent", (*cut_short(truth), ev.AgentAbort(reason="esc")), after, "stopped")
    if len({sub.in_background for sub in truth.subs}) < 2:
        yield Move("it is interrupted without a word", "agent", (ev.AgentAbort(),), after, "stopped")
    if not after.subs and not after.shell and not after.dialog:
        leaves = (*cut_short(truth), ev.AgentAbort(reason="session ended"), ev.AgentEnded())
        yield Move("it leaves in the middle", "agent", leaves, replace(after, left=True), "stopped")
