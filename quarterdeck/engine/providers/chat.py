"""OpenAI's chat completions, and every server that speaks them: vLLM, Ollama, llama.cpp, OpenRouter, and many more.

They differ in small things, so this one takes what comes: reasoning under two names, calls without a number, a last
word that is missing, usage in several forms.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
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
    Sent,
    buckets,
    data_url,
    failed,
    is_said,
    plain_id,
    signature,
)
from quarterdeck.engine.providers.credentials import KINDS, Access
from quarterdeck.engine.providers.failure import Service
from quarterdeck.engine.providers.openai import named_schema
from quarterdeck.events import Image, TokenUsage

#: DeepSeek and others want the reasoning of a turn back while it lasts, by the name that it had.
_GIVEN_BACK = "reasoning_content"
_EFFORTS = {"off": "none"}
_STOPS: dict[str, Literal["end", "tools", "length", "refused"]] = {
    "tool_calls": "tools",
    "function_call": "tools",
    "length": "length",
    "content_filter": "refused",
}


class ChatModel(HttpModel):
    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._url = URL(f"{access.base_url}/chat/completions")
        # the service that made the format has another name for it meanwhile
        self._limit = "max_completion_tokens" if access.base_url == KINDS["chat"].base_url else "max_tokens"

    def sent(self, request: Request) -> Sent:
        body: Body = {
            "model": request.model,
            "messages": _messages(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = _tools(request)
        if request.max_tokens:
            body[self._limit] = request.max_tokens
        if request.thinking:
            body["reasoning_effort"] = _EFFORTS.get(request.thinking, request.thinking)
        if request.response_format is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": named_schema(request.response_format)}
        return Sent(self._url, self.merged(body, request))

    def reader(self, service: Service) -> ChatReader:
        return ChatReader(service)


# --- what is sent


def _tools(request: Request) -> list[Body]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in request.tools
    ]


def _messages(request: Request) -> list[Body]:
    out: list[Body] = [{"role": "system", "content": request.system}] if request.system else []
    messages = request.messages
    turn = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    for at, message in enumerate(messages):
        if message.role == "assistant":
            out += _replied(message, at > turn)
        else:
            out += _told(message)
    return out


def _told(message: Message) -> list[Body]:
    """Results have texts only; their images follow as the user's."""
    results = [part for part in message.parts if isinstance(part, Result)]
    out: list[Body] = [
        {"role": "tool", "tool_call_id": plain_id(part.call_id), "content": part.text} for part in results
    ]
    shown = [_picture(image) for part in results for image in part.images]
    content = [_content(part) for part in message.parts if isinstance(part, Text | Picture) and is_said(part)] + shown
    if content:
        only_text = len(content) == 1 and content[0]["type"] == "text"
        out.append({"role": "user", "content": content[0]["text"] if only_text else content})
    return out


def _replied(message: Message, is_this_turn: bool) -> list[Body]:
    calls = [
        {
            "id": plain_id(call.call_id),
            "type": "function",
            "function": {"name": call.name, "arguments": msgspec.json.encode(call.args).decode()},
        }
        for call in message.calls
    ]
    text = message.text if message.text.strip() else None
    if not calls and text is None:
        return []
    out: Body = {"role": "assistant", "content": text}
    if calls:
        out["tool_calls"] = calls
    thought = "".join(
        part.text for part in message.parts if isinstance(part, Thinking) and signature(part, "chat") == _GIVEN_BACK
    )
    return [{**out, _GIVEN_BACK: thought}] if thought and is_this_turn else [out]


def _content(part: Text | Picture) -> Body:
    return {"type": "text", "text": part.text} if isinstance(part, Text) else _picture(part.image)


def _picture(image: Image) -> Body:
    if not image.data:
        return {"type": "text", "text": f"[an image that is no longer there: {image.path}]"}
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


# --- what comes back


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None


class _Event(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class _Called(Struct, gc=False):
    index: int
    id: str


class ChatReader:
    """One reply: pieces of a message."""

    __slots__ = ("_calls", "_count", "_service", "_stop", "_thought", "_usage", "finished")

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        self._calls: dict[int, _Called] = {}
        self._count = 0
        self._stop = ""
        self._thought = ""
        self._usage: _Usage | None = None

    def read(self, events: Sequence[bytes], out: list[Chunk]) -> None:
        for data in events:
            if data == b"[DONE]":
                self._end()
                return
            event = _decode(data)
            if event.usage is not None:
                self._usage = event.usage
            if event.error:
                error = {"message": event.error} if isinstance(event.error, str) else event.error
                raise failed(self._service, error)
            if event.choices:
                choice = event.choices[0]
                delta = choice.delta
                if delta is not None:
                    self._grow(delta, out)
                if choice.finish_reason:
                    self._stop = choice.finish_reason

    def _grow(self, delta: _Delta, out: list[Chunk]) -> None:
        if delta.reasoning_content or delta.reasoning:
            self._thought = "reasoning_content" if delta.reasoning_content else "reasoning"
            out.append(ThinkingPiece(delta.reasoning_content or delta.reasoning or ""))
        if delta.content:
            if self._thought:
                self._thought_over(out)
            out.append(TextPiece(delta.content))
        elif delta.refusal:
            self._stop = "content_filter"
            out.append(TextPiece(delta.refusal))
        for call in delta.tool_calls or ():
            self._call(call, out)

    def _call(self, call: _Call, out: list[Chunk]) -> None:
        """A new id is a new call, also where the numbers are all the same or not there."""
        at, function = self._place(call), call.function
        called = self._calls.get(at)
        if called is None or (call.id and call.id != called.id):
            if self._thought:
                self._thought_over(out)
            called = self._calls[at] = _Called(self._count, call.id or f"call_{secrets.token_hex(8)}")
            self._count += 1
            out.append(CallBegun(called.index, called.id, (function and function.name) or ""))
        if function and function.arguments:
            out.append(CallPiece(called.index, function.arguments))

    def _place(self, call: _Call) -> int:
        if call.index is not None:
            return call.index
        last = self._calls.get(self._count - 1)
        return self._count - 1 if last and call.id in (None, "", last.id) else self._count

    def _thought_over(self, out: list[Chunk]) -> None:
        """No proof is asked for here; the name under which it came is what must be known to give it back."""
        out.append(ThinkingSigned(f"chat:{self._thought}"))
        self._thought = ""

    def _end(self) -> None:
        stop = "tools" if self._count and self._stop in ("stop", "") else _STOPS.get(self._stop, "end")
        self.finished = Finished(stop, _counted(self._usage) if self._usage else None)

    def close(self) -> None:
        """A server that said why it stopped is done, also without the last word."""
        if self._stop and self.finished is None:
            self._end()


def _counted(usage: _Usage) -> TokenUsage:
    details = usage.prompt_tokens_details
    cached = (details and details.cached_tokens) or usage.prompt_cache_hit_tokens or 0
    return buckets(usage.prompt_tokens or 0, cached, usage.completion_tokens or 0)
