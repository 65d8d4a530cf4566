"""Model the user: every command, accepted or refused by the kernel's own check, and its effect in the deck.

A message goes where kernel.routing sends it. The deck writes a decision. The agent reacts in the same batch (the
engine) or later (agent.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.routing import Intent, route
from tests.model.agent import (
    BEGINNING,
    answered,
    begun,
    blocked,
    cut_short,
    resolved,
    resumed,
    with_call,
    without_call,
)
from tests.model.truth import (
    Asked,
    Bounds,
    Call,
    Move,
    Question,
    Truth,
    World,
    asked,
    gate_of,
    without_process,
    without_turn,
)

Moves: TypeAlias = Iterator[Move]


def moves(world: World, bounds: Bounds) -> Moves:
    """Return the effect of every command that is accepted now. Creation comes first, before there is a session."""
    if world.truth.lifecycle == "none":
        yield from _creates()
        return
    for command in commands(world):
        if is_admitted(world, command, bounds):
            yield from _effect(world, command, bounds)
    yield from _takes_back(world.truth)


def is_admitted(world: World, command: cmd.Command, bounds: Bounds) -> bool:
    """Return whether the kernel accepts a command. Any exception other than a typed refusal is a fault."""
    try:
        cmd.check(world.view.state, command, bounds.texts)
    except QuarterdeckError:
        return False
    return True


def commands(world: World) -> Iterator[cmd.Command]:
    """Generate every command, for gates that are open, were decided recently, or never existed."""
    yield cmd.Prompt(text="go")
    yield cmd.Prompt(text="go", supersede=True)
    yield cmd.Prompt(text="go", new_task=True)
    yield cmd.Prompt(text="go", resume=False)
    yield cmd.Steer(text="left")
    yield cmd.Abort()
    yield cmd.Abort(clear_queue=True)
    gates = world.view.state.gates
    for gate_id in (*(gate.id for gate in gates.open), *(one.gate_id for one in gates.decided[-1:]), "g.none"):
        yield cmd.Approve(gate_id=gate_id)
        yield cmd.Approve(gate_id=gate_id, auto_resume=False)
        yield cmd.Reject(gate_id=gate_id, auto_resume=True)
        yield cmd.Reject(gate_id=gate_id)
        yield cmd.Respond(gate_id=gate_id, answer="yes")
    yield from SIMPLE


SIMPLE: tuple[cmd.Command, ...] = (
    cmd.Retry(),
    cmd.Resume(),
    cmd.Cancel(),
    cmd.Archive(),
    cmd.Delete(),
    cmd.Rename(name="n"),
    cmd.SwitchModel(model="m"),
    cmd.SwitchMode(mode="plan"),
    cmd.Bash(command="ls"),
    cmd.Compact(),
)
INVALID: tuple[cmd.Command, ...] = (
    cmd.Prompt(text=" "),
    cmd.Steer(text=""),
    cmd.Rename(name=""),
    cmd.Rename(name="n" * 101),
    cmd.SwitchMode(mode="yolo"),
)


def _creates() -> Moves:
    fresh = Truth(lifecycle="active", process="waiting")
    yield Move("create", "person", (ev.SessionOpened(agent="builtin"),), fresh, "idle")
    opened = ev.SessionOpened(agent="builtin", prompt="go", message_id="m0")
    with_prompt = (opened, ev.PromptQueued(text="go", message_id="m0"))
    promised = replace(fresh, promise="first", prompts=("m0",))
    yield Move("create with a prompt", "person", with_prompt, promised, "creating")


def _effect(world: World, command: cmd.Command, bounds: Bounds) -> Moves:
    truth = world.truth
    match command:
        case cmd.Prompt(supersede=True):
            yield from _supersedes(truth, f"m{world.view.index + 1}")
        case cmd.Prompt(resume=True):
            yield from _sends(world, "message", bounds, new_task=command.new_task)
        case cmd.Steer():
            yield from _sends(world, "steer", bounds)
        case cmd.Abort():
            yield from _stops(truth, command.clear_queue)
        case cmd.Approve() | cmd.Reject() | cmd.Respond():
            yield from _decides(truth, command)
        case cmd.Retry():
            yield _promised("retry", (ev.TurnRetried(),), truth, "go_on")
        case cmd.Resume():
            yield from _resumes(truth, world)
        case cmd.Cancel() | cmd.Archive():
            end_reason = "cancelled" if isinstance(command, cmd.Cancel) else "archived"
            put_away = replace(without_process(truth), lifecycle="archived")
            yield Move(command.command_name, "person", (ev.SessionArchived(end_reason=end_reason),), put_away)
        case _:
            # The other commands don't change any owner of a state.
            return


# --- messages


def _promised(label: str, bodies: tuple[Body, ...], truth: Truth, promise: str) -> Move:
    """Promise a turn. Without a process, one is started for it."""
    process = "waiting" if truth.process == "none" else truth.process
    after = replace(truth, process=process, promise=promise)
    return Move(label, "person", bodies, after, "creating" if promise == "anew" else "streaming")


def _sends(world: World, intent: Intent, bounds: Bounds, *, new_task: bool = False) -> Moves:
    truth, name = world.truth, f"m{world.view.index + 1}"
    way = route(world.view.state, intent, bounds.texts)
    if way.meaning == "prompt":
        yield from _prompts(world, intent, name, new_task)
    elif new_task:
        return
    elif way.meaning == "resume_then_prompt":
        active = replace(truth, lifecycle="active")
        bodies = (ev.SessionResumed(by="user"), ev.PromptReceived(text="go", message_id=name))
        yield _promised("resume and send", bodies, active, "text")
    elif way.meaning == "answer":
        answer = cmd.Respond(gate_id=way.gate_id, answer="this")
        yield from _decides(truth, answer)
    elif len(truth.prompts) + len(truth.steers) < bounds.texts:
        yield _waits(truth, way.meaning, name)


def _prompts(world: World, intent: Intent, name: str, new_task: bool) -> Moves:
    degraded = (ev.SteeringReceived(ref=name, text="go", status="prompted"),) if intent == "steer" else ()
    received = ev.PromptReceived(text="go", message_id=name, new_task=new_task)
    anew = new_task and world.view.state.base_phase.value in ("idle", "completed", "stopped")
    label = "steer, which is a prompt now" if degraded else "send a new task" if new_task else "send"
    yield _promised(label, (*degraded, received), world.truth, "anew" if anew else "text")


def _waits(truth: Truth, meaning: str, name: str) -> Move:
    if meaning == "steer":
        after = replace(truth, steers=(*truth.steers, name))
        return Move("steer", "person", (ev.SteeringReceived(ref=name, text="go"),), after)
    after = replace(truth, prompts=(*truth.prompts, name))
    return Move("queue", "person", (ev.PromptQueued(text="go", message_id=name),), after)


def _supersedes(truth: Truth, name: str) -> Moves:
    """Close what holds the turn, close the turn and start another. The log invariants insert the missing abort."""
    held = [call.id for call in truth.calls if call.status in ("asks", "asks_late")]
    if held:
        closed = tuple(resolved(call, "superseded", "user") for call in held)
        bodies = (*closed, *cut_short(truth), ev.PromptReceived(text="go", message_id=name), *BEGINNING)
        yield Move("supersede", "person", bodies, begun(without_turn(truth)), "streaming")


def _takes_back(truth: Truth) -> Moves:
    """Remove a message from the queue. If the creation waited for it, there is nothing left to wait for."""
    for name in (*truth.prompts[-1:], *truth.steers[-1:]):
        after = replace(
            truth,
            prompts=tuple(one for one in truth.prompts if one != name),
            steers=tuple(one for one in truth.steers if one != name),
        )
        dropped: tuple[Body, ...] = (ev.PromptDropped(text="go", message_id=name),)
        if truth.promise == "first" and not after.prompts:
            yield Move(
                "take the first prompt back",
                "stop",
                (*dropped, ev.AgentAbort(reason="taken back")),
                replace(after, promise=""),
                "stopped",
            )
        else:
            yield Move("take a text back", "person", dropped, after)


# --- stop, resume


def _stops(truth: Truth, clear_queue: bool) -> Moves:
    """Stop: close every open gate as cancelled, then end the turn. Agents in terminals end it a little later."""
    answers = tuple(_withdrawn(one) for one in asked(truth))
    dropped = tuple(ev.PromptDropped(text="go", message_id=name) for name in (*truth.prompts, *truth.steers))
    after = replace(without_turn(truth), promise="", dialog="", subs=_left_alone(truth))
    if clear_queue:
        after = replace(after, prompts=(), steers=())
    bodies = (*answers, *cut_short(truth), *(dropped if clear_queue else ()), ev.AgentAbort(reason="stop"))
    under_way = truth.step or truth.promise not in ("", "restore")
    label = "stop and clear the queue" if clear_queue else "stop"
    yield Move(label, "stop", bodies, after, "stopped" if under_way else "")
    if truth.step and answers and not clear_queue:
        yield _asks_to_stop(truth, answers)


def _left_alone(truth: Truth) -> tuple:
    """Cancel the questions of background sub-agents, which continue."""
    return tuple(replace(sub, doing="works") for sub in truth.subs if sub.in_background)


def _asks_to_stop(truth: Truth, answers: tuple[Body, ...]) -> Move:
    """Cancel the gates and send the interrupt. The agent hasn't reacted yet."""
    cancelled = [call.id for call in truth.calls if call.status in ("asks", "asks_late")]
    ended = [blocked(call) for call in cancelled]
    if truth.question is not None and truth.question.call:
        ended.append(ev.ToolExecutionEnd(name="ask", call_id=truth.question.call, ok=False))
    after = replace(
        truth,
        calls=tuple(call for call in truth.calls if call.id not in cancelled),
        question=None,
        dialog="",
        subs=tuple(replace(sub, doing="works") for sub in truth.subs),
    )
    return Move("cancel what is asked", "person", (*answers, *ended), after)


