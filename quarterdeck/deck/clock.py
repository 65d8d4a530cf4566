"""Read the time, and notice when the clock is set or the machine slept.

Monotonic seconds don't advance while the machine sleeps. The distance between the wall clock and the monotonic clock is
constant unless the user sets the clock or the machine sleeps, so every read of the wall clock can notice both. No timer has
to check regularly.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

#: Smaller differences are normal: clocks are slewed, and reading two of them takes time.
_TOLERANCE_MS = 2000


class Jump(Struct, frozen=True):
    """A jump of the wall clock against the monotonic clock."""

    by_ms: int
    #: The part of the jump during which the machine slept.
    slept_ms: int


def _read_wall() -> int:
    return time.time_ns() // 1_000_000


def _read_uptime() -> float:
    """Return seconds since boot including sleep, or the monotonic time where the system doesn't know (macOS)."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Clock:
    """Wall time in milliseconds for the log, monotonic seconds for everything that waits."""

    def __init__(
        self,
        wall: Callable[[], int] = _read_wall,
        monotonic: Callable[[], float] = time.monotonic,
        up: Callable[[], float] = _read_uptime,
    ) -> None:
        self._wall = wall
        #: Return monotonic seconds.
        self.monotonic = monotonic
        self._up = up
        self._distance_ms = wall() - int(monotonic() * 1000)
        self._slept_s = up() - monotonic()
        #: Called when a jump is noticed.
        self.on_jump: Callable[[Jump], None] = lambda _: None

    def wall(self) -> int:
        """Return the time in milliseconds since the epoch. A jump is reported before the first time after it."""
        now = self._wall()
        distance_ms = now - int(self.monotonic() * 1000)
        if abs(distance_ms - self._distance_ms) > _TOLERANCE_MS:
            self._report_jump(distance_ms)
        return now

    def _report_jump(self, distance_ms: int) -> None:
        slept_s = self._up() - self.monotonic()
        jump = Jump(distance_ms - self._distance_ms, max(0, int((slept_s - self._slept_s) * 1000)))
        # Update before the callback: it reads the clock too, and must not report the same jump again.
        self._distance_ms, self._slept_s = distance_ms, slept_s
        self.on_jump(jump)
