"""One agent process of one session, from its spawn to its end: process, driver and translator tied together.

Whatever comes from the process, or goes to it, is a signal: the translator says what it means, the driver what the
protocol wants said in answer. The translator's deadlines are timers of the loop. Nothing here knows of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.deck.process import AgentProcess
from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal, origin_of
from quarterdeck.harness.drive import Lines, Start
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel.view import View

Tell: TypeAlias = Callable[["Launch", list[Body], Origin], None]


class Launch:
    """Make one, `begin` it, wait for `ready`. `tell` is called with everything that happens."""

    def __init__(self, harness: Harness, start: Start, nonce: str, tell: Tell, now: Callable[[], float]) -> None:
        self.driver = harness.make_driver()
        self.translator = harness.make_translator()
        self.start = start
        self.nonce = nonce
        self.is_ended = False
        self.is_ready = False
        #: Its end is wanted: nothing is sent to it any more.
        self.is_doomed = False
        self.pid: int | None = None
        self.last_heard = now()
        self._tell = tell
        self._now = now
        self._process: AgentProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._hold_until = 0.0
        #: Set when the process was spawned, or could not be.
        self.begun = asyncio.Event()
        #: Set when the agent is ready, or will never be.
        self.decided = asyncio.Event()
        self.watcher: Callable[[Signal, float], None] | None = None

    @property
    def process(self) -> AgentProcess | None:
        return self._process

    async def begin(self, environment: Mapping[str, str], view: View) -> None:
        """Spawns the process and says the protocol's first words. Typed errors when it cannot be started."""
        try:
            spawn = self.driver.spawn(self.start)
            self.translator.restore(view)
            self._process = await AgentProcess.start(spawn, self.start.cwd, environment, self.nonce, self.hear)
        finally:
            self.begun.set()
        self.say(self.driver.opening(self.start))

    def hear(self, signal: Signal) -> None:
        """One thing came from the process, or went to it."""
        now = self.last_heard = self._now()
        if self.watcher is not None:
            self.watcher(signal, now)
        if signal.src == "proc":
            self._note_process(signal)
        bodies = self.translator.feed(signal, now)
        if bodies:
            self._note_ready(bodies)
            self._tell(self, bodies, origin_of(signal.src))
        answer = self.driver.heard(signal)
        if answer:
            self.say(answer)
        self._arm()

    def say(self, lines: Lines) -> bool:
        """Writes these lines. False when the process is gone, which its exit tells, or reads nothing any more."""
        return self._process is not None and (not lines or self._process.write(lines))

    async def stop(self, grace: float) -> None:
        """Ends the process and all that it started."""
        self.is_doomed = True
        await self.begun.wait()
        if self._process is not None:
            await self._process.stop(self.driver.farewell(), grace)

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()

    def hold(self, seconds: float) -> None:
        """No deadline fires for so long: the machine slept, and the agent needs a moment too."""
        self._hold_until = self._now() + seconds
        self._due = None
        self._arm()

    def _note_ready(self, bodies: list[Body]) -> None:
        if not self.is_ready and any(isinstance(body, ev.AgentReady) and not body.agent_path for body in bodies):
            self.is_ready = True
            self.decided.set()

    def _note_process(self, signal: Signal) -> None:
        if signal.data.get("event") == "start":
            self.pid = signal.data.get("pid")
        elif signal.data.get("event") == "exit":
            self.is_ended = True
            self._due = None
            if self._timer is not None:
                self._timer.cancel()
            self.decided.set()

    def _arm(self) -> None:
        """The timer stands at the translator's deadline; mostly nothing changed."""
        due = None if self.is_ended else self.translator.deadline()
        if due == self._due:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            pause = max(due, self._hold_until) - self._now()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, pause), self._tick)

    def _tick(self) -> None:
        self._timer, self._due = None, None
        bodies = self.translator.tick(self._now())
        if bodies:
            self._note_ready(bodies)
            self._tell(self, bodies, "supervisor")
        self._arm()
