"""Test failures of requests: over real HTTP, and with the error texts of many services."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quarterdeck.engine.model import ModelError, TextPiece
from quarterdeck.engine.providers import create_model, failure
from quarterdeck.engine.providers.failure import Service
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Fault, Step, make_script
from tests.support.models import KEY, WIRES, asked, chunks, finished, provider, text_of, until_it_fails

NOW = 1_800_000_000.0
SERVICE = Service("lab", "m-1", "Set LAB_KEY.", (KEY,))


async def failed(wire: str, *faults: Fault) -> ModelError:
    async with ScriptedModel(make_script(Step(text="A text that is long enough.", chunk=3, faults=faults))) as model:
        with pytest.raises(ModelError) as error:
            await chunks(provider(wire, model), asked(wire))
        assert error.value.message
        assert error.value.hint
        return error.value


HTTP = [
    (400, "overflow", "overflow", False),
    (400, "", "api", False),
    (401, "", "auth", False),
    (402, "", "payment", False),
    (403, "", "auth", False),
    (404, "", "invalid_model", False),
    (429, "", "rate_limit", True),
    (500, "", "api", True),
    (503, "", "api", True),
    (529, "", "api", True),
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("status", "code", "kind", "is_transient"), HTTP)
async def test_an_error_of_the_service(wire: str, status: int, code: str, kind: str, is_transient: bool) -> None:
    error = await failed(wire, Fault(kind="http", status=status, code=code, times=0))
    assert (error.kind, error.is_transient) == (kind, is_transient)
    assert wire in error.message
    assert str(status) in error.message


@pytest.mark.parametrize("wire", WIRES)
async def test_when_to_try_again_is_told(wire: str) -> None:
    error = await failed(wire, Fault(kind="http", status=429, retry_after=7, times=0))
    assert error.retry_after == 7
    assert error.resets_at is not None
    overloaded = await failed(wire, Fault(kind="http", status=503, retry_after=2.5, times=0))
    assert overloaded.retry_after == 2.5


@pytest.mark.parametrize("wire", ["openai", "chat", "gemini"])
async def test_a_quota_that_is_used_up_is_no_rate_limit(wire: str) -> None:
    error = await failed(wire, Fault(kind="http", status=429, code="quota", times=0))
    assert (error.kind, error.is_transient) == ("usage_limit", False)


async def test_what_anthropic_says_with_400() -> None:
    assert (await failed("anthropic", Fault(kind="http", status=400, code="window", times=0))).kind == "overflow"
    assert (await failed("anthropic", Fault(kind="http", status=413, times=0))).kind == "overflow"
    assert (await failed("anthropic", Fault(kind="http", status=400, code="credit", times=0))).kind == "payment"
    limit = await failed("anthropic", Fault(kind="http", status=400, code="limit", times=0))
    assert (limit.kind, limit.resets_at) == ("usage_limit", 1_798_761_600_000)


async def test_gemini_says_with_400_that_the_key_is_wrong() -> None:
    error = await failed("gemini", Fault(kind="http", status=400, code="key", times=0))
    assert error.kind == "auth"
    assert "GEMINI_API_KEY" in error.hint


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("kind", ["drop", "cut", "garbage"])
async def test_a_stream_that_breaks_is_a_passing_network_error_and_then_well(wire: str, kind: Any) -> None:
    step = Step(text="A text that is long enough.", chunk=3, faults=(Fault(kind=kind),))
    async with ScriptedModel(make_script(step)) as model:
        one = provider(wire, model)
        said, error = await until_it_fails(one, asked(wire))
        assert error is not None
        assert (error.kind, error.is_transient) == ("network", True)
        assert step.text.startswith(text_of(said))
        assert text_of(said)
        again = await chunks(one, asked(wire))
        assert text_of(again) == step.text
        assert finished(again).stop_reason == "end"


@pytest.mark.parametrize("wire", WIRES)
async def test_an_error_in_the_middle_of_a_stream(wire: str) -> None:
    step = Step(text="A text that is long enough.", chunk=3, faults=(Fault(kind="error", message="so sorry", times=0),))
    async with ScriptedModel(make_script(step)) as model:
        said, error = await until_it_fails(provider(wire, model), asked(wire))
        assert error is not None
        assert (error.kind, error.is_transient) == ("api", True)
        assert "so sorry" in error.message
        assert isinstance(said[0], TextPiece)


MIDSTREAM = [
    ("anthropic", "rate_limit_error", "rate_limit"),
    ("anthropic", "authentication_error", "auth"),
    ("openai", "rate_limit_exceeded", "rate_limit"),
    ("openai", "insufficient_quota", "usage_limit"),
    ("openai", "context_length_exceeded", "overflow"),
    ("openai", "error", "api"),
    ("gemini", "RESOURCE_EXHAUSTED", "api"),
]


@pytest.mark.parametrize(("wire", "code", "kind"), MIDSTREAM)
async def test_an_error_in_the_middle_has_a_kind_by_its_type(wire: str, code: str, kind: str) -> None:
    assert (await failed(wire, Fault(kind="error", code=code, message="no", times=0))).kind == kind


@pytest.mark.parametrize("wire", WIRES)
async def test_nobody_is_there(wire: str) -> None:
    # A bound socket that doesn't listen reserves the port and refuses connections.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        model, _ = create_model(f"{wire}:x", {"api_key": KEY, "base_url": url}, {})
        with pytest.raises(ModelError) as error:
            await chunks(model, asked(wire))
        assert (error.value.kind, error.value.is_transient) == ("network", True)
        assert "can't reach" in error.value.message


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    hits: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        hits.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    error = await _against(handle)
    assert (error.kind, hits) == ("api", ["/chat/completions"])
    assert "base_url" in error.hint


async def test_a_page_in_place_of_an_answer() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text="<html>Please log in</html>", content_type="text/html")

    assert (await _against(handle)).kind == "network"


async def test_a_page_with_an_error() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>Bad gateway</html>", content_type="text/html")

    error = await _against(handle)
    assert (error.kind, error.is_transient) == ("api", True)
    assert "html" not in error.message


async def test_an_error_whose_body_breaks_off() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500, headers={"content-length": "1000"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    assert (await _against(handle)).kind == "api"


@asynccontextmanager
async def _serving(handle: Any, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _never(_: web.Request) -> web.Response:
    raise AssertionError("it was asked")


async def _against(handle: Any) -> ModelError:
    async with _serving(handle) as url:
        model, _ = create_model("chat:x", {"base_url": url}, {})
        with pytest.raises(ModelError) as error:
            await chunks(model, asked("chat"))
        return error.value


async def test_options_that_are_no_json() -> None:
    model, _ = create_model("chat:x", {"base_url": "http://127.0.0.1:9", "what": object()}, {})
    with pytest.raises(ModelError) as error:
        await chunks(model, asked("chat"))
    assert error.value.kind == "internal"


# --- error texts of services, without a network


WORDS = [
    # (status, body, kind)
    (
        400,
        {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400},
        "overflow",
    ),
    (
        400,
        {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}},
        "overflow",
    ),
    (400, {"error": {"message": "Prompt contains 40000 tokens, too large for model with 32768 maximum"}}, "overflow"),
    (400, {"error": {"message": "Please reduce the length of the messages or completion."}}, "overflow"),
    (422, {"error": {"message": "`inputs` tokens + `max_new_tokens` must be <= 4097"}}, "overflow"),
    (400, {"detail": "x is not a valid model ID"}, "invalid_model"),
    (404, {"error": {"message": 'model "x" not found, try pulling it first'}}, "invalid_model"),
    (402, {"error": {"message": "Insufficient Balance", "type": "unknown_error"}}, "payment"),
    (402, {"error": {"code": 402, "message": "This request requires more credits"}}, "payment"),
    (403, {"error": {"message": "Country not supported"}}, "auth"),
    (429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "slow down"}}], "rate_limit"),
    (418, {"error": "a teapot"}, "api"),
    (400, {"error": {"message": {"nested": 1}}}, "api"),
    (500, {"error": None}, "api"),
    (500, [], "api"),
    (500, 7, "api"),
]


@pytest.mark.parametrize(("status", "body", "kind"), WORDS)
def test_other_services_words(status: int, body: Any, kind: str) -> None:
    error = failure.classify_error(
        failure.parse_error_response(status, json.dumps(body).encode(), {}, NOW), SERVICE, NOW
    )
    assert error.kind == kind


WAITS = [
    ({"retry-after": "3"}, "", 3.0),
    ({"retry-after": "-1"}, "", 0.0),
    ({"retry-after-ms": "250", "retry-after": "9"}, "", 0.25),
    ({"retry-after": formatdate(NOW + 30, usegmt=True)}, "", 30.0),
    ({"retry-after": formatdate(NOW - 30, usegmt=True)}, "", 0.0),
    ({"retry-after": "soon"}, "", None),
    ({"retry-after": "inf"}, "", None),
    ({"retry-after": "nan"}, "", None),
    ({}, f"Please try again in {'9' * 400}s", None),
    ({}, "Please try again in 1m2.5s.", 62.5),
    ({}, "Please retry in 120ms", 0.12),
    ({}, "Please try again in 1.2.3s", None),
    ({}, "Please try later", None),
]


@pytest.mark.parametrize(("headers", "message", "seconds"), WAITS)
def test_when_to_try_again_in_all_its_forms(headers: dict[str, str], message: str, seconds: float | None) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    error = failure.classify_error(failure.parse_error_response(429, body, headers, NOW), SERVICE, NOW)
    assert error.retry_after == seconds
    assert error.resets_at == (None if seconds is None else int((NOW + seconds) * 1000))


def test_a_pause_of_hours_is_a_limit_that_a_person_is_told_of() -> None:
    error = failure.classify_error(failure.parse_error_response(429, b"{}", {"retry-after": "7200"}, NOW), SERVICE, NOW)
    assert (error.kind, error.is_transient, error.resets_at) == ("usage_limit", False, int(NOW + 7200) * 1000)


@pytest.mark.parametrize("seconds", ["1e300", "9" * 30])
def test_a_pause_of_ages_can_still_be_written_down(seconds: str) -> None:
    error = failure.classify_error(
        failure.parse_error_response(429, b"{}", {"retry-after": seconds}, NOW), SERVICE, NOW
    )
    assert error.kind == "usage_limit"
    assert error.resets_at is not None
    assert error.resets_at < 2**53


ODD_BODIES = [
    (b'{"error": ["busy", 1]}', "rate_limit", '["busy",1]'),
    (b'{"error": 5}', "rate_limit", "5"),
    (b"[" * 100_000, "rate_limit", "[["),
    (b'{"error": "usage limit, regain access on 2026-99-99 at 99:99 UTC"}', "usage_limit", "2026-99-99"),
]


@pytest.mark.parametrize(("body", "kind", "said"), ODD_BODIES)
def test_an_error_of_no_known_form_is_still_that_error(body: bytes, kind: str, said: str) -> None:
    error = failure.classify_error(failure.parse_error_response(429, body, {}, NOW), SERVICE, NOW)
    assert error.kind == kind
    assert said in error.message


def test_googles_own_form_of_a_pause() -> None:
    details = [{"@type": "RetryInfo", "retryDelay": "36s"}, "what"]
    body = json.dumps({"error": {"code": 429, "message": "x", "details": details}}).encode()
    assert failure.parse_error_response(429, body, {}, NOW).retry_after == 36.0


@pytest.mark.parametrize(
    "quoted",
    [KEY, f"({KEY})", f"{KEY[:8]}***{KEY[-4:]}", f"sk-****{KEY[-4:]}.", f"{KEY[:12]}..."],
)
def test_no_part_of_a_key_gets_out(quoted: str) -> None:
    body = json.dumps({"error": {"message": f"The key {quoted} may not do that"}}).encode()
    for status in (400, 401, 403, 500):
        error = failure.classify_error(failure.parse_error_response(status, body, {}, NOW), SERVICE, NOW)
        assert KEY[:6] not in error.message
        assert KEY[-4:] not in error.message
        assert KEY[-4:] not in error.hint


def test_long_words_are_cut() -> None:
    error = failure.classify_error(failure.parse_error_response(500, b"x" * 100_000, {}, NOW), SERVICE, NOW)
    assert len(error.message) < 1000


async def test_a_server_that_nobody_vouches_for_is_not_tried_again(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    made += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    process = await asyncio.create_subprocess_exec(*made, stderr=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with _serving(_never, context) as url:
        model, _ = create_model("chat:x", {"base_url": url}, {})
        said, error = await until_it_fails(model, asked("chat"))
    assert said == []
    assert error is not None
    assert (error.kind, error.is_transient) == ("network", False)
    assert "certificate" in error.hint
