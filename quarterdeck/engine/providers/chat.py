"""OpenAI's Chat Completions format, which many servers speak: vLLM, Ollama, llama.cpp, OpenRouter and others.

They differ in details, so the reader is tolerant: reasoning under two names, calls without an index, a missing final event,
usage in several forms.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal

import msgspec
from msgspec import Struct
from yarl import URL

from quarterdeck.engine.model import (
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    Message,
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
    data_url,
    has_text,
    missing_image_note,
    safe_call_id,
    signature_for,
    split_usage,
    stream_error,
)
from quarterdeck.engine.providers.credentials import KNOWN_PROVIDERS, Credentials
from quarterdeck.engine.providers.failure import Service
from quarterdeck.engine.providers.openai import response_schema
from quarterdeck.events import Image, TokenUsage

#: DeepSeek and others require the reasoning of the current turn to be sent back in this field.
_REASONING_FIELD = "reasoning_content"
_EFFORTS = {"off": "none"}
_STOP_REASONS: dict[str, Literal["end", "tools", "length", "refused"]] = {
    "tool_calls": "tools",
    "function_call": "tools",
    "length": "length",
    "content_filter": "refused",
}


class ChatModel(HttpModel):
    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self._url = URL(f"{credentials.base_url}/chat/completions")
        # OpenAI has renamed the field; other servers still use the old name.
        is_openai = credentials.base_url == KNOWN_PROVIDERS["chat"].base_url
        self._limit_field = "max_completion_tokens" if is_openai else "max_tokens"

    def build_request(self, request: Request) -> HttpRequest:
        body: Body = {
            "model": request.model,
            "messages": _convert_messages(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = _convert_tools(request)
        if request.max_tokens:
            body[self._limit_field] = request.max_tokens
        if request.thinking:
            body["reasoning_effort"] = _EFFORTS.get(request.thinking, request.thinking)
        if request.response_format is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": response_schema(request.response_format)}
        return HttpRequest(self._url, self.with_options(body, request))

    def make_reader(self, service: Service) -> ChatReader:
        return ChatReader(service)


# ------------------------------------------------------------------------------------------------------ the request


def _convert_tools(request: Request) -> list[Body]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in request.tools
    ]


def _convert_messages(request: Request) -> list[Body]:
    converted: list[Body] = [{"role": "system", "content": request.system}] if request.system else []
    messages = request.messages
    turn_start = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    for at, message in enumerate(messages):
        if message.role == "assistant":
            converted += _convert_reply(message, is_current_turn=at > turn_start)
        else:
            converted += _convert_input(message)
    return converted


def _convert_input(message: Message) -> list[Body]:
    """Convert results and user content. Results can only hold text here, so their images follow as user content."""
    results = [part for part in message.parts if isinstance(part, Result)]
    converted: list[Body] = [
        {"role": "tool", "tool_call_id": safe_call_id(part.call_id), "content": part.text} for part in results
    ]
    content = [_convert_content(part) for part in message.parts if isinstance(part, Text | Picture) and has_text(part)]
    content += [_convert_image(image) for part in results for image in part.images]
    if content:
        is_text = len(content) == 1 and content[0]["type"] == "text"
        converted.append({"role": "user", "content": content[0]["text"] if is_text else content})
    return converted


def _convert_reply(message: Message, *, is_current_turn: bool) -> list[Body]:
    calls = [
        {
            "id": safe_call_id(call.call_id),
            "type": "function",
            "function": {"name": call.name, "arguments": msgspec.json.encode(call.args).decode()},
        }
        for call in message.calls
    ]
    text = message.text if message.text.strip() else None
    if not calls and text is None:
        return []
    reply: Body = {"role": "assistant", "content": text}
    if calls:
        reply["tool_calls"] = calls
    reasoning = "".join(
        part.text
        for part in message.parts
        if isinstance(part, Thinking) and signature_for(part, "chat") == _REASONING_FIELD
    )
    if reasoning and is_current_turn:
        reply[_REASONING_FIELD] = reasoning
    return [reply]


def _convert_content(part: Text | Picture) -> Body:
    return {"type": "text", "text": part.text} if isinstance(part, Text) else _convert_image(part.image)


def _convert_image(image: Image) -> Body:
    if not image.data:
        return {"type": "text", "text": missing_image_note(image)}
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


# -------------------------------------------------------------------------------------------------------- the reply


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None


class _Event(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class _OpenCall(Struct):
    index: int
    id: str


class ChatReader:
    """Reads one reply: deltas of a message."""

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        #: The latest call at each of the server's own indexes.
        self._calls: dict[int, _OpenCall] = {}
        self._call_count = 0
        self._stop_reason = ""
        #: The field in which reasoning arrived, until it is over.
        self._reasoning_field = ""
        self._usage: _Usage | None = None

    def read(self, event: bytes, chunks: list[Chunk]) -> None:
        if event == b"[DONE]":
            self._finish()
            return
        decoded = _decode(event)
        if decoded.usage is not None:
            self._usage = decoded.usage
        if decoded.error:
            error = {"message": decoded.error} if isinstance(decoded.error, str) else decoded.error
            raise stream_error(self._service, error)
        if decoded.choices:
            choice = decoded.choices[0]
            if choice.delta is not None:
                self._read_delta(choice.delta, chunks)
            if choice.finish_reason:
                self._stop_reason = choice.finish_reason

    def _read_delta(self, delta: _Delta, chunks: list[Chunk]) -> None:
        if delta.reasoning_content or delta.reasoning:
            self._reasoning_field = "reasoning_content" if delta.reasoning_content else "reasoning"
            chunks.append(ThinkingPiece(delta.reasoning_content or delta.reasoning or ""))
        if delta.content:
            self._end_reasoning(chunks)
            chunks.append(TextPiece(delta.content))
        elif delta.refusal:
            self._stop_reason = "content_filter"
            chunks.append(TextPiece(delta.refusal))
        for call in delta.tool_calls or ():
            self._read_call(call, chunks)

    def _read_call(self, delta: _ToolCall, chunks: list[Chunk]) -> None:
        index, function = self._call_index(delta), delta.function
        call = self._calls.get(index)
        # A new id is a new call, even if the server gives all calls the same index.
        if call is None or (delta.id and delta.id != call.id):
            self._end_reasoning(chunks)
            call = _OpenCall(self._call_count, delta.id or f"call_{secrets.token_hex(8)}")
            self._calls[index] = call
            self._call_count += 1
            chunks.append(CallBegun(call.index, call.id, (function and function.name) or ""))
        if function and function.arguments:
            chunks.append(CallPiece(call.index, function.arguments))

    def _call_index(self, delta: _ToolCall) -> int:
        if delta.index is not None:
            return delta.index
        last = self._calls.get(self._call_count - 1)
        return self._call_count - 1 if last and delta.id in (None, "", last.id) else self._call_count

    def _end_reasoning(self, chunks: list[Chunk]) -> None:
        # There is no signature in this format. Store the field's name instead, which is needed to send reasoning back.
        if self._reasoning_field:
            chunks.append(ThinkingSigned(f"chat:{self._reasoning_field}"))
            self._reasoning_field = ""

    def _finish(self) -> None:
        if self._call_count and self._stop_reason in ("stop", ""):
            stop_reason = "tools"
        else:
            stop_reason = _STOP_REASONS.get(self._stop_reason, "end")
        self.finished = Finished(stop_reason, _convert_usage(self._usage) if self._usage else None)

    def close(self) -> None:
        """Finish the reply if the server gave a stop reason but no final event."""
        if self._stop_reason and self.finished is None:
            self._finish()


def _convert_usage(usage: _Usage) -> TokenUsage:
    details = usage.prompt_tokens_details
    cached = (details and details.cached_tokens) or usage.prompt_cache_hit_tokens or 0
    return split_usage(usage.prompt_tokens or 0, cached, usage.completion_tokens or 0)
