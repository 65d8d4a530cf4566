"""OpenAI's Responses. Nothing is stored there: reasoning comes encrypted, and goes back before what followed from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

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
    Sent,
    buckets,
    data_url,
    failed,
    is_said,
    is_strict,
    is_unknown,
    plain_id,
    signature,
)
from quarterdeck.engine.providers.credentials import Access
from quarterdeck.engine.providers.failure import Service
from quarterdeck.events import Image, TokenUsage

#: Models that reason; the others refuse to be told how much.
_REASONS = re.compile(r"^(o\d|gpt-(?!4|3)(?!.*-chat)|codex)")
#: The least that a model can think, where that is not nothing.
_LEAST = ((re.compile(r"^o\d|codex"), "low"), (re.compile(r"^gpt-5(?!\.)"), "minimal"))


class OpenAIModel(HttpModel):
    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._url = URL(f"{access.base_url}/responses")

    def sent(self, request: Request) -> Sent:
        body: Body = {
            "model": request.model,
            "input": [item for message in request.messages for item in _items(message)],
            "stream": True,
            "store": False,
        }
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = _tools(request)
        if request.max_tokens:
            body["max_output_tokens"] = request.max_tokens
        if request.response_format is not None:
            body["text"] = {"format": {"type": "json_schema", **named_schema(request.response_format)}}
        if request.thinking or _REASONS.match(request.model):
            body["include"] = ["reasoning.encrypted_content"]
        if request.thinking:
            body["reasoning"] = _reasoning(request)
        return Sent(self._url, self.merged(body, request))

    def reader(self, service: Service) -> ResponsesReader:
        return ResponsesReader(service)


def _reasoning(request: Request) -> Body:
    """A summary is asked for only by whoever wants thinking: the service refuses it to those it does not know well."""
    if request.thinking == "off":
        least = (least for pattern, least in _LEAST if pattern.search(request.model))
        return {"effort": next(least, "none")}
    return {"effort": request.thinking, "summary": "auto"}


def named_schema(schema: Body) -> Body:
    return {"name": "reply", "schema": schema, "strict": is_strict(schema)}


# --- what is sent


def _tools(request: Request) -> list[Body]:
    """Not strict: that would refuse schemas with optional fields, and it is what the service does unasked."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,
        }
        for tool in request.tools
    ]


def _items(message: Message) -> list[Body]:
    if message.role == "assistant":
        return [item for at, part in enumerate(message.parts) for item in _replied(part, message.parts[at + 1 :])]
    results = [_result(part) for part in message.parts if isinstance(part, Result)]
    content = [_content(part) for part in message.parts if isinstance(part, Text | Picture) and is_said(part)]
    return [*results, {"type": "message", "role": "user", "content": content}] if content else results


def _replied(part: Part, after: Sequence[Part]) -> list[Body]:
    if isinstance(part, Text):
        content = [{"type": "output_text", "text": part.text}]
        return [{"type": "message", "role": "assistant", "content": content}] if is_said(part) else []
    if isinstance(part, Call):
        arguments = msgspec.json.encode(part.args).decode()
        call = {"type": "function_call", "call_id": plain_id(part.call_id), "name": part.name, "arguments": arguments}
        return [call]
    if isinstance(part, Thinking) and (proof := signature(part, "openai")):
        return _reasoned(part, proof, after)
    return []


def _reasoned(part: Thinking, proof: str, after: Sequence[Part]) -> list[Body]:
    """Reasoning of which nothing followed is refused."""
    if not any(isinstance(one, Call) or (isinstance(one, Text) and is_said(one)) for one in after):
        return []
    name, _, encrypted = proof.partition(":")
    summary = [{"type": "summary_text", "text": part.text}] if is_said(part) else []
    return [{"type": "reasoning", "id": name, "summary": summary, "encrypted_content": encrypted}]


def _result(part: Result) -> Body:
    output: str | list[Body] = part.text
    if part.images:
        output = [{"type": "input_text", "text": part.text}] if is_said(part) else []
        output += [_picture(image) for image in part.images]
    return {"type": "function_call_output", "call_id": plain_id(part.call_id), "output": output}


