"""A scripted model: one server that speaks the formats of four model services over real HTTP.

    async with ScriptedModel(scripted(Step(text="Hello."))) as model:
        model.url               http://127.0.0.1:PORT, which clients of Anthropic and Gemini take as it is
        model.openai_url        the same with /v1, which clients of OpenAI and of its likes take
        model.requests          what was asked, oldest first

    qd testing model --script FILE

script.py says what a script is. It answers any model name: what it says is in the script, and nothing is remembered.
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
from quarterdeck.testing.script import Fault, Place, Script, Wire, fault, place, unanswered
from quarterdeck.testing.wires import Body, Format, Reply, gemini

#: Neither an event nor JSON, in any of the formats.
GARBAGE = b"\xff\xfe<html>\n\ndata: {no json\xff\n\n"


class CannotServe(QuarterdeckError):
    """The port cannot be had."""

    code = "cannot_listen"


class Seen(Struct, kw_only=True):
    """One request. `end` is how it ended: done, or left by the client."""

    wire: Wire
    path: str
    headers: dict[str, str]
    body: Body
    scenario: str = ""
    step: int = 0
    attempt: int = 0
    end: str = ""

    @property
    def key(self) -> str:
        """What the client proved itself with."""
        found = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        return found or self.headers.get("authorization", "").removeprefix("Bearer ")


class ScriptedModel:
    """The server, from `async with` to its end. `script` may be replaced between requests."""

    def __init__(self, script: Script | None = None, port: int = 0, told: Callable[[Seen], None] | None = None) -> None:
        self.script = script or Script()
        self.requests: list[Seen] = []
        self._told = told
        self._port = port
        # ids must not come again, not even from another server in the same conversation
        self._name = secrets.token_hex(4)
        self._count = 0
        self._attempts: Counter[tuple[str, int, str]] = Counter()
        self._chance: random.Random | None = None
        self._runner: web.AppRunner | None = None
        self.url = ""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/messages", self._wire("anthropic"))
        app.router.add_post("/v1/responses", self._wire("responses"))
        app.router.add_post("/v1/chat/completions", self._wire("chat"))
        app.router.add_post(
            "/{version:v1|v1beta}/models/{model}:{verb:(stream)?[gG]enerateContent}", self._wire("gemini")
        )
        app.router.add_post("/v1/messages/count_tokens", _counted)
        app.router.add_post("/{version:v1|v1beta}/models/{model}:countTokens", _counted)
        app.router.add_get("/v1/models", _models)
        # a client that leaves ends its handler, and so whatever it was waiting for
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise CannotServe(f"port {self._port} cannot be had: {error.strerror}", "Choose another --port.") from None
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._runner:
            await self._runner.cleanup()

    # --- one request

    def _wire(self, wire: Wire) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._answered(wire, request)

        return answer

    async def _answered(self, wire: Wire, request: web.Request) -> web.StreamResponse:
        form = wires.format_of(wire)
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(wire=wire, path=request.path_qs, headers=headers, body=_object(await request.read()))
        self.requests.append(seen)
        try:
            response = await self._said(seen, form, request)
            seen.end = "done"
            return response
        except (asyncio.CancelledError, ConnectionError):
            seen.end = "left"
            raise
        finally:
            if self._told:
                self._told(seen)

    async def _said(self, seen: Seen, form: Format, request: web.Request) -> web.StreamResponse:
        model = str(seen.body.get("model") or request.match_info.get("model", ""))
        refused = self._refused(seen, form)
        if refused:
            return _refusal(form, refused, model)
        found = self._found(seen, form)
        wrong = await self._trouble() or fault(found.step, seen.attempt)
        if wrong and wrong.kind == "http":
            return _refusal(form, wrong, model)
        if wrong and wrong.kind == "hang":
            await asyncio.sleep(wrong.seconds)
        self._count += 1
        reply = Reply(found.step, model, f"{self._name}{self._count}", int(time.time()))
        if not _is_streamed(seen, request):
            return await _sent(request, "application/json", [msgspec.json.encode(form.whole(reply))], wrong, None)
        if seen.wire == "gemini" and request.query.get("alt") != "sse":
            listed = msgspec.json.encode(gemini.answers(reply))
            return await _sent(request, "application/json", [listed], wrong, None)
        frames = form.frames(reply)
        if wrong and wrong.kind == "error":
            frames = [*frames[: _middle(wrong, len(frames))], form.broken(wrong)]
        return await _sent(request, "text/event-stream", frames, wrong, found.step.delay or None)

    async def _trouble(self) -> Fault | None:
        """What this request meets by chance."""
        trouble = self.script.trouble
        if trouble is None:
            return None
        if self._chance is None:
            self._chance = random.Random(trouble.seed)
        await asyncio.sleep(trouble.delay)
        return None if self._chance.random() * 100 < trouble.success_rate else trouble.fault

    def _refused(self, seen: Seen, form: Format) -> Fault | None:
        """What the real service would not take either."""
        if self.script.key and seen.key != self.script.key:
            return Fault(kind="http", status=401)
        if why := form.complaint(seen.body):
            return Fault(kind="http", status=400, message=why)
        if lost := unanswered(form.turns(seen.body)):
            return Fault(kind="http", status=400, message=f"tool calls without a result: {', '.join(lost)}")
        return None

    def _found(self, seen: Seen, form: Format) -> Place:
        found = place(self.script, form.turns(seen.body), bool(seen.body.get("tools")))
        seen.scenario, seen.step = found.scenario, found.number
        told = (found.scenario, found.number, found.told)
        seen.attempt = self._attempts[told]
        self._attempts[told] += 1
        return found


def _object(data: bytes) -> Body:
    with suppress(msgspec.DecodeError, UnicodeError):
        return msgspec.json.decode(data, type=dict[str, Any])
    return {}


def _is_streamed(seen: Seen, request: web.Request) -> bool:
    verb = request.match_info.get("verb", "")
    return verb.startswith("stream") if verb else bool(seen.body.get("stream"))


def _refusal(form: Format, wrong: Fault, model: str) -> web.Response:
    headers = dict(wrong.headers)
    if wrong.retry_after is not None:
        headers["retry-after"] = f"{wrong.retry_after:g}"
    body = form.refusal(wrong, model) if wrong.body is None else wrong.body
    data = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    return web.Response(status=wrong.status, body=data, headers=headers, content_type="application/json")


async def _counted(_: web.Request) -> web.Response:
    return web.json_response({"input_tokens": 100, "totalTokens": 100})


async def _models(_: web.Request) -> web.Response:
    listed = [{"id": "scripted", "object": "model", "created": 0, "owned_by": "quarterdeck"}]
    return web.json_response({"object": "list", "data": listed})


# --- sending, and what goes wrong on the way


def _middle(wrong: Fault, length: int) -> int:
    return length // 2 if wrong.at is None else min(wrong.at, length)


async def _sent(
    request: web.Request, kind: str, frames: list[bytes], wrong: Fault | None, delay: float | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": kind, "cache-control": "no-cache"})
    await response.prepare(request)
    if wrong and wrong.kind in ("drop", "cut"):
        body = b"".join(frames)
        frames = [body[: _middle(wrong, len(body))]]
    if wrong and wrong.kind == "drip":
        body = b"".join(frames)
        frames, delay = [body[at : at + wrong.size] for at in range(0, len(body), wrong.size)], wrong.seconds
    if wrong and wrong.kind == "garbage":
        at = _middle(wrong, len(frames))
        frames = [*frames[:at], GARBAGE, *frames[at:]]
    stalled = _middle(wrong, len(frames)) if wrong and wrong.kind == "stall" else 0
    if wrong and stalled:
        await _written(response, frames[:stalled], delay)
        await asyncio.sleep(wrong.seconds)
    await _written(response, frames[stalled:], delay)
    if wrong and wrong.kind == "drop" and request.transport:
        request.transport.close()
        return response
    await response.write_eof()
    return response


async def _written(response: web.StreamResponse, frames: list[bytes], delay: float | None) -> None:
    """In one piece if there is nothing to wait for."""
    if delay is None:
        await response.write(b"".join(frames))
        return
    for frame in frames:
        await response.write(frame)
        await asyncio.sleep(delay)
