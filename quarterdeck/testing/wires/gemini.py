"""Gemini's generateContent and streamGenerateContent format."""

from __future__ import annotations

from typing import Any

import msgspec

from quarterdeck.testing.script import Fault, Turn, split_text
from quarterdeck.testing.wires import Body, Reply, objects_in, text_of

_STOP_REASONS = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY"}
#: Status word, message and details of an error, by status and reason.
_ERRORS: dict[tuple[int, str], tuple[str, str, list[Body]]] = {
    (400, ""): ("INVALID_ARGUMENT", "Request contains an invalid argument.", []),
    (400, "overflow"): (
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        [],
    ),
    (400, "key"): (
        "INVALID_ARGUMENT",
        "API key not valid. Please pass a valid API key.",
        [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
            }
        ],
    ),
    (401, ""): ("UNAUTHENTICATED", "Request had invalid authentication credentials.", []),
    (402, ""): ("FAILED_PRECONDITION", "Billing is not enabled for this project.", []),
    (403, ""): ("PERMISSION_DENIED", "Permission denied: the key may not use this API.", []),
    (404, ""): ("NOT_FOUND", "models/{model} is not found for API version v1beta, or is not supported.", []),
    (429, ""): (
        "RESOURCE_EXHAUSTED",
        "You exceeded your current quota. Please retry in 36s.",
        [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}],
    ),
    (429, "quota"): (
        "RESOURCE_EXHAUSTED",
        "You exceeded your current quota, please check your plan and billing details.",
        [
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
            }
        ],
    ),
    (500, ""): ("INTERNAL", "An internal error has occurred.", []),
    (503, ""): ("UNAVAILABLE", "The model is overloaded. Please try again later.", []),
}


def read_turns(body: Body) -> list[Turn]:
    return [turn for content in objects_in(body.get("contents")) for turn in _turns(content)]


def _turns(content: Body) -> list[Turn]:
    parts = objects_in(content.get("parts"))
    text = text_of(parts)
    if content.get("role") == "model":
        return [Turn("model", text, tuple(_call_id(part["functionCall"]) for part in parts if "functionCall" in part))]
    results = tuple(_call_id(part["functionResponse"]) for part in parts if "functionResponse" in part)
    result_turns = [Turn("result", results=results)] if results else []
    return [*result_turns, Turn("user", text)] if text or not results else result_turns


def _call_id(call: Body) -> str:
    """Return the id of a call or result. Ids are optional in this format; use the name instead."""
    return str(call.get("id") or call.get("name"))


def find_problem(body: Body) -> str:
    return "" if body.get("contents") else "* GenerateContentRequest.contents: contents is not specified"


def stream_frames(reply: Reply) -> list[bytes]:
    """Return the frames of the stream. This service ends lines with \\r\\n, unlike the others."""
    return [b"data: " + msgspec.json.encode(response) + b"\r\n\r\n" for response in responses(reply)]


def responses(reply: Reply) -> list[Body]:
    """Return the stream as objects. Without `alt=sse` the service sends them as one list. Each has the usage so far."""
    step = reply.step
    parts = [{"text": piece, "thought": True} for piece in split_text(step.think, step.chunk)]
    parts += [{"text": piece} for piece in split_text(step.text, step.chunk)]
    out = [_response(reply, [part]) for part in parts]
    if step.calls:
        out.append(_response(reply, _calls(reply)))
    last: Body = {"text": ""}
    if step.think and not step.calls:
        last["thoughtSignature"] = step.signature
    return [*out, _response(reply, [last], _STOP_REASONS.get(step.stop_reason, step.stop_reason))]


def whole_reply(reply: Reply) -> Body:
    step = reply.step
    parts: list[Body] = [{"text": step.think, "thought": True}] if step.think else []
    parts += [{"text": step.text}] if step.text else []
    parts += _calls(reply)
    return _response(reply, parts, _STOP_REASONS.get(step.stop_reason, step.stop_reason))


def _calls(reply: Reply) -> list[Body]:
    """Return the calls. Arguments are sent whole, and the first call has the signature of the reasoning."""
    out: list[Body] = []
    for at, call in enumerate(reply.step.calls):
        part: Body = {"functionCall": {"id": reply.call_id("fc", at), "name": call.name, "args": call.args}}
        if reply.step.think and at == 0:
            part["thoughtSignature"] = reply.step.signature
        out.append(part)
    return out


def _response(reply: Reply, parts: list[Body], finish: str = "") -> Body:
    usage = reply.step.usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": usage.output,
            "totalTokenCount": prompt + usage.output,
        },
        "modelVersion": reply.model,
        "responseId": reply.reply_id,
    }


def error_body(fault: Fault, model: str) -> Body:
    nearest = (fault.status, "") if fault.status < 500 else (500, "")
    status, message, details = _ERRORS.get((fault.status, fault.code)) or _ERRORS.get(nearest, _ERRORS[400, ""])
    error: Body = {"code": fault.status, "message": fault.message or message.format(model=model), "status": status}
    return {"error": error | ({"details": details} if details else {})}


def stream_error(fault: Fault) -> bytes:
    message = fault.message or "The model is overloaded. Please try again later."
    error = {"code": 503, "message": message, "status": fault.code or "UNAVAILABLE"}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\r\n\r\n"
