"""Run one harness with a real process of its agent, and record everything that happens.

After every event the view is checked for states that contradict each other. At the end all signals are translated again by
a new translator, which must produce the same events.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.deck.agents.process import AgentProcess
from quarterdeck.events import Body, Event, Json, Origin
from quarterdeck.harness.base import Signal, Translator, origin_of
from quarterdeck.harness.driver import Decision, Driver, Lines, Start
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel.gate import Gate
from quarterdeck.kernel.state import State
from quarterdeck.kernel.view import View, fold, reconstructed
from quarterdeck.process.identity import find_by_nonce, is_alive

B = TypeVar("B", bound=Body)


class Script(Struct, frozen=True, kw_only=True):
    """The prompts that make an agent do what the checks need. Each capability of its driver needs its prompt.

    If a real agent runs with a scripted model, the model decides what happens, and the prompts may be any texts.
    """

    #: The agent answers in words and ends its turn. The answer contains `answer_has`.
    answer: str
    answer_has: str = ""
    #: The agent works until it is interrupted.
    hang: str
    #: The agent asks for approval of one call, and ends its turn after the decision.
    ask: str = ""
    #: The agent asks a question, which is answered with `reply`.
    question: str = ""
    reply: Json = "yes"
    #: An extension of the agent opens a dialog, which is answered with `choice`.
    dialog: str = ""
    choice: Json = True
    #: The agent works in several steps, so that a text can reach it between them.
    steps: str = ""
    #: The agent leaves processes running, one of them in a session of its own. Empty if it can't.
    children: str = ""
    #: A resumed agent answers what it can only know from before. The answer contains `recall_has`.
    recall: str = ""
    recall_has: str = ""
    #: Another model that the agent can switch to.
    other_model: str = ""

    model: str = ""
    mode: str = ""
    arguments: tuple[str, ...] = ()
    #: Variables to set in addition to the current environment.
    environment: Mapping[str, str] = {}
    #: Seconds after which anything that didn't happen counts as failed.
    patience: float = 30.0
    #: Seconds that a stop may take.
    grace: float = 5.0


class Part(Struct):
    """The recording of one process."""

    #: The view with which its translator started.
    view: View
    #: Each signal with its time. None is a deadline.
    signals: list[tuple[float, Signal | None]]
    #: The events of each signal or deadline.
    events: list[list[Body]]


class Scene:
    """Start the agent with `begin`, send it commands, wait for events with `until`, and end it with `close`."""

    def __init__(self, harness: Harness, script: Script, folder: str) -> None:
        self.harness = harness
        self.script = script
        self.folder = folder
        self.view = fold(View(), Event("scene", 1, 0, "supervisor", ev.SessionOpened(agent=harness.name, cwd=folder)))
        self.bodies: list[Body] = []
        self.parts: list[Part] = []
        self.nonces: list[str] = []
        self.driver: Driver
        self.translator: Translator
        self.process: AgentProcess
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._failure: AssertionError | None = None

    # --- what a deck does with an agent

    async def begin(self, native_session_id: str = "") -> None:
        """Start a process, for a new conversation or to continue an earlier one."""
        self.driver = self.harness.make_driver()
        self.translator = self.harness.make_translator()
        self.translator.restore(self.view)
        self.parts.append(Part(self.view, [], []))
        self.nonces.append(f"scene.{secrets.token_hex(8)}")
        start = Start(
            cwd=self.folder,
            model=self.script.model,
            mode=self.script.mode,
            native_session_id=native_session_id,
            arguments=self.script.arguments,
            history=self._history() if native_session_id else (),
        )
        environment = {**os.environ, **self.script.environment}
        spawn = self.driver.spawn(start)
        self.process = AgentProcess.start(spawn, self.folder, environment, self.nonces[-1], self._on_signal)
        self.say(self.driver.open(start))

    def _history(self) -> tuple[Event, ...]:
        """Return the earlier events that the agent needs to continue."""
        events = (Event("scene", index, 0, "engine", body) for index, body in enumerate(self.bodies, 1))
        return tuple(event for event in events if event.type in self.harness.history)

    def say(self, lines: Lines) -> None:
        assert self.process.write(lines), "the agent doesn't read its input"

    async def ready(self) -> None:
        await self.until(lambda: self.state.process.value == "up", "it becomes ready")

    async def prompt(self, text: str, message_id: str = "p1") -> None:
        """Send a prompt and wait until its turn started."""
        await self.ready()
        since = len(self.bodies)
        self.say(self.driver.prompt(text, message_id))
        await self.until(lambda: bool(self.since(since, ev.AgentStart)), "the prompt starts a turn")

    async def finish(self, text: str, message_id: str = "p1") -> list[Body]:
        """Send a prompt, wait for the end of its turn and return the events."""
        since = len(self.bodies)
        await self.prompt(text, message_id)
        await self.over()
        return self.bodies[since:]

    async def over(self) -> None:
        await self.until(lambda: not self.state.turn.is_open, "the turn ends")

    async def gate(self, kind: str) -> Gate:
        """Wait for a gate of this kind and return it."""
        await self.until(lambda: any(gate.kind == kind for gate in self.state.gates.open), f"a gate ({kind}) opens")
        return next(gate for gate in self.state.gates.open if gate.kind == kind)

    def decide(self, gate: Gate, decision: Decision) -> None:
        self.say(self.driver.answer(gate, decision))

    async def stop(self) -> None:
        assert await self.process.stop(self.driver.quit(), self.script.grace), "the process couldn't be stopped"

    async def crash(self) -> None:
        """Kill the agent's process, as the kernel does when memory runs out."""
        os.kill(self.process.identity.pid, signal.SIGKILL)
        await self.until(self.process.exited.done, "its exit is reported")

    # --- what a check looks at

    @property
    def state(self) -> State:
        return self.view.state

    def since(self, index: int, kind: type[B]) -> list[B]:
        """Return the main agent's events of this type, from this index on."""
        return [body for body in self.bodies[index:] if isinstance(body, kind) and not body.agent_path]

    def texts(self, bodies: list[Body]) -> str:
        """Return the main agent's text in these events."""
        return "".join(body.delta for body in bodies if isinstance(body, ev.MessageDelta) and not body.agent_path)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds.

        Raises:
            AssertionError: it doesn't hold in time, the process exited before, or a state was invalid.
        """
        try:
            async with asyncio.timeout(self.script.patience):
                while not holds():
                    self._check_failure()
                    assert not self.process.exited.done(), f"the process exited before {what}. {self._describe()}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not within {self.script.patience:g} s: {what}. {self._describe()}") from None
        self._check_failure()

    def _describe(self) -> str:
        cells = (f"{name} {getattr(self.state, name).value}" for name in ("process", "run", "activity", "phase"))
        last = ", ".join(type(body).__name__ for body in self.bodies[-8:])
        return f"States: {', '.join(cells)}; last events: {last}; {' '.join(self.process.last_words)}"

    # --- signals

    def _on_signal(self, signal: Signal) -> None:
        now = asyncio.get_running_loop().time()
        self._record(now, signal, self.translator.feed(signal, now), origin_of(signal.src))
        if lines := self.driver.respond(signal):
            self.process.write(lines)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        self._record(now, None, self.translator.tick(now), "supervisor")

    def _record(self, now: float, signal: Signal | None, bodies: list[Body], origin: Origin) -> None:
        part = self.parts[-1]
        part.signals.append((now, signal))
        part.events.append(bodies)
        for body in bodies:
            self.view = fold(self.view, Event("scene", self.view.index + 1, int(now * 1000), origin, body))
            self.bodies.append(body)
        if problems := list(contradictions(self.view)):
            self._failure = self._failure or AssertionError(f"after {signal}: {'; '.join(problems)}")
        self._set_timer()
        self._changed.set()

    def _set_timer(self) -> None:
        """Set the timer to the translator's deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.translator.deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the end

    async def close(self) -> None:
        """Kill the process if it still runs."""
        if self._timer is not None:
            self._timer.cancel()
        if self.parts and not self.process.exited.done():
            self.process.kill()
            await asyncio.wait([self.process.exited])

    def check_end(self) -> None:
        """Check that no process is left, no state was invalid, and translating all signals again gives the same events.

        Raises:
            AssertionError: one of these doesn't hold.
        """
        assert not find_by_nonce(self.nonces), "processes are left running"
        assert not is_alive(self.process.identity)
        self._check_failure()
        for part in self.parts:
            repeated = _translate_again(self.harness.make_translator(), part)
            assert repeated == part.events, "translating the signals again gives other events"


