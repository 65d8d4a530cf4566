"""Commands about texts and turns: prompt, steer, retry, resume, resend, edit, drop, abort."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from quarterdeck import events as ev
from quarterdeck.deck.agents.launcher import ProcessState
from quarterdeck.deck.approvals import CANCELLED
from quarterdeck.deck.commands.base import (
    check_allowed,
    check_before_turn,
    check_reachable,
    check_resumable,
    refuse,
)
from quarterdeck.deck.delivery import IN_TRANSIT
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body
from quarterdeck.harness.driver import CannotDo, Decision
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Disposition, Done, Dropped, Receipt, Status, Steered
from quarterdeck.kernel.gate import to_decide
from quarterdeck.kernel.queue import Waiting
from quarterdeck.kernel.routing import Route, is_busy, is_promised, route

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


class NoSuchText(QuarterdeckError):
    """No queued text has this id."""

    code = "no_such_text"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"no text {item_id} is queued in this session", "The agent may have read the text already.")


# --- new texts


async def prompt(session: Session, command: cmd.Prompt) -> Receipt:
    """Accept a message and do what the state makes of it: begin a turn, answer a question, steer, queue, or resume."""
    await check_before_turn(session, command)
    if command.images and not session.capabilities.images:
        raise CannotDo(session.state.profile.agent, "read images")
    if command.new_task and not is_busy(session.state):
        # The running agent is in the old conversation.
        await session.launcher.stop()
        check_allowed(session, command)
    # A new task belongs to another conversation, so it can't answer or steer the current one.
    intent = "queue" if command.new_task else "message"
    destination = route(session.state, intent, session.services.settings.steering_limit)
    if command.supersede and session.state.gates.open:
        # This holds for an open question as well: a text that supersedes it doesn't answer it.
        check_reachable(session)
        return await _supersede(session, command)
    if destination.meaning == "answer":
        if command.images:
            # An answer is a text only. The images would be lost without notice.
            why = "a question is open, and its answer is a text; answer it, then send the images"
            raise refuse(session, command, why)
        return await _answer_question(session, command, destination)
    check_reachable(session)
    if destination.meaning == "resume_then_prompt":
        check_resumable(session, command)
    message_id = uuid4().hex
    bodies, disposition = _text_events(session, command, destination, message_id)
    receipt = await session.commit(command, bodies, Receipt(message_id, disposition, reason=destination.reason))
    session.delivery.pump()
    return receipt


def _text_events(
    session: Session, command: cmd.Prompt, destination: Route, message_id: str
) -> tuple[list[Body], Disposition]:
    text, images = command.text, command.images
    if destination.meaning == "steer":
        now = session.services.clock.wall()
        return [ev.SteeringReceived(ref=message_id, text=text, images=images, queued_at=now)], "steered"
    starts = destination.meaning != "queue"
    queued = ev.PromptQueued(text=text, message_id=message_id, images=images, starts=starts, new_task=command.new_task)
    if destination.meaning == "resume_then_prompt":
        return [ev.SessionResumed(by="user"), queued], "resumed"
    return [queued], "started" if starts else "queued"


async def _answer_question(session: Session, command: cmd.Prompt, destination: Route) -> Receipt:
    gate = to_decide(session.state.gates, destination.gate_id)
    decision = Decision(status="answered", answer=command.text)
    bodies = session.closing_events((gate,), decision, "user")
    receipt = await session.commit(command, bodies, Receipt(uuid4().hex, "answered", reason=destination.reason))
    session.send_decision(gate, decision)
    return receipt


async def _supersede(session: Session, command: cmd.Prompt) -> Receipt:
    """Close all open gates, interrupt the turn, and queue the text as the next one."""
    message_id, gates = uuid4().hex, session.state.gates.open
    closing = session.closing_events(gates, CANCELLED, "user", status="superseded")
    queued = ev.PromptQueued(text=command.text, message_id=message_id, images=command.images, new_task=command.new_task)
    result = Receipt(message_id, "queued", reason="Read when the turn has ended")
    receipt = await session.commit(command, [*closing, queued], result)
    session.interrupt_turn(gates)
    return receipt


async def steer(session: Session, command: cmd.Steer) -> Steered:
    """Queue a text for the running turn. If no turn is running, begin one with the text."""
    await check_before_turn(session, command)
    check_reachable(session)
    destination = route(session.state, "steer", session.services.settings.steering_limit)
    if any(item.id == command.ref and item.text != command.text for item in session.state.queue):
        # The new text would replace the queued one, which would be lost.
        raise InvalidInput("ref", "is used by another queued text", "Send another ref, or none.")
    ref = command.ref or uuid4().hex
    if destination.meaning == "prompt":
        received = ev.SteeringReceived(ref=ref, text=command.text, status="prompted")
        queued = ev.PromptQueued(text=command.text, message_id=ref, starts=True)
        result = await session.commit(command, [received, queued], Steered(ref, "prompted"))
    else:
        # An agent that can't be steered, or is held, gets this text first when the turn has ended.
        received = ev.SteeringReceived(ref=ref, text=command.text, queued_at=session.services.clock.wall())
        result = await session.commit(command, [received], Steered(ref, "queued"))
    session.delivery.pump()
    return result


# --- continuing


async def retry(session: Session, command: cmd.Retry) -> Done:
    """Send failed texts again. If there are none and nothing is queued, send the last text again."""
    check_allowed(session, command)
    await session.load()
    await check_before_turn(session, command)
    check_reachable(session)
    failed = [item for item in session.state.queue if item.receipt == "failed"]
    bodies: list[Body] = [ev.TurnRetried()]
    bodies += [ev.DeliveryChanged(message_id=item.id, status="queued") for item in failed]
    if not failed and not session.state.queue:
        bodies.append(_repeat_last_text(session))
    result = await session.commit(command, bodies, Done())
    session.delivery.pump()
    return result


def _repeat_last_text(session: Session) -> ev.PromptQueued:
    entries, message_id = session.view.timeline.entries, uuid4().hex
    for position in range(len(entries) - 1, -1, -1):
        entry = entries[position]
        if entry.kind == "user" and not entry.path:
            return ev.PromptQueued(text=entry.text, message_id=message_id, images=entry.images)
    return ev.PromptQueued(text=session.services.settings.continue_text, message_id=message_id)


async def resume(session: Session, command: cmd.Resume) -> Status:
    """Wake a suspended session, or continue one whose turn ended."""
    await check_before_turn(session, command)
    check_reachable(session)
    if session.state.lifecycle.value == "suspended":
        check_resumable(session, command)
        was_turn_finished = session.state.phase.value != "paused"
        result = await session.commit(command, [ev.SessionResumed(by="user")], Status(session.id, "active"))
        session.launcher.request_start(without_text=True, was_turn_finished=was_turn_finished)
        return result
    bodies: list[Body] = [ev.TurnContinued()]
    if not any(item.receipt == "queued" for item in session.state.queue):
        bodies.append(ev.PromptQueued(text=session.services.settings.continue_text, message_id=uuid4().hex))
    result = await session.commit(command, bodies, Status(session.id, "active"))
    session.delivery.pump()
    return result


# --- queued texts


async def resend(session: Session, command: cmd.Resend) -> Done:
    """Queue a text again that failed, or of which it's unknown whether the agent read it."""
    if session.launcher.state is ProcessState.STOPPING:
        # The exit of the old process would look like the end of the turn that begins now.
        await session.launcher.stop()
    item = _find_text(session, command.item_id)
    if item.receipt not in ("failed", "unknown"):
        raise refuse(session, command, f"the text is {item.receipt}")
    if item.retries >= session.services.settings.delivery_retries:
        raise refuse(session, command, f"the text was already sent again {item.retries} times")
    bodies = _resume_for_resend(session, command)
    if session.state.phase.value == "error":
        bodies.append(ev.TurnRetried())
    bodies.append(ev.DeliveryChanged(message_id=item.id, status="queued"))
    result = await session.commit(command, bodies, Done())
    session.delivery.pump()
    return result


