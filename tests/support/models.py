"""Provide helpers for tests of model providers against the scripted model server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quarterdeck.engine.model import (
    Call,
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    Message,
    Model,
    ModelError,
    Part,
    Request,
    Result,
    Text,
    TextPiece,
    Thinking,
    ThinkingPiece,
    ThinkingSigned,
    ToolSpec,
)
from quarterdeck.engine.providers import create_model
from quarterdeck.testing.model import ScriptedModel

WIRES = ("anthropic", "openai", "chat", "gemini")
#: A reasoning model of each provider.
NAMES = {"anthropic": "claude-opus-4-6", "openai": "gpt-5", "chat": "any", "gemini": "gemini-3-pro"}
KEY = "sk-test-4f9a8b7c6d5e-secret"
TOOL = ToolSpec("read_file", "Reads", {"type": "object", "properties": {"path": {"type": "string"}}})


def provider(wire: str, scripted: ScriptedModel, **options: Any) -> Model:
    """Create a provider that uses the scripted model server."""
    url = scripted.openai_url if wire in ("openai", "chat") else scripted.url
    nothing: Mapping[str, str] = {"HOME": "/nonexistent"}
    model, _ = create_model(f"{wire}:x", {"api_key": KEY, "base_url": url, **options}, nothing)
    return model


def asked(wire: str, *messages: Message, **fields: Any) -> Request:
    sent = messages or (Message("user", (Text("go"),)),)
    return Request(model=NAMES.get(wire, "m"), messages=sent, **{"tools": (TOOL,), **fields})


async def chunks(model: Model, request: Request) -> list[Chunk]:
    return [chunk async for some in model.stream(request) for chunk in some]


async def until_it_fails(model: Model, request: Request) -> tuple[list[Chunk], ModelError | None]:
    """Return the chunks of a reply, and the error that ended it, if any."""
    received: list[Chunk] = []
    try:
        async for chunks in model.stream(request):
            received += chunks
    except ModelError as error:
        return received, error
    return received, None


async def reads(model: Model, request: Request) -> list[Sequence[Chunk]]:
    return [some async for some in model.stream(request)]


def replied(received: Sequence[Chunk]) -> Message:
    """Build the message for the next request from the chunks of a reply, as the turn loop does."""
    parts: list[Part] = []
    calls: list[list[str]] = []
    for chunk in received:
        last = parts[-1] if parts else None
        if isinstance(chunk, TextPiece):
            parts[-1:] = [Text(last.text + chunk.text)] if isinstance(last, Text) else [*parts[-1:], Text(chunk.text)]
        elif isinstance(chunk, ThinkingPiece):
            grows = isinstance(last, Thinking) and not last.signature
            parts[-1:] = [Thinking(last.text + chunk.text)] if grows else [*parts[-1:], Thinking(chunk.text)]
        elif isinstance(chunk, ThinkingSigned):
            grows = isinstance(last, Thinking) and not last.signature
            signed = Thinking(last.text if grows else "", chunk.signature)
            parts[-1:] = [signed] if grows else [*parts[-1:], signed]
        elif isinstance(chunk, CallBegun):
            calls.append([chunk.call_id, ""])
            parts.append(Call(chunk.call_id, chunk.name, {}))
        elif isinstance(chunk, CallPiece):
            calls[chunk.index][1] += chunk.arguments
    arguments = {name: msgspec.json.decode(text or "{}") for name, text in calls}
    done = tuple(Call(p.call_id, p.name, arguments[p.call_id]) if isinstance(p, Call) else p for p in parts)
    return Message("assistant", done)


def results(reply: Message, text: str = "ok", **fields: Any) -> Message:
    return Message("tool", tuple(Result(call.call_id, call.name, text, **fields) for call in reply.calls))


def text_of(received: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in received if isinstance(chunk, TextPiece))


def finished(received: Sequence[Chunk]) -> Finished:
    assert isinstance(received[-1], Finished)
    assert not any(isinstance(chunk, Finished) for chunk in received[:-1])
    return received[-1]
