"""What an allowed command causes. Each is decided and written in one step; what follows from it follows its commit.

A command is checked against the state in the same step in which it is written, so that two that come at once are one
after the other. Nothing is sent to an agent that is not durable first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from quarterdeck import events as ev
from quarterdeck.deck import gates as gate_desk
from quarterdeck.deck import validation
from quarterdeck.deck.delivery import ON_ITS_WAY
from quarterdeck.deck.interruption import CANCELLED, hold, interrupt
from quarterdeck.deck.rules import RuleStore, RulesUnreadable
from quarterdeck.errors import NotAllowed
from quarterdeck.events import Body
from quarterdeck.harness.driver import CannotDo, Decision, Lines
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Answer, Decided, Done, Dropped, Receipt, Status, Steered
from quarterdeck.kernel.gate import Gate, to_decide
from quarterdeck.kernel.routing import Route, is_busy, is_promised, route
from quarterdeck.policy import Rule, always, rule_for

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


class Wish:
    """One command on its way through a session: what it is, whose key it has."""

    def __init__(self, session: Session, command: cmd.Command, client_id: str, print_: str) -> None:
        self.session = session
        self.command = command
        self.name = cmd.name_of(command)
        self._client_id = client_id
        self._print = print_

    def check(self) -> None:
        """Raises unless the state allows it now. One that waited until the deck closes must not wake the session again."""
        if self.session.launcher.is_retired:
            raise self.refuse("the deck is closing")
        try:
            cmd.check(self.session.state, self.command, self.session.services.settings.steering_limit)
        except NotAllowed as error:
            raise error.without(self.session.cannot) from None

    async def check_at_rest(self) -> None:
        """The same for a command that begins a turn: it waits for the end of a process that is being ended, which would
        look like the end of that turn."""
        self.check()
        if self.session.launcher.is_stopping:
            await self.session.launcher.stop()
            self.check()

    def check_reachable(self) -> None:
        """Raises unless the agent runs, or can be started: one that only tells us what it does would never read a text."""
        if self.session.connection is None:
            self.session.services.harness_of(self.session.state.profile.agent)

    def refuse(self, why: str) -> NotAllowed:
        """The error that says so."""
        return refused(self.session, self.name, why)

    async def commit(self, bodies: Sequence[Body], answer: Any) -> Any:
        return await self.session.commit(bodies, answer, self.name, self._client_id, self._print)


def refused(session: Session, name: str, why: str) -> NotAllowed:
    """The state does not allow it, for this reason."""
    state = session.state
    listed = cmd.allowed(state, session.services.settings.steering_limit)
    return NotAllowed(name, f"the session is {state.phase.value}", listed, why).without(session.cannot)


async def obey(session: Session, command: cmd.Command, client_id: str = "") -> Answer:
    """Does what the command says, once for each client_id, and answers."""
    kind, handler = HANDLERS[type(command)]
    check_content(session, command)

    async def work(print_: str) -> Any:
        return await handler(Wish(session, command, client_id, print_), command)

    return await session.answer(cmd.name_of(command), command, kind, client_id, work)


def check_content(session: Session, command: cmd.Command) -> None:
    """What is wrong in every state."""
    limit = session.services.settings.text_limit
    for field in ("text", "name", "reason", "model", "command", "ref"):
        value = getattr(command, field, None)
        if value is not None:
            validation.text(field, value, limit)
    validation.json_texts("answer", getattr(command, "answer", None), limit)
    validation.images(getattr(command, "images", ()), session.services.settings)
    validation.fits(command)


# --- texts


async def _prompt(wish: Wish, command: cmd.Prompt) -> Receipt:
    session = wish.session
    await wish.check_at_rest()
    if command.images and not session.capabilities.images:
        raise CannotDo(session.state.profile.agent, "read images")
    if command.new_task and not is_busy(session.state):
        # the agent that is up is in the conversation before
        await session.launcher.stop()
        wish.check()
    # a new task is for nobody who is in another conversation: neither an answer nor a word in between
    way = route(session.state, "queue" if command.new_task else "message", session.services.settings.steering_limit)
    if command.supersede and session.state.gates.open:  # also of a question: whoever says so does not answer it
        wish.check_reachable()
        return await _supersede(wish, command)
    if way.meaning == "answer":
        if command.images:  # an answer is a text: they would be lost without a word
            raise wish.refuse("a question is open, and its answer is a text; answer it, then send the images")
        return await _answer_with(wish, way, command.text)
    wish.check_reachable()
    if way.meaning == "resume_then_prompt":
        check_resume(wish.session, wish.name)
    name = uuid4().hex
    bodies, disposition = _texted(session, way, command, name)
    receipt = await wish.commit(bodies, Receipt(name, disposition, reason=way.reason))
    session.delivery.pump()
    return receipt


def _texted(session: Session, way: Route, command: cmd.Prompt, name: str) -> tuple[list[Body], Any]:
    """The events of a text that goes this way, and what its sender is told."""
    text, images = command.text, command.images
    if way.meaning == "steer":
        at = session.services.clock.wall()
        return [ev.SteeringReceived(ref=name, text=text, images=images, queued_at=at)], "steered"
    starts = way.meaning != "queue"
    queued = ev.PromptQueued(text=text, message_id=name, images=images, starts=starts, new_task=command.new_task)
    if way.meaning == "resume_then_prompt":
        return [ev.SessionResumed(by="user"), queued], "resumed"
    return [queued], "started" if starts else "queued"


async def _answer_with(wish: Wish, way: Route, text: str) -> Receipt:
    gate = to_decide(wish.session.state.gates, way.gate_id)
    decision = Decision(status="answered", answer=text)
    name = uuid4().hex
    bodies = wish.session.closings((gate,), decision, "user")
    receipt = await wish.commit(bodies, Receipt(name, "answered", reason=way.reason))
    wish.session.say_decision(gate, decision)
    return receipt


async def _supersede(wish: Wish, command: cmd.Prompt) -> Receipt:
    """The text takes the place of what was asked: the gates are closed, the turn is ended, and the text is next."""
    session, name = wish.session, uuid4().hex
    gates = session.state.gates.open
    closed = session.closings(gates, CANCELLED, "user", status="superseded")
    queued = ev.PromptQueued(text=command.text, message_id=name, images=command.images, new_task=command.new_task)
    receipt = await wish.commit([*closed, queued], Receipt(name, "queued", reason="Read when the turn has ended"))
    interrupt(session, gates)
    return receipt


async def _steer(wish: Wish, command: cmd.Steer) -> Steered:
    session = wish.session
    await wish.check_at_rest()
    wish.check_reachable()
    way = route(session.state, "steer", session.services.settings.steering_limit)
    _check_ref(session, command)
    ref = command.ref or uuid4().hex
    if way.meaning == "prompt":
        prompted = ev.SteeringReceived(ref=ref, text=command.text, status="prompted")
        bodies: list[Body] = [prompted, ev.PromptQueued(text=command.text, message_id=ref, starts=True)]
        answer = await wish.commit(bodies, Steered(ref, "prompted"))
    else:
        at = session.services.clock.wall()
        # also where the agent cannot be steered, or is held: it is the first to be read then
        answer = await wish.commit(
            [ev.SteeringReceived(ref=ref, text=command.text, queued_at=at)], Steered(ref, "queued")
        )
    session.delivery.pump()
    return answer


def _check_ref(session: Session, command: cmd.Steer) -> None:
    """The same name again is the same text again: another one would take its place, and the first would be lost."""
    if any(item.id == command.ref and item.text != command.text for item in session.state.queue):
        raise validation.InvalidInput("ref", "another text of this name waits already", "Send another ref, or none.")


# --- stop


async def _abort(wish: Wish, command: cmd.Abort) -> Dropped:
    session = wish.session
    wish.check()
    state = session.state
    dropped = [item for item in state.queue if _is_dropped(session, item.id, command)]
    bodies: list[Body] = [ev.PromptDropped(text=item.text, message_id=item.id) for item in dropped]
    gates = state.gates.open
    runs = state.turn.is_open and session.connection is not None
    bodies += session.closings(gates, CANCELLED, "user", ends=not runs)
    if not runs:
        # nothing that could tell us of its end: what was to come does not come
        bodies.append(ev.AgentAbort(reason=command.reason or "stopped"))
    answer = await wish.commit(bodies, Dropped(tuple(item.text for item in dropped)))
    session.launcher.unwanted()
    is_sending = any(item.receipt == "sending" for item in session.state.queue)
    # an agent that has not begun yet may not listen: it is told again when it does
    session.is_unwanted = is_sending and not runs
    if runs or is_sending:
        interrupt(session, gates, command.kill_tools)
    return answer


def _is_dropped(session: Session, item_id: str, command: cmd.Abort) -> bool:
    """All that waits, if that is wanted; else only the text that the session is at work for and that was not sent."""
    state = session.state
    waiting = [item for item in state.queue if item.receipt not in ON_ITS_WAY]
    if command.clear_queue:
        return item_id in {item.id for item in waiting}
    first = next((item for item in waiting if item.receipt == "queued"), None)
    return is_promised(state) and first is not None and first.id == item_id


# --- gates


async def _approve(wish: Wish, command: cmd.Approve) -> Decided:
    session = wish.session
    wish.check()
    gate = to_decide(session.state.gates, command.gate_id)
    if command.always is None:
        return await _say_yes(wish, gate, None, command.auto_resume)
    rule = rule_for(gate, command.always, gate_desk.place_of(session.state), session.services.clock.wall())
    rules = session.services.rules
    is_new = rule.scope != "session" and await asyncio.to_thread(_kept, rules, rule) is rule
    try:
        wish.check()
        answer = await _say_yes(wish, gate, rule, command.auto_resume)
    except BaseException:
        if is_new:  # somebody else decided meanwhile, or the store refuses: then nothing was said for always either
            await asyncio.to_thread(rules.remove, rule.id)
        raise
    if rule.scope == "session":
        session.add_rule(rule)
    session.services.rules_changed()
    return answer


def _kept(rules: RuleStore, rule: Rule) -> Rule:
    """In the file; a disk that refuses it is told as what it is, and the gate stays open."""
    try:
        return rules.add(rule)
    except OSError as error:
        raise RulesUnreadable(rules.path, 0, f"cannot be written: {error.strerror}") from error


async def _say_yes(wish: Wish, gate: Gate, rule: Rule | None, resumes: bool) -> Decided:
    decision = Decision(status="approved", always=rule is not None, resumes=resumes)
    closed = wish.session.closings((gate,), decision, "user")
    bodies = closed if rule is None else [always(rule), *closed]
    answer = await wish.commit(bodies, Decided(gate.id, rule.text if rule is not None else ""))
    wish.session.say_decision(gate, decision)
    hold(wish.session, decision)
    return answer


async def _reject(wish: Wish, command: cmd.Reject) -> Decided:
    session = wish.session
    wish.check()
    gate = to_decide(session.state.gates, command.gate_id)
    go_on = command.auto_resume
    decision = Decision(status="rejected", reason=command.reason, stops=not go_on, resumes=go_on)
    answer = await wish.commit(session.closings((gate,), decision, "user"), Decided(gate.id))
    session.say_decision(gate, decision)
    hold(session, decision)
    return answer


async def _respond(wish: Wish, command: cmd.Respond) -> Decided:
    wish.check()
    gate = to_decide(wish.session.state.gates, command.gate_id)
    decision = Decision(status="answered", answer=command.answer)
    answer = await wish.commit(wish.session.closings((gate,), decision, "user"), Decided(gate.id))
    wish.session.say_decision(gate, decision)
    return answer


# --- go on


async def _retry(wish: Wish, _: cmd.Retry) -> Done:
    """What could not be sent is sent again; else the last text is."""
    session = wish.session
    wish.check()
    await session.load()
    await wish.check_at_rest()
    wish.check_reachable()
    failed = [item for item in session.state.queue if item.receipt == "failed"]
    bodies: list[Body] = [ev.TurnRetried()]
    bodies += [ev.DeliveryChanged(message_id=item.id, status="queued") for item in failed]
    if not failed and not session.state.queue:
        bodies.append(_last_text(session))
    answer = await wish.commit(bodies, Done())
    session.delivery.pump()
    return answer


def _last_text(session: Session) -> ev.PromptQueued:
    """With its images, as it was."""
    entries, name = session.view.timeline.entries, uuid4().hex
    for place in range(len(entries) - 1, -1, -1):
        last = entries[place]
        if last.kind == "user" and not last.path:
            return ev.PromptQueued(text=last.text, message_id=name, images=last.images)
    return ev.PromptQueued(text=session.services.settings.continue_text, message_id=name)


async def _resume(wish: Wish, _: cmd.Resume) -> Status:
    session = wish.session
    await wish.check_at_rest()
    wish.check_reachable()
    if session.state.lifecycle.value == "suspended":
        check_resume(session, wish.name)
        finished = session.state.phase.value != "paused"
        answer = await wish.commit([ev.SessionResumed(by="user")], Status(session.id, "active"))
        session.launcher.want(anyway=True, finished=finished)
        return answer
    bodies: list[Body] = [ev.TurnContinued()]
    if not any(item.receipt == "queued" for item in session.state.queue):
        bodies.append(ev.PromptQueued(text=session.services.settings.continue_text, message_id=uuid4().hex))
    answer = await wish.commit(bodies, Status(session.id, "active"))
    session.delivery.pump()
    return answer


def check_resume(session: Session, name: str) -> None:
    """002: the agent can, it says so of this session, and what it resumes by is there. Without a conversation nothing is
    resumed: the agent is started, as it would have been."""
    state = session.state
    if state.profile.never_ready:
        return
    if not state.profile.native_session_id:
        raise refused(session, name, "nothing is stored that it could be resumed by")
    if not session.capabilities.resume:
        raise refused(session, name, f"{state.profile.agent} cannot resume")


# --- put away


async def _cancel(wish: Wish, _: cmd.Cancel) -> Status:
    return await _put_away(wish, "cancelled")


async def _archive(wish: Wish, _: cmd.Archive) -> Status:
    return await _put_away(wish, "archived")


async def _put_away(wish: Wish, how: Any) -> Status:
    """The process ends first: an archived session has none, and no text that waits brings it back."""
    session = wish.session
    wish.check()
    session.is_closing = True
    try:
        if session.connection is not None or session.launcher.is_under_way:
            await _withdraw(session)
            await session.launcher.stop()
            wish.check()
        return await wish.commit([ev.SessionArchived(end_reason=how)], Status(session.id, how))
    finally:
        session.is_closing = False
        session.delivery.pump()


async def _withdraw(session: Session) -> None:
    """What is asked is answered as cancelled: the log says so first, or it would say what the agent made of it."""
    gates, launch = session.state.gates.open, session.connection
    if not gates:
        return
    await session.writer.commit(session.closings(gates, CANCELLED, "user"), "user")
    if launch is not None and launch is session.connection:
        for gate in gates:
            launch.say(launch.driver.answer(gate, CANCELLED))


# --- settings


async def _rename(wish: Wish, command: cmd.Rename) -> Done:
    wish.check()
    return await wish.commit([ev.SessionRenamed(name=command.name.strip())], Done())


async def _switch_model(wish: Wish, command: cmd.SwitchModel) -> Done:
    wish.check()
    if not command.model.strip():
        raise validation.InvalidInput("model", "it is empty", "Name a model of the agent.")
    wish.check_reachable()
    return await _set(wish, ev.SettingChanged(model=command.model), lambda driver: driver.switch_model(command.model))


async def _switch_mode(wish: Wish, command: cmd.SwitchMode) -> Done:
    wish.check()
    if command.mode not in wish.session.capabilities.modes:
        raise CannotDo(wish.session.state.profile.agent, f"work in mode {command.mode}")
    return await _set(wish, ev.SettingChanged(mode=command.mode), lambda driver: driver.switch_mode(command.mode))


async def _set(wish: Wish, body: Body, lines: Callable[[Any], Lines]) -> Done:
    """A running agent is told at once; another one when it starts."""
    launch = wish.session.connection
    said = lines(launch.driver) if launch is not None else []
    answer = await wish.commit([body], Done())
    if launch is not None and launch is wish.session.connection:
        launch.say(said)
    return answer


async def _bash(wish: Wish, command: cmd.Bash) -> Done:
    return await _tell(wish, "run shell commands of yours", lambda driver: driver.bash(command.command, uuid4().hex))


async def _compact(wish: Wish, _: cmd.Compact) -> Done:
    return await _tell(wish, "compact", lambda driver: driver.compact())


async def _tell(wish: Wish, what: str, lines: Callable[[Any], Lines]) -> Done:
    """Something that only a running agent can do, and not every one."""
    wish.check()
    if wish.name in wish.session.cannot:
        raise CannotDo(wish.session.state.profile.agent, what)
    launch = wish.session.connection
    if launch is None or not launch.is_ready or launch.is_doomed:
        raise wish.refuse("the agent does not run; a message starts it")
    said = lines(launch.driver)
    answer = await wish.commit([], Done())
    launch.say(said)
    return answer


Handler: TypeAlias = Callable[[Wish, Any], Awaitable[Any]]

HANDLERS: dict[type[Any], tuple[type[Any], Handler]] = {
    cmd.Prompt: (Receipt, _prompt),
    cmd.Steer: (Steered, _steer),
    cmd.Abort: (Dropped, _abort),
    cmd.Approve: (Decided, _approve),
    cmd.Reject: (Decided, _reject),
    cmd.Respond: (Decided, _respond),
    cmd.Retry: (Done, _retry),
    cmd.Resume: (Status, _resume),
    cmd.Cancel: (Status, _cancel),
    cmd.Archive: (Status, _archive),
    cmd.Rename: (Done, _rename),
    cmd.SwitchModel: (Done, _switch_model),
    cmd.SwitchMode: (Done, _switch_mode),
    cmd.Bash: (Done, _bash),
    cmd.Compact: (Done, _compact),
}
