"""An agent whose program speaks more than one protocol: the first object that passes tells which.

Until then every candidate reads along, so whichever is chosen knows what came before; the first candidate's events are
told. What passes before the first object is about the process, and all candidates say the same of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from quarterdeck.events import Body
from quarterdeck.harness.base import Signal, Translator
from quarterdeck.kernel.view import View


class Detecting:
    """Candidates by name; `choose` names one as soon as a signal tells, else None."""

    def __init__(self, candidates: dict[str, Translator], choose: Callable[[Signal], str | None]) -> None:
        self._candidates = candidates
        self._choose = choose
        self._speaker = next(iter(candidates.values()))

    @property
    def unknown(self) -> int:
        """How many signals no rule of the chosen protocol knew."""
        return self._speaker.unknown

    def feed(self, signal: Signal, now: float) -> list[Body]:
        if self._candidates:
            name = self._choose(signal)
            if name is None:
                return self._feed_all(signal, now)
            self._speaker = self._candidates[name]
            self._candidates = {}
        return self._speaker.feed(signal, now)

    def _feed_all(self, signal: Signal, now: float) -> list[Body]:
        told: list[Body] = []
        for candidate in self._candidates.values():
            found = candidate.feed(signal, now)
            if candidate is self._speaker:
                told = found
        return told

    def deadline(self) -> float | None:
        return self._speaker.deadline()

    def tick(self, now: float) -> list[Body]:
        return self._speaker.tick(now)

    def end(self, now: float) -> list[Body]:
        return self._speaker.end(now)

    def restore(self, view: View) -> None:
        for candidate in self._candidates.values() or (self._speaker,):
            candidate.restore(view)


def is_rpc(signal: Signal) -> bool | None:
    """Whether the first object on a stream is JSON-RPC; None while nothing but prose passed."""
    data = signal.data
    if not signal.src.startswith(("stdout", "stdin")) or not isinstance(data, dict):
        return None
    found = cast("dict[str, Any]", data)
    if "raw" in found or "_raw" in found:
        return None
    return "jsonrpc" in found


def acp_or_sayask(signal: Signal) -> str | None:
    """The choice for programs that speak ACP or, started otherwise, print say/ask messages."""
    rpc = is_rpc(signal)
    return None if rpc is None else "acp" if rpc else "sayask"
