"""Count what a deck does, for metrics. The numbers live in memory and start at zero with each process."""

from __future__ import annotations

from collections import Counter

from quarterdeck.log.counters import AppendCounters


class DeckCounters:
    """Counters of one deck since it was opened."""

    def __init__(self) -> None:
        self.appends = AppendCounters()
        #: Commands by (name, outcome). The outcome is `done`, or the code of the error that refused the command.
        self.commands: Counter[tuple[str, str]] = Counter()
        #: Telemetry spans that couldn't be delivered to the collector.
        self.spans_dropped = 0
