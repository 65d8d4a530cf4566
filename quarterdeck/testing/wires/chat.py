"""OpenAI's Chat Completions format."""

from __future__ import annotations

from typing import Any

from quarterdeck.testing.script import Fault, Turn, split_text
from quarterdeck.testing.wires import Body, Reply, data_event, objects_in, text_of

_STOP_REASONS = {"end": "stop", "tools": "tool_calls", "length": "length", "refused": "content_filter"}
#: Type, code and message of an error, by status and reason.
_ERRORS: dict[tuple[int, str], tuple[str, str | None, str]] = {
    (400, ""): ("invalid_request_error", None, "Bad request"),
    (400, "overflow"): (
        "invalid_request_error",
        "context_length_exceeded",
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 131072 tokens. Please"
            " reduce the length of the messages."
        ),
    ),
    (401, ""): ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    (402, ""): ("payment_required", "insufficient_credits", "Insufficient credits."),
    (403, ""): (
        "request_forbidden",
        "unsupported_country_region_territory",
        "Country, region, or territory not supported",
    ),
    (404, ""): (
        "invalid_request_error",
        "model_not_found",
        "The model `{model}` does not exist or you do not have access.",
    ),
    (429, ""): (
        "tokens",
        "rate_limit_exceeded",
        ("Rate limit reached for {model} on tokens per min (TPM): Limit 30000, Used 29000. Please try again in 8s."),
    ),
    (429, "quota"): (
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    (500, ""): ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    (503, ""): ("server_error", None, "The engine is currently overloaded, please try again later."),
}


def read_turns(body: Body) -> list[Turn]:
    return [turn for message in objects_in(body.get("messages")) for turn in _turn(message)]


def _turn(message: Body) -> list[Turn]:
    role, text = message.get("role"), text_of(message.get("content"))
    if role == "assistant":
        return [Turn("model", text, tuple(str(call.get("id")) for call in objects_in(message.get("tool_calls"))))]
    if role == "tool":
        return [Turn("result", results=(str(message.get("tool_call_id")),))]
    return [Turn("user", text)] if role == "user" else []


def find_problem(body: Body) -> str:
    return "" if body.get("messages") else "Missing required parameter: 'messages'."


def stream_frames(reply: Reply) -> list[bytes]:
    step = reply.step
    out = [_chunk(reply, {"role": "assistant", "content": ""})]
    out += [_chunk(reply, {"reasoning_content": piece}) for piece in split_text(step.think, step.chunk)]
    out += [_chunk(reply, {"content": piece}) for piece in split_text(step.text, step.chunk)]
    for at, call in enumerate(step.calls):
        start = {"index": at, "id": reply.call_id("call", at), "type": "function"}
        out.append(_chunk(reply, {"tool_calls": [start | {"function": {"name": call.name, "arguments": ""}}]}))
        for piece in split_text(call.arguments, step.chunk):
            out.append(_chunk(reply, {"tool_calls": [{"index": at, "function": {"arguments": piece}}]}))
    out.append(_chunk(reply, {}, _STOP_REASONS.get(step.stop_reason, step.stop_reason)))
    out.append(data_event({**_head(reply, "chat.completion.chunk"), "choices": [], "usage": _usage(reply)}))
    out.append(b"data: [DONE]\n\n")
    return out


def _chunk(reply: Reply, delta: Body, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return data_event({**_head(reply, "chat.completion.chunk"), "choices": [choice]})


def whole_reply(reply: Reply) -> Body:
    step = reply.step
    message: Body = {"role": "assistant", "content": step.text or None, "refusal": None}
    if step.think:
        message["reasoning_content"] = step.think
    if step.calls:
        message["tool_calls"] = [
            {
                "id": reply.call_id("call", at),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for at, call in enumerate(step.calls)
        ]
    finish = _STOP_REASONS.get(step.stop_reason, step.stop_reason)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def _head(reply: Reply, kind: str) -> Body:
    return {"id": f"chatcmpl-{reply.reply_id}", "object": kind, "created": reply.now, "model": reply.model}


def _usage(reply: Reply) -> Body:
    usage = reply.step.usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def error_of(fault: Fault, model: str) -> tuple[str, str | None, str]:
    """Return type, code and message of an error, as the service has them."""
    nearest = (fault.status, "") if fault.status < 500 else (500, "")
    kind, code, message = _ERRORS.get((fault.status, fault.code)) or _ERRORS.get(nearest, _ERRORS[400, ""])
    return kind, code, fault.message or message.format(model=model)


def error_body(fault: Fault, model: str) -> Body:
    kind, code, message = error_of(fault, model)
    error: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": code}
    return {"error": error}


def stream_error(fault: Fault) -> bytes:
    message = fault.message or "The server had an error while processing your request."
    return data_event(
        {"error": {"message": message, "type": "server_error", "param": None, "code": fault.code or None}}
    )
