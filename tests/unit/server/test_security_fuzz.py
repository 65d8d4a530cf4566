"""Send bad input to every route: the server never fails, errors have the usual shape, and nothing changes."""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarterdeck.harness.hooks import AGENTS
from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.server.errors import BadRequest
from quarterdeck.server.otlp import from_protobuf
from quarterdeck.server.routes import all_routes
from tests.support.http_api import Answer, RunningServer, serving

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NASTY = st.sampled_from(["", "\0", "é", "😀", "a" * 300, "../../x", "-1", "null", "NaN", "9" * 30, "%00", "\u202e"])
_WORDS = st.sampled_from(["type", "text", "gate_id", "session_id", "hook_event_name", "tool_input", "attributes"])
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(10**30), 1 << 63, 1 << 64, 0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS
    | _NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | _TEXTS, inner, max_size=4),
    max_leaves=8,
)
_BROKEN = st.binary(max_size=60) | st.sampled_from(
    [
        b"[" * 100_000,
        b'{"a":' * 3000,
        b"{" + b'"a":{' * 500 + b"}" * 501,
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"a": 1e999}',
        b"NaN",
        b'{"a": ' + b"9" * 6000 + b"}",
        b'\xef\xbb\xbf{"agent": "test"}',
        b"",
    ]
)
_FEW = settings(max_examples=12, suppress_health_check=list(HealthCheck))


class _Examples:
    """One server for all examples of a test. Hypothesis isn't async, so each example runs on the loop from outside."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._serving = serving(folder)
        self.house: RunningServer = self.run(self._serving.__aenter__())
        body = {"agent": "test", "cwd": str(folder), "prompt": "ask rm"}
        self.session: str = self.run(self.house.post("/sessions", body)).json["id"]
        while not self.run(self.house.get(f"/sessions/{self.session}")).json["gates"]:
            self.run(asyncio.sleep(0.01))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(work, 20))

    def close(self) -> None:
        self.run(self._serving.__aexit__(None, None, None))
        self._runner.close()

    def rest(self) -> None:
        """Wait until nothing changes: an accepted command may take a while."""
        calm, before = 0, self.seen()
        while calm < 3:
            self.run(asyncio.sleep(0.02))
            now = self.seen()
            calm, before = calm + 1 if now == before else 0, now

    def seen(self) -> Any:
        """Return the state of all sessions."""
        found = self.run(self.house.get("/sessions?archived=true&limit=200")).json
        return found["sessions"], self.run(self.house.get("/rules")).json


@pytest.fixture
def examples(tmp_path: Path) -> Any:
    found = _Examples(tmp_path)
    yield found
    found.close()


def _is_refused(answer: Answer, where: object) -> bool:
    """Return whether a request was refused. Check that the server didn't fail and that an error has the usual shape."""
    assert answer.status < 500, (where, answer.body)
    if answer.status < 400:
        return False
    assert answer.headers["Content-Type"].startswith("application/json"), where
    error = answer.json["error"]
    assert set(error) == {"code", "message", "hint"}, where
    assert error["message"], where
    return True


def _unchanged_if_refused(examples: _Examples, ask: Callable[[], Coroutine[Any, Any, Answer]], where: object) -> None:
    before = examples.seen()
    if _is_refused(examples.run(ask()), where):
        assert examples.seen() == before, where
    else:
        examples.rest()


ROUTES = all_routes()


def _field(kind: Any) -> st.SearchStrategy[Any]:
    return _JSON | st.sampled_from(["g1", "user", "all", "ask", "test", ".", True, 0])


@pytest.mark.parametrize("route", [one for one in ROUTES if one.body is not None], ids=lambda one: one.name)
def test_bodies(route: Any, examples: _Examples) -> None:
    fields = {one.name: _field(one.type) for one in msgspec.structs.fields(route.body) if one.name != "env"}
    path = route.path.replace("{id}", examples.session).replace("{item}", "x")

    @_FEW
    @given(st.fixed_dictionaries({}, optional=fields) | _JSON)
    def shaped(body: Any) -> None:
        data = json.dumps(body).encode()
        _unchanged_if_refused(examples, lambda: examples.house.ask(route.method, path, data=data), (path, body))

    @_FEW
    @given(_BROKEN)
    def broken(data: bytes) -> None:
        _unchanged_if_refused(examples, lambda: examples.house.ask(route.method, path, data=data), (path, data[:80]))

    shaped()
    broken()


_STREAMS = ("/events", "/sessions/{id}/events")


