"""Read pi's messages: parts of text, reasoning, calls and images; tokens; and the history of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from quarterdeck.events import Block, HistoryMessage, Image, Json, TokenUsage
from quarterdeck.harness.base import Object, int_of, list_of, object_of, price_of, text_of

# ----------------------------------------------------------------------------------------------------------------------
# Parts of a message
# ----------------------------------------------------------------------------------------------------------------------


def parts_of(content: Any) -> list[Object]:
    """Return the parts of a message or a result. A plain text is one part."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    return [cast(Object, part) for part in cast("list[Any]", content) if isinstance(part, dict)]


def content_text(content: Any) -> str:
    """Return the text of a message or a result, its parts joined."""
    if isinstance(content, str):
        return content
    return "".join(text_of(part, "text") for part in parts_of(content))


def images_of(content: Any) -> tuple[Image, ...]:
    """Return the images among the parts."""
    return tuple(
        Image(media_type=text_of(part, "mimeType") or "image/png", data=text_of(part, "data"))
        for part in parts_of(content)
        if part.get("type") == "image"
    )


def blocks_of(content: Any) -> tuple[Block, ...]:
    """Return an assistant's parts as blocks.

    Arguments are left out: the event that announces the call has them, and they may be huge.
    """
    blocks: list[Block] = []
    for index, part in enumerate(parts_of(content)):
        kind = part.get("type")
        if kind == "text":
            blocks.append(Block(block=index, text=text_of(part, "text")))
        elif kind == "thinking":
            blocks.append(Block(block=index, kind="thinking", text=text_of(part, "thinking")))
        elif kind == "toolCall" and text_of(part, "id"):
            call_id, name = text_of(part, "id"), text_of(part, "name")
            blocks.append(Block(block=index, kind="tool_call", call_id=call_id, name=name))
    return tuple(blocks)


def result_of(message: Object) -> Json:
    """Return a tool's result: its text, or its parts without binary data if they aren't text alone."""
    content = message.get("content")
    parts = parts_of(content)
    if all(part.get("type") == "text" for part in parts):
        return content_text(content) or None
    return [{name: value for name, value in part.items() if name != "data"} for part in parts]


def message_id(role: str, message: Object) -> str:
    """Return an id for a message of pi, which has none but its time; '' if it has no time either."""
    timestamp = int_of(message, "timestamp")
    return f"{role}-{timestamp}" if timestamp else ""


def exit_code_of(message: Object) -> int | None:
    code = message.get("exitCode")
    return code if isinstance(code, int) and not isinstance(code, bool) else None


# ----------------------------------------------------------------------------------------------------------------------
# Tokens and models
# ----------------------------------------------------------------------------------------------------------------------


def usage_of(usage: Object) -> TokenUsage | None:
    """Return tokens and cost of one reply, or None if nothing was used. pi's buckets already exclude each other."""
    counts = {
        "input": max(0, int_of(usage, "input")),
        "output": max(0, int_of(usage, "output")),
        "cache_read": max(0, int_of(usage, "cacheRead")),
        "cache_write": max(0, int_of(usage, "cacheWrite")),
    }
    cost = price_of(object_of(usage, "cost").get("total"))
    if not any(counts.values()) and cost is None:
        return None
    return TokenUsage(**counts, cost_usd=cost)


def model_name(model: Object) -> str:
    """Return `provider/id`, which is also the form in which pi takes a model."""
    provider, name = text_of(model, "provider"), text_of(model, "id", "modelId", "model")
    return f"{provider}/{name}" if provider and name else name


# ----------------------------------------------------------------------------------------------------------------------
# History
# ----------------------------------------------------------------------------------------------------------------------


def history_of(messages: Iterable[Any]) -> tuple[HistoryMessage, ...]:
    """Return pi's own history, which is read back after a resume."""
    history: list[HistoryMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, dict):
            entry = _history_message(index, cast(Object, message))
            if entry is not None:
                history.append(entry)
    return tuple(history)


def is_finished(messages: list[Any]) -> bool:
    """Return whether the agent spoke last, with a reply that wasn't cut off and doesn't call a tool."""
    for message in map(object_of, reversed(messages)):
        if message.get("role") == "assistant":
            return text_of(message, "stopReason") in ("stop", "length", "")
        if message.get("role") in ("user", "toolResult"):
            return False
    return True


def messages_in_entries(entries: list[Any]) -> list[Any]:
    """Return the messages among the entries of a session file."""
    return [entry.get("message") for entry in map(object_of, entries) if entry.get("type") == "message"]


def _history_message(index: int, message: Object) -> HistoryMessage | None:
    role = text_of(message, "role")
    id_ = message_id(role, message) or f"{role}-{index}"
    content = message.get("content")
    if role == "user":
        block = Block(text=content_text(content), images=images_of(content))
        return HistoryMessage(message_id=id_, role="user", blocks=(block,))
    if role == "assistant":
        return HistoryMessage(message_id=id_, role="assistant", blocks=_blocks_with_args(content))
    if role == "toolResult":
        return HistoryMessage(message_id=id_, role="tool", blocks=(_result_block(message),))
    if role == "bashExecution":
        return HistoryMessage(message_id=id_, role="bash", blocks=(_bash_block(message),))
    text = text_of(message, "summary") or (content_text(content) if message.get("display") is True else "")
    return HistoryMessage(message_id=id_, role="system", blocks=(Block(text=text),)) if text else None


def _blocks_with_args(content: Any) -> tuple[Block, ...]:
    """Return blocks with arguments: in history no other event announces a call."""
    args = {text_of(part, "id"): part.get("arguments") for part in parts_of(content)}
    return tuple(
        Block(block=block.block, kind="tool_call", call_id=block.call_id, name=block.name, args=args[block.call_id])
        if block.kind == "tool_call"
        else block
        for block in blocks_of(content)
    )


def _result_block(message: Object) -> Block:
    return Block(
        kind="tool_result",
        call_id=text_of(message, "toolCallId"),
        name=text_of(message, "toolName"),
        text=content_text(message.get("content")),
        ok=message.get("isError") is not True,
    )


def _bash_block(message: Object) -> Block:
    return Block(
        kind="bash",
        name=text_of(message, "command"),
        text=text_of(message, "output"),
        exit_code=exit_code_of(message),
    )


def texts_of(message: Object, name: str) -> list[str]:
    """Return the texts of the list of this name."""
    return [text for text in list_of(message, name) if isinstance(text, str)]
