"""Test the scripted model over real HTTP: its replies, its faults, and the command that serves it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from quarterdeck.cli.app import app
from quarterdeck.testing.model import GARBAGE, CannotServe, ScriptedModel
from quarterdeck.testing.script import Fault, Script, ScriptedCall, Step, make_script

ASKED = {"role": "user", "content": "go"}
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [ASKED], "stream": True}),
    "responses": ("/v1/responses", {"model": "m", "input": "go", "stream": True}),
    "chat": ("/v1/chat/completions", {"model": "m", "messages": [ASKED], "stream": True}),
    "gemini": (
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
    ),
}
TEXT = "It was said in the middle of the night, and nobody heard it."


@asynccontextmanager
async def asked(
    model: ScriptedModel, wire: str = "chat", headers: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    path, body = PATHS[wire]
    async with (
        aiohttp.ClientSession() as session,
        session.post(model.url + path, json=body | more, headers=headers) as response,
    ):
        yield response


async def taken(response: aiohttp.ClientResponse, into: list[bytes]) -> None:
    async for piece in response.content.iter_any():
        into.append(piece)  # noqa: PERF401 - a failure must not lose earlier pieces


def faulty(**fields: Any) -> Script:
    return make_script(Step(text=TEXT, chunk=4, faults=(Fault(**fields),)))


@pytest.mark.parametrize("wire", PATHS)
async def test_a_stream_can_be_cut_at_any_byte(wire: str) -> None:
    async with ScriptedModel(make_script(Step(text=TEXT, chunk=20))) as model:
        async with asked(model, wire) as response:
            length = len(await response.read())
        for at in range(0, length, 37):
            model.script = make_script(Step(text=TEXT, chunk=20, faults=(Fault(kind="cut", at=at, times=0),)))
            async with asked(model, wire) as response:
                assert len(await response.read()) == at


async def test_a_dropped_connection_is_no_end_of_the_body() -> None:
    async with ScriptedModel(faulty(kind="drop", at=100)) as model:
        got: list[bytes] = []
        async with asked(model) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await taken(response, got)
        assert len(b"".join(got)) == 100
        async with asked(model) as response:
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert [seen.attempt for seen in model.requests] == [0, 1]


async def test_garbage_is_in_the_middle() -> None:
    async with ScriptedModel(faulty(kind="garbage", at=2)) as model, asked(model) as response:
        body = await response.read()
        assert body.split(GARBAGE)[0].count(b"data: ") == 2
        assert body.endswith(b"[DONE]\n\n")


async def test_a_drip_is_the_same_in_small_pieces() -> None:
    async with ScriptedModel(faulty(kind="drip", size=50)) as model:
        bodies: list[bytes] = []
        for _ in range(2):
            async with asked(model) as response:
                bodies.append(await response.read())
        assert bodies[0].count(b"data: ") == bodies[1].count(b"data: ")


@pytest.mark.parametrize("kind", ["hang", "stall"])
async def test_a_client_that_leaves_a_silent_server_is_noticed(kind: str) -> None:
    async with ScriptedModel(faulty(kind=kind, seconds=3600)) as model:
        got: list[bytes] = []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asked_in_vain(model, got), 0.2)
        assert bool(got) == (kind == "stall")
        async with asked(model) as response:  # The next request succeeds.
            assert response.status == 200
        assert model.requests[0].end == "left"


async def asked_in_vain(model: ScriptedModel, got: list[bytes]) -> None:
    async with asked(model) as response:
        await taken(response, got)


async def test_a_stall_ends() -> None:
    async with ScriptedModel(faulty(kind="stall", seconds=0.01)) as model, asked(model) as response:
        assert (await response.read()).endswith(b"[DONE]\n\n")


async def test_pieces_come_one_by_one_where_there_is_a_delay() -> None:
    async with ScriptedModel(make_script(Step(text=TEXT, chunk=4, delay=0.001))) as model, asked(model) as response:
        reads = [piece async for piece in response.content.iter_any()]
        assert len(reads) > 3
        assert reads[-1].endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("wire", PATHS)
async def test_an_http_error_has_the_body_that_was_asked_for(wire: str) -> None:
    script = faulty(kind="http", status=418, body={"mine": 1}, headers={"x-a": "b"}, retry_after=1.5)
    async with ScriptedModel(script) as model, asked(model, wire) as response:
        assert (response.status, await response.json()) == (418, {"mine": 1})
        assert (response.headers["x-a"], response.headers["retry-after"]) == ("b", "1.5")


@pytest.mark.parametrize("wire", PATHS)
async def test_what_a_service_would_refuse_is_refused(wire: str) -> None:
    async with ScriptedModel(Script(key="right")) as model:
        async with asked(model, wire) as response:
            assert response.status == 401
        header = {"x-api-key": "right", "authorization": "Bearer right", "x-goog-api-key": "right"}
        empty: dict[str, Any] = {"messages": [], "input": [], "contents": []}
        async with asked(model, wire, header, **empty) as response:
            assert response.status == 400
        async with asked(model, wire, header) as response:
            assert response.status == 200


async def test_a_call_that_was_never_answered_is_refused() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    history = [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}, ASKED]
    async with ScriptedModel() as model, asked(model, messages=history) as response:
        assert response.status == 400
        assert "without a result: c" in (await response.json())["error"]["message"]


async def test_anthropic_wants_a_limit() -> None:
    async with ScriptedModel() as model, asked(model, "anthropic", max_tokens=None) as response:
        assert (await response.json())["error"]["message"] == "max_tokens: Field required"


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with ScriptedModel() as model, aiohttp.ClientSession() as session:
        for data in (b"{", b"[]"):
            async with session.post(model.openai_url + "/responses", data=data) as response:
                assert response.status == 400


async def test_requests_are_kept_for_whoever_wants_to_look() -> None:
    script = Script(scenario={"a": (Step(calls=(ScriptedCall(name="x", id="mine"),)),)})
    async with ScriptedModel(script) as model:
        told = [{"role": "user", "content": [{"type": "text", "text": "script:a"}]}]
        async with asked(model, "anthropic", {"x-api-key": "k"}, messages=told) as response:
            assert b'"id":"mine"' in await response.read()
        (seen,) = model.requests
        assert (seen.wire, seen.scenario, seen.step, seen.key, seen.end) == ("anthropic", "a", 0, "k", "done")
        assert seen.body["messages"] == told


async def test_the_smaller_doors() -> None:
    async with ScriptedModel() as model, aiohttp.ClientSession() as session:
        async with session.get(model.openai_url + "/models") as response:
            assert (await response.json())["data"][0]["id"] == "scripted"
        for path in ("/v1/messages/count_tokens", "/v1beta/models/m:countTokens"):
            async with session.post(model.url + path, json={}) as response:
                assert response.status == 200
        path, body = PATHS["gemini"]
        async with session.post(model.url + path.partition("?")[0], json=body) as response:
            answers = await response.json()
            assert answers[-1]["candidates"][0]["finishReason"] == "STOP"


async def test_a_port_that_is_taken() -> None:
    async with ScriptedModel() as model:
        port = int(model.url.rpartition(":")[2])
        with pytest.raises(CannotServe, match=f"port {port}"):
            await ScriptedModel(port=port).__aenter__()


def test_the_command_serves_a_script_and_writes_down_what_was_asked(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[[default]]\ntext = "From a file."\n')
    record = tmp_path / "asked.jsonl"
    command = [sys.executable, "-m", "quarterdeck.cli", "testing", "model", "--script", tmp_path / "s.toml"]
    with subprocess.Popen([*command, "--record", record], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        body = json.dumps({"model": "m", "messages": [ASKED]}).encode()
        request = urllib.request.Request(url + "/v1/chat/completions", body, {"authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "From a file."
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    line = json.loads(record.read_text())
    assert (line["wire"], line["step"], line["end"]) == ("chat", 0, "done")
    assert "secret" not in record.read_text()


def test_the_command_says_what_is_wrong_with_a_script(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["testing", "model", "--script", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert "can't be read" in result.output