def _translate_again(translator: Translator, part: Part) -> list[list[Body]]:
    translator.restore(part.view)
    return [translator.tick(now) if signal is None else translator.feed(signal, now) for now, signal in part.signals]


def contradictions(view: View) -> Iterator[str]:
    """Yield states of a view that contradict each other. No agent may ever cause one."""
    state = view.state
    phase, run, activity, process = (cell.value for cell in (state.phase, state.run, state.activity, state.process))
    is_open, asks = state.turn.is_open, bool(state.gates.open)
    if run != "idle" and not is_open:
        yield f"run {run} outside a turn"
    if process == "none" and (is_open or asks or run != "idle"):
        yield f"run {run}, turn open {is_open}, gates open {asks}, without a process"
    if activity == "idle" and is_open:
        yield "activity idle in an open turn"
    if activity.startswith("active") and not is_open and not asks:
        yield f"activity {activity} with no turn and no gate"
    if (phase in ("waiting_approval", "waiting_input")) != asks:
        yield f"phase {phase}, gates open {asks}"
    if view.timeline.streaming != is_open:
        yield f"timeline streaming {view.timeline.streaming}, turn open {is_open}"
    if reconstructed(view) != phase:
        yield f"phase {phase}, but {reconstructed(view)} when computed from its three sources"