def _content(part: Text | Picture) -> Body:
    return {"type": "input_text", "text": part.text} if isinstance(part, Text) else _picture(part.image)


def _picture(image: Image) -> Body:
    if not image.data:
        return {"type": "input_text", "text": f"[an image that is no longer there: {image.path}]"}
    return {"type": "input_image", "image_url": data_url(image)}


# --- what comes back


class _Item(Struct, gc=False):
    type: str
    id: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    encrypted_content: str | None = None


class _Details(Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None


class _Reason(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    usage: _Usage | None = None
    incomplete_details: _Reason | None = None
    error: dict[str, Any] | None = None


class _Event(Struct, gc=False):
    type: str
    delta: str = ""
    output_index: int = 0
    summary_index: int = 0
    item: _Item | None = None
    response: _Response | None = None
    code: str | None = None
    message: str | None = None
    error: dict[str, Any] | None = None


_KNOWN = frozenset(
    {"error", "response.completed", "response.incomplete", "response.failed", "response.refusal.delta"}
    | {"response.output_text.delta", "response.function_call_arguments.delta", "response.output_item.added"}
    | {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
)
_decode = msgspec.json.Decoder(_Event).decode


class _Called(Struct, gc=False):
    index: int
    has_arguments: bool = False


class ResponsesReader:
    """One reply: items that begin, grow and end."""

    __slots__ = ("_calls", "_is_refused", "_service", "finished")

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        self._calls: dict[int, _Called] = {}
        self._is_refused = False

    def read(self, events: Sequence[bytes], out: list[Chunk]) -> None:
        for data in events:
            try:
                event = _decode(data)
            except msgspec.ValidationError:
                if is_unknown(data, _KNOWN):
                    continue
                raise
            kind = event.type
            if kind == "response.output_text.delta":
                out.append(TextPiece(event.delta))
            elif kind == "response.function_call_arguments.delta":
                called = self._calls.get(event.output_index)
                if called and event.delta:
                    called.has_arguments = True
                    out.append(CallPiece(called.index, event.delta))
            elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
                out.append(ThinkingPiece(event.delta))
            else:
                self._rare(event, out)

    def _rare(self, event: _Event, out: list[Chunk]) -> None:
        kind, item = event.type, event.item
        if kind == "response.output_item.added" and item and item.type == "function_call":
            called = self._calls[event.output_index] = _Called(len(self._calls))
            out.append(CallBegun(called.index, item.call_id or item.id, item.name or ""))
        elif kind == "response.output_item.done" and item:
            self._done(event.output_index, item, out)
        elif kind == "response.reasoning_summary_part.added" and event.summary_index:
            out.append(ThinkingPiece("\n\n"))
        elif kind == "response.refusal.delta":
            self._is_refused = True
            out.append(TextPiece(event.delta))
        elif kind in ("response.completed", "response.incomplete"):
            self._end(event.response or _Response())
        elif kind in ("response.failed", "error"):
            error = (event.response and event.response.error) or event.error
            raise failed(self._service, error or {"code": event.code, "message": event.message})

    def _done(self, at: int, item: _Item, out: list[Chunk]) -> None:
        """Reasoning has its proof only now; arguments may come in one piece at the end."""
        if item.type == "reasoning" and item.encrypted_content:
            out.append(ThinkingSigned(f"openai:{item.id}:{item.encrypted_content}"))
        called = self._calls.get(at)
        if called and isinstance(item.arguments, str) and item.arguments and not called.has_arguments:
            called.has_arguments = True
            out.append(CallPiece(called.index, item.arguments))

    def _end(self, response: _Response) -> None:
        why = response.incomplete_details.reason if response.incomplete_details else None
        usage = _counted(response.usage) if response.usage else None
        if why == "max_output_tokens":
            self.finished = Finished("length", usage)
        elif self._is_refused or why == "content_filter":
            self.finished = Finished("refused", usage)
        else:
            self.finished = Finished("tools" if self._calls else "end", usage)

    def close(self) -> None:
        """Nothing but its last event makes a reply whole."""


def _counted(usage: _Usage) -> TokenUsage:
    details = usage.input_tokens_details
    return buckets(usage.input_tokens, (details and details.cached_tokens) or 0, usage.output_tokens)
