"""Count appends and their latency, for metrics. The numbers live in memory and start at zero with each process."""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds of the latency histogram's buckets, in seconds. One more bucket counts everything slower.
LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class AppendCounters:
    """What session writers appended since the process started."""

    def __init__(self) -> None:
        #: Events that became durable.
        self.events = 0
        #: Appends by latency, see `LATENCY_BOUNDS_S`.
        self.latency_buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        #: Sum of all latencies.
        self.seconds = 0.0
        #: Appends that the log refused.
        self.refused = 0

    def add(self, events: int, seconds: float) -> None:
        """Count one append. `seconds` includes the wait for a shared commit."""
        self.events += events
        self.seconds += seconds
        self.latency_buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
