"""Report whether the server works (`GET /healthz`) and what it counts (`GET /metrics`).

Metrics are in Prometheus' text format 0.0.4. Counters are plain integers where things happen, read when a client asks. The
state of an idle session is decoded once, and again only after the session was in use.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

import quarterdeck
from quarterdeck.deck.deck import Deck
from quarterdeck.errors import QuarterdeckError
from quarterdeck.log.base import LogUnavailable, StoredSession
from quarterdeck.log.counters import LATENCY_BOUNDS_S, AppendCounters
from quarterdeck.server.access_log import AccessLog
from quarterdeck.server.socket import Sockets
from quarterdeck.server.sse import Streams

# --- Health


class Health:
    """Tries whether the log can be read and written, at most once a second however many clients ask."""

    INTERVAL_S = 1.0
    TIMEOUT_S = 3.0

    def __init__(self, probe: Callable[[], Awaitable[None]], now: Callable[[], float]) -> None:
        self._probe = probe
        self._now = now
        #: The probe that runs now.
        self._task: asyncio.Task[QuarterdeckError | None] | None = None
        self._checked_at = float("-inf")
        self._problem: QuarterdeckError | None = None
        #: How many probes were made.
        self.probes = 0

    async def check(self) -> None:
        """Return if the log works.

        Raises:
            QuarterdeckError: the probe's error, or LogUnavailable if it takes longer than `TIMEOUT_S`.
        """
        task = self._task
        if task is None and self._now() - self._checked_at >= self.INTERVAL_S:
            task = self._task = asyncio.get_running_loop().create_task(self._run_probe())
        problem = self._problem if task is None else await self._result_of(task)
        if problem is not None:
            raise problem.with_traceback(None)

    async def _run_probe(self) -> QuarterdeckError | None:
        self.probes += 1
        self._problem = None
        try:
            await self._probe()
        except QuarterdeckError as error:
            self._problem = error
        finally:
            self._checked_at = self._now()
            self._task = None
        return self._problem

    async def _result_of(self, task: asyncio.Task[QuarterdeckError | None]) -> QuarterdeckError | None:
        # `wait` doesn't cancel the task on timeout or if this client disconnects: other clients wait for it too.
        done, _ = await asyncio.wait({task}, timeout=self.TIMEOUT_S)
        if done:
            return task.result()
        return LogUnavailable(
            f"it didn't answer within {self.TIMEOUT_S:g} seconds", "Check the disk and the system's log."
        )


# --- Sessions by state

#: How many sessions are counted before other tasks may run.
_SESSIONS_PER_PAUSE = 250


class _StoredValue(Struct, frozen=True):
    value: str = ""


class _StoredGates(Struct, frozen=True):
    open: tuple[Raw, ...] = ()


class _StoredState(Struct, frozen=True):
    """The part of a stored view that is counted. msgspec skips the rest without building it."""

    lifecycle: _StoredValue = _StoredValue()
    phase: _StoredValue = _StoredValue()
    gates: _StoredGates = _StoredGates()


_decode_state = msgspec.msgpack.Decoder(_StoredState).decode


class SessionCounts:
    """Counts sessions by state."""

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        #: Decoded states of sessions that aren't in memory, with the stored row they were decoded from.
        self._decoded: dict[str, tuple[StoredSession, _StoredState]] = {}

    async def count(self) -> tuple[Counter[tuple[str, str]], int]:
        """Return the number of sessions by (lifecycle, phase), and the number of open gates."""
        deck = self._deck
        kinds: Counter[tuple[str, str]] = Counter()
        gates = 0
        live = {
            session.id: session.writer.durable_view.state
            for session in deck.loaded_sessions()
            if session.writer.durable_view.index
        }
        for number, session_id in enumerate(deck.session_ids(), 1):
            if session_id in live or deck.has(session_id):
                state = live.get(session_id) or self._stored_state(session_id)
                kinds[state.lifecycle.value, state.phase.value] += 1
                gates += len(state.gates.open)
            if number % _SESSIONS_PER_PAUSE == 0:
                await asyncio.sleep(0)
        for session_id in [session_id for session_id in self._decoded if not deck.has(session_id)]:
            del self._decoded[session_id]
        return kinds, gates

    def _stored_state(self, session_id: str) -> _StoredState:
        stored = self._deck.stored(session_id)
        decoded = self._decoded.get(session_id)
        if decoded is None or decoded[0] is not stored:
            decoded = self._decoded[session_id] = (stored, _decode_state(stored.snapshot))
        return decoded[1]


# --- The page

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[Labels, float]


class Metrics:
    """The page of metrics."""

    def __init__(self, deck: Deck, access_log: AccessLog, streams: Streams, sockets: Sockets) -> None:
        self._deck = deck
        self._access_log = access_log
        self._streams = streams
        self._sockets = sockets
        self._sessions = SessionCounts(deck)
        self._started_at = time.monotonic()

    async def text(self) -> str:
        kinds, gates = await self._sessions.count()
        by_kind = [({"lifecycle": life, "phase": phase}, count) for (life, phase), count in sorted(kinds.items())]
        return "".join(
            [
                _family("quarterdeck_sessions", "gauge", "Sessions by lifecycle and phase.", by_kind),
                _single("quarterdeck_open_gates", "gauge", "Open approvals, questions and dialogs.", gates),
                *self._deck_metrics(),
                *_log_metrics(self._deck.counters.appends),
                _single(
                    "quarterdeck_telemetry_dropped_spans_total",
                    "counter",
                    "Spans dropped because a collector refused them.",
                    self._deck.counters.spans_dropped,
                ),
                *self._stream_metrics(),
                *self._request_metrics(),
                *self._process_metrics(),
            ]
        )

    def _deck_metrics(self) -> Iterable[str]:
        deck = self._deck
        sessions = list(deck.loaded_sessions())
        running = sum(session.connection is not None for session in sessions)
        refused = sum(session.writer.error is not None for session in sessions)
        slots = deck.services.slots
        yield _single("quarterdeck_processes", "gauge", "Running agent processes.", running)
        yield _single("quarterdeck_process_limit", "gauge", "Agent processes that may run at once.", slots.limit)
        yield _single(
            "quarterdeck_starts_waiting", "gauge", "Sessions waiting for a free agent slot.", len(slots.waiting)
        )
        yield _single("quarterdeck_sessions_in_memory", "gauge", "Sessions in memory.", len(sessions))
        yield _single("quarterdeck_log_trouble", "gauge", "Sessions whose last append the log refused.", refused)
        commands = [
            ({"command": name, "outcome": outcome}, count)
            for (name, outcome), count in sorted(deck.counters.commands.items())
        ]
        yield _family("quarterdeck_commands_total", "counter", "Commands by name and outcome.", commands)

    def _stream_metrics(self) -> Iterable[str]:
        counts = [({"kind": "sse"}, self._streams.count), ({"kind": "ws"}, self._sockets.count)]
        yield _family("quarterdeck_connections", "gauge", "Open streams.", counts)
        delivered = [({"kind": "sse"}, self._streams.delivered), ({"kind": "ws"}, self._sockets.delivered)]
        help_text = "Events handed to streams, before their filters."
        yield _family("quarterdeck_deliveries_total", "counter", help_text, delivered)

    def _request_metrics(self) -> Iterable[str]:
        samples = [
            ({"method": method, "route": route, "status": str(status)}, count)
            for (method, route, status), count in sorted(self._access_log.requests.items())
        ]
        yield _family("quarterdeck_http_requests_total", "counter", "Answered requests.", samples)

    def _process_metrics(self) -> Iterable[str]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        build = {"version": quarterdeck.__version__, "python": sys.version.split()[0]}
        uptime = time.monotonic() - self._started_at
        yield _family("quarterdeck_build_info", "gauge", "Version of Quarterdeck and Python.", [(build, 1)])
        yield _single("quarterdeck_uptime_seconds", "gauge", "Time since the server started.", uptime)
        yield _single("process_cpu_seconds_total", "counter", "User and system time.", used.ru_utime + used.ru_stime)
        yield _single("process_resident_memory_bytes", "gauge", "Resident memory.", _resident_bytes(used))


def _log_metrics(counters: AppendCounters) -> Iterable[str]:
    yield _single("quarterdeck_events_appended_total", "counter", "Durable events.", counters.events)
    yield _single("quarterdeck_appends_refused_total", "counter", "Appends that the log refused.", counters.refused)
    name = "quarterdeck_append_seconds"
    counts = list(accumulate(counters.latency_buckets))
    bounds = [*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf"]
    yield _head(name, "histogram", "Time from an append until it is durable.")
    for bound, count in zip(bounds, counts, strict=True):
        yield _sample(f"{name}_bucket", {"le": bound}, count)
    yield _sample(f"{name}_sum", {}, counters.seconds) + _sample(f"{name}_count", {}, counts[-1])


def _resident_bytes(used: resource.struct_rusage) -> int:
    """Return the memory in use. Only Linux tells it; elsewhere this is the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- The text format


def _single(name: str, kind: str, help_text: str, value: float) -> str:
    return _head(name, kind, help_text) + _sample(name, {}, value)


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    return _head(name, kind, help_text) + "".join(_sample(name, labels, value) for labels, value in samples)


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
    return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
