"""Gemini's generateContent.

A signature stands on the part that follows from the reasoning, mostly the first call. Here it is an empty piece of
reasoning before that part, and goes back to where it was; newer models refuse a call that has lost it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
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
from quarterdeck.engine.providers.base import Body, HttpModel, Sent, buckets, failed, is_said, signature
from quarterdeck.engine.providers.credentials import Access
from quarterdeck.engine.providers.failure import Service
from quarterdeck.events import Image, Json, TokenUsage

#: Ids are optional here; one that we made up is not sent.
_OURS = "qd-"
#: What the service's own documentation gives for calls that another model made.
_NO_SIGNATURE = "skip_thought_signature_validator"
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_BUDGETS = {"off": 0, "low": 1_024, "medium": 8_192, "high": 24_576}
#: What a model that cannot do without thinking takes at least.
_SMALLEST = 128
_REFUSED = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "LANGUAGE", "OTHER"}
)
_SPOILT = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MISSING_THOUGHT_SIGNATURE"})


class GeminiModel(HttpModel):
    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._base = access.base_url

    def auth_headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def sent(self, request: Request) -> Sent:
        body: Body = {"contents": _contents(request)}
        if request.system:
            body["systemInstruction"] = {"parts": [{"text": request.system}]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": _tools(request)}]
        if config := _config(request):
            body["generationConfig"] = config
        name = quote(request.model.removeprefix("models/"), safe="")
        url = URL(f"{self._base}/v1beta/models/{name}:streamGenerateContent?alt=sse", encoded=True)
        return Sent(url, self.merged(body, request))

    def reader(self, service: Service) -> GeminiReader:
        return GeminiReader(service)


# --- what is sent


def _version(model: str) -> tuple[int, int]:
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _tools(request: Request) -> list[Body]:
    return [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
        for tool in request.tools
    ]


def _config(request: Request) -> Body:
    out: Body = {}
    if request.max_tokens:
        out["maxOutputTokens"] = request.max_tokens
    if request.response_format is not None:
        out |= {"responseMimeType": "application/json", "responseJsonSchema": request.response_format}
    if thinking := _thinking(request):
        out["thinkingConfig"] = thinking
    return out


def _thinking(request: Request) -> Body:
    """A level from version 3 on, a budget before. Models before 2.5 refuse to hear of either."""
    version, level = _version(request.model), request.thinking
    if not level:
        return {"includeThoughts": True} if version >= (2, 5) else {}
    if version >= (3, 0):
        return {"includeThoughts": level != "off", "thinkingLevel": _level(request.model, version, level)}
    budget = _BUDGETS.get(level, _BUDGETS["medium"])
    if "pro" in request.model:
        budget = max(budget, _SMALLEST)
    return {"includeThoughts": level != "off", "thinkingBudget": budget}


def _level(model: str, version: tuple[int, int], level: str) -> str:
    """None of them can do without, and not all know less than low; the first Pro knows no middle."""
    if level == "off":
        return "low"
    return "high" if level == "medium" and version == (3, 0) and "pro" in model else level


def _contents(request: Request) -> list[Body]:
    """Neighbours of one role are one content."""
    wants_proof = _version(request.model) >= (3, 0)
    out: list[Body] = []
    for message in request.messages:
        role = "model" if message.role == "assistant" else "user"
        parts = (
            _replied(message, wants_proof) if role == "model" else [p for part in message.parts for p in _told(part)]
        )
        if not parts:
            continue
        if out and out[-1]["role"] == role:
            out[-1]["parts"] += parts
        else:
            out.append({"role": role, "parts": parts})
    return out


def _replied(message: Message, wants_proof: bool) -> list[Body]:
    """Each signature on the part that came with it. Of calls at once only the first has one."""
    out: list[Body] = []
    proof = ""
    is_first_call = True
    for part in message.parts:
        if isinstance(part, Thinking):
            proof = signature(part, "gemini") or proof
            continue
        if isinstance(part, Text):
            made: Body = {"text": part.text} if part.text else {}
        elif isinstance(part, Call):
            made = {"functionCall": _named(part.call_id, {"name": part.name, "args": part.args})}
            if not proof and is_first_call and wants_proof:
                proof = _NO_SIGNATURE
            is_first_call = False
        else:
            made = {}
        if made:
            out.append({**made, "thoughtSignature": proof} if proof else made)
            proof = ""
    return [*out, {"text": "", "thoughtSignature": proof}] if proof and out else out


def _told(part: Part) -> list[Body]:
    if isinstance(part, Text):
        return [{"text": part.text}] if is_said(part) else []
    if isinstance(part, Picture):
        return [_picture(part.image)]
    if isinstance(part, Result):
        response = {"output" if part.ok else "error": part.text}
        told = {"functionResponse": _named(part.call_id, {"name": part.name, "response": response})}
        return [told, *[_picture(image) for image in part.images]]
    return []


def _named(call_id: str, call: Body) -> Body:
    return call if call_id.startswith(_OURS) else {"id": call_id, **call}


def _picture(image: Image) -> Body:
    if not image.data:
        return {"text": f"[an image that is no longer there: {image.path}]"}
    return {"inlineData": {"mimeType": image.media_type, "data": image.data}}


# --- what comes back


class _Function(Struct, gc=False):
    name: str = ""
    args: dict[str, Json] | None = None
    id: str | None = None


class _Part(Struct, gc=False, rename="camel"):
    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    function_call: _Function | None = None


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Usage(Struct, gc=False, rename="camel"):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None


class _Feedback(Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class _Event(Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    prompt_feedback: _Feedback | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Event).decode


class GeminiReader:
    """One reply: answers with parts, the last of which says why it stopped. There is no last word."""

    __slots__ = ("_count", "_service", "_stop", "_usage", "finished")

    def __init__(self, service: Service) -> None:
        self.finished: Finished | None = None
        self._service = service
        self._count = 0
        self._stop = ""
        self._usage: _Usage | None = None

    def read(self, events: Sequence[bytes], out: list[Chunk]) -> None:
        for data in events:
            event = _decode(data)
            self._usage = event.usage_metadata or self._usage
            if event.error:
                raise failed(self._service, event.error)
            if event.prompt_feedback and event.prompt_feedback.block_reason:
                self._stop = "SAFETY"
            for candidate in event.candidates or ():
                for part in (candidate.content and candidate.content.parts) or ():
                    if part.text and not (part.thought or part.thought_signature or part.function_call):
                        out.append(TextPiece(part.text))
                    else:
                        self._part(part, out)
                if candidate.finish_reason:
                    self._stopped(candidate)

    def _part(self, part: _Part, out: list[Chunk]) -> None:
        if part.thought_signature:
            out.append(ThinkingSigned(f"gemini:{part.thought_signature}"))
        if part.text:
            out.append(ThinkingPiece(part.text) if part.thought else TextPiece(part.text))
        if part.function_call:
            call = part.function_call
            out.append(CallBegun(self._count, call.id or f"{_OURS}{secrets.token_hex(8)}", call.name))
            out.append(CallPiece(self._count, msgspec.json.encode(call.args or {}).decode()))
            self._count += 1

    def _stopped(self, candidate: _Candidate) -> None:
        self._stop = candidate.finish_reason or ""
        if self._stop in _SPOILT:
            said = self._service.scrubbed(candidate.finish_message or "no more was said")
            raise ModelError(
                "api",
                f"{self._service.name}: the model made a call that cannot be read ({self._stop}): {said}",
                "It happens now and then; it is tried again by itself.",
                is_transient=True,
            )

    def close(self) -> None:
        """The body is over: it is whole if it was said why it stopped."""
        if not self._stop:
            return
        stop: Literal["end", "tools", "length", "refused"] = "tools" if self._count else "end"
        if self._stop == "MAX_TOKENS":
            stop = "length"
        elif self._stop in _REFUSED:
            stop = "refused"
        self.finished = Finished(stop, _counted(self._usage) if self._usage else None)


def _counted(usage: _Usage) -> TokenUsage:
    """What tools of the service itself read is sent to the model too; what was thought is output."""
    sent = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return buckets(sent, usage.cached_content_token_count or 0, output)
