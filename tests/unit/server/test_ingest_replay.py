"""Send recordings of real agents to a server, and compare the result with `qd replay`."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import AFTERGLOW_S, Replay
from quarterdeck.kernel.timeline import window
from quarterdeck.kernel.view import View
from quarterdeck.server import otlp
from quarterdeck.server.auth import SECRET, secret_for
from tests.support.decks import Time, eventually
from tests.support.http_api import RunningServer, serving

_TRACES = Path(__file__).parents[2] / "conformance" / "traces"
_ASKING = "PermissionRequest"


def _lines(path: Path, src: str) -> list[dict[str, Any]]:
    """Return the lines of one source."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines if line["src"].partition(".")[0] == src]


def _is_usable(path: Path) -> bool:
    """Return whether a recording has one conversation and only answers to permission requests, which we give too."""
    lines = _lines(path, "hook")
    natives = {line["data"]["session_id"] for line in lines if line["src"] == "hook"}
    others = [line for line in lines if line["src"] != "hook" and line["data"].get("event") != _ASKING]
    return len(natives) == 1 and not others


def _recordings(agent: str) -> list[Path]:
    return [path for path in sorted((_TRACES / agent).rglob("*.jsonl")) if _is_usable(path)]


HOOKED = [(agent, path) for agent in ("claude", "codex") for path in _recordings(agent)]
TOLD = [path for path in sorted((_TRACES / "codex").rglob("*.jsonl")) if _lines(path, "otlp")]


def _shown(view: View) -> dict[str, Any]:
    """Return the parts of a view that a user sees."""
    state = view.state
    entries = [entry for entry in window(view.timeline) if not entry.path]
    return {
        "phase": state.phase.value,
        "activity": state.activity.value,
        "run": state.run.value,
        "process": state.process.value,
        "signal": state.signal.value,
        "gates": [(gate.kind, gate.title) for gate in state.gates.open],
        "background": len(state.background),
        "model": state.profile.model,
        "native": state.profile.native_session_id,
        "messages": [(entry.kind, entry.text) for entry in entries if entry.kind != "tool"],
        "tools": [(entry.tool_step.tool_name, entry.tool_step.phase) for entry in entries if entry.tool_step],
    }


class _Agent:
    """Sends the hooks of a recording at their times, and waits for decisions like the agent did."""

    def __init__(self, house: RunningServer, time: Time, agent: str) -> None:
        self.house = house
        self.time = time
        self.agent = agent
        self.begin = time.monotonic()
        self.held: list[asyncio.Task[Any]] = []

    def _ears(self) -> list[Any]:
        found = (one.observed_agent for one in self.house.deck.loaded_sessions())
        return [one for one in found if one is not None]

    def _last_heard(self) -> float:
        return sum(one.last_signal_at for one in self._ears())

    async def wait_until(self, t: float) -> None:
        """Advance the clock, stopping at every deadline."""
        goal = self.begin + t
        while True:
            due = min((one.translator.deadline() or goal for one in self._ears()), default=goal)
            await self.time.skip(max(0.0, min(due, goal) - self.time.monotonic()))
            if due >= goal:
                return

    async def send(self, line: dict[str, Any]) -> None:
        await self.wait_until(line["t"])
        if line["src"] == "hook":
            await self._hook(line["data"])
        elif line["src"] == "hook.reply":
            await self._decide(line["data"])
        else:
            self.held.pop(0).cancel()
            await asyncio.sleep(0.05)

    async def _hook(self, payload: dict[str, Any]) -> None:
        task = asyncio.ensure_future(self.house.hook(self.agent, payload))
        if payload["hook_event_name"] != _ASKING:
            assert (await task).json == {}
            return
        heard = self._last_heard()
        await eventually(lambda: task.done() or self._last_heard() != heard)
        self.held.append(task)

    async def _decide(self, answer: dict[str, Any]) -> None:
        """Decide with the API, as a user does."""
        asked = (await self.house.get("/attention")).json["sessions"]
        if not asked or not asked[0]["attention"]["gate_id"]:
            return
        decision = answer["answer"]["hookSpecificOutput"]["decision"]
        gate = {"gate_id": asked[0]["attention"]["gate_id"]}
        path = f"/sessions/{asked[0]['id']}"
        if decision["behavior"] == "allow":
            told = await self.house.post(f"{path}/approve", gate)
        else:
            more = {"reason": decision.get("message", ""), "auto_resume": not decision.get("interrupt")}
            told = await self.house.post(f"{path}/reject", gate | more)
        answered = (await self.held.pop(0)).json
        if told.status == 409:  # The user answered in the terminal first.
            assert (told.code, answered) == ("already_decided", {})
        else:
            assert answered["hookSpecificOutput"]["decision"] == decision

    async def leave(self) -> None:
        for task in self.held:
            task.cancel()
        await asyncio.gather(*self.held, return_exceptions=True)


async def _views(house: RunningServer) -> list[View]:
    """Wait until all events are durable: a hook is answered before that."""
    for session in list(house.deck.loaded_sessions()):
        await session.writer.flush()
    return [await house.deck.session(name).whole_view() for name in house.deck.session_ids()]


