"""Wrong tokens, counted by address. A right token is never slowed down by the wrong ones of others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

LIMIT = 20
WITHIN_S = 60.0
_MOST_ADDRESSES = 1000


class Failures:
    """`wait` says for how many seconds an address with too many of them is turned away."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_address: dict[str, deque[float]] = {}

    def wait(self, address: str) -> int:
        """0 when the address may try again now. Counts this failure."""
        now = self._now()
        times = self._by_address.setdefault(address, deque(maxlen=LIMIT))
        while times and now - times[0] > WITHIN_S:
            times.popleft()
        if len(times) == LIMIT:
            return max(1, int(WITHIN_S - (now - times[0])) + 1)
        times.append(now)
        if len(self._by_address) > _MOST_ADDRESSES:
            self._by_address.pop(next(iter(self._by_address)))
        return 0
