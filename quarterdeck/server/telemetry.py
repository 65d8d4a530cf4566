"""Spans to an OpenTelemetry collector (OTLP over HTTP), with the extra `otel`.

A reader of the log like any other: it has a cursor, in `telemetry.json`, together with what was open at it. The file is
written when a batch has arrived, so a restart goes on exactly there; a crash between the two sends that batch again, with
the same ids. Exporting happens on a thread. A collector that is away costs nothing but a line in the log: the batch is
tried again, and the reader waits in the meantime, for what it has not read is in the log. A batch that the collector does
not want would be refused again and keep all later ones waiting: it is dropped and counted, as OTLP says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

import quarterdeck
from quarterdeck.deck.deck import Deck, home_id
from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import write_atomic
from quarterdeck.log.base import NoSuchSession
from quarterdeck.server.spans import TYPES, Agent, Span, Spans, attributes

if TYPE_CHECKING:
    from requests import Response, Session

log = logging.getLogger("quarterdeck.telemetry")

FILE = "telemetry.json"
#: How often what is whole is sent, how much at once, and how long a failed batch waits, at first and at most.
EVERY_S = 2.0
BATCH = 512
RETRY_S = (1.0, 60.0)
_TIMEOUT_S = 5.0
#: How long the last batch may hold up a server that leaves.
_GOODBYE_S = 2.0

#: What OTLP says may be tried again; every other refusal is meant.
_PASSING = frozenset({429, 502, 503, 504})
#: With one of these set, OpenTelemetry makes the connection itself, and how it was answered is not to be seen.
_CREDENTIALS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)

#: `away`: nobody answered, or the answer may be another one later. `refused`: it would be refused again.
Fate: TypeAlias = Literal["arrived", "away", "refused"]
Export: TypeAlias = Callable[[Sequence[Span]], Fate]


class TelemetryMissing(QuarterdeckError):
    """Telemetry is wanted, and what it needs is not installed."""

    code = "telemetry_missing"

    def __init__(self) -> None:
        super().__init__("OpenTelemetry is not installed", "pip install 'quarterdeck[otel]', or unset otel_endpoint.")


class Kept(Struct):
    """What the file holds."""

    cursor: str
    open: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    prompts: dict[str, str] = field(default_factory=dict[str, str])


class Telemetry:
    """Make one with `await begin(...)`, and close it before the deck."""

    def __init__(self, deck: Deck, export: Export, kept: Kept, contents: bool = False) -> None:
        self._deck = deck
        self._export = export
        self._file = deck.home / FILE
        self._cursor = kept.cursor
        self._spans = Spans(self._describe, contents, kept.open, kept.prompts)
        self._whole: list[Span] = []
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._is_away = False
        self._is_refused = False
        self._is_leaving = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._send())]

    async def close(self) -> None:
        """What is whole is sent if that is quick; else it is in the log, and sent the next time."""
        reading, sending = self._tasks
        reading.cancel()
        self._is_leaving = True
        self._due.set()
        # not cancelled at once: a batch that is on its way would arrive and be sent again
        await asyncio.wait({sending}, timeout=_GOODBYE_S)
        sending.cancel()
        await asyncio.gather(reading, sending, return_exceptions=True)

    # --- reading

    async def _read(self) -> None:
        while True:
            try:
                async for event in self._deck.subscribe(self._cursor, TYPES):
                    self._whole += self._spans.fold(event)
                    self._cursor = event.cursor
                    if len(self._whole) >= BATCH:
                        self._due.set()
                        self._room.clear()
                        await self._room.wait()
            except QuarterdeckError:
                # the log cannot be read now; the deck says so itself
                await asyncio.sleep(RETRY_S[0])

    def _describe(self, session_id: str) -> Agent:
        try:
            profile = self._deck.view(session_id).state.profile
        except NoSuchSession:
            return Agent()
        return Agent(profile.agent, profile.agent_version, profile.model)

    # --- sending

    async def _send(self) -> None:
        while not self._is_leaving:
            await self._pause(EVERY_S)
            # the file is a picture of the very moment at which the batch was taken
            batch, self._whole = self._whole, []
            picture = msgspec.json.encode(Kept(self._cursor, self._spans.open, self._spans.prompts))
            if batch and await self._is_done_with(batch):
                await asyncio.to_thread(_write, self._file, picture)
            self._room.set()

    async def _pause(self, seconds: float) -> None:
        """Shorter if a batch is full, or if the server leaves."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._due.wait(), seconds)
        self._due.clear()

    async def _is_done_with(self, batch: list[Span]) -> bool:
        """Tries until it arrives or is refused. Not when the server leaves: the next one reads it from the log again."""
        pause = RETRY_S[0]
        while (fate := await asyncio.to_thread(self._export, batch)) == "away":
            if self._is_leaving:
                return False
            if not self._is_away:
                self._is_away = True
                log.warning("telemetry does not arrive; it is kept and tried again", extra={"spans": len(batch)})
            await self._pause(pause)
            pause = min(2 * pause, RETRY_S[1])
        if fate == "refused":
            self._drop(batch)
        elif self._is_away or self._is_refused:
            self._is_away = self._is_refused = False
            log.info("telemetry arrives again", extra={"spans": len(batch)})
        return True

    def _drop(self, batch: list[Span]) -> None:
        """Told once until something arrives; every span is counted."""
        self._deck.counters.spans_dropped += len(batch)
        if not self._is_refused:
            self._is_refused = True
            log.error("telemetry is refused; what is refused is dropped", extra={"spans": len(batch)})


