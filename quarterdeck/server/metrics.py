"""The deck in numbers, as Prometheus reads them (text format 0.0.4).

Everything is read when somebody asks: the numbers are kept where things happen, as plain ints. Sessions at rest are looked
into once, and again only when they were in use since.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

import quarterdeck
from quarterdeck.deck.deck import Deck
from quarterdeck.kernel.state import State
from quarterdeck.log.base import StoredSession
from quarterdeck.log.counters import LATENCY_BOUNDS_S, AppendCounters
from quarterdeck.server.access_log import Access
from quarterdeck.server.socket import Shared
from quarterdeck.server.sse import Streams

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DROPPED = "Spans that a collector refused for good."
#: After so many sessions the loop may do something else.
_AT_ONCE = 250

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[Labels, float]


class _Value(Struct, frozen=True):
    value: str = ""


class _OpenGates(Struct, frozen=True):
    open: tuple[Raw, ...] = ()


class _Glance(Struct, frozen=True):
    """The part of a stored view that is counted; the rest is skipped and not built."""

    lifecycle: _Value = _Value()
    phase: _Value = _Value()
    gates: _OpenGates = _OpenGates()


class _Seen(Struct, frozen=True):
    stored: StoredSession
    lifecycle: str
    phase: str
    gates: int


_glance = msgspec.msgpack.Decoder(_Glance).decode


class Sessions:
    """How many sessions are what."""

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        self._seen: dict[str, _Seen] = {}

    async def counted(self) -> tuple[Counter[tuple[str, str]], int]:
        """By (lifecycle, phase), and the gates that are open in all of them."""
        deck, seen = self._deck, self._seen
        found: Counter[tuple[str, str]] = Counter()
        gates = 0
        live = {
            one.id: one.writer.durable_view.state for one in deck.sessions_in_use() if one.writer.durable_view.index
        }
        for number, name in enumerate(deck.session_ids(), 1):
            state = live.get(name)
            if state is not None:
                found[_kind(state)] += 1
                gates += len(state.gates.open)
            elif deck.has(name):
                stored, known = deck.stored(name), seen.get(name)
                if known is None or known.stored is not stored:
                    known = seen[name] = _looked_into(stored)
                found[known.lifecycle, known.phase] += 1
                gates += known.gates
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for name in [name for name in seen if not deck.has(name)]:
            del seen[name]
        return found, gates


def _kind(state: State) -> tuple[str, str]:
    return state.lifecycle.value, state.phase.value


def _looked_into(stored: StoredSession) -> _Seen:
    glance = _glance(stored.snapshot)
    return _Seen(stored, glance.lifecycle.value, glance.phase.value, len(glance.gates.open))


class Metrics:
    """`text` is the whole page."""

    def __init__(self, deck: Deck, access: Access, streams: Streams, shared: Shared) -> None:
        self._deck = deck
        self._access = access
        self._streams = streams
        self._shared = shared
        self._sessions = Sessions(deck)
        self._began = time.monotonic()

    async def text(self) -> str:
        kinds, gates = await self._sessions.counted()
        return "".join(
            [
                _family("quarterdeck_sessions", "gauge", "Sessions by lifecycle and phase.", _by_kind(kinds)),
                _one("quarterdeck_open_gates", "gauge", "Approvals, questions and dialogs that wait.", gates),
                *self._of_deck(),
                *_of_log(self._deck.counters.appends),
                _one(
                    "quarterdeck_telemetry_dropped_spans_total", "counter", _DROPPED, self._deck.counters.spans_dropped
                ),
                *self._of_streams(),
                *self._of_requests(),
                *self._of_process(),
            ]
        )

    def _of_deck(self) -> Iterable[str]:
        deck = self._deck
        live = list(deck.sessions_in_use())
        running = sum(one.connection is not None for one in live)
        troubled = sum(one.writer.error is not None for one in live)
        slots = deck.services.slots
        yield _one("quarterdeck_processes", "gauge", "Agent processes that run.", running)
        yield _one("quarterdeck_process_limit", "gauge", "Agent processes that may run at once.", slots.limit)
        yield _one(
            "quarterdeck_starts_waiting", "gauge", "Sessions that wait for a place to start.", len(slots.waiting)
        )
        yield _one("quarterdeck_sessions_in_memory", "gauge", "Sessions that are in use.", len(live))
        yield _one("quarterdeck_log_trouble", "gauge", "Sessions whose last append the log refused.", troubled)
        commands = [({"command": name, "outcome": how}, n) for (name, how), n in sorted(deck.counters.commands.items())]
        yield _family("quarterdeck_commands_total", "counter", "Commands by name and outcome.", commands)

    def _of_streams(self) -> Iterable[str]:
        now = [({"kind": "sse"}, self._streams.count), ({"kind": "ws"}, self._shared.links)]
        yield _family("quarterdeck_connections", "gauge", "Streams that are open.", now)
        sent = [({"kind": "sse"}, self._streams.delivered), ({"kind": "ws"}, self._shared.delivered)]
        says = "Events handed to connections, those that a connection filters out too."
        yield _family("quarterdeck_deliveries_total", "counter", says, sent)

    def _of_requests(self) -> Iterable[str]:
        samples = [
            ({"method": method, "route": route, "status": str(status)}, count)
            for (method, route, status), count in sorted(self._access.requests.items())
        ]
        yield _family("quarterdeck_http_requests_total", "counter", "Requests that are answered.", samples)

    def _of_process(self) -> Iterable[str]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        build = {"version": quarterdeck.__version__, "python": sys.version.split()[0]}
        yield _family("quarterdeck_build_info", "gauge", "What runs.", [(build, 1)])
        yield _one("quarterdeck_uptime_seconds", "gauge", "Since the server began.", time.monotonic() - self._began)
        yield _one("process_cpu_seconds_total", "counter", "User and system time.", used.ru_utime + used.ru_stime)
        yield _one("process_resident_memory_bytes", "gauge", "Memory that is in use now.", _resident(used))


def _of_log(counters: AppendCounters) -> Iterable[str]:
    yield _one("quarterdeck_events_appended_total", "counter", "Events that became durable.", counters.events)
    yield _one("quarterdeck_appends_refused_total", "counter", "Appends that the log refused.", counters.refused)
    name = "quarterdeck_append_seconds"
    counts = list(accumulate(counters.latency_buckets))
    bounds = [*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf"]
    yield _head(name, "histogram", "From an append's beginning until it is durable.")
    for bound, count in zip(bounds, counts, strict=True):
        yield _sample(f"{name}_bucket", {"le": bound}, count)
    yield _sample(f"{name}_sum", {}, counters.seconds) + _sample(f"{name}_count", {}, counts[-1])


def _resident(used: resource.struct_rusage) -> int:
    """Linux says what is in use now; elsewhere the most that ever was is the best that can be had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- the format


def _by_kind(kinds: Counter[tuple[str, str]]) -> list[Sample]:
    return [({"lifecycle": life, "phase": phase}, count) for (life, phase), count in sorted(kinds.items())]


def _one(name: str, kind: str, says: str, value: float) -> str:
    return _head(name, kind, says) + _sample(name, {}, value)


def _family(name: str, kind: str, says: str, samples: Iterable[Sample]) -> str:
    return _head(name, kind, says) + "".join(_sample(name, labels, value) for labels, value in samples)


def _head(name: str, kind: str, says: str) -> str:
    return f"# HELP {name} {says}\n# TYPE {name} {kind}\n"


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
    return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
