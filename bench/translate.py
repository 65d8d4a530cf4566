"""Real recordings through their translator and the whole fold, against json.loads of the same lines.

All committed recordings of an agent, one after another, each with a translator of its own as in life: each agent with all
of its sources, and then each source by itself, so that a dear one cannot hide among cheap ones. The lines are decoded
beforehand, because that is the driver's work; what is measured is what a signal costs once it is there. The rate that the
issue asks for, 50,000 signals a second on one core, is 20 us a signal: the floor of the second figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from bench.figure import Figure
from bench.measure import Effort, Ratio, Work, ratio
from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.harness.base import Signal
from quarterdeck.harness.registry import translator
from quarterdeck.kernel.view import View, fold

TRACES = Path(__file__).parents[1] / "tests" / "conformance" / "traces"
SIGNAL_BUDGET_NS = 20_000.0
LOADS_TARGET = 6
_IGNORED = (".view", ".rpc")

Tape: TypeAlias = list[tuple[float, Signal]]


def as_it_is(line: bytes) -> bytes:
    return line


def in_kilos_words(line: bytes) -> bytes:
    """A message of Cline 2 as Kilo's `--json` prints it. No Kilo that does so can be recorded here."""
    whole = msgspec.json.decode(line)
    found = whole["data"]
    if not isinstance(found, dict) or "ts" not in found:
        return line
    kept = {name: value for name, value in found.items() if name not in ("ts", "text")}
    try:
        told = {"metadata": msgspec.json.decode(found["text"])}
    except (KeyError, msgspec.DecodeError):
        told = {"content": found.get("text", "")}
    return msgspec.json.encode({**whole, "data": {"timestamp": found["ts"], "source": "extension", **kept, **told}})


class Source(Struct, frozen=True):
    """What is measured: the recordings that match, of them the signals of these sources (none named: all of them)."""

    name: str
    agent: str
    recordings: str
    only: tuple[str, ...] = ()
    reworded: Callable[[bytes], bytes] = as_it_is


_STREAM = ("stdout", "stdin", "stderr", "proc")
SOURCES = (
    Source("claude", "claude", "claude/*/*.jsonl"),
    Source("claude stream", "claude", "claude/*/*.jsonl", _STREAM),
    Source("claude hooks", "claude", "claude/*/*.jsonl", ("hook",)),
    Source("codex", "codex", "codex/*/*.jsonl"),
    Source("codex app-server", "codex", "codex/*/[!e]*.jsonl", _STREAM),
    Source("codex exec", "codex", "codex/*/exec_*.jsonl", _STREAM),
    Source("codex hooks", "codex", "codex/*/*.jsonl", ("hook",)),
    Source("codex telemetry", "codex", "codex/*/*.jsonl", ("otlp",)),
    Source("gemini", "gemini", "gemini/*/*.jsonl"),
    Source("opencode", "opencode", "opencode/*/*.jsonl"),
    Source("kilo", "kilo", "kilo/*/*.jsonl"),
    Source("kilo json-io", "kilo", "cline/2.18.0/*.jsonl", reworded=in_kilos_words),
    Source("pi", "pi", "pi/*/*.jsonl"),
    Source("cline", "cline", "cline/*/*.jsonl"),
    Source("cline 1", "cline", "cline/1.0.10/*.jsonl"),
    Source("cline 2", "cline", "cline/2.18.0/*.jsonl"),
    Source("cline acp", "cline", "cline/2.18.0-acp/*.jsonl"),
)


def figures(effort: Effort) -> Iterator[Figure]:
    for source in SOURCES:
        found = ratio(*works(source), effort)
        yield Figure("translate", f"{source.name}: a signal, to json.loads of its line", found, LOADS_TARGET)
        yield Figure("translate", f"{source.name}: a signal, to 20 us", _against_budget(found), 1)


def works(source: Source) -> tuple[Work, Work]:
    """The subject and its floor, both over the same lines."""
    recordings = [recording for path in sorted(TRACES.glob(source.recordings)) if (recording := read(source, path))]
    tapes = [[signal_of(line) for line in recording] for recording in recordings]
    lines = [line for recording in recordings for line in recording]
    subject = Work(lambda: translated(source.agent, tapes), len(lines))
    return subject, Work(lambda: [json.loads(line) for line in lines], len(lines))


def read(source: Source, path: Path) -> list[bytes]:
    """The lines of a recording that this source sends; none where it said nothing but that there is a process."""
    cut = [line for line in path.read_bytes().split(b"\n") if line]  # other line ends stand raw inside JSON
    found = [(line, src) for line in cut if _is_of(source, src := msgspec.json.decode(line)["src"])]
    if all(src == "proc" for _, src in found):
        return []
    return [source.reworded(line) for line, _ in found]


def _is_of(source: Source, src: str) -> bool:
    return not src.endswith(_IGNORED) and (not source.only or src.partition(".")[0] in source.only)


def signal_of(line: bytes) -> tuple[float, Signal]:
    """A line as its translator gets it."""
    found = msgspec.json.decode(line)
    return found["t"], Signal(found["src"], found["data"])


def translated(agent: str, tapes: list[Tape]) -> View:
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
    low, high = found.subject_range_ns
    times = (found.subject_ns, low, high)
    return Ratio(*[time / SIGNAL_BUDGET_NS for time in times], found.subject_ns, SIGNAL_BUDGET_NS)
