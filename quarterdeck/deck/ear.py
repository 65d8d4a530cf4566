"""Whoever listens to an agent: a translator with its timers. A launch listens to a process of ours, an observation to an
agent that somebody else started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal, Translator, origin_of

Tell: TypeAlias = Callable[[Any, list[Body], Origin], None]
Watch: TypeAlias = Callable[[Signal, float], None]


class Ear:
    """`tell` is called with everything that a signal, or a deadline, means."""

    def __init__(self, translator: Translator, tell: Tell, now: Callable[[], float]) -> None:
        self.translator = translator
        self.last_heard = now()
        #: Sees every signal before it is read.
        self.watcher: Watch | None = None
        self.is_ended = False
        self._tell = tell
        #: Whose word it is, where a source is not what its name says: the built-in agent's output is the engine's.
        self._origins: Mapping[str, Origin] = getattr(translator, "origins", {})
        self._now = now
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
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
        self._due = None
        self._arm()

    @property
    def is_waiting(self) -> bool:
        """Whether a deadline is still to come."""
        return self._timer is not None

    def deafen(self) -> None:
        """No deadline fires any more."""
        self.is_ended = True
        self._arm()

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
            self.tell(bodies, "supervisor")
        self._arm()
