"""What people decide: held calls, and answers to questions. Each decision is one batch of events, and is made once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from quarterdeck import events as ev
from quarterdeck.engine.errors import QuestionWithdrawn
from quarterdeck.engine.gates import Asked, Held
from quarterdeck.engine.journal import now_ms
from quarterdeck.events import Body, Json, Option
from quarterdeck.events.gate import GateStatus
from quarterdeck.kernel.command_results import Decided
from quarterdeck.kernel.gate import to_decide

if TYPE_CHECKING:
    from quarterdeck.engine.runtime import Core
    from quarterdeck.engine.turn import Turn

_TRIGGERS = {"approved": "tool_approved", "rejected": "tool_rejected", "timeout": "tool_approval_timeout"}


async def decided(
    core: Core,
    gate_id: str,
    status: Literal["approved", "rejected"],
    by: str = "user",
    reason: str = "",
    auto_resume: bool = True,
    option: str = "",
) -> Decided:
    """A person's yes or no to a held call. Without a name it is the oldest one; with nothing held nothing is done."""
    core.alive()
    held = _held(core, gate_id)
    if held is not None:
        closing = decide(core, held, status, by, reason, auto_resume, option)
        if closing is not None:
            await core.end(held.turn, closing)
        await core.journal.flush()
    return Decided(held.gate_id if held is not None else "")


def _held(core: Core, gate_id: str) -> Held | None:
    if not gate_id:
        return next(iter(core.gates.held()), None)
    found = core.gates.find(gate_id)
    if isinstance(found, Held):
        return found
    to_decide(core.journal.state.gates, gate_id)  # says what is wrong with the name
    return None


def decide(
    core: Core, held: Held, status: GateStatus, by: str, reason: str, auto_resume: bool, option: str
) -> ev.AgentAbort | None:
    """One batch: the decision, that the turn goes on, and the start or the refusal of the call. Or how it is to end."""
    core.gates.drop(held)
    turn, run = held.turn, held.run
    batch = turn.batch
    first: list[Body] = [held.resolved(status, by, reason), *held.told(status, option), *core.hooks.changed()]
    if not auto_resume or batch is None:
        run.status = "over"
        why = f"{held.gate.tool} was {status}, and the turn was not to go on"
        return _not_resumed(core, turn, first, why)
    goes_on = status == "approved" or not core.gates.held(turn.path)  # another one may still hold the turn
    if goes_on and (core.journal.state.run.value == "idle" or turn.path):
        first.append(turn.made(ev.AgentResumed, trigger=_TRIGGERS[status]))
    if status == "approved":
        first += batch.allowed(run)
    else:
        nobody = "nobody answered in time" if status == "timeout" else f"rejected by {by or 'the user'}"
        first += batch.refused(run, f"{nobody}: {reason}" if reason else nobody)
    core.journal.write(first, "user" if by else "engine")
    batch.look()
    return None


def _not_resumed(core: Core, turn: Turn, first: Sequence[Body], reason: str) -> ev.AgentAbort | None:
    """The turn is not to go on. A sub-agent's end is the result of its call; the main agent's is an abort."""
    core.journal.write(first, "user")
    if not turn.path:
        return ev.AgentAbort(reason=reason, turn_id=turn.turn_id)
    if turn.task is not None:
        turn.task.cancel(reason)
    return None


def confirmed(core: Core, text: str) -> Held | None:
    """The held call to which this very text is the yes."""
    said = text.strip()
    return next((one for one in core.gates.held() if said and one.hold.confirmation.strip() == said), None)


async def ask(
    core: Core, turn: Turn, call_id: str, question: str, options: tuple[Option, ...], patience: float | None
) -> str:
    """A person's answer to a tool's question; TimeoutError, QuestionWithdrawn."""
    if core.turn is not turn and not turn.path:
        raise QuestionWithdrawn
    asked = Asked(turn, core.gates.next_name(), core.next_id("q"))
    core.gates.add(asked)
    deadline = None if patience is None else now_ms() + round(patience * 1000)
    turn.tell(
        ev.AskUser,
        question=question,
        ref=asked.ref,
        gate_id=asked.gate_id,
        options=options,
        call_id=call_id,
        deadline=deadline,
    )
    try:
        async with asyncio.timeout(patience):
            answer = await asyncio.shield(asked.answer)
    except TimeoutError:
        if core.gates.find(asked.gate_id) is not asked:
            return _said(await asked.answer)  # it was answered in time, and is being written down
        turn.tell(ev.UserResponded, gate_id=asked.gate_id, ref=asked.ref, status="timeout")
        raise
    except asyncio.CancelledError:
        if core.gates.find(asked.gate_id) is asked:
            turn.say(asked.withdrawn())  # the call gave way; nobody else has said it
        raise
    finally:
        core.gates.drop(asked)
    return _said(answer)


def _said(answer: Json) -> str:
    return answer if isinstance(answer, str) else str(answer)


async def respond(core: Core, response: Json, ref: str = "", by: str = "user") -> Decided:
    """The answer to a question; to the oldest one unless it is named."""
    core.alive()
    asked = core.gates.find(ref) if ref else next(iter(core.gates.asked()), None)
    if not isinstance(asked, Asked) or asked.answer.done():
        to_decide(core.journal.state.gates, ref)
        return Decided(ref)
    answered = asked.turn.made(ev.UserResponded, response=response, ref=asked.ref, gate_id=asked.gate_id, by=by)
    resumed = asked.turn.made(ev.AgentResumed, trigger="user_respond")
    core.gates.drop(asked)
    core.journal.write((answered, resumed), "user")
    try:
        await core.journal.flush()
    finally:
        if not asked.answer.done():
            asked.answer.set_result(response)
    return Decided(asked.gate_id)
