"""Export spans to an OpenTelemetry collector (OTLP over HTTP). Needs the extra `otel`.

The exporter reads the log like any other client, with a cursor. `telemetry.json` holds the cursor and the spans that were
open at it. The file is written after a batch was delivered, so a restart continues there. After a crash between the two,
the batch is sent again with the same ids.

Batches are sent on a thread. If the collector can't be reached, the batch is retried forever and the exporter stops reading:
what it hasn't read stays in the log. A batch that the collector refuses would be refused again and would block all later
ones, so it is dropped and counted, as OTLP requires.
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
from quarterdeck.server.spans import TYPES, Span, SpanAgent, SpanFold, attributes

if TYPE_CHECKING:
    from requests import Response, Session

log = logging.getLogger("quarterdeck.telemetry")

FILE = "telemetry.json"
#: How often finished spans are sent.
EVERY_S = 2.0
#: How many spans are sent at once.
BATCH = 512
#: Pause before a failed batch is sent again, at first and at most.
RETRY_S = (1.0, 60.0)
_TIMEOUT_S = 5.0
#: How long the last batch may delay a shutdown.
_SHUTDOWN_S = 2.0

#: Statuses that OTLP allows to retry. Other refusals are final.
_RETRYABLE = frozenset({429, 502, 503, 504})
#: With one of these variables, OpenTelemetry creates the connection itself, and we can't see the collector's status.
_CREDENTIALS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)

#: What became of a batch. `unavailable` is worth a retry, `refused` isn't.
Outcome: TypeAlias = Literal["delivered", "unavailable", "refused"]
Export: TypeAlias = Callable[[Sequence[Span]], Outcome]


class TelemetryMissing(QuarterdeckError):
    """`otel_endpoint` is set, but OpenTelemetry isn't installed."""

    code = "telemetry_missing"

    def __init__(self) -> None:
        super().__init__(
            "OpenTelemetry isn't installed", "Run `pip install 'quarterdeck[otel]'`, or unset otel_endpoint."
        )


class Progress(Struct):
    """The contents of `telemetry.json`."""

    cursor: str
    open: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    prompts: dict[str, str] = field(default_factory=dict[str, str])


