"""OpenAI's Responses format."""

from __future__ import annotations

from itertools import count
from typing import Any

from quarterdeck.testing.script import Fault, Turn, split_text
from quarterdeck.testing.wires import Body, Reply, chat, named_event, objects_in, text_of

_OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."


def read_turns(body: Body) -> list[Turn]:
    items = body.get("input")
    if isinstance(items, str):
        return [Turn("user", items)]
    return [turn for item in objects_in(items) for turn in _turn(item)]


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


def find_problem(body: Body) -> str:
    return "" if body.get("input") else "Missing required parameter: 'input'."


class _Stream:
    """Collects the events of a reply, numbered, and its finished items."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.numbers = count()
        self.out: list[bytes] = []
        self.items: list[Body] = []

    def add(self, kind: str, **fields: Any) -> None:
        self.out.append(named_event(f"response.{kind}", sequence_number=next(self.numbers), **fields))

    def add_item(self, start: Body, done: Body) -> None:
        """Add all events of one item: its start, its deltas and its end."""
        at = len(self.items)
        self.add("output_item.added", output_index=at, item=start)
        location = {"item_id": start["id"], "output_index": at}
        kind = start["type"]
        if kind == "reasoning":
            self._summary(location)
        elif kind == "message":
            self._text(location)
        else:
            for piece in split_text(done["arguments"], self.reply.step.chunk):
                self.add("function_call_arguments.delta", **location, delta=piece)
            self.add("function_call_arguments.done", **location, name=done["name"], arguments=done["arguments"])
        self.add("output_item.done", output_index=at, item=done)
        self.items.append(done)

    def _summary(self, location: Body) -> None:
        step, at = self.reply.step, {"summary_index": 0}
        self.add("reasoning_summary_part.added", **location, **at, part={"type": "summary_text", "text": ""})
        for piece in split_text(step.think, step.chunk):
            self.add("reasoning_summary_text.delta", **location, **at, delta=piece)
        self.add("reasoning_summary_text.done", **location, **at, text=step.think)
        self.add("reasoning_summary_part.done", **location, **at, part={"type": "summary_text", "text": step.think})

    def _text(self, location: Body) -> None:
        step, at = self.reply.step, {"content_index": 0}
        part: Body = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.add("content_part.added", **location, **at, part=part)
        for piece in split_text(step.text, step.chunk):
            self.add("output_text.delta", **location, **at, delta=piece, logprobs=[])
        self.add("output_text.done", **location, **at, text=step.text, logprobs=[])
        self.add("content_part.done", **location, **at, part=part | {"text": step.text})


def stream_frames(reply: Reply) -> list[bytes]:
    stream = _Stream(reply)
    stream.add("created", response=_response(reply, "in_progress", []))
    stream.add("in_progress", response=_response(reply, "in_progress", []))
    for start, done in _items(reply):
        stream.add_item(start, done)
    status = _status(reply)
    stream.add(status, response=_response(reply, status, stream.items))
    return stream.out


def whole_reply(reply: Reply) -> Body:
    return _response(reply, _status(reply), [done for _, done in _items(reply)])


def _items(reply: Reply) -> list[tuple[Body, Body]]:
    """Return each item as it starts and as it is when it is done."""
    step, out = reply.step, list[tuple[Body, Body]]()
    if step.think:
        start: Body = {"id": f"rs_{reply.reply_id}", "type": "reasoning", "summary": []}
        summary = [{"type": "summary_text", "text": step.think}]
        out.append((start, start | {"summary": summary, "encrypted_content": step.signature}))
    if step.text:
        start = {
            "id": f"msg_{reply.reply_id}",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        content: list[Body] = [{"type": "output_text", "text": step.text, "annotations": [], "logprobs": []}]
        out.append((start, start | {"status": "completed", "content": content}))
    for at, call in enumerate(step.calls):
        start = {"id": f"fc_{reply.reply_id}_{at}", "type": "function_call", "status": "in_progress", "arguments": ""}
        start |= {"call_id": reply.call_id("call", at), "name": call.name}
        out.append((start, start | {"status": "completed", "arguments": call.arguments}))
    return out


def _status(reply: Reply) -> str:
    return "incomplete" if reply.step.stop_reason in ("length", "refused") else "completed"


def _response(reply: Reply, status: str, items: list[Body]) -> Body:
    why = {"length": "max_output_tokens", "refused": "content_filter"}.get(reply.step.stop_reason)
    is_over = status != "in_progress"
    return {
        "id": f"resp_{reply.reply_id}",
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
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + usage.output,
    }


def error_body(fault: Fault, model: str) -> Body:
    kind, code, message = chat.error_of(fault, model)
    message = _OVERFLOW if code == "context_length_exceeded" and not fault.message else message
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def stream_error(fault: Fault) -> bytes:
    """Return a failed response, or a bare error event for the code `error`: the service uses both."""
    message = fault.message or "An error occurred while processing your request."
    if fault.code == "error":
        return named_event("error", sequence_number=0, code="server_error", message=message, param=None)
    error = {"code": fault.code or "server_error", "message": message}
    response: Body = {"id": "resp_failed", "object": "response", "status": "failed", "error": error, "output": []}
    return named_event("response.failed", sequence_number=0, response=response)
