"""A live session: its record, the agent process that serves it, and the texts on their way to that process.

Everything happens on one loop. A decision is taken and written in one step without a pause, so nobody can come between;
what follows from it (a line to the agent, the start of a process) happens only when it is durable. No task and no queue
exists for a session that does nothing.

This file is what lives. What commands mean is in `wishes.py`, where texts go in `delivery.py`, how a process comes up in
`startup.py`; each of them is handed the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.config import Settings
from quarterdeck.deck import gates as gate_desk
from quarterdeck.deck import validation
from quarterdeck.deck.agents.connection import AgentConnection
from quarterdeck.deck.agents.launcher import Launcher
from quarterdeck.deck.agents.observed import ObservedAgent
from quarterdeck.deck.agents.signal_reader import SignalReader
from quarterdeck.deck.clock import Clock
from quarterdeck.deck.counters import DeckCounters
from quarterdeck.deck.delivery import Delivery
from quarterdeck.deck.environment import Given
from quarterdeck.deck.git.tracker import ChangeTracker
from quarterdeck.deck.interruption import interrupt
from quarterdeck.deck.receipts import Receipts
from quarterdeck.deck.rules import RuleStore
from quarterdeck.deck.slots import Slots
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, CommandReceipt, Event, Json, Origin
from quarterdeck.harness.base import Translator
from quarterdeck.harness.driver import Capabilities, Decision
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel import activity
from quarterdeck.kernel.command_results import Answer
from quarterdeck.kernel.gate import Gate
from quarterdeck.kernel.routing import open_question
from quarterdeck.kernel.state import State
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import PAGE, CatalogueRow, Fence, Log
from quarterdeck.log.session_writer import SessionWriter, is_final
from quarterdeck.policy import Rule, session_rules

A = TypeVar("A", bound=Answer)
#: What only an agent that we can start does.
_TO_AN_AGENT = frozenset({"prompt", "steer", "retry", "resume", "switch_model", "switch_mode", "bash", "compact"})


class DeckServices(Struct):
    """What a session needs of the deck around it."""

    log: Log
    clock: Clock
    settings: Settings
    slots: Slots
    rules: RuleStore
    home_id: str
    publish: Callable[[Sequence[Event]], None]
    harness_of: Callable[[str], Harness]
    environment_of: Callable[[str], Awaitable[Given]]
    #: A number that no gate of any session had.
    next_gate: Callable[[], int]
    #: A session's row is durable as it is now.
    listed: Callable[[CatalogueRow], None]
    #: Nothing seems to be under way in this session any more.
    at_rest: Callable[[], None]
    #: Called when the rules changed: whatever is asked anywhere may be decided now.
    rules_changed: Callable[[], None]
    trace: Callable[[str], Callable[..., None] | None]
    #: native session id → the session that has a process for it
    owners: dict[str, str]
    counters: DeckCounters
    changes: ChangeTracker


class Session:
    """One that is in use. The deck makes it when somebody needs it and lets it go when nobody does."""

    def __init__(
        self, house: DeckServices, session_id: str, view: View, fence: Fence, last_gate_number: int = 0
    ) -> None:
        self.services = house
        self.id = session_id
        self.writer = SessionWriter(
            house.log,
            session_id,
            self,
            view=view,
            fence=fence,
            clock=house.clock.wall,
            counters=house.counters.appends,
            last_gate_number=last_gate_number,
        )
        self.receipts = Receipts(house.log, session_id, is_new=not view.index)
        self.connection: AgentConnection | None = None
        #: Set while an agent that somebody else started tells us what it does.
        self.observed_agent: ObservedAgent | None = None
        self.launcher = Launcher(self)
        self.delivery = Delivery(self)
        #: Commands under way and readers: while there are any the session stays in memory.
        self.users = 0
        self.is_closing = False
        #: The turn of the text that is being sent is to end as soon as it begins.
        self.is_unwanted = False
        self._is_whole = view.index == 0
        self._loading: asyncio.Task[None] | None = None
        #: The activity that we said when a gate was closed, until the agent says one.
        self._said = ""
        self._rules: tuple[Rule, ...] = ()
        self._knows_rules = self._is_whole
        self._answers: set[asyncio.Task[None]] = set()
        self._commands: set[asyncio.Task[Any]] = set()

    @property
    def state(self) -> State:
        return self.writer.view.state

    @property
    def view(self) -> View:
        return self.writer.view

    @property
    def is_idle(self) -> bool:
        """Nothing lives here: what the log holds is all there is."""
        held = self.users or self.writer.error
        busy = held or self.connection or self.launcher.is_under_way or self.delivery.is_under_way or self._answers
        return not busy and self.writer.is_durable and not self._is_observing

    @property
    def _is_observing(self) -> bool:
        """Whether an agent of somebody else's is in the middle of something."""
        seen = self.observed_agent
        return seen is not None and (seen.is_held or seen.is_waiting or self.state.turn.is_open)

    @property
    def capabilities(self) -> Capabilities:
        """What the agent can do, running or not."""
        if self.connection is not None:
            return self.connection.driver.capabilities
        return self.services.harness_of(self.state.profile.agent).make_driver().capabilities

    @property
    def cannot(self) -> frozenset[str]:
        """The commands that its agent obeys in no state. One that only tells us what it does can be answered, no more."""
        try:
            able = self.capabilities
        except QuarterdeckError:
            answers = open_question(self.state) is not None
            return _TO_AN_AGENT - {"prompt"} if answers else _TO_AN_AGENT
        has = {"bash": able.bash, "compact": able.compact, "switch_mode": bool(able.modes)}
        return frozenset(name for name, it_can in has.items() if not it_can)

    # --- commands

    async def answer(
        self, name: str, body: Json, kind: type[A], client_id: str, work: Callable[[str], Awaitable[A]]
    ) -> A:
        """The answer of a command that has a key of its caller, or none. What has begun is done to its end, also when its
        caller does not wait for that."""
        validation.client_id(client_id)
        task = asyncio.get_running_loop().create_task(self._answered(name, body, kind, client_id, work))
        self._commands.add(task)
        self.users += 1
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def _answered(
        self, name: str, body: Json, kind: type[A], client_id: str, work: Callable[[str], Awaitable[A]]
    ) -> A:
        outcome = "failed"
        try:
            answer = await (self.receipts.once(client_id, name, body, kind, work) if client_id else work(""))
            outcome = "done"
            return answer
        except QuarterdeckError as error:
            outcome = error.code
            raise
        finally:
            self.services.counters.commands[name, outcome] += 1

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._commands.discard(task)
        self.users -= 1
        if not task.cancelled():
            task.exception()  # looked at: its caller may have left
        self.services.slots.nudge()
        self.services.at_rest()

    async def commit(self, bodies: Sequence[Body], answer: A, name: str, client_id: str, print_: str) -> A:
        """What a command causes, with its receipt in the same append."""
        if not client_id:
            if bodies:
                await self.writer.commit(bodies, "user")
            return answer
        stored = msgspec.to_builtins(answer)
        receipt = CommandReceipt(client_id=client_id, command=name, fingerprint=print_, answer=stored)
        await self.writer.commit([*bodies, receipt], "user")
        self.receipts.remember(receipt)
        return answer

    # --- the whole conversation

    async def load(self) -> None:
        """Makes the timeline whole; the same reading serves all who ask meanwhile."""
        if self._is_whole:
            return
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            view = View()
            # the log may hold more than the record knows to be durable, so both must have come to an end
            while view.index < self.writer.view.index or not self.writer.is_durable:
                await self.writer.flush()
                events = await self.services.log.read(self.id, view.index, PAGE)
                view = fold_all(events, view) if events else replace(view, index=self.writer.durable_view.index)
                self._rules = session_rules(events, self._rules)
            self.writer.set_timeline(view.timeline)
            self._is_whole = self._knows_rules = True
        finally:
            self._loading = None

    # --- what the agent says

    def hear(self, ear: SignalReader, bodies: list[Body], origin: Origin) -> None:
        """The translator's words, as they may stand in the log."""
        if ear is not self.connection and ear is not self.observed_agent:
            return
        written: list[Body] = []
        asks = False
        for body in bodies:
            kind = type(body)
            if kind not in _OURS:
                written.append(body)
            else:
                asks = asks or kind in gate_desk.OPENING
                written += self._told(ear, body)
        if written:
            if asks:
                self._asked(ear, written, origin)
            else:
                self.writer.write(written, origin, ear.durability)
            if self.is_unwanted and any(isinstance(body, ev.AgentStart) and not body.agent_path for body in written):
                self.is_unwanted = False
                interrupt(self)
        if isinstance(ear, AgentConnection) and ear.is_ended:
            self.launcher.ended(ear)

    def _asked(self, ear: SignalReader, written: list[Body], origin: Origin) -> None:
        """What is asked is judged before the agent is said to wait for it: where a rule decides, nobody ever waited."""
        waits = written[-1] if gate_desk.is_waiting(written[-1]) else None
        self.writer.write(written[:-1] if waits else written, origin)
        if isinstance(ear, ObservedAgent):
            ear.asks(gate_desk.opened_by(written, self.state.gates))
        self.judge()
        if waits is not None:
            self._waits_or_goes_on(waits, origin)

    def _waits_or_goes_on(self, waits: Body, origin: Origin) -> None:
        if gate_desk.is_held(self.state.gates):
            self.writer.write((waits,), origin)
            return
        then = gate_desk.decided(self.state)
        self._said = activity.joined(then.state, then.sub)
        if self._said != self.state.activity.value:
            self.note(then)

    def _told(self, ear: SignalReader, body: Body) -> tuple[Body, ...]:
        if isinstance(body, ev.StateChange):
            return self._news(body)
        if isinstance(body, gate_desk.OPENING):
            if self.state.lifecycle.value != "active":
                return (body,)  # nobody can answer: a number is not spent, for the log would not know that it was
            named = gate_desk.named(body, self.state.gates, self._next_name)
            return (named, *self._waits_again(body))
        if isinstance(body, gate_desk.CLOSING):
            return () if gate_desk.is_told_already(body, self.state.gates) else (body,)
        return self.launcher.told(ear, body) if isinstance(ear, AgentConnection) else (body,)

    def _next_name(self) -> str:
        self.writer.last_gate_number = self.services.next_gate()
        return f"g{self.writer.last_gate_number}"

    def _news(self, body: ev.StateChange) -> tuple[Body, ...]:
        """The activity, unless we said that already: the translator hears of a decision later than the log."""
        if body.agent_path:
            return (body,)
        said, self._said = self._said, ""
        is_known = said == self.state.activity.value == activity.joined(body.state, body.sub)
        return () if is_known else (body,)

    def _waits_again(self, body: Body) -> tuple[Body, ...]:
        """Something is asked before the translator heard how the last gate was closed: to it the agent never went on."""
        if body.agent_path or not self._said or self._said != self.state.activity.value:
            return ()
        self._said = ""
        return (ev.StateChange(state="active", sub="waiting_for_permission"),)

    def closings(
        self, gates: Sequence[Gate], decision: Decision, by: str, rule: str = "", status: str = "", ends: bool = False
    ) -> list[Body]:
        """What says that these are decided, and what the agent does then: nobody is shown as waiting for nothing."""
        closed = [gate_desk.closing(gate, decision, by, rule, status) for gate in gates]
        then = gate_desk.gone_on(self.state, gates, ends)
        if then is not None:
            self._said = activity.joined(then.state, then.sub)
        return closed if then is None else [*closed, then]

    def observe(self, translator: Translator) -> ObservedAgent:
        """From now on an agent of somebody else's is listened to."""
        if self.observed_agent is None:
            translator.restore(self.view)
            self.observed_agent = ObservedAgent(translator, self.hear, self.services.clock.monotonic)
        return self.observed_agent

    def unobserve(self) -> None:
        """The agent is ours now: what somebody else's asked is let go."""
        if self.observed_agent is not None:
            self.observed_agent.release()
            self.observed_agent.deafen()
            self.observed_agent = None

    def judge(self) -> None:
        """Rules decide what they can of what is asked; each gate on its own, and the log names the rule."""
        for gate in self.state.gates.open:
            verdict = gate_desk.verdict_on(gate, self.state, self.services.rules, self._rules)
            if verdict.effect == "ask" or (self.connection is None and self.observed_agent is None):
                continue
            yes = verdict.effect == "allow"
            decision = Decision(status="approved" if yes else "rejected", reason="" if yes else f"rule: {verdict.text}")
            self.writer.write(self.closings((gate,), decision, "rule", verdict.text), "supervisor")
            # the agent hears of a decision when it is durable
            self.writer.after_durable(partial(self._say_decision, gate, decision, self.connection))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those of this session only, once it is loaded."""
        return self._rules

    @property
    def knows_rules(self) -> bool:
        """Whether what it is asked can be judged by what was allowed for always."""
        return self._knows_rules

    async def learn_rules(self) -> None:
        """From the log, without the conversation: for an agent that nobody here started, and that asks at once."""
        since = 0
        while not self._knows_rules:
            events = await self.services.log.read(self.id, since, PAGE, _RULES)
            since = events[-1].index if events else since
            self._rules = session_rules(events, self._rules)
            self._knows_rules = self._knows_rules or len(events) < PAGE

    def add_rule(self, rule: Rule) -> None:
        """A rule of this session only."""
        self._rules = (*self._rules, rule)

    def drop_rule(self, rule: Rule) -> None:
        """It decides nothing any more."""
        self._rules = tuple(one for one in self._rules if one.id != rule.id)

    def _say_decision(self, gate: Gate, decision: Decision, asked_by: AgentConnection | None) -> None:
        if asked_by is self.connection:
            self.say_decision(gate, decision)

    def say_decision(self, gate: Gate, decision: Decision) -> None:
        """To the agent, if it is there."""
        if self.connection is not None:
            self.connection.say(self.connection.driver.answer(gate, decision))
        if self.observed_agent is not None:
            self.observed_agent.decide(gate.id, decision)

    # --- events of our own

    def note(self, *bodies: Body) -> None:
        """Something that the deck knows."""
        self.writer.write(bodies, "supervisor")

    def on_durable(self, events: Sequence[Event], row: CatalogueRow | None) -> None:
        if row is not None:
            self.services.listed(row)
        self.services.publish(events)
        if self.observed_agent is not None:
            self.observed_agent.settle(self.writer.durable_view.state.gates)
        if self.state.queue:
            self.delivery.pump()
        if not self.state.turn.is_open:
            self.services.slots.nudge()
            self.services.changes.published(self, events)
        elif self.observed_agent is not None:
            self.services.changes.published(self, events)

    def on_log_error(self, error: QuarterdeckError | None) -> None:
        """While the store refuses, the agent's words wait in its pipe, and texts in their queue."""
        if self.observed_agent is not None and is_final(error):
            self.observed_agent.release()  # no decision can be kept here any more: the agent asks on its terminal
        if self.connection is not None and self.connection.process is not None:
            if error is not None:
                self.connection.process.pause()
            else:
                self.connection.process.resume()
        if error is None:
            self.delivery.pump()

    def later(self, work: Awaitable[None]) -> None:
        """Work that belongs to this session and that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)


#: What makes a session's own rules, and takes them away.
_RULES = ("tool_approved_always", "rule_removed")
#: What concerns the deck of all that agents say.
_OURS = frozenset(
    {
        ev.StateChange,
        ev.ProcessStarting,
        ev.ProcessExited,
        ev.AgentReady,
        *gate_desk.OPENING,
        *gate_desk.CLOSING,
    }
)