class Telemetry:
    """The exporter. Create it with `start_telemetry`, and close it before the deck."""

    def __init__(self, deck: Deck, export: Export, progress: Progress, contents: bool = False) -> None:
        self._deck = deck
        self._export = export
        self._file = deck.home / FILE
        self._cursor = progress.cursor
        self._fold = SpanFold(self._describe, contents, progress.open, progress.prompts)
        #: Finished spans that aren't sent yet.
        self._finished: list[Span] = []
        #: Set to send now instead of after `EVERY_S`.
        self._send_now = asyncio.Event()
        #: Set when a batch was taken, so that reading can continue.
        self._was_sent = asyncio.Event()
        self._is_closing = False
        #: Whether it was logged that the collector is unavailable, or refuses. Each is logged once until a batch arrives.
        self._is_unavailable = False
        self._is_refused = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._send())]

    async def close(self) -> None:
        """Send what is finished if that is quick. Otherwise the next start reads it from the log again."""
        reading, sending = self._tasks
        reading.cancel()
        self._is_closing = True
        self._send_now.set()
        # Don't cancel at once: a batch that is being sent would arrive, and be sent again after the restart.
        await asyncio.wait({sending}, timeout=_SHUTDOWN_S)
        sending.cancel()
        await asyncio.gather(reading, sending, return_exceptions=True)

    # --- Reading

    async def _read(self) -> None:
        while True:
            try:
                async for event in self._deck.subscribe(self._cursor, TYPES):
                    self._finished += self._fold.fold(event)
                    self._cursor = event.cursor
                    if len(self._finished) >= BATCH:
                        self._send_now.set()
                        self._was_sent.clear()
                        await self._was_sent.wait()
            except QuarterdeckError:
                # The log can't be read. The deck logs the reason.
                await asyncio.sleep(RETRY_S[0])

    def _describe(self, session_id: str) -> SpanAgent:
        try:
            profile = self._deck.view(session_id).state.profile
        except NoSuchSession:
            return SpanAgent()
        return SpanAgent(profile.agent, profile.agent_version, profile.model)

    # --- Sending

    async def _send(self) -> None:
        while not self._is_closing:
            await self._pause(EVERY_S)
            # Take the batch and the progress at the same moment: events go on being read while the batch is sent.
            batch, self._finished = self._finished, []
            progress = msgspec.json.encode(Progress(self._cursor, self._fold.open, self._fold.prompts))
            if batch and await self._deliver(batch):
                await asyncio.to_thread(_write, self._file, progress)
            self._was_sent.set()

    async def _pause(self, seconds: float) -> None:
        """Wait, but less if a batch is full or the server shuts down."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._send_now.wait(), seconds)
        self._send_now.clear()

    async def _deliver(self, batch: list[Span]) -> bool:
        """Send a batch until it arrives or is refused. Return False if the server shuts down before that."""
        pause = RETRY_S[0]
        while (outcome := await asyncio.to_thread(self._export, batch)) == "unavailable":
            if self._is_closing:
                return False
            if not self._is_unavailable:
                self._is_unavailable = True
                log.warning("the telemetry collector is unavailable; retrying", extra={"spans": len(batch)})
            await self._pause(pause)
            pause = min(2 * pause, RETRY_S[1])
        if outcome == "refused":
            self._drop(batch)
        elif self._is_unavailable or self._is_refused:
            self._is_unavailable = self._is_refused = False
            log.info("the telemetry collector accepts spans again", extra={"spans": len(batch)})
        return True

    def _drop(self, batch: list[Span]) -> None:
        self._deck.counters.spans_dropped += len(batch)
        if not self._is_refused:
            self._is_refused = True
            log.error("the telemetry collector refuses spans; dropping them", extra={"spans": len(batch)})


async def start_telemetry(deck: Deck, endpoint: str, contents: bool = False) -> Telemetry:
    """Export spans from where the last export stopped; the first time, from now on.

    Raises:
        TelemetryMissing: OpenTelemetry isn't installed.
    """
    export = exporter(endpoint, home_id(deck.home))
    telemetry = Telemetry(deck, export, await _load_progress(deck), contents)
    telemetry.start()
    return telemetry


async def _load_progress(deck: Deck) -> Progress:
    file, head = deck.home / FILE, await deck.services.log.last_cursor()
    try:
        progress = msgspec.json.decode(file.read_bytes(), type=Progress)
        if progress.cursor <= head:
            return progress
        log.warning("telemetry.json is ahead of the log; exporting from now on", extra={"file": FILE})
    except FileNotFoundError:
        pass
    except (msgspec.MsgspecError, OSError, UnicodeError):
        log.warning("telemetry.json can't be read; exporting from now on", extra={"file": FILE})
    progress = Progress(head)
    await asyncio.to_thread(_write, file, msgspec.json.encode(progress))
    return progress


def _write(file: Path, data: bytes) -> None:
    """Write the progress. On a full disk, a restart sends a batch again, which is harmless."""
    try:
        write_atomic(file, data, durable=False)
    except OSError:
        log.warning("telemetry.json can't be written", extra={"file": FILE})


# --- OpenTelemetry


class WatchedConnection:
    """The exporter's HTTP connection. It notes the collector's status, because the exporter only reports failure."""

    def __init__(self) -> None:
        self.session = None if any(os.environ.get(name) for name in _CREDENTIALS) else self._create_session()
        self._was_sent = False
        self._status: int | None = None

    def reset(self) -> None:
        self._was_sent, self._status = False, None

    @property
    def outcome(self) -> Outcome:
        """What became of a batch that didn't arrive."""
        if self.session is None:
            return "unavailable"
        is_final = self._status is not None and self._status not in _RETRYABLE
        # A batch that wasn't even sent is too large or can't be encoded.
        return "refused" if is_final or not self._was_sent else "unavailable"

    def _create_session(self) -> Session:
        import requests

        connection = self

        class WatchedSession(requests.Session):
            def send(self, request: requests.PreparedRequest, **kwargs: Any) -> Response:
                connection._was_sent, connection._status = True, None
                response = super().send(request, **kwargs)
                connection._status = response.status_code
                return response

        return WatchedSession()


def traces_address(endpoint: str) -> str:
    """Return the address for traces below a collector's address, as OTLP defines it."""
    return endpoint if endpoint.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"


def exporter(endpoint: str, instance: str) -> Export:
    """Return a function that sends spans. Headers and certificates come from OTEL_EXPORTER_OTLP_*.

    Raises:
        TelemetryMissing: OpenTelemetry isn't installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
    except ImportError:
        raise TelemetryMissing from None
    # It logs every attempt, with the address. We log a failure once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    version = quarterdeck.__version__
    resource = Resource.create(
        {"service.name": "quarterdeck", "service.version": version, "service.instance.id": instance}
    )
    scope = InstrumentationScope("quarterdeck", version)
    connection = WatchedConnection()
    target = OTLPSpanExporter(endpoint=traces_address(endpoint), timeout=_TIMEOUT_S, session=connection.session)

    def context(span: Span, span_id: str) -> SpanContext:
        return SpanContext(int(span.trace, 16), int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))

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

    def export(spans: Sequence[Span]) -> Outcome:
        connection.reset()
        try:
            is_delivered = target.export([readable(span) for span in spans]) is SpanExportResult.SUCCESS
        except Exception:
            # Don't let an error end the exporter silently. It would fail the same way again, so don't retry.
            log.exception("can't encode spans", extra={"spans": len(spans)})
            return "refused"
        return "delivered" if is_delivered else connection.outcome

    return export
