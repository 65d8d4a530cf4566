"""Replay a recording through a translator and the kernel under a virtual clock (contract section 5).

Pure: lines in, rows out. Deadlines of the translator fire between the lines, at the time they were due. After the last line
those that are due within a few seconds still fire, so that a debounce that the recording cut off isn't the final state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec
from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, type_of
from quarterdeck.harness.base import Signal, Translator, origin_of
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, fold

#: How long after the last line deadlines still fire.
AFTERGLOW_S = 10.0
#: Sources that repeat what other lines of the recording say.
_IGNORED_SUFFIXES = (".view", ".rpc")
#: No recording lasts longer, so a later time (or infinity) shows a broken line.
_LATEST_S = 1e12
_GATES = (ev.ApprovalRequired, ev.AskUser, ev.DialogRequired)

_decoder = msgspec.json.Decoder(cast("type[Any]", Any))


class Row(Struct, frozen=True):
    """The events of one line or deadline, and the view after them."""

    #: Number of the line; None for a deadline.
    line: int | None
    t: float
    bodies: tuple[Body, ...]
    view: View


class Replay:
    """One replay. Iterate `rows(lines)`; afterwards `view`, `gates_opened` and `unknown` hold the result."""

    def __init__(self, translator: Translator, agent: str = "", only: tuple[str, ...] = ()) -> None:
        self.translator = translator
        self.only = only
        self.gates_opened = 0
        #: Lines that aren't valid lines of a recording.
        self.broken = 0
        #: Sources of all lines, including those that `only` leaves out.
        self.sources: set[str] = set()
        self.view = fold(View(), Event("replay", 1, 0, "supervisor", ev.SessionOpened(agent=agent)))

    @property
    def unknown(self) -> int:
        return self.translator.unknown + self.broken

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield one row for each line, and for each deadline between them, that caused an event."""
        now = 0.0
        for number, line in enumerate(lines, 1):
            read = self._read(line)
            if read is None:
                continue
            t, signal = read
            yield from self._deadlines(t)
            now = max(now, t)
            yield from self._row(number, now, self.translator.feed(signal, now), origin_of(signal.src))
        yield from self._deadlines(now + AFTERGLOW_S)

    def _read(self, line: bytes) -> tuple[float, Signal] | None:
        if not line.strip():
            return None
        try:
            fields = _decoder.decode(line)
            t, src, data = _seconds(fields["t"]), fields["src"], fields["data"]
        except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError, TypeError, ValueError):
            self.broken += 1
            return None
        if not isinstance(src, str) or src.endswith(_IGNORED_SUFFIXES):
            return None
        self.sources.add(src)
        if self.only and src not in self.only and src.partition(".")[0] not in self.only:
            return None
        return t, Signal(src, data)

    def _deadlines(self, until: float) -> Iterator[Row]:
        while (due := self.translator.deadline()) is not None and due <= until:
            yield from self._row(None, due, self.translator.tick(due), "supervisor")

    def _row(self, number: int | None, t: float, bodies: list[Body], origin: ev.Origin) -> Iterator[Row]:
        for body in bodies:
            self.gates_opened += isinstance(body, _GATES)
            event = Event("replay", self.view.index + 1, int(t * 1000), origin, body)
            self.view = fold(self.view, event)
        if bodies:
            yield Row(number, t, tuple(bodies), self.view)


def _seconds(value: Any) -> float:
    """Return the time of a line.

    Raises:
        ValueError: the value isn't a time.
    """
    seconds = float(value)
    if not abs(seconds) < _LATEST_S:
        raise ValueError(value)
    return seconds


def row_json(row: Row) -> dict[str, Any]:
    """Return a row in the JSON form of contract section 5."""
    state = row.view.state
    return {
        "line": row.line,
        "t": row.t,
        "events": [msgspec.to_builtins(body) for body in row.bodies],
        "lifecycle": state.lifecycle.value,
        "process": state.process.value,
        "run": state.run.value,
        "activity": state.activity.value,
        "phase": state.phase.value,
        "gates": len(state.gates.open),
        "background": len(state.background),
        "signal": state.signal.value,
    }


def end_json(replay: Replay) -> dict[str, Any]:
    """Return the last line of a replay in the JSON form of contract section 5."""
    state = replay.view.state
    entries = [entry for entry in window(replay.view.timeline) if not entry.path]
    return {
        "end": True,
        "phase": state.phase.value,
        "activity": state.activity.value,
        "messages": [{"kind": entry.kind, "text": entry.text} for entry in entries if entry.kind != "tool"],
        "tools": [_tool(entry) for entry in entries if entry.kind == "tool"],
        "gates_opened": replay.gates_opened,
        "unknown": replay.unknown,
    }


def _tool(entry: Entry) -> dict[str, str]:
    assert entry.tool_step is not None
    return {"name": entry.tool_step.tool_name, "phase": entry.tool_step.phase}


def summary_of(bodies: tuple[Body, ...]) -> str:
    """Return the names of the events in one line, each with how often it occurs."""
    counts: dict[str, int] = {}
    for body in bodies:
        counts[type_of(body)] = counts.get(type_of(body), 0) + 1
    return " ".join(name if count == 1 else f"{name}×{count}" for name, count in counts.items())
