"""Anthropic's Messages format.

Reasoning has a signature and must be sent back with it, word for word. Hidden reasoning is nothing but a signature. What
stays the same from request to request is marked for the service's cache: the tools, the system prompt, and everything up to
the last two user messages.
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
from quarterdeck.engine.providers.base import (
    Body,
    HttpModel,
    HttpRequest,
    has_text,
    is_unknown_event,
    missing_image_note,
    safe_call_id,
    signature_for,
    stream_error,
)
from quarterdeck.engine.providers.credentials import Credentials
from quarterdeck.engine.providers.failure import Service
from quarterdeck.events import Image, TokenUsage

_API_VERSION = "2023-06-01"
_CACHED = {"type": "ephemeral"}
#: Tokens for reasoning, for models that take a budget.
_THINKING_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 24_576}
_SMALLEST_BUDGET = 1_024
#: The service requires max_tokens. Older models reject one above their own limit.
_OLD_MAX_TOKENS = ((re.compile(r"claude-3-5"), 8_192), (re.compile(r"claude-3-(?!7)|claude-2"), 4_096))
_MAX_TOKENS = 32_000
_MODEL_VERSION = re.compile(r"claude-(?:opus|sonnet|haiku)-(\d+)(?:-(\d{1,2}))?(?!\d)")
_OLD_MODEL = re.compile(r"claude-[23][-.]")
_INTERLEAVED_THINKING = {"anthropic-beta": "interleaved-thinking-2025-05-14"}
#: Prefix of signatures of hidden reasoning.
_HIDDEN = "hidden:"
_STOP_REASONS: dict[str, Literal["end", "tools", "length", "refused"]] = {
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class AnthropicModel(HttpModel):
    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self._url = URL(f"{credentials.base_url}/v1/messages")

    def auth_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def build_request(self, request: Request) -> HttpRequest:
        body: Body = {
            "model": request.model,
            "max_tokens": request.max_tokens or _max_tokens(request.model),
            "messages": _convert_messages(request.messages),
            "stream": True,
        }
        if request.system:
            body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHED}]
        if request.tools:
            body["tools"] = _convert_tools(request)
        headers = {"anthropic-version": _API_VERSION}
        if request.thinking:
            headers |= _add_thinking(body, request)
        if request.response_format is not None:
            schema = {"type": "json_schema", "schema": request.response_format}
            body["output_config"] = {**body.get("output_config", {}), "format": schema}
        return HttpRequest(self._url, self.with_options(body, request), headers)

    def make_reader(self, service: Service) -> AnthropicReader:
        return AnthropicReader(service)


# ------------------------------------------------------------------------------------------------------ the request


def _max_tokens(model: str) -> int:
    return next((limit for pattern, limit in _OLD_MAX_TOKENS if pattern.search(model)), _MAX_TOKENS)


def _add_thinking(body: Body, request: Request) -> dict[str, str]:
    """Add the amount of reasoning to the body, and return the headers that go with it.

    Newer models take an effort, older ones a budget.
    """
    if request.thinking == "off":
        body["thinking"] = {"type": "disabled"}
        return {}
    if _takes_effort(request.model):
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
        body["output_config"] = {"effort": request.thinking}
        return {}
    budget = min(_THINKING_BUDGETS.get(request.thinking, _THINKING_BUDGETS["medium"]), body["max_tokens"] // 2)
    if budget < _SMALLEST_BUDGET or _has_results_without_thinking(request.messages):
        return {}
    body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return _INTERLEAVED_THINKING


def _takes_effort(model: str) -> bool:
    """Return True from version 4.6 on, and for names that we don't know, which are newer."""
    if match := _MODEL_VERSION.search(model):
        return (int(match[1]), int(match[2] or 0)) >= (4, 6)
    return not _OLD_MODEL.search(model)


def _has_results_without_thinking(messages: Sequence[Message]) -> bool:
    """Return whether the last results belong to calls without signed reasoning, as after a switch of models.

    With a budget, the service rejects such results.
    """
    if not messages or messages[-1].role != "tool":
        return False
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    return last is not None and not any(isinstance(part, Thinking) and _convert_thinking(part) for part in last.parts)


def _convert_tools(request: Request) -> list[Body]:
    tools: list[Body] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    tools[-1]["cache_control"] = _CACHED
    return tools


def _convert_messages(messages: Sequence[Message]) -> list[Body]:
    """Convert the conversation. Neighbours with the same role become one message, as the service requires."""
    converted: list[Body] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [block for part in message.parts for block in _convert_part(part)]
        if not blocks:
            continue
        if converted and converted[-1]["role"] == role:
            converted[-1]["content"] += blocks
        else:
            converted.append({"role": role, "content": blocks})
    # Mark the last two user messages: what is new since the previous request is between them.
    for message in [message for message in converted if message["role"] == "user"][-2:]:
        message["content"][-1] = {**message["content"][-1], "cache_control": _CACHED}
    return converted


