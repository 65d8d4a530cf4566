"""004's `loadMessagesFromHistory`: an agent's own history as timeline entries, as if it had been seen live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from quarterdeck.events import Block, HistoryMessage
from quarterdeck.kernel.timeline import (
    BashResult,
    Entry,
    Kind,
    ToolStep,
    args_preview,
    entry_id,
    own_id,
    result_preview,
)

_TEXT_KINDS: dict[str, Kind] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "system",
    "bash": "system",
}


def entries_of(history: Iterable[HistoryMessage]) -> list[Entry]:
    """Entries in order. Results are matched to their calls by call id, wherever they stand; blank parts are dropped."""
    shown: dict[str, Entry] = {}
    for message in history:
        for block in message.blocks:
            entry = _entry(message, block, shown)
            if entry is not None:
                shown[entry.id] = entry
    return list(shown.values())


def _entry(message: HistoryMessage, block: Block, shown: Mapping[str, Entry]) -> Entry | None:
    if block.kind == "tool_call":
        return _call(_call_id(message, block), block, shown)
    if block.kind == "tool_result":
        return _with_result(_call_id(message, block), block, shown)
    if block.kind == "bash":
        result = BashResult(block.name, block.text, block.exit_code)
        return Entry(entry_id(message.message_id, block.block), "bash", block.name, bash_result=result)
    return _said(message, block)


def _call_id(message: HistoryMessage, block: Block) -> str:
    return own_id(block.call_id) if block.call_id else entry_id(message.message_id, block.block)


def _call(call_id: str, block: Block, shown: Mapping[str, Entry]) -> Entry:
    """A call whose result is there already keeps it."""
    known = shown.get(call_id)
    step = None if known is None else known.tool_step
    if step is None:
        step = ToolStep(block.name, "", "calling")
    told = ToolStep(block.name, args_preview(block.args), step.phase, step.result)
    return Entry(call_id, "tool", block.name, told)


def _with_result(call_id: str, block: Block, shown: Mapping[str, Entry]) -> Entry:
    """A result whose call is not in the history is still shown."""
    call = shown.get(call_id) or Entry(call_id, "tool", block.name)
    step = call.tool_step or ToolStep(block.name, "", "calling")
    phase = "done" if block.ok else "error"
    return replace(call, tool_step=ToolStep(step.tool_name, step.tool_args, phase, result_preview(block.text)))


def _said(message: HistoryMessage, block: Block) -> Entry | None:
    if not block.text.strip() and not block.images:
        return None
    kind: Kind = "thinking" if block.kind == "thinking" else _TEXT_KINDS[message.role]
    if kind == "user":
        return _sent(message)
    return Entry(entry_id(message.message_id, block.block), kind, block.text, images=block.images)


def _sent(message: HistoryMessage) -> Entry:
    """A user's message is one entry under the message's own id, as when it was sent, in however many parts it is kept."""
    parts = [block for block in message.blocks if block.kind == "text"]
    text = "\n".join(part.text for part in parts if part.text.strip())
    images = tuple(image for part in parts for image in part.images)
    return Entry(own_id(message.message_id), "user", text, images=images)
