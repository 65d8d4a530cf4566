"""Measure the stream of one reply through a provider, against a minimal client of aiohttp and msgspec.

Both request 200 pieces of text from the same scripted model, which is another process: once all at once, where parsing
dominates, and once at one piece a millisecond, twenty replies at a time, where each piece is a separate read and the network
dominates.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from msgspec import Struct

from bench.figure import Figure
from bench.measure import SMOKE, Effort, Work, ratio
from quarterdeck.engine.model import Message, Request, Text, TextPiece
from quarterdeck.engine.providers import create_model

PIECES = 200
AT_ONCE = 20
_PIECE = "the lexer, "
_TEXT = _PIECE * PIECES
WIRES = ("anthropic", "openai", "chat", "gemini")

Turn = Callable[[str], Awaitable[str]]


def figures(effort: Effort) -> Iterator[Figure]:
    loop = uvloop.new_event_loop()
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder)) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        session = loop.run_until_complete(_opened())
        try:
            for wire in WIRES:
                yield from _of(wire, url, session, loop, effort)
        finally:
            loop.run_until_complete(session.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            server.terminate()


def _of(
    wire: str, url: str, session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop, effort: Effort
) -> Iterator[Figure]:
    ours, bare = _ours(wire, url), _bare(wire, url, session)
    for turn in (ours, bare):
        assert loop.run_until_complete(turn("burst")) == _TEXT

    def at_once(turn: Turn, scenario: str, times: int) -> Work:
        async def all_of_them() -> None:
            await asyncio.gather(*[turn(scenario) for _ in range(times)])

        return Work(lambda: loop.run_until_complete(all_of_them()), times)

    name = f"{wire}: a reply of {PIECES} pieces"
    found = ratio(at_once(ours, "burst", 1), at_once(bare, "burst", 1), effort)
    yield Figure("providers", f"{name} at once, to a bare client", found)
    if wire == "chat":
        few = effort if effort is SMOKE else msgspec.structs.replace(effort, rounds=7)
        found = ratio(at_once(ours, "drip", AT_ONCE), at_once(bare, "drip", AT_ONCE), few)
        yield Figure("providers", f"{name} dripped, {AT_ONCE} of them, to a bare client", found)


def _served(folder: Path) -> subprocess.Popen[str]:
    step = {"text": _TEXT, "chunk": len(_PIECE)}
    script = {"scenario": {"burst": [step], "drip": [{**step, "delay": 0.001}]}}
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    command = [sys.executable, "-m", "quarterdeck.cli", "testing", "model", "--script", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def _opened() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


def _ours(wire: str, url: str) -> Turn:
    base = f"{url}/v1" if wire in ("openai", "chat") else url
    model, _ = create_model(f"{wire}:m", {"base_url": base, "api_key": "k"}, {})

    async def turn(scenario: str) -> str:
        request = Request(model="m", messages=(Message("user", (Text(f"script:{scenario}"),)),))
        said: list[str] = []
        async for some in model.stream(request):
            said += [chunk.text for chunk in some if type(chunk) is TextPiece]
        return "".join(said)

    return turn


# --- the floor: one line per event, of which only the text is decoded


class _Words(Struct, gc=False):
    text: str = ""
    content: str | None = None


class _Claude(Struct, gc=False):
    type: str
    delta: _Words | None = None


class _Responses(Struct, gc=False):
    type: str
    delta: str = ""


class _Choice(Struct, gc=False):
    delta: _Words


class _Chat(Struct, gc=False):
    choices: list[_Choice]


class _Content(Struct, gc=False):
    parts: list[_Words]


class _Candidate(Struct, gc=False):
    content: _Content


class _Gemini(Struct, gc=False):
    candidates: list[_Candidate]


def _of_claude(event: _Claude) -> str:
    return event.delta.text if event.type == "content_block_delta" and event.delta else ""


def _of_responses(event: _Responses) -> str:
    return event.delta if event.type == "response.output_text.delta" else ""


def _of_chat(event: _Chat) -> str:
    return (event.choices[0].delta.content or "") if event.choices else ""


def _of_gemini(event: _Gemini) -> str:
    return event.candidates[0].content.parts[0].text


_FLOORS: dict[str, tuple[str, Any, Callable[[Any], str]]] = {
    "anthropic": ("/v1/messages", _Claude, _of_claude),
    "openai": ("/v1/responses", _Responses, _of_responses),
    "chat": ("/v1/chat/completions", _Chat, _of_chat),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", _Gemini, _of_gemini),
}


def _body(wire: str, scenario: str) -> dict[str, Any]:
    said = {"role": "user", "content": f"script:{scenario}"}
    if wire == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": said["content"]}]}]}
    if wire == "openai":
        return {"model": "m", "input": [said], "stream": True}
    return {"model": "m", "messages": [said], "stream": True, "max_tokens": 1000}


def _bare(wire: str, url: str, session: aiohttp.ClientSession) -> Turn:
    path, kind, text_of = _FLOORS[wire]
    decode, blank = msgspec.json.Decoder(kind).decode, b"\r\n\r\n" if wire == "gemini" else b"\n\n"
    headers = {"content-type": "application/json", "authorization": "Bearer k"}

    async def turn(scenario: str) -> str:
        said: list[str] = []
        rest = b""
        body = msgspec.json.encode(_body(wire, scenario))
        async with session.post(url + path, data=body, headers=headers) as response:
            content = response.content
            while piece := await content.readany():
                *events, rest = (rest + piece).split(blank)
                for event in events:
                    data = event[event.index(b"data: ") + 6 :]
                    if data != b"[DONE]":
                        said.append(text_of(decode(data)))
        return "".join(said)

    return turn
