"""A scripted model: one HTTP server that speaks the wire formats of four model services.

    async with ScriptedModel(make_script(Step(text="Hello."))) as model:
        model.url               http://127.0.0.1:PORT, the base address for clients of Anthropic and Gemini
        model.openai_url        the same with /v1, for clients of OpenAI and compatible services
        model.requests          the requests so far, oldest first

    qd testing model --script FILE

`script` defines scripts. The server accepts any model name and keeps no state of a conversation.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.testing import wires
from quarterdeck.testing.script import (
    Fault,
    Script,
    ScriptPosition,
    Wire,
    fault_at,
    find_step,
    find_unanswered_calls,
)
from quarterdeck.testing.wires import Body, Format, Reply, gemini

#: Neither a server-sent event nor JSON, in any of the formats.
GARBAGE = b"\xff\xfe<html>\n\ndata: {no json\xff\n\n"


class CannotServe(QuarterdeckError):
    """The port isn't available."""

    code = "cannot_listen"


class SeenRequest(Struct, kw_only=True):
    """One request that the server received."""

    wire: Wire
    path: str
    headers: dict[str, str]
    body: Body
    #: Which step it got, and the how many-th attempt at that step it was.
    scenario: str = ""
    step: int = 0
    attempt: int = 0
    #: `done`, or `left` if the client disconnected.
    end: str = ""

    @property
    def key(self) -> str:
        """The API key that the client sent."""
        key = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        return key or self.headers.get("authorization", "").removeprefix("Bearer ")


