"""Gemini's generateContent format.

A signature is attached to the part that follows from the reasoning, usually the first call. We store it as a reasoning block
without text before that part, and send it back at the same position. Newer models reject a call without its signature.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Literal
from urllib.parse import quote

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
    ModelError,
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
    missing_image_note,
    signature_for,
    split_usage,
    stream_error,
)
from quarterdeck.engine.providers.failure import Service
from quarterdeck.events import Image, Json, TokenUsage

#: Prefix of call ids that we made up. Ids are optional in this format, so these aren't sent.
_OWN_ID = "qd-"
#: What the service's documentation prescribes for calls that another model made.
_NO_SIGNATURE = "skip_thought_signature_validator"
_MODEL_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_THINKING_BUDGETS = {"off": 0, "low": 1_024, "medium": 8_192, "high": 24_576}
#: The smallest budget of models that can't switch reasoning off.
_SMALLEST_BUDGET = 128
_REFUSED_REASONS = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "LANGUAGE", "OTHER"}
)
_BROKEN_CALL_REASONS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MISSING_THOUGHT_SIGNATURE"})


class GeminiModel(HttpModel):
    def auth_headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def build_request(self, request: Request) -> HttpRequest:
        body: Body = {"contents": _convert_messages(request)}
        if request.system:
            body["systemInstruction"] = {"parts": [{"text": request.system}]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": _convert_tools(request)}]
        if config := _generation_config(request):
            body["generationConfig"] = config
        name = quote(request.model.removeprefix("models/"), safe="")
        path = f"/v1beta/models/{name}:streamGenerateContent?alt=sse"
        url = URL(self.credentials.base_url + path, encoded=True)
        return HttpRequest(url, self.with_options(body, request))

    def make_reader(self, service: Service) -> GeminiReader:
        return GeminiReader(service)


# ------------------------------------------------------------------------------------------------------ the request


def _version(model: str) -> tuple[int, int]:
    match = _MODEL_VERSION.search(model)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _convert_tools(request: Request) -> list[Body]:
    return [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
        for tool in request.tools
    ]


def _generation_config(request: Request) -> Body:
    config: Body = {}
    if request.max_tokens:
        config["maxOutputTokens"] = request.max_tokens
    if request.response_format is not None:
        config |= {"responseMimeType": "application/json", "responseJsonSchema": request.response_format}
    if thinking := _thinking_config(request):
        config["thinkingConfig"] = thinking
    return config


def _thinking_config(request: Request) -> Body:
    """Return a level from version 3 on and a budget before. Models before 2.5 reject both."""
    version, level = _version(request.model), request.thinking
    if not level:
        return {"includeThoughts": True} if version >= (2, 5) else {}
    if version >= (3, 0):
        return {"includeThoughts": level != "off", "thinkingLevel": _thinking_level(request.model, version, level)}
    budget = _THINKING_BUDGETS.get(level, _THINKING_BUDGETS["medium"])
    if "pro" in request.model:
        budget = max(budget, _SMALLEST_BUDGET)
    return {"includeThoughts": level != "off", "thinkingBudget": budget}


def _thinking_level(model: str, version: tuple[int, int], level: str) -> str:
    # None of these models can switch reasoning off, and not all have a level below low. 3.0 Pro has no medium.
    if level == "off":
        return "low"
    return "high" if level == "medium" and version == (3, 0) and "pro" in model else level


def _convert_messages(request: Request) -> list[Body]:
    """Convert the conversation. Neighbours with the same role become one content."""
    needs_signature = _version(request.model) >= (3, 0)
    contents: list[Body] = []
    for message in request.messages:
        if message.role == "assistant":
            role, parts = "model", _convert_reply(message, needs_signature)
        else:
            role, parts = "user", [converted for part in message.parts for converted in _convert_input(part)]
        if not parts:
            continue
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _convert_reply(message: Message, needs_signature: bool) -> list[Body]:
    """Convert a reply and attach each signature to the part it came with. Of several calls only the first has one."""
    converted: list[Body] = []
    signature = ""
    is_first_call = True
    for part in message.parts:
        body: Body = {}
        if isinstance(part, Thinking):
            signature = signature_for(part, "gemini") or signature
        elif isinstance(part, Text) and part.text:
            body = {"text": part.text}
        elif isinstance(part, Call):
            body = {"functionCall": _with_id(part.call_id, {"name": part.name, "args": part.args})}
            if not signature and is_first_call and needs_signature:
                signature = _NO_SIGNATURE
            is_first_call = False
        if body:
            converted.append({**body, "thoughtSignature": signature} if signature else body)
            signature = ""
    return [*converted, {"text": "", "thoughtSignature": signature}] if signature and converted else converted


def _convert_input(part: Part) -> list[Body]:
    if isinstance(part, Text):
        return [{"text": part.text}] if has_text(part) else []
    if isinstance(part, Picture):
        return [_convert_image(part.image)]
    if isinstance(part, Result):
        response = {"output" if part.ok else "error": part.text}
        result = {"functionResponse": _with_id(part.call_id, {"name": part.name, "response": response})}
        return [result, *[_convert_image(image) for image in part.images]]
    return []


def _with_id(call_id: str, call: Body) -> Body:
    return call if call_id.startswith(_OWN_ID) else {"id": call_id, **call}


def _convert_image(image: Image) -> Body:
    if not image.data:
        return {"text": missing_image_note(image)}
    return {"inlineData": {"mimeType": image.media_type, "data": image.data}}


# -------------------------------------------------------------------------------------------------------- the reply


class _Function(Struct):
    name: str = ""
    args: dict[str, Json] | None = None
    id: str | None = None


class _Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    function_call: _Function | None = None


class _Content(Struct):
    parts: list[_Part] | None = None


class _Candidate(Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Usage(Struct, rename="camel"):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None


class _Event(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    prompt_feedback: _Feedback | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Event).decode


class GeminiReader:
    """Reads one reply: responses with parts. The last one has the stop reason; there is no final event."""

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        self._call_count = 0
        self._stop_reason = ""
        self._usage: _Usage | None = None

    def read(self, event: bytes, chunks: list[Chunk]) -> None:
        decoded = _decode(event)
        self._usage = decoded.usage_metadata or self._usage
        if decoded.error:
            raise stream_error(self._service, decoded.error)
        if decoded.prompt_feedback and decoded.prompt_feedback.block_reason:
            self._stop_reason = "SAFETY"
        for candidate in decoded.candidates or ():
            for part in (candidate.content and candidate.content.parts) or ():
                self._read_part(part, chunks)
            if candidate.finish_reason:
                self._stop(candidate.finish_reason, candidate.finish_message)

    def _read_part(self, part: _Part, chunks: list[Chunk]) -> None:
        if part.thought_signature:
            chunks.append(ThinkingSigned(f"gemini:{part.thought_signature}"))
        if part.text:
            chunks.append(ThinkingPiece(part.text) if part.thought else TextPiece(part.text))
        if part.function_call:
            call = part.function_call
            chunks.append(CallBegun(self._call_count, call.id or f"{_OWN_ID}{secrets.token_hex(8)}", call.name))
            chunks.append(CallPiece(self._call_count, msgspec.json.encode(call.args or {}).decode()))
            self._call_count += 1

    def _stop(self, reason: str, message: str | None) -> None:
        self._stop_reason = reason
        if reason in _BROKEN_CALL_REASONS:
            detail = self._service.remove_secrets(message or "no details")
            raise ModelError(
                "api",
                f"{self._service.name}: the model made an invalid call ({reason}): {detail}",
                "The request is retried automatically.",
                is_transient=True,
            )

    def close(self) -> None:
        """Finish the reply if there was a stop reason."""
        if not self._stop_reason:
            return
        stop_reason: Literal["end", "tools", "length", "refused"] = "tools" if self._call_count else "end"
        if self._stop_reason == "MAX_TOKENS":
            stop_reason = "length"
        elif self._stop_reason in _REFUSED_REASONS:
            stop_reason = "refused"
        self.finished = Finished(stop_reason, _convert_usage(self._usage) if self._usage else None)


def _convert_usage(usage: _Usage) -> TokenUsage:
    # What the service's own tools read is also sent to the model, and reasoning counts as output.
    prompt = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return split_usage(prompt, usage.cached_content_token_count or 0, output)
