"""The table of tellers, and the one way in which a line is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from quarterdeck.events import Body, Event, Image
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import BashResult, Card, Entry, Kind, Timeline, ToolStep, line_id, own_id, with_line

#: The third argument is the event's body, of the type that the teller is registered for.
Teller: TypeAlias = Callable[[Timeline, Event, Any, State], Timeline]
_B = TypeVar("_B", bound=Body)
_Handler: TypeAlias = Callable[[Timeline, Event, _B, State], Timeline]

#: event type → how it is told.
TELLERS: dict[type[Body], Teller] = {}


def tells(*kinds: type[_B]) -> Callable[[_Handler[_B]], _Handler[_B]]:
    """Registers a teller for these types."""

    def register(teller: _Handler[_B]) -> _Handler[_B]:
        for kind in kinds:
            TELLERS[kind] = teller
        return teller

    return register


def entry_of(
    event: Event,
    kind: Kind,
    text: str = "",
    identifier: str = "",
    step: ToolStep | None = None,
    bash: BashResult | None = None,
    images: tuple[Image, ...] = (),
    card: Card | None = None,
) -> Entry:
    """An entry for this event; without an id of its own it is named after the event's index."""
    body = event.body
    name = own_id(identifier) if identifier else line_id(event.index)
    return Entry(name, kind, text, step, bash, images, card, body.turn_id, body.agent_path, event.at)


def named_entry(event: Event, kind: Kind, text: str, name: str) -> Entry:
    """An entry whose name is one of ours, so that it can be taken for no other."""
    body = event.body
    return Entry(name, kind, text, None, None, (), None, body.turn_id, body.agent_path, event.at)


def said(timeline: Timeline, event: Event, text: str, kind: Kind = "system", passing: bool = False) -> Timeline:
    """With one plain line."""
    return with_line(timeline, line_of(event, text, kind, passing))


def line_of(event: Event, text: str, kind: Kind = "system", passing: bool = False) -> Entry:
    """A plain line, named after the event's index."""
    body, name = event.body, line_id(event.index)
    return Entry(name, kind, text, None, None, (), None, body.turn_id, body.agent_path, event.at, passing)
