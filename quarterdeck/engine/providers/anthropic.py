"""Anthropic's Messages.

Reasoning comes with a signature and must go back with it, word for word; hidden reasoning is nothing but a signature. What
stays the same from request to request (tools, system prompt, everything up to the last two messages of the user) is marked
for the cache.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from yarl import URL

from quarterdeck.engine.model import (
    Call,
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    Message,
    Part,
    Picture,
    Request,
    Result,
    Text,
    TextPiece,
    Thinking,
    ThinkingPiece,
    ThinkingSigned,
)
from quarterdeck.engine.providers.base import Body, HttpModel, Sent, failed, is_said, is_unknown, plain_id, signature
from quarterdeck.engine.providers.credentials import Access
from quarterdeck.engine.providers.failure import Service
from quarterdeck.events import Image, TokenUsage

_VERSION = "2023-06-01"
_CACHED = {"type": "ephemeral"}
#: How much a model with a fixed budget may think.
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 24_576}
_SMALLEST_BUDGET = 1_024
#: The service wants a limit. Older models refuse one above what they can do.
_LIMITS = ((re.compile(r"claude-3-5"), 8_192), (re.compile(r"claude-3-(?!7)|claude-2"), 4_096))
_LIMIT = 32_000
_NAME = re.compile(r"claude-(?:opus|sonnet|haiku)-(\d+)(?:-(\d{1,2}))?(?!\d)")
_OLD = re.compile(r"claude-[23][-.]")
_INTERLEAVED = {"anthropic-beta": "interleaved-thinking-2025-05-14"}
_HIDDEN = "hidden:"
_STOPS: dict[str, Literal["end", "tools", "length", "refused"]] = {
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class AnthropicModel(HttpModel):
    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._url = URL(f"{access.base_url}/v1/messages")

    def auth_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def sent(self, request: Request) -> Sent:
        body: Body = {
            "model": request.model,
            "max_tokens": request.max_tokens or _limit(request.model),
            "messages": _messages(request.messages),
            "stream": True,
        }
        if request.system:
            body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHED}]
        if request.tools:
            body["tools"] = _tools(request)
        headers = {"anthropic-version": _VERSION}
        if request.thinking:
            headers |= _think(body, request)
        if request.response_format is not None:
            form = {"type": "json_schema", "schema": request.response_format}
            body["output_config"] = {**body.get("output_config", {}), "format": form}
        return Sent(self._url, self.merged(body, request), headers)

    def reader(self, service: Service) -> AnthropicReader:
        return AnthropicReader(service)


# --- what is sent


def _limit(model: str) -> int:
    return next((limit for pattern, limit in _LIMITS if pattern.search(model)), _LIMIT)


def _think(body: Body, request: Request) -> dict[str, str]:
    """How much to think: newer models decide by effort, older ones have a budget. Headers that go with it."""
    if request.thinking == "off":
        body["thinking"] = {"type": "disabled"}
        return {}
    if _is_adaptive(request.model):
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
        body["output_config"] = {"effort": request.thinking}
        return {}
    budget = min(_BUDGETS.get(request.thinking, _BUDGETS["medium"]), body["max_tokens"] // 2)
    if budget < _SMALLEST_BUDGET or _is_amid_calls_without_thinking(request.messages):
        return {}
    body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return _INTERLEAVED


def _is_adaptive(model: str) -> bool:
    """From version 4.6 on, and under every name that is newer than this line."""
    if found := _NAME.search(model):
        return (int(found[1]), int(found[2] or 0)) >= (4, 6)
    return not _OLD.search(model)


def _is_amid_calls_without_thinking(messages: Sequence[Message]) -> bool:
    """A model with a budget refuses results of calls that it did not think about, as after a switch of models."""
    if not messages or messages[-1].role != "tool":
        return False
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    return last is not None and not any(isinstance(part, Thinking) and _thought(part) for part in last.parts)


def _tools(request: Request) -> list[Body]:
    out: list[Body] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    out[-1]["cache_control"] = _CACHED
    return out


def _messages(messages: Sequence[Message]) -> list[Body]:
    """Neighbours of one role are one message. The last two of the user are marked: between them is what is new."""
    out: list[Body] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts for block in _blocks(part)]
        if not blocks:
            continue
        if out and out[-1]["role"] == role:
            out[-1]["content"] += blocks
        else:
            out.append({"role": role, "content": blocks})
    for message in [one for one in out if one["role"] == "user"][-2:]:
        message["content"][-1] = {**message["content"][-1], "cache_control": _CACHED}
    return out


def _blocks(part: Part) -> list[Body]:
    if isinstance(part, Text):
        return [{"type": "text", "text": part.text}] if is_said(part) else []
    if isinstance(part, Thinking):
        return _thought(part)
    if isinstance(part, Picture):
        return [_picture(part.image)]
    if isinstance(part, Call):
        return [{"type": "tool_use", "id": plain_id(part.call_id), "name": part.name, "input": part.args}]
    return [_result(part)]


def _thought(part: Thinking) -> list[Body]:
    proof = signature(part, "anthropic")
    if proof.startswith(_HIDDEN):
        return [{"type": "redacted_thinking", "data": proof.removeprefix(_HIDDEN)}]
    return [{"type": "thinking", "thinking": part.text, "signature": proof}] if proof else []


def _result(part: Result) -> Body:
    content: list[Body] = [{"type": "text", "text": part.text}] if is_said(part) else []
    content += [_picture(image) for image in part.images]
    out: Body = {"type": "tool_result", "tool_use_id": plain_id(part.call_id)}
    if content:
        out["content"] = content
    return out if part.ok else {**out, "is_error": True}


def _picture(image: Image) -> Body:
    if not image.data:
        return {"type": "text", "text": f"[an image that is no longer there: {image.path}]"}
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


# --- what comes back


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Delta(Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Block(Struct, gc=False):
    type: str
    id: str = ""
    name: str = ""
    text: str = ""
    data: str = ""


class _Started(Struct, gc=False):
    usage: _Usage | None = None


class _Event(Struct, gc=False):
    type: str
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Started | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_KNOWN = frozenset(
    {"message_start", "message_delta", "message_stop", "error"}
    | {f"content_block_{moment}" for moment in ("start", "delta", "stop")}
)
_decode = msgspec.json.Decoder(_Event).decode


class AnthropicReader:
    """One reply: blocks that begin, grow and end."""

    __slots__ = ("_calls", "_service", "_stop", "_usage", "finished")

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        self._calls: dict[int, int] = {}
        self._usage = _Usage()
        self._stop = ""

    def read(self, events: Sequence[bytes], out: list[Chunk]) -> None:
        for data in events:
            try:
                event = _decode(data)
            except msgspec.ValidationError:
                if is_unknown(data, _KNOWN):
                    continue
                raise
            delta = event.delta
            if delta is None or event.type != "content_block_delta":
                self._rare(event, out)
            elif delta.type == "text_delta":
                out.append(TextPiece(delta.text))
            elif delta.type == "input_json_delta":
                if delta.partial_json:
                    out.append(CallPiece(self._calls.get(event.index, 0), delta.partial_json))
            elif delta.type == "thinking_delta":
                out.append(ThinkingPiece(delta.thinking))
            elif delta.type == "signature_delta":
                out.append(ThinkingSigned(f"anthropic:{delta.signature}"))

    def _rare(self, event: _Event, out: list[Chunk]) -> None:
        """Everything that comes once in a while; what is not known is left alone, as the service asks for."""
        if event.type == "content_block_start" and event.content_block:
            self._begun(event.index, event.content_block, out)
        elif event.type == "message_start" and event.message:
            self._count(event.message.usage)
        elif event.type == "message_delta":
            self._stop = (event.delta and event.delta.stop_reason) or self._stop
            self._count(event.usage)
        elif event.type == "message_stop":
            self.finished = Finished(_STOPS.get(self._stop, "end"), self._counted())
        elif event.type == "error":
            raise failed(self._service, event.error or {})

    def _begun(self, index: int, block: _Block, out: list[Chunk]) -> None:
        if block.type == "tool_use":
            self._calls[index] = len(self._calls)
            out.append(CallBegun(self._calls[index], block.id, block.name))
        elif block.type == "redacted_thinking":
            out.append(ThinkingSigned(f"anthropic:{_HIDDEN}{block.data}"))
        elif block.type == "text" and block.text:
            out.append(TextPiece(block.text))

    def _count(self, told: _Usage | None) -> None:
        """Later numbers hold all that came before, and some are left out."""
        for name in _Usage.__struct_fields__:
            if told is not None and (value := getattr(told, name)) is not None:
                setattr(self._usage, name, value)

    def _counted(self) -> TokenUsage:
        usage = self._usage
        return TokenUsage(
            input=usage.input_tokens or 0,
            output=usage.output_tokens or 0,
            cache_read=usage.cache_read_input_tokens or 0,
            cache_write=usage.cache_creation_input_tokens or 0,
        )

    def close(self) -> None:
        """Nothing but message_stop makes a reply whole."""