async def start_telemetry(deck: Deck, endpoint: str, contents: bool = False) -> Telemetry:
    """From where it stopped the last time; the first time from now on. TelemetryMissing."""
    export = exporter(endpoint, home_id(deck.home))
    telemetry = Telemetry(deck, export, await _kept(deck), contents)
    telemetry.begin()
    return telemetry


async def _kept(deck: Deck) -> Kept:
    file, head = deck.home / FILE, await deck.services.log.last_cursor()
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=Kept)
        if kept.cursor <= head:
            return kept
        log.warning("the file of telemetry is ahead of the log; it begins anew", extra={"file": FILE})
    except FileNotFoundError:
        pass
    except (msgspec.MsgspecError, OSError, UnicodeError):
        log.warning("the file of telemetry cannot be read; it begins anew", extra={"file": FILE})
    kept = Kept(head)
    await asyncio.to_thread(_write, file, msgspec.json.encode(kept))
    return kept


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all, and the user's own. A disk without room costs a batch sent twice."""
    try:
        write_atomic(file, data, durable=False)
    except OSError:
        log.warning("the file of telemetry cannot be written", extra={"file": FILE})


# --- OpenTelemetry itself


class Asked:
    """What the collector was asked and answered: OpenTelemetry itself says only that something did not arrive."""

    def __init__(self) -> None:
        self.session = None if any(os.environ.get(name) for name in _CREDENTIALS) else self._watched()
        self._sent = False
        self._status: int | None = None

    def forget(self) -> None:
        self._sent, self._status = False, None

    @property
    def fate(self) -> Fate:
        """Of a batch that did not arrive. One that was not even sent cannot be: it is too large, or cannot be encoded."""
        if self.session is None:
            return "away"
        is_final = self._status is not None and self._status not in _PASSING
        return "refused" if is_final or not self._sent else "away"

    def _watched(self) -> Session:
        import requests

        asked = self

        class Watched(requests.Session):
            def send(self, request: requests.PreparedRequest, **kwargs: Any) -> Response:
                asked._sent, asked._status = True, None
                response = super().send(request, **kwargs)
                asked._status = response.status_code
                return response

        return Watched()


def traces_address(endpoint: str) -> str:
    """OTLP's rule: what is named is the collector, and traces have a path of their own below it."""
    return endpoint if endpoint.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"


def exporter(endpoint: str, instance: str) -> Export:
    """A function that sends and says what came of it. Headers and certificates come from OTEL_EXPORTER_OTLP_*."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
    except ImportError:
        raise TelemetryMissing from None
    # it would tell of every attempt, with the address; we tell once
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    version = quarterdeck.__version__
    named = {"service.name": "quarterdeck", "service.version": version, "service.instance.id": instance}
    resource, scope = Resource.create(named), InstrumentationScope("quarterdeck", version)
    asked = Asked()
    target = OTLPSpanExporter(endpoint=traces_address(endpoint), timeout=_TIMEOUT_S, session=asked.session)

    def context(span: Span, identifier: str) -> SpanContext:
        return SpanContext(int(span.trace, 16), int(identifier, 16), False, TraceFlags(TraceFlags.SAMPLED))

    def readable(span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=context(span, span.id),
            parent=context(span, span.parent) if span.parent else None,
            resource=resource,
            attributes=attributes(span),
            kind=SpanKind.CLIENT if span.operation == "chat" else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.began * 1_000_000,
            end_time=span.ended * 1_000_000,
            instrumentation_scope=scope,
        )

    def export(spans: Sequence[Span]) -> Fate:
        asked.forget()
        try:
            done = target.export([readable(span) for span in spans]) is SpanExportResult.SUCCESS
        except Exception:
            # whatever it is, it must not end the exporter in silence, and it would be the same the next time
            log.exception("spans could not be made", extra={"spans": len(spans)})
            return "refused"
        return "arrived" if done else asked.fate

    return export
