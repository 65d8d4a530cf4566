"""What the deck counts of itself while it works: plain numbers, raised where things happen and read by whoever asks.

Nothing here is durable and nothing depends on it. A number costs a few dozen nanoseconds, and the dearest (the time of an
append) is taken once an append and never once an event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

#: Upper bounds in seconds; what is slower falls into one more.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Tally:
    """Since the deck was opened."""

    __slots__ = ("buckets", "commands", "events", "refused", "seconds", "spans_dropped")

    def __init__(self) -> None:
        self.events = 0
        #: How long appends took, by `BOUNDS`, and all of them together.
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        #: Appends that the store refused.
        self.refused = 0
        #: Spans that a collector did not want.
        self.spans_dropped = 0
        #: (command, outcome): `done`, or the code of the error that refused it.
        self.commands: Counter[tuple[str, str]] = Counter()

    def appended(self, events: int, seconds: float) -> None:
        """So many events became durable in so much time, waiting for company included."""
        self.events += events
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
