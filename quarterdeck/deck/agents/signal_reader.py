"""Whoever listens to an agent: a translator with its timers. A launch listens to a process of ours, an observation to an
agent that somebody else started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal, Translator, origin_of
from quarterdeck.log.session_writer import Durability

Tell: TypeAlias = Callable[[Any, list[Body], Origin], None]
Watch: TypeAlias = Callable[[Signal, float], None]


class SignalReader:
    """`tell` is called with everything that a signal, or a deadline, means."""

    #: How soon what is told has to be durable.
    durability = Durability.EAGER

    def __init__(self, translator: Translator, tell: Tell, now: Callable[[], float]) -> None:
        self.translator = translator
        self.last_heard = now()
        #: Sees every signal before it is read.
        self.watcher: Watch | None = None
        self.is_ended = False
        self._tell = tell
        #: Whose word it is, where a source is not what its name says: the built-in agent's output is the engine's.
        self._origins: Mapping[str, Origin] = translator.origins
        self._now = now
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        self._hold_until = 0.0

    def hear(self, signal: Signal) -> None:
        """One thing came from the agent, or went to it."""
        now = self.last_heard = self._now()
        if self.watcher is not None:
            self.watcher(signal, now)
        bodies = self.translator.feed(signal, now)
        if bodies:
            self.tell(bodies, self._origins.get(signal.src) or origin_of(signal.src))
        self._arm()

    def tell(self, bodies: list[Body], origin: Origin) -> None:
        self._tell(self, bodies, origin)

    def hold(self, seconds: float) -> None:
        """No deadline fires for so long: the machine slept, and the agent needs a moment too."""
        self._hold_until = self._now() + seconds

    @property
    def is_waiting(self) -> bool:
        """Whether a deadline is still to come."""
        return self._timer is not None

    def deafen(self) -> None:
        """No deadline fires any more."""
        self.is_ended = True
        self._arm()

    def _arm(self) -> None:
        """The timer stands at the translator's deadline, or before it: most deadlines are put off again and again, and a
        timer that fires too early finds that out."""
        due = None if self.is_ended else self.translator.deadline()
        if self._timer is not None:
            if due is not None and due >= self._fires_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._fires_at = max(due, self._hold_until)
            pause = max(0.0, self._fires_at - self._now())
            self._timer = asyncio.get_running_loop().call_later(pause, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now, due = self._now(), self.translator.deadline()
        if due is not None and max(due, self._hold_until) <= now:
            bodies = self.translator.tick(now)
            if bodies:
                self.tell(bodies, "supervisor")
        self._arm()
