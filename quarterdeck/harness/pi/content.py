"""What pi's messages hold: parts of text, reasoning, calls and images; tokens; and its history as ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from quarterdeck.events import Block, HistoryMessage, Image, Json, TokenUsage
from quarterdeck.harness.base import Object, int_of, list_of, object_of, price_of, text_of


def parts_of(content: Any) -> list[Object]:
    """The parts of a message or a result; a plain text is one part."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    return [cast(Object, part) for part in cast("list[Any]", content) if isinstance(part, dict)]


def words_of(content: Any) -> str:
    """The text of a message or a result, its parts joined."""
    if isinstance(content, str):
        return content
    return "".join(text_of(part, "text") for part in parts_of(content))


def images_of(content: Any) -> tuple[Image, ...]:
    """The images among the parts."""
    return tuple(
        Image(media_type=text_of(part, "mimeType") or "image/png", data=text_of(part, "data"))
        for part in parts_of(content)
        if part.get("type") == "image"
    )


def blocks_of(content: Any) -> tuple[Block, ...]:
    """An assistant's parts as blocks. Arguments are told where the call is announced, and may be huge."""
    blocks: list[Block] = []
    for place, part in enumerate(parts_of(content)):
        kind = part.get("type")
        if kind == "text":
            blocks.append(Block(block=place, text=text_of(part, "text")))
        elif kind == "thinking":
            blocks.append(Block(block=place, kind="thinking", text=text_of(part, "thinking")))
        elif kind == "toolCall" and text_of(part, "id"):
            call, name = text_of(part, "id"), text_of(part, "name")
            blocks.append(Block(block=place, kind="tool_call", call_id=call, name=name))
    return tuple(blocks)


def result_of(found: Object) -> Json:
    """A tool's result: its text, or its parts when they are not text alone."""
    content = found.get("content")
    parts = parts_of(content)
    if all(part.get("type") == "text" for part in parts):
        return words_of(content) or None
    return [{name: value for name, value in part.items() if name != "data"} for part in parts]


def usage_of(usage: Object) -> TokenUsage | None:
    """Tokens and cost of one reply; None when nothing was used. pi's buckets are exclusive already."""
    given = {
        "input": int_of(usage, "input"),
        "output": int_of(usage, "output"),
        "cache_read": int_of(usage, "cacheRead"),
        "cache_write": int_of(usage, "cacheWrite"),
    }
    counts = {name: max(0, value) for name, value in given.items()}
    cost = price_of(object_of(usage, "cost").get("total"))
    if not any(counts.values()) and cost is None:
        return None
    return TokenUsage(**counts, cost_usd=cost)


def message_id(role: str, message: Object) -> str:
    """pi names its messages by their time alone."""
    stamp = int_of(message, "timestamp")
    return f"{role}-{stamp}" if stamp else ""


def history_of(messages: Iterable[Any]) -> tuple[HistoryMessage, ...]:
    """pi's own history, as it is read back after a resume."""
    told: list[HistoryMessage] = []
    for place, message in enumerate(messages):
        if isinstance(message, dict):
            one = _history_message(place, cast(Object, message))
            if one is not None:
                told.append(one)
    return tuple(told)


def is_finished(messages: list[Any]) -> bool:
    """Whether the last word was the agent's, and not one that was cut off or that calls a tool."""
    for message in reversed(messages):
        found = cast(Object, message) if isinstance(message, dict) else {}
        if found.get("role") == "assistant":
            return text_of(found, "stopReason") in ("stop", "length", "")
        if found.get("role") in ("user", "toolResult"):
            return False
    return True


def _history_message(place: int, message: Object) -> HistoryMessage | None:
    role = text_of(message, "role")
    name = message_id(role, message) or f"{role}-{place}"
    content = message.get("content")
    if role == "user":
        block = Block(text=words_of(content), images=images_of(content))
        return HistoryMessage(message_id=name, role="user", blocks=(block,))
    if role == "assistant":
        return HistoryMessage(message_id=name, role="assistant", blocks=_with_args(content))
    if role == "toolResult":
        return HistoryMessage(message_id=name, role="tool", blocks=(_result_block(message),))
    if role == "bashExecution":
        return HistoryMessage(message_id=name, role="bash", blocks=(_bash_block(message),))
    text = text_of(message, "summary") or (words_of(content) if message.get("display") is True else "")
    return HistoryMessage(message_id=name, role="system", blocks=(Block(text=text),)) if text else None


def _with_args(content: Any) -> tuple[Block, ...]:
    """In history nothing else announces a call."""
    args = {text_of(part, "id"): part.get("arguments") for part in parts_of(content)}
    return tuple(
        Block(block=one.block, kind="tool_call", call_id=one.call_id, name=one.name, args=args[one.call_id])
        if one.kind == "tool_call"
        else one
        for one in blocks_of(content)
    )


def _result_block(message: Object) -> Block:
    return Block(
        kind="tool_result",
        call_id=text_of(message, "toolCallId"),
        name=text_of(message, "toolName"),
        text=words_of(message.get("content")),
        ok=message.get("isError") is not True,
    )


def _bash_block(message: Object) -> Block:
    code = message.get("exitCode")
    exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Block(kind="bash", name=text_of(message, "command"), text=text_of(message, "output"), exit_code=exit_code)


def entries_messages(entries: list[Any]) -> list[Any]:
    """The messages among a session file's entries."""
    found = [cast(Object, entry) for entry in entries if isinstance(entry, dict)]
    return [entry.get("message") for entry in found if entry.get("type") == "message"]


def level_of(found: Object) -> str:
    return text_of(found, "level", "thinkingLevel")


def model_name(model: Object) -> str:
    """`provider/id`, which is also how pi is told to take a model."""
    provider, name = text_of(model, "provider"), text_of(model, "id", "modelId", "model")
    return f"{provider}/{name}" if provider and name else name


def lists_of(found: Object, *names: str) -> list[tuple[str, list[str]]]:
    """The lists of texts under these names."""
    return [(name, [one for one in list_of(found, name) if isinstance(one, str)]) for name in names]