def _withdrawn(one: Asked) -> Body:
    if one.kind == "approval":
        return ev.ApprovalResolved(gate_id=one.gate_id, status="withdrawn", by="user", agent_path=one.path)
    if one.kind == "question":
        return ev.UserResponded(gate_id=one.gate_id, status="withdrawn", agent_path=one.path)
    return ev.DialogResolved(gate_id=one.gate_id, status="withdrawn")


def _resumes(truth: Truth, world: World) -> Moves:
    if truth.lifecycle == "active":
        yield _promised("resume the turn", (ev.TurnContinued(),), truth, "go_on")
        return
    active = replace(truth, lifecycle="active")
    move = _promised("resume the session", (ev.SessionResumed(by="user"),), active, "restore")
    # A session that never had a prompt has no turn to continue, and shows no spinner while it loads.
    yield move._replace(base_phase="idle" if world.view.state.base_phase.value == "idle" else "streaming")


# --- decisions


def _decides(truth: Truth, command: cmd.Approve | cmd.Reject | cmd.Respond) -> Moves:
    for one in asked(truth):
        if one.gate_id != command.gate_id:
            continue
        if one.path:
            yield _answers_sub_agent(truth, one, command)
        elif one.kind == "dialog":
            closed = ev.DialogResolved(gate_id=one.gate_id, value=True, by="user")
            yield Move("answer the dialog", "decision", (closed,), replace(truth, dialog=""))
        elif one.kind == "question" and truth.question is not None:
            yield from _answers(truth, truth.question)
        elif isinstance(command, cmd.Approve):
            yield from _approves(truth, _call(truth, one.call), command.auto_resume)
        elif isinstance(command, cmd.Reject):
            yield from _rejects(truth, _call(truth, one.call), command.auto_resume)


