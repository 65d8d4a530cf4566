"""Measure how many signals a second each translator and the fold can process, with real recordings.

All committed recordings of an agent are read one after another, each by a new translator as in production: first each agent
with all of its sources, then each source by itself, so that an expensive one isn't hidden among cheap ones. Lines are
decoded beforehand, because that is the work of the process that reads them.

The budget is 15,000 signals a second on one core, 66.7 us for each.
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
SIGNALS_PER_SECOND = 15_000
SIGNAL_BUDGET_NS = 1e9 / SIGNALS_PER_SECOND
_IGNORED = (".view", ".rpc")

Tape: TypeAlias = list[tuple[float, Signal]]


def unchanged(line: bytes) -> bytes:
    return line


def as_kilo(line: bytes) -> bytes:
    """Rewrite a message of Cline 2 as Kilo's `--json` prints it. No such release of Kilo could be recorded."""
    recorded = msgspec.json.decode(line)
    message = recorded["data"]
    if not isinstance(message, dict) or "ts" not in message:
        return line
    fields = {name: value for name, value in message.items() if name not in ("ts", "text")}
    try:
        content = {"metadata": msgspec.json.decode(message["text"])}
    except (KeyError, msgspec.DecodeError):
        content = {"content": message.get("text", "")}
    data = {"timestamp": message["ts"], "source": "extension", **fields, **content}
    return msgspec.json.encode({**recorded, "data": data})


class Source(Struct, frozen=True):
    """The recordings of an agent to measure, and which of their sources (empty: all)."""

    name: str
    agent: str
    recordings: str
    only: tuple[str, ...] = ()
    rewrite: Callable[[bytes], bytes] = unchanged


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
    Source("kilo json-io", "kilo", "cline/2.18.0/*.jsonl", rewrite=as_kilo),
    Source("pi", "pi", "pi/*/*.jsonl"),
    Source("cline", "cline", "cline/*/*.jsonl"),
    Source("cline 1", "cline", "cline/1.0.10/*.jsonl"),
    Source("cline 2", "cline", "cline/2.18.0/*.jsonl"),
    Source("cline acp", "cline", "cline/2.18.0-acp/*.jsonl"),
)


def figures(effort: Effort) -> Iterator[Figure]:
    for source in SOURCES:
        measured = ratio(*works(source), effort)
        yield Figure("translate", f"{source.name}: a signal, to 66.7 us", _against_budget(measured), 1)


def works(source: Source) -> tuple[Work, Work]:
    """Return the subject, and json.loads of the same lines as a floor that shows how busy the machine is."""
    recordings = [recording for path in sorted(TRACES.glob(source.recordings)) if (recording := read(source, path))]
    tapes = [[signal_of(line) for line in recording] for recording in recordings]
    lines = [line for recording in recordings for line in recording]
    subject = Work(lambda: translate(source.agent, tapes), len(lines))
    return subject, Work(lambda: [json.loads(line) for line in lines], len(lines))


def read(source: Source, path: Path) -> list[bytes]:
    """Return the lines of a recording that this source sent, or [] if only the process was reported."""
    # Split at LF only: other line ends may stand unescaped inside JSON strings.
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    matching = [(line, src) for line in lines if _is_of(source, src := msgspec.json.decode(line)["src"])]
    if all(src == "proc" for _, src in matching):
        return []
    return [source.rewrite(line) for line, _ in matching]


def _is_of(source: Source, src: str) -> bool:
    return not src.endswith(_IGNORED) and (not source.only or src.partition(".")[0] in source.only)


def signal_of(line: bytes) -> tuple[float, Signal]:
    """Return the time and the signal of a line."""
    fields = msgspec.json.decode(line)
    return fields["t"], Signal(fields["src"], fields["data"])


def translate(agent: str, tapes: list[Tape]) -> View:
    """Translate and fold every recording, and return the last view."""
    view = View()
    for tape in tapes:
        reader = translator(agent)
        view = fold(View(), Event("s", 1, 0, "supervisor", ev.SessionOpened(agent=agent)))
        for now, signal in tape:
            while (due := reader.deadline()) is not None and due <= now:
                view = _fold_all(view, reader.tick(due))
            view = _fold_all(view, reader.feed(signal, now))
    return view


def _fold_all(view: View, bodies: list[ev.Body]) -> View:
    for body in bodies:
        view = fold(view, Event("s", view.index + 1, 0, "stream", body))
    return view


def _against_budget(measured: Ratio) -> Ratio:
    low, high = measured.subject_range_ns
    times = (measured.subject_ns, low, high)
    return Ratio(*[time / SIGNAL_BUDGET_NS for time in times], measured.subject_ns, SIGNAL_BUDGET_NS)
