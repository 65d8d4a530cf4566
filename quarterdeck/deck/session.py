"""A session in memory: its log writer, its agent process, its queued texts and its open gates.

Everything runs on one event loop. A decision and the events that record it are written in one step without an `await`, so
nothing can happen in between. Effects of a decision (a line to the agent, the start of a process) follow only when the
decision is durable. A session that does nothing has no task and no timer.

What commands do is in `commands/`, how texts reach the agent in `delivery.py`, how its process starts and stops in
`agents/launcher.py`. Each of them is given the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.deck import approvals, validation
from quarterdeck.deck.agents.connection import AgentConnection
from quarterdeck.deck.agents.launcher import Launcher, ProcessState
from quarterdeck.deck.agents.observed import ObservedAgent
from quarterdeck.deck.agents.signal_reader import SignalReader
from quarterdeck.deck.delivery import Delivery
from quarterdeck.deck.receipts import Receipts, fingerprint
from quarterdeck.deck.services import DeckServices
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Event, Origin
from quarterdeck.harness import registry
from quarterdeck.harness.base import Translator
from quarterdeck.harness.driver import Capabilities, Decision, KillTools, Lines
from quarterdeck.kernel import activity
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import CommandResult
from quarterdeck.kernel.gate import Gate
from quarterdeck.kernel.routing import open_question
from quarterdeck.kernel.state import State
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import NEW, PAGE, CatalogueRow, Fence
from quarterdeck.log.session_writer import Durability, SessionWriter, is_final
from quarterdeck.policy import Rule, session_rules

R = TypeVar("R", bound=CommandResult)
#: Commands that need an agent which the deck can start.
_AGENT_COMMANDS = frozenset({"prompt", "steer", "retry", "resume", "switch_model", "switch_mode", "bash", "compact"})
#: Events that create and remove a session's own rules.
_RULE_EVENTS = ("tool_approved_always", "rule_removed")
#: Events of translators that the session checks or changes before it records them. All others are recorded as they are.
_CHECKED_EVENTS = frozenset(
    {
        ev.StateChange,
        ev.ProcessStarting,
        ev.ProcessExited,
        ev.AgentReady,
        *approvals.OPENING_EVENTS,
        *approvals.CLOSING_EVENTS,
    }
)


class Session:
    """One session in memory. The deck loads it when it's needed and evicts it when nothing is going on."""

    def __init__(
        self, services: DeckServices, session_id: str, view: View, fence: Fence = NEW, last_gate_number: int = 0
    ) -> None:
        self.services = services
        self.id = session_id
        self.writer = SessionWriter(
            services.log,
            session_id,
            self,
            view=view,
            fence=fence,
            clock=services.clock.wall,
            counters=services.counters.appends,
            last_gate_number=last_gate_number,
        )
        self.receipts = Receipts(services.log, session_id, is_new=not view.index)
        self.launcher = Launcher(self)
        self.delivery = Delivery(self)
        #: Set while an agent that the user started elsewhere reports to this session.
        self.observed_agent: ObservedAgent | None = None
        #: Number of `in_use` blocks: running commands and readers.
        self._users = 0
        self._is_archiving = False
        #: Whether the view has the whole timeline. A restored session has only its state.
        self._has_timeline = view.index == 0
        self._loading: asyncio.Task[None] | None = None
        #: The activity that was recorded when a gate was closed, until the agent reports its own.
        self._announced_activity = ""
        self._rules: tuple[Rule, ...] = ()
        self._knows_rules = self._has_timeline
        self._background: set[asyncio.Task[None]] = set()

    # --- state

    @property
    def state(self) -> State:
        return self.writer.view.state

    @property
    def view(self) -> View:
        return self.writer.view

    @property
    def connection(self) -> AgentConnection | None:
        """The connection to the agent process, if there is one in any state."""
        return self.launcher.connection

    @property
    def is_closing(self) -> bool:
        """Whether no text may be sent and no process started: the session is being archived, or the deck closes."""
        return self._is_archiving or self.launcher.state is ProcessState.RETIRED

    @contextmanager
    def archiving(self) -> Generator[None]:
        """Send no texts and start no process while the session is being archived."""
        self._is_archiving = True
        try:
            yield
        finally:
            self._is_archiving = False
            self.delivery.pump()

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Keep the session in memory, and its process running, while a command or a reader uses it."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self.services.slots.recheck()
            self.services.supervisor.schedule_eviction()

    @property
    def has_users(self) -> bool:
        return self._users > 0

    @property
    def has_background_work(self) -> bool:
        """Whether tasks that belong to this session are running in the background."""
        return bool(self._background)

    @property
    def is_evictable(self) -> bool:
        """Whether the session may leave memory, because the log holds everything there is."""
        if self.has_users or self._background or self.launcher.has_work or self.delivery.is_sending:
            return False
        return self.writer.is_durable and self.writer.error is None and not self._is_observing_work

    @property
    def _is_observing_work(self) -> bool:
        agent = self.observed_agent
        return agent is not None and (agent.has_pending_hooks or agent.has_deadline or self.state.turn.is_open)

    @property
    def capabilities(self) -> Capabilities:
        """What the agent can do, whether or not it's running.

        Raises:
            QuarterdeckError: the deck can't start this agent.
        """
        if self.connection is not None:
            return self.connection.driver.capabilities
        return registry.harness(self.state.profile.agent).make_driver().capabilities

    @property
    def unsupported_commands(self) -> frozenset[str]:
        """Commands that this agent supports in no state. An agent that is only observed can be answered, no more."""
        try:
            capabilities = self.capabilities
        except QuarterdeckError:
            has_question = open_question(self.state) is not None
            return _AGENT_COMMANDS - {"prompt"} if has_question else _AGENT_COMMANDS
        supported = {
            "bash": capabilities.bash,
            "compact": capabilities.compact,
            "switch_mode": bool(capabilities.modes),
        }
        return frozenset(name for name, is_supported in supported.items() if not is_supported)

    # --- commands

    async def run_command(
        self,
        command: cmd.Command,
        work: Callable[[], Awaitable[R]],
        command_fingerprint: str = "",
    ) -> Any:
        """Run a command to its end, once per `client_id`, and return its result.

        `work` carries the command out. A caller that is cancelled doesn't cancel it.

        Raises:
            IdempotencyMismatch: the `client_id` was used for another command.
            QuarterdeckError: the command was refused.
        """
        validation.check_client_id(command.client_id)
        # Enter `in_use` here and not in the task: the task starts in the next pass of the loop, and the session must not be
        # evicted before that.
        use = ExitStack()
        use.enter_context(self.in_use())
        task = asyncio.get_running_loop().create_task(self._run_counted(command, work, command_fingerprint))
        task.add_done_callback(partial(self._on_command_finished, use))
        return await asyncio.shield(task)

    def _on_command_finished(self, use: ExitStack, task: asyncio.Task[Any]) -> None:
        use.close()
        if not task.cancelled():
            # Retrieve the exception so asyncio doesn't log it when the caller was cancelled.
            task.exception()

    async def _run_counted(
        self, command: cmd.Command, work: Callable[[], Awaitable[R]], command_fingerprint: str
    ) -> CommandResult:
        outcome = "failed"
        try:
            if command.client_id:
                command_fingerprint = command_fingerprint or fingerprint(command)
                result = await self.receipts.run_once(command, command_fingerprint, work)
            else:
                result = await work()
            outcome = "done"
            return result
        except QuarterdeckError as error:
            outcome = error.code
            raise
        finally:
            self.services.counters.commands[command.command_name, outcome] += 1

    async def commit(self, command: cmd.Command, bodies: Sequence[Body], result: R) -> R:
        """Record what a command causes, with its receipt in the same append. Return `result` when both are durable.

        Raises:
            QuarterdeckError: the log refused. Nothing happened.
        """
        if not command.client_id:
            if bodies:
                await self.writer.commit(bodies, "user")
            return result
        receipt = self.receipts.create(command, result)
        await self.writer.commit([*bodies, receipt], "user")
        self.receipts.add(receipt)
        return result

    # --- loading

    async def load(self) -> None:
        """Read the whole timeline from the log. Concurrent callers share one read."""
        if self._has_timeline:
            return
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            view = View()
            # Events may be written while we read. Continue until the view has caught up and nothing is pending.
            while view.index < self.writer.view.index or not self.writer.is_durable:
                await self.writer.flush()
                events = await self.services.log.read(self.id, view.index, PAGE)
                view = fold_all(events, view) if events else replace(view, index=self.writer.durable_view.index)
                self._rules = session_rules(events, self._rules)
            self.writer.set_timeline(view.timeline)
            self._has_timeline = self._knows_rules = True
        finally:
            self._loading = None

    # --- rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of this session only. Complete once `knows_rules` is true."""
        return self._rules

    @property
    def knows_rules(self) -> bool:
        """Whether the session's own rules were read from the log."""
        return self._knows_rules

    async def load_rules(self) -> None:
        """Read the session's own rules without the timeline, for an observed agent that asks at once."""
        since = 0
        while not self._knows_rules:
            events = await self.services.log.read(self.id, since, PAGE, _RULE_EVENTS)
            since = events[-1].index if events else since
            self._rules = session_rules(events, self._rules)
            # `load` may have finished meanwhile, so never set this back to False.
            self._knows_rules = self._knows_rules or len(events) < PAGE

    def add_rule(self, rule: Rule) -> None:
        """Apply a rule to this session only."""
        self._rules = (*self._rules, rule)

    def remove_rule(self, rule: Rule) -> None:
        """Stop applying one of the session's own rules."""
        self._rules = tuple(other for other in self._rules if other.id != rule.id)

    def apply_rules(self) -> None:
        """Decide every open gate that a rule decides. Each gate is decided on its own, and the log names the rule."""
        for gate in self.state.gates.open:
            verdict = approvals.apply_rules(gate, self.state, self.services.rules, self._rules)
            has_agent = self.connection is not None or self.observed_agent is not None
            if verdict.effect == "ask" or not has_agent:
                continue
            is_allowed = verdict.effect == "allow"
            decision = Decision(
                status="approved" if is_allowed else "rejected", reason="" if is_allowed else f"rule: {verdict.text}"
            )
            self.writer.write(self.closing_events((gate,), decision, "rule", verdict.text), "supervisor")
            self.writer.after_durable(partial(self._send_decision_to, self.connection, gate, decision))

    # --- events from the agent

    def record_signal(
        self, reader: SignalReader, bodies: list[Body], origin: Origin, durability: Durability
    ) -> tuple[Gate, ...]:
        """Record what a translator made of a signal. Return the gates that this opened, even if a rule closed them."""
        if reader is not self.connection and reader is not self.observed_agent:
            return ()  # A process that was replaced has nothing more to say.
        recorded: list[Body] = []
        for body in bodies:
            recorded += self._check_event(reader, body) if type(body) in _CHECKED_EVENTS else (body,)
        opened: tuple[Gate, ...] = ()
        if recorded and any(isinstance(body, approvals.OPENING_EVENTS) for body in recorded):
            opened = self._record_opening(recorded, origin)
        elif recorded:
            self.writer.write(recorded, origin, durability)
        if self.delivery.aborts_next_turn and any(
            isinstance(body, ev.AgentStart) and not body.agent_path for body in recorded
        ):
            self.delivery.aborts_next_turn = False
            self.interrupt_turn()
        return opened

    def _check_event(self, reader: SignalReader, body: Body) -> tuple[Body, ...]:
        """Return what to record for one event of a translator."""
        if isinstance(body, ev.StateChange):
            return () if self._is_announced(body) else (body,)
        if isinstance(body, approvals.OPENING_EVENTS):
            if self.state.lifecycle.value != "active":
                # The gate can't be answered. Don't use up a number: the log wouldn't know that it was used.
                return (body,)
            return (approvals.assign_gate_id(body, self.state.gates, self._next_gate_id), *self._wait_again(body))
        if isinstance(body, approvals.CLOSING_EVENTS):
            return () if approvals.is_already_recorded(body, self.state.gates) else (body,)
        return self.launcher.filter_event(reader, body) if isinstance(reader, AgentConnection) else (body,)

    def _next_gate_id(self) -> str:
        self.writer.last_gate_number = self.services.gate_numbers.next()
        return f"g{self.writer.last_gate_number}"

    def _record_opening(self, bodies: list[Body], origin: Origin) -> tuple[Gate, ...]:
        """Record events that open gates, and apply rules before recording that the agent is waiting.

        If a rule decides, no person was ever needed, and the list must not show "needs you" for a moment.
        """
        waiting = bodies[-1] if approvals.is_waiting_event(bodies[-1]) else None
        self.writer.write(bodies[:-1] if waiting is not None else bodies, origin)
        opened = approvals.opened_gates(bodies, self.state.gates)
        self.apply_rules()
        if waiting is None:
            return opened
        if approvals.is_main_agent_waiting(self.state.gates):
            self.writer.write((waiting,), origin)
        else:
            change = approvals.activity_without_gates(self.state)
            self._announced_activity = activity.joined(change.state, change.sub)
            if self._announced_activity != self.state.activity.value:
                self.record(change)
        return opened

    def _is_announced(self, body: ev.StateChange) -> bool:
        """Return whether this activity was already recorded with a decision, which the translator learns of later."""
        if body.agent_path:
            return False
        announced, self._announced_activity = self._announced_activity, ""
        return announced == self.state.activity.value == activity.joined(body.state, body.sub)

    def _wait_again(self, body: Body) -> tuple[Body, ...]:
        """Record that the agent waits, if it asks again before its translator learned of the last decision.

        For the translator the agent never stopped waiting, so it doesn't report that itself.
        """
        announced = self._announced_activity
        if body.agent_path or not announced or announced != self.state.activity.value:
            return ()
        self._announced_activity = ""
        return (ev.StateChange(state="active", sub="waiting_for_permission"),)

    # --- decisions

    def closing_events(
        self,
        gates: Sequence[Gate],
        decision: Decision,
        by: str,
        rule: str = "",
        *,
        status: str = "",
        turn_ends: bool = False,
    ) -> list[Body]:
        """Return the events that close these gates, and the agent's activity after that.

        The agent learns of the decision only when it's durable. Until then it must not be shown as waiting for an answer.
        """
        bodies = [approvals.closing_event(gate, decision, by, rule, status) for gate in gates]
        change = approvals.activity_after_closing(self.state, gates, turn_ends=turn_ends)
        if change is not None:
            self._announced_activity = activity.joined(change.state, change.sub)
            bodies.append(change)
        return bodies

    def send_decision(self, gate: Gate, decision: Decision) -> None:
        """Send a durable decision to the agent, if it's there."""
        if self.connection is not None:
            self.connection.send(self.connection.driver.answer(gate, decision))
        if self.observed_agent is not None:
            self.observed_agent.decide(gate.id, decision)

    def _send_decision_to(self, connection: AgentConnection | None, gate: Gate, decision: Decision) -> None:
        # A new process never asked, so don't send it decisions meant for the previous one.
        if connection is self.connection:
            self.send_decision(gate, decision)

    def interrupt_turn(self, gates: Sequence[Gate] = (), kill_tools: KillTools = "killable") -> None:
        """Cancel these gates and interrupt the turn. If the agent doesn't react within `stop_grace`, end its process."""
        connection = self.connection
        if connection is None:
            return
        lines: Lines = []
        for gate in gates:
            lines += connection.driver.answer(gate, approvals.CANCELLED)
        connection.send([*lines, *connection.driver.interrupt(kill_tools)])
        loop = asyncio.get_running_loop()
        loop.call_later(self.services.settings.stop_grace, self._end_if_still_running, connection, self.state.turn.id)

    def _end_if_still_running(self, connection: AgentConnection, turn_id: str) -> None:
        if self.connection is connection and turn_id and self.state.turn.id == turn_id:
            text = "The agent didn't stop in time. Ending its process."
            self.record(ev.Notice(text=text, level="warning", source="deck"))
            self.run_in_background(self.launcher.stop())

    # --- observed agents

    def observe(self, translator: Translator) -> ObservedAgent:
        """Return the observed agent of this session. The first call starts observing with this translator."""
        if self.observed_agent is None:
            translator.restore(self.view)
            self.observed_agent = ObservedAgent(self, translator)
        return self.observed_agent

    def stop_observing(self) -> None:
        """Release the hooks of an observed agent, because the deck's own process takes over."""
        if self.observed_agent is not None:
            self.observed_agent.release_all()
            self.observed_agent.close()
            self.observed_agent = None

    # --- the log

    def record(self, *bodies: Body) -> None:
        """Record events of the deck's own."""
        self.writer.write(bodies, "supervisor")

    def on_durable(self, events: Sequence[Event], row: CatalogueRow | None) -> None:
        """Publish events that became durable, and do what depends on them."""
        services = self.services
        if row is not None:
            services.catalogue.update_row(row)
        services.feed.publish(events)
        if self.observed_agent is not None:
            self.observed_agent.on_gates_changed(self.writer.durable_view.state.gates)
        if self.state.queue:
            self.delivery.pump()
        is_turn_open = self.state.turn.is_open
        if not is_turn_open:
            services.slots.recheck()
        # In an open turn of our own process there's nothing to track: its snapshot was taken before the text was sent.
        if not is_turn_open or self.observed_agent is not None:
            services.changes.on_durable(self, events)

    def on_log_error(self, error: QuarterdeckError | None) -> None:
        """Stop reading from the agent while the log refuses, so that its output waits in the pipe and not in memory."""
        if self.observed_agent is not None and is_final(error):
            # Decisions can't be recorded any more, so let the user decide in the agent's terminal.
            self.observed_agent.release_all()
        if self.connection is not None and self.connection.process is not None:
            if error is not None:
                self.connection.process.pause()
            else:
                self.connection.process.resume()
        if error is None:
            self.delivery.pump()

    def run_in_background(self, work: Awaitable[None]) -> None:
        """Run work that belongs to this session. The session stays in memory until the work is done."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