class ScriptedModel:
    """The server. It runs while the `async with` block does. `script` may be replaced between requests."""

    def __init__(
        self, script: Script | None = None, port: int = 0, on_request: Callable[[SeenRequest], None] | None = None
    ) -> None:
        self.script = script or Script()
        self.requests: list[SeenRequest] = []
        self._on_request = on_request
        self._port = port
        # Part of every id, so ids are unique, also if a conversation continues with another server.
        self._server_id = secrets.token_hex(4)
        self._reply_count = 0
        self._attempts: Counter[tuple[str, int, str]] = Counter()
        self._random: random.Random | None = None
        self._runner: web.AppRunner | None = None
        self.url = ""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/messages", self._handler("anthropic"))
        app.router.add_post("/v1/responses", self._handler("responses"))
        app.router.add_post("/v1/chat/completions", self._handler("chat"))
        app.router.add_post(
            "/{version:v1|v1beta}/models/{model}:{verb:(stream)?[gG]enerateContent}", self._handler("gemini")
        )
        app.router.add_post("/v1/messages/count_tokens", _count_tokens)
        app.router.add_post("/{version:v1|v1beta}/models/{model}:countTokens", _count_tokens)
        app.router.add_get("/v1/models", _list_models)
        # Cancel the handler when its client disconnects, so nothing waits for a client that has gone.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise CannotServe(
                f"can't listen on port {self._port}: {error.strerror}", "Choose another --port."
            ) from None
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._runner:
            await self._runner.cleanup()

    # --------------------------------------------------------------------------------------------- one request

    def _handler(self, wire: Wire) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(wire, request)

        return handle

    async def _handle(self, wire: Wire, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = SeenRequest(wire=wire, path=request.path_qs, headers=headers, body=_parse_body(await request.read()))
        self.requests.append(seen)
        try:
            response = await self._respond(seen, wires.format_of(wire), request)
            seen.end = "done"
            return response
        except (asyncio.CancelledError, ConnectionError):
            seen.end = "left"
            raise
        finally:
            if self._on_request:
                self._on_request(seen)

    async def _respond(self, seen: SeenRequest, wire_format: Format, request: web.Request) -> web.StreamResponse:
        model = str(seen.body.get("model") or request.match_info.get("model", ""))
        rejection = self._check(seen, wire_format)
        if rejection:
            return _error_response(wire_format, rejection, model)
        position = self._find_step(seen, wire_format)
        fault = await self._random_fault() or fault_at(position.step, seen.attempt)
        if fault and fault.kind == "http":
            return _error_response(wire_format, fault, model)
        if fault and fault.kind == "hang":
            await asyncio.sleep(fault.seconds)
        self._reply_count += 1
        reply = Reply(position.step, model, f"{self._server_id}{self._reply_count}", int(time.time()))
        if not _is_streamed(seen, request):
            whole = msgspec.json.encode(wire_format.whole_reply(reply))
            return await _send(request, "application/json", [whole], fault, None)
        if seen.wire == "gemini" and request.query.get("alt") != "sse":
            responses = msgspec.json.encode(gemini.responses(reply))
            return await _send(request, "application/json", [responses], fault, None)
        frames = wire_format.stream_frames(reply)
        if fault and fault.kind == "error":
            frames = [*frames[: _fault_position(fault, len(frames))], wire_format.stream_error(fault)]
        return await _send(request, "text/event-stream", frames, fault, position.step.delay or None)

    async def _random_fault(self) -> Fault | None:
        """Apply the script's trouble: wait, and return its fault if this request is to fail."""
        trouble = self.script.trouble
        if trouble is None:
            return None
        if self._random is None:
            self._random = random.Random(trouble.seed)
        await asyncio.sleep(trouble.delay)
        return None if self._random.random() * 100 < trouble.success_rate else trouble.fault

    def _check(self, seen: SeenRequest, wire_format: Format) -> Fault | None:
        """Return an error for a request that the real service would reject."""
        if self.script.key and seen.key != self.script.key:
            return Fault(kind="http", status=401)
        if problem := wire_format.find_problem(seen.body):
            return Fault(kind="http", status=400, message=problem)
        if calls := find_unanswered_calls(wire_format.read_turns(seen.body)):
            return Fault(kind="http", status=400, message=f"tool calls without a result: {', '.join(calls)}")
        return None

    def _find_step(self, seen: SeenRequest, wire_format: Format) -> ScriptPosition:
        position = find_step(self.script, wire_format.read_turns(seen.body), bool(seen.body.get("tools")))
        seen.scenario, seen.step = position.scenario, position.number
        key = (position.scenario, position.number, position.opening)
        seen.attempt = self._attempts[key]
        self._attempts[key] += 1
        return position


def _parse_body(data: bytes) -> Body:
    with suppress(msgspec.DecodeError, UnicodeError):
        return msgspec.json.decode(data, type=dict[str, Any])
    return {}


def _is_streamed(seen: SeenRequest, request: web.Request) -> bool:
    verb = request.match_info.get("verb", "")
    return verb.startswith("stream") if verb else bool(seen.body.get("stream"))


def _error_response(wire_format: Format, fault: Fault, model: str) -> web.Response:
    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["retry-after"] = f"{fault.retry_after:g}"
    body = wire_format.error_body(fault, model) if fault.body is None else fault.body
    data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    return web.Response(status=fault.status, body=data, headers=headers, content_type="application/json")


async def _count_tokens(_: web.Request) -> web.Response:
    return web.json_response({"input_tokens": 100, "totalTokens": 100})


async def _list_models(_: web.Request) -> web.Response:
    models = [{"id": "scripted", "object": "model", "created": 0, "owned_by": "quarterdeck"}]
    return web.json_response({"object": "list", "data": models})


# ------------------------------------------------------------------------------------------- sending, with its faults


def _fault_position(fault: Fault, length: int) -> int:
    return length // 2 if fault.at is None else min(fault.at, length)


async def _send(
    request: web.Request, content_type: str, frames: list[bytes], fault: Fault | None, delay: float | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": content_type, "cache-control": "no-cache"})
    await response.prepare(request)
    if fault and fault.kind in ("drop", "cut"):
        body = b"".join(frames)
        frames = [body[: _fault_position(fault, len(body))]]
    if fault and fault.kind == "drip":
        body = b"".join(frames)
        frames, delay = [body[at : at + fault.size] for at in range(0, len(body), fault.size)], fault.seconds
    if fault and fault.kind == "garbage":
        at = _fault_position(fault, len(frames))
        frames = [*frames[:at], GARBAGE, *frames[at:]]
    stall_at = _fault_position(fault, len(frames)) if fault and fault.kind == "stall" else 0
    if fault and stall_at:
        await _write_frames(response, frames[:stall_at], delay)
        await asyncio.sleep(fault.seconds)
    await _write_frames(response, frames[stall_at:], delay)
    if fault and fault.kind == "drop" and request.transport:
        request.transport.close()
        return response
    await response.write_eof()
    return response


async def _write_frames(response: web.StreamResponse, frames: list[bytes], delay: float | None) -> None:
    """Write frames with a delay after each, or all at once without one."""
    if delay is None:
        await response.write(b"".join(frames))
        return
    for frame in frames:
        await response.write(frame)
        await asyncio.sleep(delay)
