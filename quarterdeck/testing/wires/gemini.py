"""Gemini's generateContent and streamGenerateContent."""

from __future__ import annotations

from typing import Any

import msgspec

from quarterdeck.testing.script import Fault, Turn, pieces
from quarterdeck.testing.wires import Body, Reply, objects, text_of

_STOPS = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY"}
#: status and reason → the service's status, message, details
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


def turns(body: Body) -> list[Turn]:
    return [turn for content in objects(body.get("contents")) for turn in _turns(content)]


def _turns(content: Body) -> list[Turn]:
    parts = objects(content.get("parts"))
    said = text_of(parts)
    if content.get("role") == "model":
        return [Turn("model", said, tuple(_named(part["functionCall"]) for part in parts if "functionCall" in part))]
    results = tuple(_named(part["functionResponse"]) for part in parts if "functionResponse" in part)
    found = [Turn("result", results=results)] if results else []
    return [*found, Turn("user", said)] if said or not results else found


def _named(call: Body) -> str:
    """Ids are optional in this format; without one the name has to do."""
    return str(call.get("id") or call.get("name"))


def complaint(body: Body) -> str:
    return "" if body.get("contents") else "* GenerateContentRequest.contents: contents is not specified"


def frames(reply: Reply) -> list[bytes]:
    """Its lines end with a carriage return too, unlike everybody else's."""
    return [b"data: " + msgspec.json.encode(one) + b"\r\n\r\n" for one in answers(reply)]


def answers(reply: Reply) -> list[Body]:
    """The stream as objects; without `alt=sse` it is one list of them. Usage so far comes with each."""
    step = reply.step
    parts = [{"text": one, "thought": True} for one in pieces(step.think, step.chunk)]
    parts += [{"text": one} for one in pieces(step.text, step.chunk)]
    out = [_answer(reply, [part]) for part in parts]
    if step.calls:
        out.append(_answer(reply, _calls(reply)))
    last: Body = {"text": ""}
    if step.think and not step.calls:
        last["thoughtSignature"] = step.signature
    return [*out, _answer(reply, [last], _STOPS.get(step.stop_reason, step.stop_reason))]


def whole(reply: Reply) -> Body:
    step = reply.step
    parts: list[Body] = [{"text": step.think, "thought": True}] if step.think else []
    parts += [{"text": step.text}] if step.text else []
    parts += _calls(reply)
    return _answer(reply, parts, _STOPS.get(step.stop_reason, step.stop_reason))


def _calls(reply: Reply) -> list[Body]:
    """Arguments come whole, and the first call of a reply that was thought about proves it."""
    out: list[Body] = []
    for at, call in enumerate(reply.step.calls):
        part: Body = {"functionCall": {"id": reply.call_id("fc", at), "name": call.name, "args": call.args}}
        if reply.step.think and at == 0:
            part["thoughtSignature"] = reply.step.signature
        out.append(part)
    return out


def _answer(reply: Reply, parts: list[Body], finish: str = "") -> Body:
    usage = reply.step.usage
    sent = usage.input + usage.cache_read + usage.cache_write
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": sent,
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": usage.output,
            "totalTokenCount": sent + usage.output,
        },
        "modelVersion": reply.model,
        "responseId": reply.name,
    }


def refusal(fault: Fault, model: str) -> Body:
    nearest = (fault.status, "") if fault.status < 500 else (500, "")
    status, message, details = _ERRORS.get((fault.status, fault.code)) or _ERRORS.get(nearest, _ERRORS[400, ""])
    error: Body = {"code": fault.status, "message": fault.message or message.format(model=model), "status": status}
    return {"error": error | ({"details": details} if details else {})}


def broken(fault: Fault) -> bytes:
    message = fault.message or "The model is overloaded. Please try again later."
    error = {"code": 503, "message": message, "status": fault.code or "UNAVAILABLE"}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\r\n\r\n"
