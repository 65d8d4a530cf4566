"""Measure one whole step of a session's view against the bare step of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from msgspec import Struct

from bench import bare, sessions
from bench.figure import Figure
from bench.measure import QUICK, SMOKE, Effort, Work, ratio
from quarterdeck import events as ev
from quarterdeck.events import Event, type_of
from quarterdeck.kernel.view import View, fold

SIZES = (10, 1_000, 10_000)
#: The cost of a delta must not depend on the length of the conversation.
SAME = 1.2
_SHOWN = 10
#: Measure more cases than are shown, because the first look may rank a slow one too low.
_LOOKED_AT_TWICE = 16
_DELTAS = ("The ", "lexer ", "returned ", "None for ", "an empty", " line, ", "and the parser ", "took that.\n")


class Case(Struct, frozen=True):
    """An event, and the view on which it is folded."""

    name: str
    where: str
    work: Work


def figures(effort: Effort) -> Iterator[Figure]:
    sizes = SIZES if effort is not SMOKE else SIZES[:1]
    yield from _delta_figures(sizes, effort)
    yield from _event_figures(sizes[-1], effort)


def _delta_figures(sizes: tuple[int, ...], effort: Effort) -> Iterator[Figure]:
    floor = bare.floor()
    works = {size: delta_work(size) for size in sizes}
    for size, work in works.items():
        yield Figure("view", f"text delta at {size:,} entries", ratio(work, floor, effort))
    for size in sizes[1:]:
        compared = ratio(works[size], works[sizes[0]], effort)
        yield Figure("view", f"text delta at {size:,} entries to one at {sizes[0]}", compared, SAME)


def delta_work(entries: int) -> Work:
    """Fold a text that grows to some thousand characters, piece by piece."""
    start = sessions.folded(
        sessions.grown(entries),
        ev.PromptReceived(text="Go"),
        ev.AgentStart(),
        ev.MessageStart(message_id="m", turn_id="t"),
    )
    view, events = start, list[Event]()
    for piece in _DELTAS * 50:
        events.append(sessions.next_event(view, ev.MessageDelta(message_id="m", delta=piece, turn_id="t")))
        view = fold(view, events[-1])

    def run() -> View:
        view = start
        for event in events:
            view = fold(view, event)
        return view

    return Work(run, len(events))


def _event_figures(entries: int, effort: Effort) -> Iterator[Figure]:
    """Look briefly at every event in every view, then measure the slowest types, each in its slowest view."""
    floor = bare.floor()
    slowest: dict[str, tuple[float, Case]] = {}
    for case in cases(entries):
        seen = ratio(case.work, floor, min(effort, QUICK, key=lambda one: one.rounds)).median
        if case.name not in slowest or seen > slowest[case.name][0]:
            slowest[case.name] = (seen, case)
    chosen = sorted(slowest.values(), key=lambda one: one[0], reverse=True)[:_LOOKED_AT_TWICE]
    measured = [(case, ratio(case.work, floor, effort)) for _, case in chosen]
    measured.sort(key=lambda one: one[1].median, reverse=True)
    for case, found in measured[:_SHOWN]:
        yield Figure("view", f"{case.name} at {entries:,} entries ({case.where})", found)


def cases(entries: int) -> Iterator[Case]:
    """Yield every body in every view."""
    for where, view in sessions.views(entries).items():
        for body in sessions.bodies():
            yield Case(type_of(body), where, _fold_work(view, sessions.next_event(view, body)))


def _fold_work(view: View, event: Event) -> Work:
    def run() -> None:
        for _ in repeat(None, 20):
            fold(view, event)

    return Work(run, 20)
