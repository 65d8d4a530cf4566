"""A conversation with any agent for tests: raw signals go in, and after each one the view is held against the rules.

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
    """The events' names, in order."""
    return [type_of(body) for body in bodies]


class Talk:
    """A translator, a clock, and the view that its events make."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.translator: Translator = translator(agent)
        self.now = 0.0
        self.bodies: list[Body] = []
        self.view = View()
        self._told([ev.SessionOpened(agent=agent)], "supervisor")

    # --- what happens

    def feed(self, src: str, data: Any, after: float = 0.01) -> list[Body]:
        """A signal comes, a moment later."""
        self.wait(after)
        return self._told(self.translator.feed(Signal(src, data), self.now), origin_of(src))

    def wait(self, seconds: float) -> list[Body]:
        """Time passes; deadlines fire when they are due."""
        until, told = self.now + seconds, list[Body]()
        while (due := self.translator.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            told += self._told(self.translator.tick(self.now), "supervisor")
        self.now = until
        return told

    def over(self) -> list[Body]:
        """The source is gone without a word."""
        return self._told(self.translator.end(self.now), "supervisor")

    def restarted(self) -> Self:
        """Another deck process takes over in the middle: a new translator that knows the view."""
        self.translator = translator(self.agent)
        self.translator.restore(self.view)
        return self

    def _told(self, bodies: list[Body], origin: Origin) -> list[Body]:
        for body in bodies:
            event = Event("s1", self.view.index + 1, int(self.now * 1000), origin, body)
            self.view = fold(self.view, event)
        self.bodies += bodies
        assert violations(self.view) == [], kinds(bodies)
        assert unclosed(self.bodies) == []
        return bodies

    # --- what shows

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
        """The timeline as it is shown."""
        return window(self.view.timeline)

    def texts(self, *of: str) -> list[tuple[str, str]]:
        """The entries of these kinds, or all."""
        return [(entry.kind, entry.text) for entry in self.entries if not of or entry.kind in of]

    def words(self, *of: str) -> list[str]:
        """What the main agent's entries of these kinds say, or all of its entries."""
        return [entry.text for entry in self.entries if not entry.path and (not of or entry.kind in of)]

    def tools(self) -> list[tuple[str, str]]:
        """The calls, with their phases."""
        return [(step.tool_name, step.phase) for entry in self.entries if (step := entry.tool_step) is not None]

    def names(self) -> list[str]:
        """All events so far, by name."""
        return kinds(self.bodies)

    def told(self, kind: type[B]) -> list[B]:
        """The events of this type."""
        return [body for body in self.bodies if isinstance(body, kind)]

    @property
    def unknown(self) -> int:
        """How many signals no rule knew."""
        return self.translator.unknown
