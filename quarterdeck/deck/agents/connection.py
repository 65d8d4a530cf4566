"""Connect a session to one agent process: the process, its driver and its translator, from spawn to exit.

Everything that comes from the process or goes to it is a signal. The translator turns signals into events. The driver
says what the protocol requires as an answer. A connection is used for one process only. The `Launcher` creates it and
decides when it is started and stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quarterdeck import events as ev
from quarterdeck.deck.agents.process import AgentProcess
from quarterdeck.deck.agents.signal_reader import SignalReader
from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal
from quarterdeck.harness.driver import Lines, Start
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel.gate import Gate
from quarterdeck.log.session_writer import Durability

if TYPE_CHECKING:
    from quarterdeck.deck.recording import TraceRecorder
    from quarterdeck.deck.session import Session


class AgentConnection(SignalReader):
    """One agent process of one session."""

    def __init__(
        self,
        session: Session,
        harness: Harness,
        start: Start,
        *,
        nonce: str,
        started_for: str,
        recorder: TraceRecorder | None,
    ) -> None:
        """Prepare a process. `started_for` is the id of the text it is started for, or ''."""
        super().__init__(session, harness.make_translator(), recorder)
        self.driver = harness.make_driver()
        self.start = start
        #: In the process's environment and in the log. The next deck uses it to find processes that a crash left behind.
        self.nonce = nonce
        #: A new task is sent only to the process that was started for it: others are in an older conversation.
        self.started_for = started_for
        self.pid: int | None = None
        self.process: AgentProcess | None = None
        #: Whether the agent ever reported that it's ready. An exit before that means that the start failed.
        self.was_ready = False
        #: Set when the agent is ready, or the process exited.
        self.ready_or_exited = asyncio.Event()

    def spawn(self, environment: Mapping[str, str]) -> None:
        """Spawn the process and send the first lines of its protocol.

        Raises:
            QuarterdeckError: the process can't be started.
            OSError: the folder or the program is missing.
        """
        spawn = self.driver.spawn(self.start)
        self.translator.restore(self.session.view)
        self.process = AgentProcess.start(spawn, self.start.cwd, environment, self.nonce, self._on_signal)
        self.send(self.driver.open(self.start))

    def _on_signal(self, signal: Signal) -> None:
        self.feed(signal)

    def feed(self, signal: Signal, *, durability: Durability = Durability.EAGER) -> tuple[Gate, ...]:
        """Handle one signal from or to the process: record its events and send what the protocol requires."""
        event = signal.data.get("event") if signal.src == "proc" else None
        if event == "start":
            self.pid = signal.data.get("pid")
        elif event == "exit":
            # No deadline of the translator may expire after the exit that it is about to hear of.
            self._is_closed = True
        opened = super().feed(signal, durability=durability)
        if event == "exit":
            self.ready_or_exited.set()
            self.session.launcher.on_exited(self)
        reply = self.driver.respond(signal)
        if reply and self.driver.waits_for_log:
            # This driver's replies tell the agent that its events are stored, so they must be durable first.
            self.session.writer.after_durable(lambda: self.send(reply))
        elif reply:
            self.send(reply)
        return opened

    def record(self, bodies: list[Body], origin: Origin, durability: Durability) -> tuple[Gate, ...]:
        if not self.was_ready and any(isinstance(body, ev.AgentReady) and not body.agent_path for body in bodies):
            self.was_ready = True
            self.ready_or_exited.set()
        return super().record(bodies, origin, durability)

    def send(self, lines: Lines) -> bool:
        """Write lines to the agent. Return False if the process exited or doesn't read its input."""
        return self.process is not None and (not lines or self.process.write(lines))

    async def stop(self, grace: float) -> None:
        """End the process and everything that it started. Return when they are gone."""
        if self.process is not None:
            await self.process.stop(self.driver.quit(), grace)

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        if self.process is not None:
            self.process.kill()
