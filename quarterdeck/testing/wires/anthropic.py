"""Anthropic's Messages format."""

from __future__ import annotations

from typing import Any

from quarterdeck.testing.script import Fault, Turn, split_text
from quarterdeck.testing.wires import Body, Reply, named_event, objects_in, text_of

_STOP_REASONS = {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "refused": "refusal"}
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


def read_turns(body: Body) -> list[Turn]:
    return [turn for message in objects_in(body.get("messages")) for turn in _turns(message)]


def _turns(message: Body) -> list[Turn]:
    content = message.get("content")
    blocks = objects_in(content)
    if message.get("role") == "assistant":
        calls = tuple(str(block.get("id")) for block in blocks if block.get("type") == "tool_use")
        return [Turn("model", text_of(content), calls)]
    results = tuple(str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result")
    result_turns = [Turn("result", results=results)] if results else []
    text = text_of(content)
    return [*result_turns, Turn("user", text)] if text or not results else result_turns


def find_problem(body: Body) -> str:
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    return "" if body.get("messages") else "messages: at least one message is required"


def stream_frames(reply: Reply) -> list[bytes]:
    out = [named_event("message_start", message=_message(reply, [], None, output=1))]
    for at, (start, deltas) in enumerate(_blocks(reply)):
        out.append(named_event("content_block_start", index=at, content_block=start))
        out += [named_event("content_block_delta", index=at, delta=delta) for delta in deltas]
        out.append(named_event("content_block_stop", index=at))
    out.insert(2, named_event("ping"))
    stop = {"stop_reason": _stop(reply), "stop_sequence": None}
    out.append(named_event("message_delta", delta=stop, usage={"output_tokens": reply.step.usage.output}))
    out.append(named_event("message_stop"))
    return out


def _blocks(reply: Reply) -> list[tuple[Body, list[Body]]]:
    """Return the content blocks as they start, each with its deltas."""
    step, out = reply.step, list[tuple[Body, list[Body]]]()
    if step.think:
        deltas: list[Body] = [
            {"type": "thinking_delta", "thinking": piece} for piece in split_text(step.think, step.chunk)
        ]
        deltas.append({"type": "signature_delta", "signature": step.signature})
        out.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if step.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in split_text(step.text, step.chunk)]
        out.append(({"type": "text", "text": ""}, deltas))
    for at, call in enumerate(step.calls):
        start: Body = {"type": "tool_use", "id": reply.call_id("toolu", at), "name": call.name, "input": {}}
        parts = ["", *split_text(call.arguments, step.chunk)]
        out.append((start, [{"type": "input_json_delta", "partial_json": part} for part in parts]))
    return out


def whole_reply(reply: Reply) -> Body:
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
        "id": f"msg_{reply.reply_id}",
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
    return _STOP_REASONS.get(reply.step.stop_reason, reply.step.stop_reason)


def error_body(fault: Fault, model: str) -> Body:
    message = _MESSAGES.get((fault.status, fault.code)) or _MESSAGES.get((fault.status, ""), "Bad request")
    if fault.status == 404:
        message = f"model: {model}"
    return _error(_TYPES.get(fault.status, "api_error"), fault.message or message)


def stream_error(fault: Fault) -> bytes:
    return named_event("error", **_fields(fault.code or "overloaded_error", fault.message or "Overloaded"))


def _fields(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


def _error(kind: str, message: str) -> Body:
    return {"type": "error", **_fields(kind, message), "request_id": "req_scripted"}