@pytest.mark.parametrize("path", [*(one.path for one in ROUTES if one.method == "GET"), *_STREAMS])
def test_queries(path: str, examples: _Examples) -> None:
    names = ["at", "before", "limit", "since", "types", "status", "archived", "agent", "cwd", "q", "cursor", "token"]
    values = _TEXTS | _NASTY | st.integers().map(str) | st.sampled_from(["true", "1", "1e3", "0x1", " 1", "٣"])

    @_FEW
    @given(
        st.dictionaries(st.sampled_from(names) | _TEXTS, values, max_size=4),
        st.sampled_from([examples.session]) | _TEXTS,
    )
    def queried(query: dict[str, str], name: str) -> None:
        asked = "&".join(f"{quote(key, '')}={quote(value, '')}" for key, value in query.items())
        address = f"{path.replace('{id}', quote(name, '') or 'x')}?{asked}"
        at_once = {"Accept": "application/json"}
        before = examples.seen()
        _is_refused(examples.run(examples.house.get(address, headers=at_once)), address)
        assert examples.seen() == before

    queried()


def test_headers(examples: _Examples) -> None:
    names = st.sampled_from(
        ["Accept", "Last-Event-ID", "Idempotency-Key", "Content-Type", "Cookie", "Authorization", "Origin"]
    )
    values = st.text(string.printable[:95] + "éÿ", max_size=30)

    @_FEW
    @given(st.dictionaries(names, values, max_size=3), st.sampled_from(["GET", "POST", "PUT", "BREW"]))
    def headed(headers: dict[str, str], method: str) -> None:
        said = {"Accept": "application/json", **headers}
        _is_refused(examples.run(examples.house.ask(method, "/nothing", headers=said)), headers)
        _is_refused(
            examples.run(examples.house.ask(method, f"/sessions/{examples.session}/queue", headers=said)), headers
        )

    headed()


def test_websocket_messages(examples: _Examples) -> None:
    fields = {
        "op": st.sampled_from(["subscribe", "unsubscribe", "command", "x"]),
        "session": st.sampled_from([examples.session, "*", "x"]) | _JSON,
        "since": _JSON,
        "types": _JSON,
        "timeline": _JSON,
        "id": _JSON,
        "name": st.sampled_from(["approve", "prompt", "bash", "x"]) | _JSON,
        "args": _JSON,
    }

    async def talk(text: str) -> None:
        said = {"Authorization": f"Bearer {examples.house.token}"}
        async with examples.house.client.ws_connect(f"{examples.house.address}/ws", headers=said) as socket:
            await socket.send_str(text)
            await socket.send_json({"op": "command", "id": "last", "session": "x", "name": "retry"})
            while (found := await socket.receive_json()).get("id") != "last":
                assert found["op"] in ("error", "receipt", "snapshot", "view", "event", "patch", "gap"), found
                if found["op"] == "error":
                    assert set(found["error"]) == {"code", "message", "hint"}
            assert found["error"]["code"] == "no_such_session"

    @settings(_FEW, max_examples=40)
    @given(st.fixed_dictionaries({}, optional=fields).map(json.dumps) | _TEXTS | _JSON.map(json.dumps))
    def told(text: str) -> None:
        examples.run(talk(text))

    told()


# --- Agents


async def _ingest(house: RunningServer, path: str, data: bytes, kind: str, packed: bool = False) -> Answer:
    headers = {SECRET: secret_for(house.token), "Content-Type": kind}
    if packed:
        headers["Content-Encoding"] = "gzip"
    return await house.ask("POST", path, None, headers, data=data)


_EVENTS = [
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "Stop",
    "SessionEnd",
    "X",
]
_HOOKS = st.fixed_dictionaries(
    {"hook_event_name": st.sampled_from(_EVENTS) | _JSON, "session_id": st.sampled_from(["n1", "n2"]) | _JSON},
    optional=dict.fromkeys(
        ("cwd", "prompt", "tool_name", "tool_input", "tool_use_id", "agent_id", "source", "reason", "turn_id"), _JSON
    ),
)


async def _asked(house: RunningServer, agent: str, data: bytes) -> Answer | None:
    """Send a hook. Return None if it is held; the agent then disconnects."""
    task = asyncio.ensure_future(_ingest(house, f"/ingest/{agent}", data, "application/json"))
    await asyncio.wait([task], timeout=0.3)
    if task.done():
        return task.result()
    task.cancel()
    return None