def _call(truth: Truth, name: str) -> Call:
    return next(call for call in truth.calls if call.id == name)


def _approves(truth: Truth, call: Call, resume: bool) -> Moves:
    decided = resolved(call.id, "approved", "user")
    if not resume:
        yield _closes_turn("approve without going on", decided, truth)
        return
    runs = with_call(truth, replace(call, status="runs"))
    start = () if call.status == "asks_late" else (ev.ToolExecutionStart(name="shell", call_id=call.id),)
    # The translator reports the decision a second time, because it saw what we sent. A gate is decided once.
    again = ev.ApprovalResolved(ref=call.id, status="approved")
    yield Move("approve", "decision", (decided, *resumed(runs, "tool_approved"), *start, again), runs)
    if call.status == "asks":
        allowed = with_call(truth, replace(call, status="allowed"))
        yield Move("approve, and the call starts later", "decision", (decided,), allowed)


def _rejects(truth: Truth, call: Call, resume: bool) -> Moves:
    decided = resolved(call.id, "rejected", "user")
    if not resume:
        yield _closes_turn("reject without going on", decided, truth)
        return
    gone = without_call(truth, call.id)
    bodies = (decided, *resumed(gone, "tool_rejected"), blocked(call.id))
    yield from answered(Move("reject and go on", "decision", bodies, gone))
    if call.status == "asks":
        refused = with_call(truth, replace(call, status="refused"))
        yield Move("reject, and the call ends later", "decision", (decided,), refused)


def _closes_turn(label: str, decided: Body, truth: Truth) -> Move:
    """Store the decision and close the turn (`auto_resume: false`)."""
    bodies = (decided, *cut_short(truth), ev.AgentAbort(reason="not resumed"))
    return Move(label, "decision", bodies, without_turn(truth), "stopped")


def _answers(truth: Truth, question: Question) -> Moves:
    said = ev.UserResponded(gate_id=gate_of(question.id), response="this", by="user")
    ended = (ev.ToolExecutionEnd(name="ask", call_id=question.call),) if question.call else ()
    yield from answered(Move("answer", "decision", (said, *ended), replace(truth, question=None)))


def _answers_sub_agent(truth: Truth, one: Asked, command: cmd.Command) -> Move:
    """Answer a sub-agent. The main agent's turn doesn't change."""
    path = one.path
    after = replace(truth, subs=tuple(replace(sub, doing="works") if sub.id == path[0] else sub for sub in truth.subs))
    if one.kind == "question":
        said = ev.UserResponded(gate_id=one.gate_id, response="this", by="user", agent_path=path)
        return Move("answer the sub-agent", "decision", (said,), after)
    yes = isinstance(command, cmd.Approve)
    decided = ev.ApprovalResolved(gate_id=one.gate_id, status="approved" if yes else "rejected", agent_path=path)
    return Move(f"{'approve' if yes else 'reject'} for the sub-agent", "decision", (decided,), after)
