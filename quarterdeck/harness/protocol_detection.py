"""An agent whose program speaks more than one protocol: the first object that passes tells which.

Until then the first candidate is believed. What passes before the first object is mostly about the process, and all
candidates say the same of that; it is remembered, so that another candidate, made when it is chosen, knows what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal, Translator, is_object
from quarterdeck.kernel.view import View

#: Of an agent that prints nothing but prose, so much is remembered.
_REMEMBERED = 1000


class Detecting:
    """Candidates by name, the one that is believed first; `choose` names one as soon as a signal tells, else None."""

    def __init__(self, candidates: dict[str, Callable[[], Translator]], choose: Callable[[Signal], str | None]) -> None:
        self._candidates = candidates
        self._choose: Callable[[Signal], str | None] | None = choose
        self._believed = next(iter(candidates))
        self._speaker = candidates[self._believed]()
        self._heard: list[tuple[Signal, float]] = []
        self._restored: View | None = None

    @property
    def origins(self) -> Mapping[str, Origin]:
        return self._speaker.origins

    @property
    def unknown(self) -> int:
        """How many signals no rule of the chosen protocol knew."""
        return self._speaker.unknown

    def feed(self, signal: Signal, now: float) -> list[Body]:
        if self._choose is not None:
            name = self._choose(signal)
            if name is None:
                self._heard.append((signal, now))
                if len(self._heard) > _REMEMBERED:
                    del self._heard[0]
            else:
                self._decide(name)
        return self._speaker.feed(signal, now)

    def _decide(self, name: str) -> None:
        """It is this one from here on."""
        if name != self._believed:
            self._speaker = self._candidates[name]()
            if self._restored is not None:
                self._speaker.restore(self._restored)
            for signal, now in self._heard:
                self._speaker.feed(signal, now)
        self._choose = self._restored = None
        self._heard.clear()

    def deadline(self) -> float | None:
        return self._speaker.deadline()

    def tick(self, now: float) -> list[Body]:
        return self._speaker.tick(now)

    def end(self, now: float) -> list[Body]:
        return self._speaker.end(now)

    def restore(self, view: View) -> None:
        self._speaker.restore(view)
        if self._choose is not None:
            self._restored = view
            self._heard.clear()


def acp_or_sayask(signal: Signal) -> str | None:
    """The choice for programs that speak ACP or, started otherwise, print say/ask messages; None while only prose passed."""
    found = signal.data
    if signal.src == "proc" or not is_object(found) or not signal.src.startswith(("stdout", "stdin")):
        return None
    if "raw" in found or "_raw" in found:
        return None
    return "acp" if "jsonrpc" in found else "sayask"
