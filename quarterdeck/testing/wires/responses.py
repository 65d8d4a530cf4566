"""OpenAI's Responses."""

from __future__ import annotations

from itertools import count
from typing import Any

from quarterdeck.testing.script import Fault, Turn, pieces
from quarterdeck.testing.wires import Body, Reply, chat, named, objects, text_of

_OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."


def turns(body: Body) -> list[Turn]:
    told = body.get("input")
    if isinstance(told, str):
        return [Turn("user", told)]
    return [turn for item in objects(told) for turn in _turn(item)]


def _turn(item: Body) -> list[Turn]:
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "message" and role == "user":
        return [Turn("user", text_of(item.get("content")))]
    if kind == "function_call":
        return [Turn("model", calls=(str(item.get("call_id")),))]
    if kind == "function_call_output":
        return [Turn("result", results=(str(item.get("call_id")),))]
    is_reply = kind == "reasoning" or (kind == "message" and role == "assistant")
    return [Turn("model", text_of(item.get("content")))] if is_reply else []


def complaint(body: Body) -> str:
    return "" if body.get("input") else "Missing required parameter: 'input'."


class _Stream:
    """Numbers the events, and keeps the items that are whole."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.numbers = count()
        self.out: list[bytes] = []
        self.items: list[Body] = []

    def say(self, kind: str, **fields: Any) -> None:
        self.out.append(named(f"response.{kind}", sequence_number=next(self.numbers), **fields))

    def item(self, begun: Body, done: Body) -> None:
        """An item from its begin to its end, with what is in between."""
        at = len(self.items)
        self.say("output_item.added", output_index=at, item=begun)
        where = {"item_id": begun["id"], "output_index": at}
        kind = begun["type"]
        if kind == "reasoning":
            self._summary(where)
        elif kind == "message":
            self._text(where)
        else:
            for one in pieces(done["arguments"], self.reply.step.chunk):
                self.say("function_call_arguments.delta", **where, delta=one)
            self.say("function_call_arguments.done", **where, name=done["name"], arguments=done["arguments"])
        self.say("output_item.done", output_index=at, item=done)
        self.items.append(done)

    def _summary(self, where: Body) -> None:
        step, at = self.reply.step, {"summary_index": 0}
        self.say("reasoning_summary_part.added", **where, **at, part={"type": "summary_text", "text": ""})
        for one in pieces(step.think, step.chunk):
            self.say("reasoning_summary_text.delta", **where, **at, delta=one)
        self.say("reasoning_summary_text.done", **where, **at, text=step.think)
        self.say("reasoning_summary_part.done", **where, **at, part={"type": "summary_text", "text": step.think})

    def _text(self, where: Body) -> None:
        step, at = self.reply.step, {"content_index": 0}
        part: Body = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.say("content_part.added", **where, **at, part=part)
        for one in pieces(step.text, step.chunk):
            self.say("output_text.delta", **where, **at, delta=one, logprobs=[])
        self.say("output_text.done", **where, **at, text=step.text, logprobs=[])
        self.say("content_part.done", **where, **at, part=part | {"text": step.text})


def frames(reply: Reply) -> list[bytes]:
    stream = _Stream(reply)
    stream.say("created", response=_response(reply, "in_progress", []))
    stream.say("in_progress", response=_response(reply, "in_progress", []))
    for begun, done in _items(reply):
        stream.item(begun, done)
    status = _status(reply)
    stream.say(status, response=_response(reply, status, stream.items))
    return stream.out


def whole(reply: Reply) -> Body:
    return _response(reply, _status(reply), [done for _, done in _items(reply)])


def _items(reply: Reply) -> list[tuple[Body, Body]]:
    """Each item as it begins and as it is when it is done."""
    step, out = reply.step, list[tuple[Body, Body]]()
    if step.think:
        begun: Body = {"id": f"rs_{reply.name}", "type": "reasoning", "summary": []}
        summary = [{"type": "summary_text", "text": step.think}]
        out.append((begun, begun | {"summary": summary, "encrypted_content": step.signature}))
    if step.text:
        begun = {
            "id": f"msg_{reply.name}",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        content: list[Body] = [{"type": "output_text", "text": step.text, "annotations": [], "logprobs": []}]
        out.append((begun, begun | {"status": "completed", "content": content}))
    for at, call in enumerate(step.calls):
        begun = {"id": f"fc_{reply.name}_{at}", "type": "function_call", "status": "in_progress", "arguments": ""}
        begun |= {"call_id": reply.call_id("call", at), "name": call.name}
        out.append((begun, begun | {"status": "completed", "arguments": call.arguments}))
    return out


def _status(reply: Reply) -> str:
    return "incomplete" if reply.step.stop_reason in ("length", "refused") else "completed"


def _response(reply: Reply, status: str, items: list[Body]) -> Body:
    why = {"length": "max_output_tokens", "refused": "content_filter"}.get(reply.step.stop_reason)
    is_over = status != "in_progress"
    return {
        "id": f"resp_{reply.name}",
        "object": "response",
        "created_at": reply.now,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": why} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _usage(reply) if is_over else None,
    }


def _usage(reply: Reply) -> Body:
    usage = reply.step.usage
    sent = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": sent,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sent + usage.output,
    }


def refusal(fault: Fault, model: str) -> Body:
    kind, code, message = chat.error_of(fault, model)
    told = _OVERFLOW if code == "context_length_exceeded" and not fault.message else message
    return {"error": {"message": told, "type": kind, "param": None, "code": code}}


def broken(fault: Fault) -> bytes:
    """As a failed response, or as a bare error event where the code says `error`: the service does both."""
    message = fault.message or "An error occurred while processing your request."
    if fault.code == "error":
        return named("error", sequence_number=0, code="server_error", message=message, param=None)
    error = {"code": fault.code or "server_error", "message": message}
    response: Body = {"id": "resp_failed", "object": "response", "status": "failed", "error": error, "output": []}
    return named("response.failed", sequence_number=0, response=response)