def _replayed(path: Path, agent: str, only: str) -> View:
    run = Replay(translator(agent), agent, (only,))
    with path.open("rb") as lines:
        list(run.rows(lines))
    return run.view


def test_there_are_recordings() -> None:
    assert len(HOOKED) > 40
    assert len(TOLD) > 20


@pytest.mark.parametrize(("agent", "path"), HOOKED, ids=lambda one: one.stem if isinstance(one, Path) else one)
async def test_hooks_over_http_show_what_replay_shows(agent: str, path: Path, tmp_path: Path) -> None:
    time = Time()
    async with serving(tmp_path, clock=time.clock()) as house:
        sender = _Agent(house, time, agent)
        lines = _lines(path, "hook")
        for line in lines:
            await sender.send(line)
        await sender.wait_until(lines[-1]["t"] + AFTERGLOW_S)
        views = await _views(house)
        assert [_shown(view) for view in views] == [_shown(_replayed(path, agent, "hook"))]
        assert views[0].state.profile.owner == "terminal"
        await sender.leave()


# --- OTLP


def _value(found: Any) -> dict[str, Any]:
    """Encode a value as an AnyValue."""
    if isinstance(found, bool):
        return {"boolValue": found}
    if isinstance(found, int):
        return {"intValue": str(found)}
    if isinstance(found, float):
        return {"doubleValue": found}
    return {"stringValue": found if isinstance(found, str) else json.dumps(found)}


def _request(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Encode records as one export request."""
    told = [
        {"attributes": [{"key": key, "value": _value(value)} for key, value in record["attributes"].items()]}
        for record in records
    ]
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": told}]}]}


async def _export(house: RunningServer, request: dict[str, Any], form: str) -> None:
    binary = "protobuf" in form
    data = (
        ParseDict(request, ExportLogsServiceRequest()).SerializeToString() if binary else json.dumps(request).encode()
    )
    headers = {SECRET: secret_for(house.token), "Content-Type": f"application/{'x-protobuf' if binary else 'json'}"}
    if "gzip" in form:
        data, headers["Content-Encoding"] = gzip.compress(data), "gzip"
    answer = await house.ask("POST", "/ingest/otlp/v1/logs", None, headers, data=data)
    assert (answer.status, answer.body) == (200, b"" if binary else b"{}")
    assert answer.headers["Content-Type"].startswith(headers["Content-Type"])


FORMS = ("json", "protobuf", "json gzip", "protobuf gzip")


@pytest.mark.parametrize(
    ("path", "form"),
    [(path, FORMS[number % len(FORMS)]) for number, path in enumerate(TOLD)],
    ids=lambda one: one.stem if isinstance(one, Path) else one,
)
async def test_telemetry_over_http_shows_what_replay_shows(path: Path, form: str, tmp_path: Path) -> None:
    time = Time()
    async with serving(tmp_path, clock=time.clock()) as house:
        sender = _Agent(house, time, "codex")
        lines = _lines(path, "otlp")
        while lines:
            batch = [line for line in lines if line["t"] == lines[0]["t"]]
            await sender.wait_until(lines[0]["t"])
            await _export(house, _request([line["data"] for line in batch]), form)
            lines = lines[len(batch) :]
        await sender.wait_until(_lines(path, "otlp")[-1]["t"] + AFTERGLOW_S)
        assert [_shown(view) for view in await _views(house)] == [_shown(_replayed(path, "codex", "otlp"))]


def test_both_encodings_are_read_alike() -> None:
    values: list[dict[str, Any]] = [
        {"stringValue": "é\n"},
        {"stringValue": ""},
        {"boolValue": True},
        {"boolValue": False},
        {"intValue": "-7"},
        {"intValue": str((1 << 63) - 1)},
        {"intValue": str(-(1 << 63))},
        {"doubleValue": -0.5},
        {"bytesValue": "AAH/"},
        {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "x"}, {"arrayValue": {"values": []}}]}},
        {"kvlistValue": {"values": [{"key": "k", "value": {"kvlistValue": {"values": []}}}]}},
        {},
    ]
    record = {
        "timeUnixNano": "1700000000000000001",
        "observedTimeUnixNano": "2",
        "severityNumber": 9,
        "severityText": "INFO",
        "body": {"stringValue": "said"},
        "attributes": [{"key": f"a{number}", "value": value} for number, value in enumerate(values)],
        "droppedAttributesCount": 3,
        "flags": 1,
        "traceId": "",
    }
    request: dict[str, Any] = {
        "resourceLogs": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "codex"}}]},
                "scopeLogs": [{"scope": {"name": "s"}, "logRecords": [record, record]}, {"logRecords": [record]}],
                "schemaUrl": "u",
            },
            {"scopeLogs": []},
        ]
    }
    data = ParseDict(request, ExportLogsServiceRequest()).SerializeToString()
    found = list(otlp.from_protobuf(data))
    assert found == list(otlp.from_json(request))
    assert len(found) == 3
    assert found[0]["time"] == 1_700_000_000_000_000_001
    assert found[0]["body"] == "said"
    assert list(found[0]["attributes"].values()) == [
        "é\n",
        "",
        True,
        False,
        -7,
        (1 << 63) - 1,
        -(1 << 63),
        -0.5,
        "AAH/",
        [1, "x", []],
        {"k": {}},
        None,
    ]
