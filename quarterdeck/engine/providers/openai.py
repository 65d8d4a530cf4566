"""OpenAI's Responses format.

Nothing is stored at the service. Reasoning arrives encrypted and must be sent back before what followed from it.
"""

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
    HttpRequest,
    data_url,
    has_text,
    is_strict_schema,
    is_unknown_event,
    missing_image_note,
    safe_call_id,
    signature_for,
    split_usage,
    stream_error,
)
from quarterdeck.engine.providers.credentials import Credentials
from quarterdeck.engine.providers.failure import Service
from quarterdeck.events import Image, TokenUsage

#: Models that reason. The others reject the option.
_REASONING_MODELS = re.compile(r"^(o\d|gpt-(?!4|3)(?!.*-chat)|codex)")
#: The lowest effort of models that can't switch reasoning off.
_LOWEST_EFFORT = ((re.compile(r"^o\d|codex"), "low"), (re.compile(r"^gpt-5(?!\.)"), "minimal"))


class OpenAIModel(HttpModel):
    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self._url = URL(f"{credentials.base_url}/responses")

    def build_request(self, request: Request) -> HttpRequest:
        body: Body = {
            "model": request.model,
            "input": [item for message in request.messages for item in _convert_message(message)],
            "stream": True,
            "store": False,
        }
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = _convert_tools(request)
        if request.max_tokens:
            body["max_output_tokens"] = request.max_tokens
        if request.response_format is not None:
            body["text"] = {"format": {"type": "json_schema", **response_schema(request.response_format)}}
        if request.thinking or _REASONING_MODELS.match(request.model):
            body["include"] = ["reasoning.encrypted_content"]
        if request.thinking:
            body["reasoning"] = _reasoning_options(request)
        return HttpRequest(self._url, self.with_options(body, request))

    def make_reader(self, service: Service) -> ResponsesReader:
        return ResponsesReader(service)


def _reasoning_options(request: Request) -> Body:
    if request.thinking == "off":
        efforts = (effort for pattern, effort in _LOWEST_EFFORT if pattern.search(request.model))
        return {"effort": next(efforts, "none")}
    # Request a summary only here: the service refuses it to organizations that it hasn't verified.
    return {"effort": request.thinking, "summary": "auto"}


def response_schema(schema: Body) -> Body:
    return {"name": "reply", "schema": schema, "strict": is_strict_schema(schema)}


# ------------------------------------------------------------------------------------------------------ the request


def _convert_tools(request: Request) -> list[Body]:
    # Not strict: that would reject schemas with optional fields. The service's own default is strict.
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


def _convert_message(message: Message) -> list[Body]:
    if message.role == "assistant":
        parts = message.parts
        return [item for at, part in enumerate(parts) for item in _convert_reply_part(part, parts[at + 1 :])]
    results = [_convert_result(part) for part in message.parts if isinstance(part, Result)]
    content = [_convert_content(part) for part in message.parts if isinstance(part, Text | Picture) and has_text(part)]
    return [*results, {"type": "message", "role": "user", "content": content}] if content else results


def _convert_reply_part(part: Part, following: Sequence[Part]) -> list[Body]:
    if isinstance(part, Text):
        content = [{"type": "output_text", "text": part.text}]
        return [{"type": "message", "role": "assistant", "content": content}] if has_text(part) else []
    if isinstance(part, Call):
        call = {"call_id": safe_call_id(part.call_id), "name": part.name}
        return [{"type": "function_call", **call, "arguments": msgspec.json.encode(part.args).decode()}]
    if isinstance(part, Thinking) and (signature := signature_for(part, "openai")):
        return _convert_reasoning(part, signature, following)
    return []


def _convert_reasoning(part: Thinking, signature: str, following: Sequence[Part]) -> list[Body]:
    # The service rejects reasoning that nothing follows.
    if not any(isinstance(after, Call) or (isinstance(after, Text) and has_text(after)) for after in following):
        return []
    item_id, _, encrypted = signature.partition(":")
    summary = [{"type": "summary_text", "text": part.text}] if has_text(part) else []
    return [{"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": encrypted}]


def _convert_result(part: Result) -> Body:
    output: str | list[Body] = part.text
    if part.images:
        output = [{"type": "input_text", "text": part.text}] if has_text(part) else []
        output += [_convert_image(image) for image in part.images]
    return {"type": "function_call_output", "call_id": safe_call_id(part.call_id), "output": output}


