"""A real recording through its translator and the whole fold, against json.loads of the same lines.

All committed recordings of an agent, one after another, each with a translator of its own as in life. The lines are
decoded beforehand, because that is the driver's work; what is measured is what a signal costs once it is there. The rate
that the issue asks for, 50,000 signals a second on one core, is 20 us a signal: the floor of the second figure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.figure import Figure
from bench.measure import Effort, Ratio, Work, ratio
from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.harness.base import Signal
from quarterdeck.harness.registry import translator
from quarterdeck.kernel.view import View, fold

TRACES = Path(__file__).parents[1] / "tests" / "conformance" / "traces"
AGENTS = {
    "claude": "claude",
    "codex": "codex",
    "gemini": "gemini",
    "opencode": "opencode",
    "kilo": "kilo",
    "pi": "pi",
    "cline": "cline",
}
SIGNAL_BUDGET_NS = 20_000.0
_IGNORED = (".view", ".rpc")


def figures(effort: Effort) -> Iterator[Figure]:
    for agent, folder in AGENTS.items():
        tapes = [tape for path in sorted((TRACES / folder).rglob("*.jsonl")) if (tape := signals_of(path))]
        lines = [line for path in sorted((TRACES / folder).rglob("*.jsonl")) for line in lines_of(path)]
        count = sum(len(tape) for tape in tapes)
        subject = Work(lambda tapes=tapes, agent=agent: translated(agent, tapes), count)
        floor = Work(lambda lines=lines: [json.loads(line) for line in lines], len(lines))
        found = ratio(subject, floor, effort)
        yield Figure("translate", f"{agent}: a signal, to json.loads of its line", found, 6)
        yield Figure("translate", f"{agent}: a signal, to 20 us", _against_budget(found), 1)


def lines_of(path: Path) -> list[bytes]:
    """Cut at line feeds only: other line ends stand raw inside JSON."""
    return [line for line in path.read_bytes().split(b"\n") if line]


def signals_of(path: Path) -> list[tuple[float, Signal]]:
    """A recording as its translator gets it."""
    found = [msgspec.json.decode(line) for line in lines_of(path)]
    return [(line["t"], Signal(line["src"], line["data"])) for line in found if not line["src"].endswith(_IGNORED)]


def translated(agent: str, tapes: list[list[tuple[float, Signal]]]) -> View:
    """Every recording to its end; the last view, so that nothing is optimised away."""
    view = View()
    for tape in tapes:
        reader = translator(agent)
        view = fold(View(), Event("s", 1, 0, "supervisor", ev.SessionOpened(agent=agent)))
        for now, signal in tape:
            while (due := reader.deadline()) is not None and due <= now:
                view = _folded(view, reader.tick(due))
            view = _folded(view, reader.feed(signal, now))
    return view


def _folded(view: View, bodies: list[ev.Body]) -> View:
    for body in bodies:
        view = fold(view, Event("s", view.index + 1, 0, "stream", body))
    return view


def _against_budget(found: Ratio) -> Ratio:
    median = found.subject_ns / SIGNAL_BUDGET_NS
    return Ratio(median, median, median, found.subject_ns, SIGNAL_BUDGET_NS)
