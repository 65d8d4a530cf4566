"""Test the export of spans to a real OTLP receiver, with restarts and an unavailable collector."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from quarterdeck import Deck, SessionHandle
from quarterdeck.server import telemetry
from quarterdeck.server.telemetry import FILE, TelemetryMissing, start_telemetry, traces_address
from tests.support.decks import at_home, eventually, until

SECRET = "the-words-of-a-prompt"


class Collector:
    """A collector. `is_away` answers 503, `is_strict` refuses for good."""

    def __init__(self) -> None:
        self.spans: list[WireSpan] = []
        self.resource: dict[str, Any] = {}
        self.refused = 0
        self.is_away = False
        self.is_strict = False
        self.unwanted: list[str] = []
        self.port = 0

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.is_away:
            self.refused += 1
            # Longer than OpenTelemetry waits, so that it gives up at once.
            return web.Response(status=503, headers={"Retry-After": "600"})
        assert request.headers["Content-Type"] == "application/x-protobuf"
        groups = ExportTraceServiceRequest.FromString(body).resource_spans
        spans = [span for group in groups for scope in group.scope_spans for span in scope.spans]
        if self.is_strict:
            self.unwanted.extend(span.name for span in spans)
            return web.Response(status=400)
        self.resource = _values(groups[0].resource.attributes)
        self.spans.extend(spans)
        return web.Response()

    def named(self, name: str) -> WireSpan:
        return next(span for span in self.spans if span.name == name)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _values(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    found = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.port = runner.addresses[0][1]
    try:
        yield found
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "EVERY_S", 0.02)
    monkeypatch.setattr(telemetry, "RETRY_S", (0.02, 0.05))


async def turn_of(deck: Deck, folder: Path, prompt: str) -> SessionHandle:
    session = await deck.create("test", prompt, cwd=str(folder))
    await until(session, lambda view: view.state.phase.value == "completed")
    return session


async def test_a_turn_arrives_with_its_request_and_its_tools(tmp_path: Path) -> None:
    async with collector() as there, at_home(tmp_path) as deck:
        exporting = await start_telemetry(deck, there.url)
        session = await turn_of(deck, tmp_path, f"say {SECRET}; tool ls; fail grep")
        await eventually(lambda: "invoke_agent test" in there.names)
        await exporting.close()
        turn, ok, bad = (there.named(name) for name in ("invoke_agent test", "execute_tool ls", "execute_tool grep"))
    chats = {span.span_id: span for span in there.spans if span.name.startswith("chat")}
    assert turn.parent_span_id == b""
    assert all(chat.parent_span_id == turn.span_id for chat in chats.values())
    assert {one.parent_span_id for one in (ok, bad)} <= {*chats, turn.span_id}
    assert {span.trace_id for span in there.spans} == {turn.trace_id}
    assert turn.start_time_unix_nano <= ok.start_time_unix_nano <= ok.end_time_unix_nano <= turn.end_time_unix_nano
    assert (ok.status.code, bad.status.code) == (Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR)
    found = _values(turn.attributes)
    assert found["gen_ai.operation.name"] == "invoke_agent"
    assert found["gen_ai.conversation.id"] == session.id
    assert _values(bad.attributes)["error.type"] == "tool_error"
    assert _values(ok.attributes)["gen_ai.tool.name"] == "ls"
    assert there.resource["service.name"] == "quarterdeck"
    assert SECRET not in str(there.spans)


async def test_what_was_said_goes_out_only_if_asked(tmp_path: Path) -> None:
    async with collector() as there, at_home(tmp_path) as deck:
        exporting = await start_telemetry(deck, there.url, contents=True)
        await turn_of(deck, tmp_path, f"say {SECRET}")
        await eventually(lambda: "invoke_agent test" in there.names)
        await exporting.close()
    assert SECRET in str(there.spans)


async def test_restarts_neither_lose_nor_double_a_span(tmp_path: Path) -> None:
    """Restart the server during turns, and run it without an exporter. Each span arrives once."""
    async with collector() as there:
        sessions: list[str] = []
        for round_ in range(4):
            async with at_home(tmp_path) as deck:
                exporting = await start_telemetry(deck, there.url)
                sessions.append((await turn_of(deck, tmp_path, f"tool a{round_}; say x; tool b{round_}")).id)
                busy = await deck.create("test", f"tool c{round_}; hang", cwd=str(tmp_path))
                await until(busy, lambda view: view.state.turn.is_open and not view.state.turn.calls)
                sessions.append(busy.id)
                await exporting.close()
                # There is no exporter now, and closing the deck ends this turn.
                sessions.append((await turn_of(deck, tmp_path, f"tool d{round_}")).id)
        async with at_home(tmp_path) as deck:
            exporting = await start_telemetry(deck, there.url)
            await eventually(lambda: there.names.count("invoke_agent test") >= len(sessions))
            await exporting.close()
    assert len(there.spans) == len({span.span_id for span in there.spans})
    turns = [_values(span.attributes)["gen_ai.conversation.id"] for span in there.spans if "invoke_agent" in span.name]
    assert sorted(turns) == sorted(sessions)
    assert sorted(name for name in there.names if "execute_tool" in name) == sorted(
        f"execute_tool {letter}{round_}" for letter in "abcd" for round_ in range(4)
    )


async def test_what_a_crash_sends_again_has_the_same_ids(tmp_path: Path) -> None:
    """Restore the old progress, as if the server was killed after a batch was delivered and before it wrote the progress."""
    async with collector() as there:
        async with at_home(tmp_path) as deck:
            exporting = await start_telemetry(deck, there.url)
            before = (deck.home / FILE).read_bytes()
            await turn_of(deck, tmp_path, "tool a; say x")
            await eventually(lambda: "invoke_agent test" in there.names)
            await exporting.close()
            (deck.home / FILE).write_bytes(before)
        once = {(span.trace_id, span.span_id): span.SerializeToString() for span in there.spans}
        async with at_home(tmp_path) as deck:
            exporting = await start_telemetry(deck, there.url)
            await eventually(lambda: there.names.count("invoke_agent test") == 2)
            await exporting.close()
    assert len(there.spans) == 2 * len(once)
    assert {(span.trace_id, span.span_id): span.SerializeToString() for span in there.spans} == once


async def test_the_first_time_it_begins_now(tmp_path: Path) -> None:
    async with collector() as there, at_home(tmp_path) as deck:
        await turn_of(deck, tmp_path, "tool before")
        exporting = await start_telemetry(deck, there.url)
        await turn_of(deck, tmp_path, "tool after")
        await eventually(lambda: "invoke_agent test" in there.names)
        await exporting.close()
    assert "execute_tool after" in there.names
    assert "execute_tool before" not in there.names


async def test_a_collector_that_is_away_is_told_of_once_and_gets_everything_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "BATCH", 4)
    caplog.set_level(logging.INFO, "quarterdeck")
    async with collector() as there, at_home(tmp_path) as deck:
        there.is_away = True
        exporting = await start_telemetry(deck, there.url)
        for number in range(5):
            await turn_of(deck, tmp_path, f"tool t{number}; say x")
        await eventually(lambda: there.refused > 3)
        assert there.spans == []
        there.is_away = False
        await eventually(lambda: there.names.count("invoke_agent test") == 5)
        await exporting.close()
    assert len(there.spans) == len({span.span_id for span in there.spans})
    told = [record.getMessage() for record in caplog.records if record.name == "quarterdeck.telemetry"]
    assert told == [
        "the telemetry collector is unavailable; retrying",
        "the telemetry collector accepts spans again",
    ]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_what_a_collector_refuses_for_good_is_dropped_and_counted_and_the_rest_arrives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quarterdeck")
    async with collector() as there:
        async with at_home(tmp_path) as deck:
            there.is_strict = True
            exporting = await start_telemetry(deck, there.url)
            await turn_of(deck, tmp_path, "tool unwanted")
            await eventually(lambda: "invoke_agent test" in there.unwanted)
            await eventually(lambda: deck.counters.spans_dropped == len(there.unwanted))
            there.is_strict = False
            await turn_of(deck, tmp_path, "tool wanted")
            await eventually(lambda: "invoke_agent test" in there.names)
            await exporting.close()
        # The progress is after them too.
        async with at_home(tmp_path) as deck:
            exporting = await start_telemetry(deck, there.url)
            await turn_of(deck, tmp_path, "tool last")
            await eventually(lambda: there.names.count("invoke_agent test") == 2)
            await exporting.close()
    assert "execute_tool unwanted" in there.unwanted
    assert [name for name in there.names if "tool" in name] == ["execute_tool wanted", "execute_tool last"]
    told = [record.getMessage() for record in caplog.records if record.name == "quarterdeck.telemetry"]
    assert told == [
        "the telemetry collector refuses spans; dropping them",
        "the telemetry collector accepts spans again",
    ]


async def test_what_cannot_be_sent_at_all_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("nothing that protobuf can hold")

    async with collector() as there, at_home(tmp_path) as deck:
        exporting = await start_telemetry(deck, there.url)
        with monkeypatch.context() as patch:
            patch.setattr("opentelemetry.exporter.otlp.proto.http.trace_exporter.encode_spans", broken)
            await turn_of(deck, tmp_path, "tool unsent")
            await eventually(lambda: deck.counters.spans_dropped >= 2)
        await turn_of(deck, tmp_path, "tool sent")
        await eventually(lambda: "invoke_agent test" in there.names)
        await exporting.close()
    assert "execute_tool unsent" not in there.names


async def test_closing_does_not_wait_for_a_collector_that_is_away_and_nothing_is_lost(tmp_path: Path) -> None:
    async with collector() as there:
        there.is_away = True
        async with at_home(tmp_path) as deck:
            exporting = await start_telemetry(deck, there.url)
            await turn_of(deck, tmp_path, "tool kept")
            await eventually(lambda: there.refused)
            await exporting.close()
        there.is_away = False
        async with at_home(tmp_path) as deck:
            exporting = await start_telemetry(deck, there.url)
            await eventually(lambda: "invoke_agent test" in there.names)
            await exporting.close()
    assert there.names.count("execute_tool kept") == 1


async def test_the_deck_works_on_while_nobody_listens(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        exporting = await start_telemetry(deck, "http://127.0.0.1:9")
        session = await turn_of(deck, tmp_path, "tool a; say done")
        assert session.view.state.phase.value == "completed"
        await exporting.close()


async def test_a_damaged_file_is_told_of_and_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with collector() as there, at_home(tmp_path) as deck:
        (deck.home / FILE).write_text("{")
        exporting = await start_telemetry(deck, there.url)
        assert "can't be read" in caplog.text
        await turn_of(deck, tmp_path, "tool a")
        await eventually(lambda: "invoke_agent test" in there.names)
        await exporting.close()
        assert json.loads((deck.home / FILE).read_bytes())["cursor"]
        assert (deck.home / FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("cursor", [f"{10**6:020d}", "zzz"])
async def test_a_file_that_is_ahead_of_the_log_is_told_of_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cursor: str
) -> None:
    """Start again if the log is an older copy or a new one: waiting for the old cursor would skip its next events."""
    async with collector() as there, at_home(tmp_path) as deck:
        (deck.home / FILE).write_text(json.dumps({"cursor": cursor}))
        exporting = await start_telemetry(deck, there.url)
        assert "ahead of the log" in caplog.text
        await turn_of(deck, tmp_path, "tool a")
        await eventually(lambda: "invoke_agent test" in there.names)
        await exporting.close()


@pytest.mark.parametrize("given", ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"])
def test_the_address_of_traces_is_below_the_collectors(given: str) -> None:
    assert traces_address(given) == "http://c:4318/v1/traces"


def test_without_the_extra_it_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TelemetryMissing) as found:
        telemetry.exporter("http://c", "x")
    assert found.value.code == "telemetry_missing"
    assert "quarterdeck[otel]" in found.value.hint


def test_nothing_of_it_is_imported_before_it_is_wanted() -> None:
    script = """if True:
        import sys, quarterdeck.server.app, quarterdeck.server.telemetry
        print([name for name in sys.modules if name.startswith("opentelemetry")])
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_no_loop_is_needed_to_make_an_exporter() -> None:
    assert callable(telemetry.exporter("http://127.0.0.1:9", "x"))
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
