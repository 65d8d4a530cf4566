"""The time, and what happens to it: a clock that is set, a machine that sleeps.

Durations are monotonic and do not run while the machine sleeps. The distance between the wall clock and the monotonic
one is constant, except when somebody sets the clock or the machine slept; so whoever asks for the time notices either
one, and nothing has to look regularly.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

#: A clock that is slewed or read slowly stays below this.
_NOTICED_MS = 2000


class Jump(Struct, frozen=True):
    """The wall clock moved by so much against the monotonic one; `slept` is how much of it was sleep."""

    by_ms: int
    slept_ms: int


def _wall() -> int:
    return time.time_ns() // 1_000_000


def _up() -> float:
    """How long the machine is up in all, where that is known, and not only how long it was awake."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Clock:
    """Wall time in milliseconds for the log, monotonic seconds for everything that waits."""

    def __init__(
        self,
        wall: Callable[[], int] = _wall,
        monotonic: Callable[[], float] = time.monotonic,
        up: Callable[[], float] = _up,
    ) -> None:
        self._wall = wall
        #: Seconds, for everything that waits. Not a method: it is asked for every signal.
        self.monotonic = monotonic
        self._up = up
        self._distance = wall() - int(monotonic() * 1000)
        self._asleep = up() - monotonic()
        self.on_jump: Callable[[Jump], None] = lambda _: None

    def wall(self) -> int:
        """Now, in milliseconds since the epoch. A jump is told before the first time after it is given."""
        now = self._wall()
        distance = now - int(self.monotonic() * 1000)
        if abs(distance - self._distance) > _NOTICED_MS:
            self._jumped(distance)
        return now

    def _jumped(self, distance: int) -> None:
        asleep = self._up() - self.monotonic()
        jump = Jump(distance - self._distance, max(0, int((asleep - self._asleep) * 1000)))
        self._distance, self._asleep = distance, asleep
        self.on_jump(jump)