def _convert_part(part: Part) -> list[Body]:
    if isinstance(part, Text):
        return [{"type": "text", "text": part.text}] if has_text(part) else []
    if isinstance(part, Thinking):
        return _convert_thinking(part)
    if isinstance(part, Picture):
        return [_convert_image(part.image)]
    if isinstance(part, Call):
        return [{"type": "tool_use", "id": safe_call_id(part.call_id), "name": part.name, "input": part.args}]
    return [_convert_result(part)]


def _convert_thinking(part: Thinking) -> list[Body]:
    signature = signature_for(part, "anthropic")
    if signature.startswith(_HIDDEN):
        return [{"type": "redacted_thinking", "data": signature.removeprefix(_HIDDEN)}]
    return [{"type": "thinking", "thinking": part.text, "signature": signature}] if signature else []


def _convert_result(part: Result) -> Body:
    content: list[Body] = [{"type": "text", "text": part.text}] if has_text(part) else []
    content += [_convert_image(image) for image in part.images]
    result: Body = {"type": "tool_result", "tool_use_id": safe_call_id(part.call_id)}
    if content:
        result["content"] = content
    return result if part.ok else {**result, "is_error": True}


def _convert_image(image: Image) -> Body:
    if not image.data:
        return {"type": "text", "text": missing_image_note(image)}
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


# -------------------------------------------------------------------------------------------------------- the reply


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Delta(Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Block(Struct):
    type: str
    id: str = ""
    name: str = ""
    text: str = ""
    data: str = ""


class _MessageStart(Struct):
    usage: _Usage | None = None


class _Event(Struct):
    type: str
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _MessageStart | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_KNOWN_TYPES = frozenset(
    {
        "content_block_delta",
        "content_block_start",
        "content_block_stop",
        "error",
        "message_delta",
        "message_start",
        "message_stop",
    }
)
_decode = msgspec.json.Decoder(_Event).decode


class AnthropicReader:
    """Reads one reply: a list of content blocks that start, grow and end."""

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        self._calls: dict[int, int] = {}
        self._usage = _Usage()
        self._stop_reason = ""

    def read(self, event: bytes, chunks: list[Chunk]) -> None:
        try:
            decoded = _decode(event)
        except msgspec.ValidationError:
            if is_unknown_event(event, _KNOWN_TYPES):
                return
            raise
        match decoded.type:
            case "content_block_delta" if decoded.delta:
                self._read_delta(decoded.index, decoded.delta, chunks)
            case "content_block_start" if decoded.content_block:
                self._start_block(decoded.index, decoded.content_block, chunks)
            case "message_start" if decoded.message:
                self._update_usage(decoded.message.usage)
            case "message_delta":
                self._stop_reason = (decoded.delta and decoded.delta.stop_reason) or self._stop_reason
                self._update_usage(decoded.usage)
            case "message_stop":
                self.finished = Finished(_STOP_REASONS.get(self._stop_reason, "end"), self._convert_usage())
            case "error":
                raise stream_error(self._service, decoded.error or {})
            case _:
                pass  # The service asks clients to ignore unknown events.

    def _read_delta(self, index: int, delta: _Delta, chunks: list[Chunk]) -> None:
        if delta.type == "text_delta":
            chunks.append(TextPiece(delta.text))
        elif delta.type == "input_json_delta":
            if delta.partial_json:
                chunks.append(CallPiece(self._calls.get(index, 0), delta.partial_json))
        elif delta.type == "thinking_delta":
            chunks.append(ThinkingPiece(delta.thinking))
        elif delta.type == "signature_delta":
            chunks.append(ThinkingSigned(f"anthropic:{delta.signature}"))

    def _start_block(self, index: int, block: _Block, chunks: list[Chunk]) -> None:
        if block.type == "tool_use":
            self._calls[index] = len(self._calls)
            chunks.append(CallBegun(self._calls[index], block.id, block.name))
        elif block.type == "redacted_thinking":
            chunks.append(ThinkingSigned(f"anthropic:{_HIDDEN}{block.data}"))
        elif block.type == "text" and block.text:
            chunks.append(TextPiece(block.text))

    def _update_usage(self, usage: _Usage | None) -> None:
        """Take over the counts that are set. Later counts include earlier ones, and some events leave some out."""
        for name in _Usage.__struct_fields__:
            if usage is not None and (value := getattr(usage, name)) is not None:
                setattr(self._usage, name, value)

    def _convert_usage(self) -> TokenUsage:
        usage = self._usage
        return TokenUsage(
            input=usage.input_tokens or 0,
            output=usage.output_tokens or 0,
            cache_read=usage.cache_read_input_tokens or 0,
            cache_write=usage.cache_creation_input_tokens or 0,
        )

    def close(self) -> None:
        """Do nothing: without message_stop a reply isn't complete."""
