"""Read the signals of one agent: translate them to events, record these, and run the translator's deadlines.

`AgentConnection` reads an agent process that the deck started. `ObservedAgent` reads an agent that the user started
elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal, Translator, origin_of
from quarterdeck.kernel.gate import Gate
from quarterdeck.log.session_writer import Durability

if TYPE_CHECKING:
    from quarterdeck.deck.recording import TraceRecorder
    from quarterdeck.deck.session import Session


class SignalReader:
    """A translator with its timer, recording into one session."""

    def __init__(self, session: Session, translator: Translator, recorder: TraceRecorder | None = None) -> None:
        self.session = session
        self.translator = translator
        self._recorder = recorder
        self._now = session.services.clock.monotonic
        #: Monotonic time of the last signal, to or from the agent.
        self.last_signal_at = self._now()
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._no_deadline_before = 0.0

    def feed(self, signal: Signal, *, durability: Durability = Durability.EAGER) -> tuple[Gate, ...]:
        """Translate one signal, record its events, and return the gates that it opened, even if a rule closed them already.

        With `LAZY`, the commit may wait up to 5 ms for other events.
        """
        now = self.last_signal_at = self._now()
        if self._recorder is not None:
            self._recorder.write(signal, now)
        bodies = self.translator.feed(signal, now)
        # Some sources aren't what their name says: the built-in agent's standard output is the engine's own word.
        origin = self.translator.origins.get(signal.src) or origin_of(signal.src)
        opened = self.record(bodies, origin, durability) if bodies else ()
        self._set_timer()
        return opened

    def record(self, bodies: list[Body], origin: Origin, durability: Durability) -> tuple[Gate, ...]:
        """Record translated events in the session, and return the gates that they opened."""
        return self.session.record_signal(self, bodies, origin, durability)

    def close(self) -> None:
        """Run no more deadlines."""
        self._is_closed = True
        self._set_timer()

    # --- deadlines

    @property
    def has_deadline(self) -> bool:
        """Whether the translator waits for a deadline."""
        return self._timer is not None

    def postpone_deadlines(self, seconds: float) -> None:
        """Let no deadline expire for this long. After the machine slept, the agent needs a moment to catch up too."""
        self._no_deadline_before = self._now() + seconds

    def _set_timer(self) -> None:
        due = None if self._is_closed else self.translator.deadline()
        if self._timer is not None:
            # Most deadlines are pushed back by every signal. Keep a timer that fires too early: `_on_timer` notices, and
            # that's cheaper than to cancel and create a timer for each signal.
            if due is not None and due >= self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_at = max(due, self._no_deadline_before)
            delay = max(0.0, self._timer_at - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now, due = self._now(), self.translator.deadline()
        if due is not None and max(due, self._no_deadline_before) <= now:
            bodies = self.translator.tick(now)
            if bodies:
                self.record(bodies, "supervisor", Durability.EAGER)
        self._set_timer()