def _resume_for_resend(session: Session, command: cmd.Resend) -> list[Body]:
    """Return the event that resumes a suspended session, as for any other text."""
    destination = route(session.state)
    if destination.meaning == "refused":
        raise refuse(session, command, destination.reason)
    if destination.meaning != "resume_then_prompt":
        return []
    check_resumable(session, command)
    return [ev.SessionResumed(by="user")]


async def edit_queued(session: Session, command: cmd.EditQueued) -> Done:
    """Replace a text that hasn't been sent."""
    item = _find_unsent(session, command, command.item_id)
    return await session.commit(command, [ev.PromptEdited(message_id=item.id, text=command.text)], Done())


async def drop_queued(session: Session, command: cmd.DropQueued) -> Dropped:
    """Remove one or all texts that haven't been sent."""
    if command.item_id:
        items = [_find_unsent(session, command, command.item_id)]
    else:
        items = [item for item in session.state.queue if item.receipt not in IN_TRANSIT]
    bodies: list[Body] = [ev.PromptDropped(text=item.text, message_id=item.id) for item in items]
    if _waits_only_for(session, items):
        # The session shows a spinner for a turn that won't begin.
        bodies.append(ev.AgentAbort(reason="taken back"))
    result = await session.commit(command, bodies, Dropped(tuple(item.text for item in items)))
    session.launcher.cancel_request()
    return result


