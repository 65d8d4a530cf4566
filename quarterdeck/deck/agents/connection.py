"""One agent process of one session, from its spawn to its end: process, driver and translator tied together.

Whatever comes from the process, or goes to it, is a signal: the translator says what it means, the driver what the
protocol wants said in answer. The translator's deadlines are timers of the loop. Nothing here knows of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from quarterdeck import events as ev
from quarterdeck.deck.agents.process import AgentProcess
from quarterdeck.deck.agents.signal_reader import SignalReader, Tell
from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal
from quarterdeck.harness.driver import Lines, Start
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel.view import View


class AgentConnection(SignalReader):
    """Make one, `begin` it, wait for `decided`. `tell` is called with everything that happens."""

    def __init__(self, harness: Harness, start: Start, nonce: str, tell: Tell, now: Callable[[], float]) -> None:
        super().__init__(harness.make_translator(), tell, now)
        self.driver = harness.make_driver()
        self.start = start
        self.nonce = nonce
        self.is_ready = False
        #: Its end is wanted: nothing is sent to it any more.
        self.is_doomed = False
        #: The text that it was started for: a new task is sent to no other process.
        self.begun_for = ""
        self.pid: int | None = None
        self._process: AgentProcess | None = None
        #: Calls back when everything that was told so far is durable, for drivers whose answers promise that.
        self.after_durable: Callable[[Callable[[], object]], None] | None = None
        #: Set when the process was spawned, or could not be.
        self.begun = asyncio.Event()
        #: Set when the agent is ready, or will never be.
        self.decided = asyncio.Event()

    @property
    def process(self) -> AgentProcess | None:
        return self._process

    async def begin(self, environment: Mapping[str, str], view: View) -> None:
        """Spawns the process and says the protocol's first words. Typed errors when it cannot be started."""
        try:
            spawn = self.driver.spawn(self.start)
            self.translator.restore(view)
            self._process = AgentProcess.start(spawn, self.start.cwd, environment, self.nonce, self.hear)
        finally:
            self.begun.set()
        self.say(self.driver.open(self.start))

    def hear(self, signal: Signal) -> None:
        """One thing came from the process, or went to it; the protocol may want an answer."""
        if signal.src == "proc":
            self._note_process(signal)
        super().hear(signal)
        answer = self.driver.respond(signal)
        if not answer:
            return
        if self.after_durable is None or not self.driver.waits_for_log:
            self.say(answer)
        else:
            self.after_durable(lambda: self.say(answer))

    def tell(self, bodies: list[Body], origin: Origin) -> None:
        if not self.is_ready and any(isinstance(body, ev.AgentReady) and not body.agent_path for body in bodies):
            self.is_ready = True
            self.decided.set()
        super().tell(bodies, origin)

    def say(self, lines: Lines) -> bool:
        """Writes these lines. False when the process is gone, which its exit tells, or reads nothing any more."""
        return self._process is not None and (not lines or self._process.write(lines))

    async def stop(self, grace: float) -> None:
        """Ends the process and all that it started."""
        self.is_doomed = True
        await self.begun.wait()
        if self._process is not None:
            await self._process.stop(self.driver.quit(), grace)

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()

    def _note_process(self, signal: Signal) -> None:
        if signal.data.get("event") == "start":
            self.pid = signal.data.get("pid")
        elif signal.data.get("event") == "exit":
            self.is_ended = True
            self.decided.set()