def _convert_content(part: Text | Picture) -> Body:
    return {"type": "input_text", "text": part.text} if isinstance(part, Text) else _convert_image(part.image)


def _convert_image(image: Image) -> Body:
    if not image.data:
        return {"type": "input_text", "text": missing_image_note(image)}
    return {"type": "input_image", "image_url": data_url(image)}


# -------------------------------------------------------------------------------------------------------- the reply


class _Item(Struct):
    type: str
    id: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    encrypted_content: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None


class _IncompleteDetails(Struct):
    reason: str | None = None


class _Response(Struct):
    usage: _Usage | None = None
    incomplete_details: _IncompleteDetails | None = None
    error: dict[str, Any] | None = None


class _Event(Struct):
    type: str
    delta: str = ""
    output_index: int = 0
    summary_index: int = 0
    item: _Item | None = None
    response: _Response | None = None
    code: str | None = None
    message: str | None = None
    error: dict[str, Any] | None = None


_KNOWN_TYPES = frozenset(
    {
        "error",
        "response.completed",
        "response.failed",
        "response.function_call_arguments.delta",
        "response.incomplete",
        "response.output_item.added",
        "response.output_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.refusal.delta",
    }
)
_decode = msgspec.json.Decoder(_Event).decode


class _OpenCall(Struct):
    index: int
    has_arguments: bool = False


class ResponsesReader:
    """Reads one reply: a list of items that start, grow and end."""

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        self._calls: dict[int, _OpenCall] = {}
        self._is_refused = False

    def read(self, event: bytes, chunks: list[Chunk]) -> None:
        try:
            decoded = _decode(event)
        except msgspec.ValidationError:
            if is_unknown_event(event, _KNOWN_TYPES):
                return
            raise
        item = decoded.item
        match decoded.type:
            case "response.output_text.delta":
                chunks.append(TextPiece(decoded.delta))
            case "response.function_call_arguments.delta":
                call = self._calls.get(decoded.output_index)
                if call and decoded.delta:
                    call.has_arguments = True
                    chunks.append(CallPiece(call.index, decoded.delta))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                chunks.append(ThinkingPiece(decoded.delta))
            case "response.reasoning_summary_part.added" if decoded.summary_index:
                chunks.append(ThinkingPiece("\n\n"))
            case "response.refusal.delta":
                self._is_refused = True
                chunks.append(TextPiece(decoded.delta))
            case "response.output_item.added" if item and item.type == "function_call":
                call = self._calls[decoded.output_index] = _OpenCall(len(self._calls))
                chunks.append(CallBegun(call.index, item.call_id or item.id, item.name or ""))
            case "response.output_item.done" if item:
                self._end_item(decoded.output_index, item, chunks)
            case "response.completed" | "response.incomplete":
                self._finish(decoded.response or _Response())
            case "response.failed" | "error":
                error = (decoded.response and decoded.response.error) or decoded.error
                raise stream_error(self._service, error or {"code": decoded.code, "message": decoded.message})
            case _:
                pass

    def _end_item(self, output_index: int, item: _Item, chunks: list[Chunk]) -> None:
        # The signature of reasoning arrives only now, and arguments may arrive as a whole at the end.
        if item.type == "reasoning" and item.encrypted_content:
            chunks.append(ThinkingSigned(f"openai:{item.id}:{item.encrypted_content}"))
        call = self._calls.get(output_index)
        if call and isinstance(item.arguments, str) and item.arguments and not call.has_arguments:
            call.has_arguments = True
            chunks.append(CallPiece(call.index, item.arguments))

    def _finish(self, response: _Response) -> None:
        reason = response.incomplete_details.reason if response.incomplete_details else None
        usage = _convert_usage(response.usage) if response.usage else None
        if reason == "max_output_tokens":
            self.finished = Finished("length", usage)
        elif self._is_refused or reason == "content_filter":
            self.finished = Finished("refused", usage)
        else:
            self.finished = Finished("tools" if self._calls else "end", usage)

    def close(self) -> None:
        """Do nothing: without its final event a reply isn't complete."""


def _convert_usage(usage: _Usage) -> TokenUsage:
    details = usage.input_tokens_details
    return split_usage(usage.input_tokens, (details and details.cached_tokens) or 0, usage.output_tokens)
