"""Feed raw signals of any agent to its translator in tests, and check the view after each one.

talk = Talk("codex")
talk.feed("stdout", {...})
talk.wait(0.2)
assert talk.phase == "streaming"
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self, TypeVar

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, Origin, type_of
from quarterdeck.harness.base import Signal, Translator, origin_of
from quarterdeck.harness.registry import translator
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, fold
from tests.fuzz.legal import unclosed, violations

B = TypeVar("B", bound=Body)


def kinds(bodies: Iterable[Body]) -> list[str]:
    """Return the events' names in order."""
    return [type_of(body) for body in bodies]


class Talk:
    """A translator, a clock, and the view of its events."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.translator: Translator = translator(agent)
        self.now = 0.0
        self.bodies: list[Body] = []
        self.view = View()
        self._fold([ev.SessionOpened(agent=agent)], "supervisor")

    # --- signals

    def feed(self, src: str, data: Any, after: float = 0.01) -> list[Body]:
        """Feed a signal a moment later and return its events."""
        self.wait(after)
        return self._fold(self.translator.feed(Signal(src, data), self.now), origin_of(src))

    def wait(self, seconds: float) -> list[Body]:
        """Let time pass, fire the timers that are due, and return their events."""
        until, events = self.now + seconds, list[Body]()
        while (due := self.translator.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            events += self._fold(self.translator.tick(self.now), "supervisor")
        self.now = until
        return events

    def over(self) -> list[Body]:
        """End the source without an exit of the process."""
        return self._fold(self.translator.end(self.now), "supervisor")

    def restarted(self) -> Self:
        """Restore the view into a new translator, as another deck process does."""
        self.translator = translator(self.agent)
        self.translator.restore(self.view)
        return self

    def _fold(self, bodies: list[Body], origin: Origin) -> list[Body]:
        for body in bodies:
            event = Event("s1", self.view.index + 1, int(self.now * 1000), origin, body)
            self.view = fold(self.view, event)
        self.bodies += bodies
        assert violations(self.view) == [], kinds(bodies)
        assert unclosed(self.bodies) == []
        return bodies

    # --- the result

    @property
    def state(self) -> State:
        return self.view.state

    @property
    def phase(self) -> str:
        return self.state.phase.value

    @property
    def activity(self) -> str:
        return self.state.activity.value

    @property
    def entries(self) -> list[Entry]:
        """Return the timeline as it is shown."""
        return window(self.view.timeline)

    def texts(self, *of: str) -> list[tuple[str, str]]:
        """Return kind and text of the entries of these kinds, or of all."""
        return [(entry.kind, entry.text) for entry in self.entries if not of or entry.kind in of]

    def words(self, *of: str) -> list[str]:
        """Return the texts of the main agent's entries of these kinds, or of all."""
        return [entry.text for entry in self.entries if not entry.path and (not of or entry.kind in of)]

    def tools(self) -> list[tuple[str, str]]:
        """Return the calls with their phases."""
        return [(step.tool_name, step.phase) for entry in self.entries if (step := entry.tool_step) is not None]

    def names(self) -> list[str]:
        """Return the names of all events so far."""
        return kinds(self.bodies)

    def events_of(self, kind: type[B]) -> list[B]:
        """Return the events of this type."""
        return [body for body in self.bodies if isinstance(body, kind)]

    @property
    def unknown(self) -> int:
        """Return how many signals weren't recognised."""
        return self.translator.unknown
