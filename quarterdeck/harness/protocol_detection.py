"""Detect which protocol an agent speaks from the first object that it prints or receives.

Cline and Kilo speak ACP or print say/ask messages, depending on how they are started. Until that is known the first
candidate reads everything. Signals before the first object are mostly about the process, which all candidates read alike.
They are remembered, so that another candidate, built when it is chosen, knows what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quarterdeck.events import Body, Origin
from quarterdeck.harness.base import Signal, Translator, is_object
from quarterdeck.kernel.view import View

#: How many signals are remembered for an agent that prints nothing but prose.
_REMEMBERED_LIMIT = 1000


class DetectingTranslator:
    """Reads with the first candidate until a signal shows which one is right."""

    def __init__(self, candidates: dict[str, Callable[[], Translator]], choose: Callable[[Signal], str | None]) -> None:
        """Start with the first candidate. `choose` returns the right one's name once a signal shows it, and None before."""
        self._candidates = candidates
        self._choose: Callable[[Signal], str | None] | None = choose
        self._name = next(iter(candidates))
        self._translator = candidates[self._name]()
        self._remembered: list[tuple[Signal, float]] = []
        self._restored: View | None = None

    @property
    def origins(self) -> Mapping[str, Origin]:
        return self._translator.origins

    @property
    def unknown(self) -> int:
        return self._translator.unknown

    def feed(self, signal: Signal, now: float) -> list[Body]:
        if self._choose is not None:
            name = self._choose(signal)
            if name is None:
                self._remembered.append((signal, now))
                if len(self._remembered) > _REMEMBERED_LIMIT:
                    del self._remembered[0]
            else:
                self._use(name)
        return self._translator.feed(signal, now)

    def _use(self, name: str) -> None:
        """Use this candidate from now on. The events of what it catches up with were written by the first one."""
        if name != self._name:
            self._translator = self._candidates[name]()
            if self._restored is not None:
                self._translator.restore(self._restored)
            for signal, now in self._remembered:
                self._translator.feed(signal, now)
        self._choose = self._restored = None
        self._remembered.clear()

    def deadline(self) -> float | None:
        return self._translator.deadline()

    def tick(self, now: float) -> list[Body]:
        return self._translator.tick(now)

    def end(self, now: float) -> list[Body]:
        return self._translator.end(now)

    def restore(self, view: View) -> None:
        self._translator.restore(view)
        if self._choose is not None:
            self._restored = view
            self._remembered.clear()


def acp_or_sayask(signal: Signal) -> str | None:
    """Choose between ACP and say/ask messages. Return None while only prose was printed."""
    data = signal.data
    if not signal.src.startswith(("stdout", "stdin")) or not is_object(data):
        return None
    if "raw" in data or "_raw" in data:
        return None
    return "acp" if "jsonrpc" in data else "sayask"
