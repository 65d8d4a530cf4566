"""Model what exists beside the turn: sub-agents with their own gates, background work, and dialogs of extensions.

A sub-agent works for a call of the turn, or in the background, where it outlives the turn and may start a new turn of
the main agent when it is done. Its events have an agent_path and change only gates of the session.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body
from tests.model.agent import answered, begun, prompted, with_call, without_call
from tests.model.truth import Bounds, Call, Move, Sub, Truth, World, gate_of


def moves(world: World, bounds: Bounds) -> Iterator[Move]:
    """Return everything that may happen beside the main agent now."""
    truth, new = world.truth, str(world.view.index + 1)
    if not truth.is_live:
        return
    for call in truth.calls:
        if call.status == "runs" and not call.sub:
            yield from _spawns(truth, call, f"a{new}", bounds)
    for sub in truth.subs:
        yield from _sub_agent(truth, sub)
    if truth.shell:
        ended = (ev.BackgroundEnded(kind="shell", id=truth.shell),)
        yield from _wakes(Move("the background shell ends", "agent", ended, replace(truth, shell="")))
    yield from _dialog(truth, new, bounds)


def _spawns(truth: Truth, call: Call, new: str, bounds: Bounds) -> Iterator[Move]:
    """Turn a running call into a sub-agent's work or into background work."""
    ended = ev.ToolExecutionEnd(name="shell", call_id=call.id)
    gone = without_call(truth, call.id)
    if bounds.shells and not truth.shell:
        shell = (ev.BackgroundStarted(kind="shell", id=new), ended)
        yield from answered(Move("a shell goes to the background", "agent", shell, replace(gone, shell=new)))
    if len(truth.subs) >= bounds.subs:
        return
    started = ev.SubagentStart(child_sid=new, call_id=call.id)
    own_turn = (ev.AgentStart(agent_path=(new,)), ev.RequestStart(agent_path=(new,)))
    with_sub = replace(truth, subs=(*truth.subs, Sub(new, call=call.id)))
    working = with_call(with_sub, replace(call, sub=new))
    yield Move("a sub-agent starts", "agent", (started, *own_turn), working)
    background = (started, ev.BackgroundStarted(kind="subagent", id=new), ended)
    after = replace(gone, subs=(*truth.subs, Sub(new)))
    yield from answered(Move("a sub-agent starts in the background", "agent", background, after))


def _sub_agent(truth: Truth, sub: Sub) -> Iterator[Move]:
    path, call = (sub.id,), f"{sub.id}.c"
    if sub.doing == "works":
        yield from _sub_agent_works(truth, sub)
    else:
        on = _doing(truth, sub, "works")
        yield Move("the sub-agent moves on", "agent", (ev.RequestStart(agent_path=path),), on)
        if sub.doing == "approval":
            starts = ev.ToolExecutionStart(name="shell", call_id=call, agent_path=path)
            yield Move("the sub-agent's call starts after all", "agent", (starts,), on)
            stopped = ev.ToolBlocked(name="shell", call_id=call, agent_path=path)
            yield Move("a rule blocks the sub-agent's call", "agent", (stopped,), on)
        else:
            closed = ev.UserResponded(gate_id=gate_of(sub.id), status="answered_elsewhere", agent_path=path)
            yield Move("the sub-agent's question is answered elsewhere", "agent", (closed,), on)
    yield from _sub_agent_ends(truth, sub)


def _sub_agent_works(truth: Truth, sub: Sub) -> Iterator[Move]:
    path, call = (sub.id,), f"{sub.id}.c"
    says: tuple[Body, ...] = (
        ev.MessageStart(message_id=sub.id, agent_path=path),
        ev.ToolCalls(count=1, agent_path=path),
        ev.ToolExecutionStart(name="shell", call_id=f"{sub.id}.d", agent_path=path),
        ev.ToolExecutionEnd(name="shell", call_id=f"{sub.id}.d", agent_path=path),
        ev.TurnFailed(agent_path=path),
        ev.AgentAbort(agent_path=path),
        ev.StateChange(state="idle", agent_path=path),
    )
    yield Move("the sub-agent works", "agent", says, truth)
    request = ev.GateRequest(gate_id=gate_of(sub.id), ref=sub.id, tool="shell", call_id=call)
    asks = (
        ev.ToolCall(name="shell", call_id=call, agent_path=path),
        ev.ApprovalRequired(gate=request, agent_path=path),
    )
    yield Move("the sub-agent asks for approval", "agent", asks, _doing(truth, sub, "approval"))
    question = ev.AskUser(question="which?", gate_id=gate_of(sub.id), ref=sub.id, agent_path=path)
    yield Move("the sub-agent asks a question", "agent", (question,), _doing(truth, sub, "question"))


def _doing(truth: Truth, sub: Sub, doing: str) -> Truth:
    changed = Sub(sub.id, doing, sub.call)  # type: ignore[arg-type]
    return replace(truth, subs=tuple(changed if one.id == sub.id else one for one in truth.subs))


def _sub_agent_ends(truth: Truth, sub: Sub) -> Iterator[Move]:
    """End a sub-agent, also while it asks: its gates are closed then."""
    gone = replace(truth, subs=tuple(one for one in truth.subs if one.id != sub.id))
    ended = (ev.AgentEnd(agent_path=(sub.id,)), ev.SubagentEnd(child_sid=sub.id))
    if sub.in_background:
        background = ev.BackgroundEnded(kind="subagent", id=sub.id)
        yield from _wakes(Move("the background sub-agent ends", "agent", (*ended, background), gone))
        yield Move("the background sub-agent is gone", "agent", (background,), gone)
        return
    call = ev.ToolExecutionEnd(name="shell", call_id=sub.call)
    yield from answered(Move("the sub-agent ends", "agent", (*ended, call), without_call(gone, sub.call)), ran=True)
    left = without_call(replace(gone, subs=(*gone.subs, Sub(sub.id, sub.doing))), sub.call)
    background = (ev.BackgroundStarted(kind="subagent", id=sub.id), call)
    yield from answered(Move("the sub-agent goes to the background", "agent", background, left))


def _wakes(move: Move) -> Iterator[Move]:
    """End background work. It may start a turn of the main agent."""
    yield move
    if move.truth.is_free:
        label, bodies = f"{move.label} and wakes the agent", (*move.bodies, *prompted())
        yield move._replace(label=label, bodies=bodies, truth=begun(move.truth))


def _dialog(truth: Truth, new: str, bounds: Bounds) -> Iterator[Move]:
    if truth.dialog:
        closed = ev.DialogResolved(gate_id=gate_of(truth.dialog), status="timeout")
        yield Move("the dialog closes by itself", "agent", (closed,), replace(truth, dialog=""))
    elif bounds.dialogs:
        name = f"d{new}"
        opened = ev.DialogRequired(method="confirm", gate_id=gate_of(name), ref=name)
        yield Move("an extension opens a dialog", "agent", (opened,), replace(truth, dialog=name))
