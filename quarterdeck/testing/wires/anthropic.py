"""Anthropic's Messages."""

from __future__ import annotations

from typing import Any

from quarterdeck.testing.script import Fault, Turn, pieces
from quarterdeck.testing.wires import Body, Reply, named, objects, text_of

_STOPS = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "refused": "refusal"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_MESSAGES = {
    (400, "overflow"): "prompt is too long: 214812 tokens > 200000 maximum",
    (
        400,
        "window",
    ): "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000, decrease input length"
    " or `max_tokens` and try again",
    (
        400,
        "credit",
    ): "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade"
    " or purchase credits.",
    (
        400,
        "limit",
    ): "You have reached your specified API usage limits. You will regain access on 2027-01-01 at 00:00 UTC.",
    (401, ""): "invalid x-api-key",
    (403, ""): "Your API key does not have permission to use the specified resource.",
    (413, ""): "Request exceeds the maximum size",
    (429, ""): "This request would exceed your organization's rate limit of 50 requests per minute.",
    (500, ""): "Internal server error",
    (529, ""): "Overloaded",
}


def turns(body: Body) -> list[Turn]:
    return [turn for message in objects(body.get("messages")) for turn in _turns(message)]


def _turns(message: Body) -> list[Turn]:
    content = message.get("content")
    blocks = objects(content)
    if message.get("role") == "assistant":
        calls = tuple(str(one.get("id")) for one in blocks if one.get("type") == "tool_use")
        return [Turn("model", text_of(content), calls)]
    results = tuple(str(one.get("tool_use_id")) for one in blocks if one.get("type") == "tool_result")
    found = [Turn("result", results=results)] if results else []
    said = text_of(content)
    return [*found, Turn("user", said)] if said or not results else found


def complaint(body: Body) -> str:
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    return "" if body.get("messages") else "messages: at least one message is required"


def frames(reply: Reply) -> list[bytes]:
    out = [named("message_start", message=_message(reply, [], None, output=1))]
    for at, (start, deltas) in enumerate(_blocks(reply)):
        out.append(named("content_block_start", index=at, content_block=start))
        out += [named("content_block_delta", index=at, delta=delta) for delta in deltas]
        out.append(named("content_block_stop", index=at))
    out.insert(2, named("ping"))
    stop = {"stop_reason": _stop(reply), "stop_sequence": None}
    out.append(named("message_delta", delta=stop, usage={"output_tokens": reply.step.usage.output}))
    out.append(named("message_stop"))
    return out


def _blocks(reply: Reply) -> list[tuple[Body, list[Body]]]:
    """The blocks of the reply as they begin, each with its deltas."""
    step, out = reply.step, list[tuple[Body, list[Body]]]()
    if step.think:
        deltas: list[Body] = [{"type": "thinking_delta", "thinking": one} for one in pieces(step.think, step.chunk)]
        deltas.append({"type": "signature_delta", "signature": step.signature})
        out.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if step.text:
        deltas = [{"type": "text_delta", "text": one} for one in pieces(step.text, step.chunk)]
        out.append(({"type": "text", "text": ""}, deltas))
    for at, call in enumerate(step.calls):
        start: Body = {"type": "tool_use", "id": reply.call_id("toolu", at), "name": call.name, "input": {}}
        parts = ["", *pieces(call.arguments, step.chunk)]
        out.append((start, [{"type": "input_json_delta", "partial_json": one} for one in parts]))
    return out


def whole(reply: Reply) -> Body:
    step, content = reply.step, list[Body]()
    if step.think:
        content.append({"type": "thinking", "thinking": step.think, "signature": step.signature})
    if step.text:
        content.append({"type": "text", "text": step.text})
    for at, call in enumerate(step.calls):
        content.append({"type": "tool_use", "id": reply.call_id("toolu", at), "name": call.name, "input": call.args})
    return _message(reply, content, _stop(reply), step.usage.output)


def _message(reply: Reply, content: list[Body], stop: str | None, output: int) -> Body:
    usage = reply.step.usage
    return {
        "id": f"msg_{reply.name}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.input,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": output,
        },
    }


def _stop(reply: Reply) -> str:
    return _STOPS.get(reply.step.stop_reason, reply.step.stop_reason)


def refusal(fault: Fault, model: str) -> Body:
    told = _MESSAGES.get((fault.status, fault.code)) or _MESSAGES.get((fault.status, ""), "Bad request")
    if fault.status == 404:
        told = f"model: {model}"
    return _error(_TYPES.get(fault.status, "api_error"), fault.message or told)


def broken(fault: Fault) -> bytes:
    return named("error", **_fields(fault.code or "overloaded_error", fault.message or "Overloaded"))


def _fields(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


def _error(kind: str, message: str) -> Body:
    return {"type": "error", **_fields(kind, message), "request_id": "req_scripted"}
