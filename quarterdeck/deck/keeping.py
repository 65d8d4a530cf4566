"""What a person does to a session that its agent need not know: texts that still wait, marks in the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.deck import validation
from quarterdeck.deck.delivery import ON_ITS_WAY
from quarterdeck.deck.rules import NoSuchRule
from quarterdeck.deck.verbs import Mark
from quarterdeck.deck.wishes import check_resume, refused
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body
from quarterdeck.kernel.command_results import Done, Dropped
from quarterdeck.kernel.queue import Waiting
from quarterdeck.kernel.routing import is_promised, route

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


class NoSuchText(QuarterdeckError):
    """No text of this name waits."""

    code = "no_such_text"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"no text {item_id} waits in this session", "The agent may have read it already.")


class Edit(Struct, frozen=True):
    """Another text under the same name."""

    item_id: str
    text: str


class Drop(Struct, frozen=True):
    """Takes a text back; '' means all of them."""

    item_id: str = ""


class Resend(Struct, frozen=True):
    """Sends a text again that failed, or whose outcome nobody knows."""

    item_id: str


class Unrule(Struct, frozen=True):
    """Takes back what was allowed for this session once and for all."""

    rule_id: str


async def edit(session: Session, wanted: Edit, client_id: str = "") -> Done:
    validation.fits(wanted)
    validation.text("text", wanted.text, session.services.settings.text_limit)
    if not wanted.text.strip():
        raise validation.InvalidInput("text", "it is empty", "Drop the text instead.")

    async def work(print_: str) -> Done:
        item = _waiting(session, wanted.item_id, "edit")
        body = ev.PromptEdited(message_id=item.id, text=wanted.text)
        return await session.commit([body], Done(), "edit", client_id, print_)

    return await session.answer("edit", wanted, Done, client_id, work)


async def drop(session: Session, wanted: Drop, client_id: str = "") -> Dropped:
    validation.fits(wanted)  # None, which is no name, would be all of them

    async def work(print_: str) -> Dropped:
        items = _to_drop(session, wanted)
        bodies: list[Body] = [ev.PromptDropped(text=item.text, message_id=item.id) for item in items]
        if _nothing_is_left(session, items):
            bodies.append(ev.AgentAbort(reason="taken back"))
        answer = Dropped(tuple(item.text for item in items))
        answer = await session.commit(bodies, answer, "drop", client_id, print_)
        session.launcher.unwanted()
        return answer

    return await session.answer("drop", wanted, Dropped, client_id, work)


async def resend(session: Session, wanted: Resend, client_id: str = "") -> Done:
    validation.fits(wanted)

    async def work(print_: str) -> Done:
        if session.launcher.is_stopping:
            await session.launcher.stop()  # its end would look like the end of what begins now
        item = _found(session, wanted.item_id)
        if item.receipt not in ("failed", "unknown"):
            raise refused(session, "resend", f"the text is {item.receipt}")
        if item.retries >= session.services.settings.delivery_retries:
            raise refused(session, "resend", f"it was sent again {item.retries} times already")
        bodies: list[Body] = _awake(session)
        if session.state.phase.value == "error":
            bodies.append(ev.TurnRetried())
        bodies.append(ev.DeliveryChanged(message_id=item.id, status="queued"))
        done = await session.commit(bodies, Done(), "resend", client_id, print_)
        session.delivery.pump()
        return done

    return await session.answer("resend", wanted, Done, client_id, work)


def _awake(session: Session) -> list[Body]:
    """What must be said first, as for any text: a suspended session is resumed, and where nobody reads it is refused."""
    way = route(session.state)
    if way.meaning == "refused":
        raise refused(session, "resend", way.reason)
    if way.meaning != "resume_then_prompt":
        return []
    check_resume(session, "resend")
    return [ev.SessionResumed(by="user")]


async def mark(session: Session, wanted: Mark, client_id: str = "") -> Done:
    validation.whole_number("snoozed_until", wanted.snoozed_until)
    validation.whole_number("read_index", wanted.read_index)
    validation.fits(wanted)

    async def work(print_: str) -> Done:
        # nobody has seen what is not there yet: what comes is unread, whatever was claimed
        read = None if wanted.read_index is None else min(wanted.read_index, session.view.index)
        body = ev.SessionMarked(pinned=wanted.pinned, snoozed_until=wanted.snoozed_until, read_index=read)
        return await session.commit([body], Done(), "mark", client_id, print_)

    return await session.answer("mark", wanted, Done, client_id, work)


async def unrule(session: Session, wanted: Unrule, client_id: str = "") -> Done:
    validation.fits(wanted)
    await session.load()

    async def work(print_: str) -> Done:
        rule = next((one for one in session.rules if one.id == wanted.rule_id), None)
        if rule is None:
            raise NoSuchRule(wanted.rule_id)
        done = await session.commit([ev.RuleRemoved(rule=rule.text)], Done(), "unrule", client_id, print_)
        session.drop_rule(rule)
        return done

    return await session.answer("unrule", wanted, Done, client_id, work)


def _found(session: Session, item_id: str) -> Waiting:
    for item in session.state.queue:
        if item.id == item_id:
            return item
    raise NoSuchText(item_id)


def _waiting(session: Session, item_id: str, name: str) -> Waiting:
    item = _found(session, item_id)
    if item.receipt in ON_ITS_WAY:
        raise refused(session, name, "the text is on its way to the agent")
    return item


def _to_drop(session: Session, wanted: Drop) -> list[Waiting]:
    if wanted.item_id:
        return [_waiting(session, wanted.item_id, "drop")]
    return [item for item in session.state.queue if item.receipt not in ON_ITS_WAY]


def _nothing_is_left(session: Session, dropped: list[Waiting]) -> bool:
    """The session was at work for a text that is taken back now."""
    state = session.state
    left = {item.id for item in state.queue if item.receipt in ("queued", "sending")} - {item.id for item in dropped}
    return is_promised(state) and bool(dropped) and not left
