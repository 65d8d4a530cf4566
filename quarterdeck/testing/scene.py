"""One harness with a real process of its agent: driver, process, translator and kernel tied together, and all of it kept.

After every event the view is held against what must be true of any session, and at the end everything that was heard is
translated once more by a fresh translator, which must say the same.
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
    """Which prompt brings this agent to do what. A prompt is needed for everything that its driver says it can do.

    A real agent behind a scripted model answers these as the model is told to; then they may be any texts.
    """

    #: It answers in words, and ends its turn by itself. `answer_has` is in the answer.
    answer: str
    answer_has: str = ""
    #: It is busy until it is interrupted.
    hang: str
    #: It wants an approval for one call, and after the decision ends its turn.
    ask: str = ""
    #: It asks something; `reply` is what it is answered.
    question: str = ""
    reply: Json = "yes"
    #: An extension of it wants something; `choice` is what it is given.
    dialog: str = ""
    choice: Json = True
    #: It works in several steps, so that a text can reach it in the middle.
    steps: str = ""
    #: It leaves processes running, one of them in a session of its own. Empty if it cannot.
    children: str = ""
    #: It is asked in a resumed session for what it can only know from before; `recall_has` is in the answer.
    recall: str = ""
    recall_has: str = ""
    #: Another model that it can be switched to.
    other_model: str = ""

    model: str = ""
    mode: str = ""
    arguments: tuple[str, ...] = ()
    #: What its environment holds besides ours.
    environment: Mapping[str, str] = {}
    #: How long anything may take before it counts as failed, and how long a stop may.
    patience: float = 30.0
    grace: float = 5.0


class Part(Struct):
    """What one process was heard to say: where its translator began, each signal or deadline with its time, and what came
    of it. A deadline is no signal."""

    view: View
    heard: list[tuple[float, Signal | None]]
    said: list[list[Body]]


class Scene:
    """Start the agent with `begin`, speak to it, and wait for events with `until`; `close` checks what is left."""

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

    # --- what a deck does

    async def begin(self, native_session_id: str = "") -> None:
        """A new process, for a new conversation or to go on with an old one."""
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
        self.process = AgentProcess.start(spawn, self.folder, environment, self.nonces[-1], self._hear)
        self.say(self.driver.opening(start))

    def _history(self) -> tuple[Event, ...]:
        """What the log would hold of it, of the types that the agent wants back."""
        told = (Event("scene", place, 0, "engine", body) for place, body in enumerate(self.bodies, 1))
        return tuple(event for event in told if event.type in self.harness.history)

    def say(self, lines: Lines) -> None:
        assert self.process.write(lines), "the agent does not take what it is told"

    async def ready(self) -> None:
        await self.until(lambda: self.state.process.value == "up", "it becomes ready")

    async def prompt(self, text: str, message_id: str = "p1") -> None:
        """Says it, and waits until the turn is open."""
        await self.ready()
        since = len(self.bodies)
        self.say(self.driver.prompt(text, message_id))
        await self.until(lambda: bool(self.since(since, ev.AgentStart)), "the prompt begins a turn")

    async def finish(self, text: str, message_id: str = "p1") -> list[Body]:
        """A whole turn; what happened in it."""
        since = len(self.bodies)
        await self.prompt(text, message_id)
        await self.over()
        return self.bodies[since:]

    async def over(self) -> None:
        await self.until(lambda: not self.state.turn.is_open, "the turn ends")

    async def gate(self, kind: str) -> Gate:
        """The gate of this kind that the agent opens."""
        await self.until(lambda: any(gate.kind == kind for gate in self.state.gates.open), f"a gate ({kind}) opens")
        return next(gate for gate in self.state.gates.open if gate.kind == kind)

    def decide(self, gate: Gate, decision: Decision) -> None:
        self.say(self.driver.answer(gate, decision))

    async def stop(self) -> None:
        assert await self.process.stop(self.driver.farewell(), self.script.grace), "it could not be ended"

    async def crash(self) -> None:
        """The agent itself is killed from outside, as a machine out of memory does."""
        os.kill(self.process.identity.pid, signal.SIGKILL)
        await self.until(self.process.exited.done, "its end is heard")

    # --- what a test asks

    @property
    def state(self) -> State:
        return self.view.state

    def since(self, place: int, kind: type[B]) -> list[B]:
        """Events of this type of the main agent, from this place on."""
        return [body for body in self.bodies[place:] if isinstance(body, kind) and not body.agent_path]

    def texts(self, bodies: list[Body]) -> str:
        """What the main agent said in these events."""
        return "".join(body.delta for body in bodies if isinstance(body, ev.MessageDelta) and not body.agent_path)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(self.script.patience):
                while not holds():
                    self._check_failure()
                    assert not self.process.exited.done(), f"it ended before {what}. {self._where()}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not within {self.script.patience:g} s: {what}. {self._where()}") from None
        self._check_failure()

    def _where(self) -> str:
        cells = (f"{name} {getattr(self.state, name).value}" for name in ("process", "run", "activity", "phase"))
        last = ", ".join(type(body).__name__ for body in self.bodies[-8:])
        return f"It is at {', '.join(cells)}; the last events are {last}; {' '.join(self.process.last_words)}"

    # --- what comes in

    def _hear(self, signal: Signal) -> None:
        now = asyncio.get_running_loop().time()
        self._take(now, signal, self.translator.feed(signal, now), origin_of(signal.src))
        if answer := self.driver.heard(signal):
            self.process.write(answer)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        self._take(now, None, self.translator.tick(now), "supervisor")

    def _take(self, now: float, signal: Signal | None, bodies: list[Body], origin: Origin) -> None:
        part = self.parts[-1]
        part.heard.append((now, signal))
        part.said.append(bodies)
        for body in bodies:
            self.view = fold(self.view, Event("scene", self.view.index + 1, int(now * 1000), origin, body))
            self.bodies.append(body)
        if broken := list(violations(self.view)):
            self._failure = self._failure or AssertionError(f"after {signal}: {'; '.join(broken)}")
        self._arm()
        self._changed.set()

    def _arm(self) -> None:
        """The timer stands at the translator's deadline."""
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
        """Ends what is left, and checks what holds of every scene."""
        if self._timer is not None:
            self._timer.cancel()
        if self.parts and not self.process.exited.done():
            self.process.kill()
            await asyncio.wait([self.process.exited])

    def check_whole(self) -> None:
        """Nothing is left running, no rule was broken, and whatever was heard means the same when it is heard again."""
        assert not find_by_nonce(self.nonces), "processes are left"
        assert not is_alive(self.process.identity)
        self._check_failure()
        for part in self.parts:
            assert _translated_again(self.harness.make_translator(), part) == part.said, "translated again it differs"


def _translated_again(translator: Translator, part: Part) -> list[list[Body]]:
    translator.restore(part.view)
    return [translator.tick(now) if one is None else translator.feed(one, now) for now, one in part.heard]


def violations(view: View) -> Iterator[str]:
    """What can never be, whatever an agent says. Each is about two owners that would contradict each other."""
    state = view.state
    phase, run, activity, process = (cell.value for cell in (state.phase, state.run, state.activity, state.process))
    is_open, asks = state.turn.is_open, bool(state.gates.open)
    if run != "idle" and not is_open:
        yield f"run {run} outside a turn"
    if process == "none" and (is_open or asks or run != "idle"):
        yield f"run {run}, turn open {is_open}, gates open {asks}, and no process"
    if activity == "idle" and is_open:
        yield "activity idle in an open turn"
    if activity.startswith("active") and not is_open and not asks:
        yield f"activity {activity} with no turn and no gate"
    if (phase in ("waiting_approval", "waiting_input")) != asks:
        yield f"phase {phase}, gates open {asks}"
    if view.timeline.streaming != is_open:
        yield f"timeline streaming {view.timeline.streaming}, turn open {is_open}"
    if reconstructed(view) != phase:
        yield f"phase {phase}, and by its three sources {reconstructed(view)}"