@pytest.mark.parametrize("agent", AGENTS)
def test_hooks(agent: str, examples: _Examples) -> None:
    @settings(_FEW, max_examples=60)
    @given(_HOOKS | _JSON)
    def shaped(payload: Any) -> None:
        answer = examples.run(_asked(examples.house, agent, json.dumps(payload).encode()))
        if answer is not None and not _is_refused(answer, payload):
            assert isinstance(answer.json, dict)

    @settings(_FEW, max_examples=30)
    @given(_BROKEN)
    def broken(data: bytes) -> None:
        before = examples.seen()
        assert _is_refused(
            examples.run(_ingest(examples.house, f"/ingest/{agent}", data, "application/json")), data[:80]
        )
        assert examples.seen() == before

    shaped()
    broken()
    live = list(examples.house.deck.loaded_sessions())
    for session in live:
        examples.run(session.writer.flush())
        assert session.writer.error is None
    assert examples.run(examples.house.get("/healthz")).status == 200


def test_a_payload_that_no_log_could_hold_is_taken_or_refused(examples: _Examples) -> None:
    """Check that numbers of more than 64 bits and very deep values don't break the session."""
    house = examples.house
    deep: Any = {}
    for _ in range(150):
        deep = {"a": deep}
    huge = {"n": 10**30, "m": -(10**30), "o": 10**400, "p": [1 << 64, 1 << 63, 5]}
    for native, args in (("huge", huge), ("deep", deep), ("deeper", [[deep] for _ in range(2)])):
        assert examples.run(_asked(house, "claude", _asking(native, args))) is None
    for _ in range(400):
        deep = [deep]
    refused = examples.run(_asked(house, "claude", _asking("deepest", deep)))
    assert (refused.status, refused.code) == (400, "bad_request")
    assert len(house.deck.session_ids()) == 4
    for name in house.deck.session_ids():
        assert examples.run(house.get(f"/sessions/{name}/timeline")).status == 200
    assert examples.run(house.get("/healthz")).status == 200


def _asking(native: str, args: Any) -> bytes:
    payload = {"session_id": native, "hook_event_name": "PermissionRequest", "tool_name": "Bash", "tool_input": args}
    return json.dumps(payload).encode()


@pytest.mark.parametrize("session_id", [7, None, "", "a\0b", "a\nb", "x" * 201, ["a"], {"a": 1}])
def test_names_of_conversations_that_are_none(session_id: Any, examples: _Examples) -> None:
    payload = {"session_id": session_id, "hook_event_name": "Stop"}
    answer = examples.run(examples.house.hook("claude", payload))
    assert (answer.status, answer.code) == (400, "bad_request")
    assert "session_id" in answer.json["error"]["message"]


def test_telemetry(examples: _Examples) -> None:
    path = "/ingest/otlp/v1/logs"
    value = st.dictionaries(
        st.sampled_from(["stringValue", "intValue", "arrayValue", "kvlistValue", "bytesValue", "doubleValue"]),
        _JSON,
        max_size=2,
    )
    pair = st.fixed_dictionaries(
        {"key": st.sampled_from(["conversation.id", "event.name"]) | _JSON, "value": value | _JSON}
    )
    record = st.fixed_dictionaries(
        {"attributes": st.lists(pair, max_size=3) | _JSON}, optional={"timeUnixNano": _JSON, "body": value}
    )
    shape = {
        "resourceLogs": st.lists(
            st.fixed_dictionaries(
                {
                    "scopeLogs": st.lists(
                        st.fixed_dictionaries({"logRecords": st.lists(record, max_size=2) | _JSON}), max_size=2
                    )
                    | _JSON
                }
            ),
            max_size=2,
        )
        | _JSON
    }

    @settings(_FEW, max_examples=60)
    @given(st.fixed_dictionaries(shape) | _JSON)
    def shaped(body: Any) -> None:
        answer = examples.run(_ingest(examples.house, path, json.dumps(body).encode(), "application/json"))
        _is_refused(answer, body)

    @settings(_FEW, max_examples=40)
    @given(
        _BROKEN, st.sampled_from(["application/json", "application/x-protobuf", "text/plain", "x", ""]), st.booleans()
    )
    def broken(data: bytes, kind: str, packed: bool) -> None:
        before = examples.seen()
        _is_refused(examples.run(_ingest(examples.house, path, data, kind, packed)), (data[:80], kind))
        assert examples.seen() == before

    shaped()
    broken()


def _read(data: bytes) -> list[Any] | str:
    """Return the records, or the error."""
    try:
        return list(from_protobuf(data))
    except BadRequest as error:
        return error.message


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_any_bytes_as_protobuf(data: bytes) -> None:
    found = _read(data)
    assert isinstance(found, list) or "protobuf" in found


def _message(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_as_a_value_in_protobuf(data: bytes) -> None:
    pair = _message(1, b"k") + _message(2, data)
    found = _read(_message(1, _message(2, _message(2, _message(6, pair)))))
    assert "protobuf" in found if isinstance(found, str) else msgspec.json.encode(found[0]["attributes"])