def _find_text(session: Session, item_id: str) -> Waiting:
    for item in session.state.queue:
        if item.id == item_id:
            return item
    raise NoSuchText(item_id)


def _find_unsent(session: Session, command: cmd.Command, item_id: str) -> Waiting:
    item = _find_text(session, item_id)
    if item.receipt in IN_TRANSIT:
        raise refuse(session, command, "the text is on its way to the agent")
    return item


def _waits_only_for(session: Session, items: list[Waiting]) -> bool:
    """Return whether the session is starting a turn, and no text is left for it without these."""
    state = session.state
    unsent = {item.id for item in state.queue if item.receipt in ("queued", "sending")}
    return is_promised(state) and bool(items) and not unsent - {item.id for item in items}


# --- stopping


async def abort(session: Session, command: cmd.Abort) -> Dropped:
    """End the turn, or the start of one."""
    check_allowed(session, command)
    state = session.state
    dropped = _texts_to_abort(session, command)
    bodies: list[Body] = [ev.PromptDropped(text=item.text, message_id=item.id) for item in dropped]
    gates = state.gates.open
    is_running = state.turn.is_open and session.connection is not None
    bodies += session.closing_events(gates, CANCELLED, "user", turn_ends=not is_running)
    if not is_running:
        # No agent is there to report the end of the turn.
        bodies.append(ev.AgentAbort(reason=command.reason or "stopped"))
    result = await session.commit(command, bodies, Dropped(tuple(item.text for item in dropped)))
    session.launcher.cancel_request()
    is_sending = any(item.receipt == "sending" for item in session.state.queue)
    # An agent that hasn't begun the turn may ignore the interrupt, so repeat it when the turn begins.
    session.delivery.aborts_next_turn = is_sending and not is_running
    if is_running or is_sending:
        session.interrupt_turn(gates, command.kill_tools)
    return result


def _texts_to_abort(session: Session, command: cmd.Abort) -> list[Waiting]:
    """Return all unsent texts with `clear_queue`, otherwise only the one that the session is starting a turn for."""
    unsent = [item for item in session.state.queue if item.receipt not in IN_TRANSIT]
    if command.clear_queue:
        return unsent
    queued = [item for item in unsent if item.receipt == "queued"]
    return queued[:1] if is_promised(session.state) else []
