"""004's `loadMessagesFromHistory`: an agent's own history as timeline entries, as if it had been seen live."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from quarterdeck.events import Block, HistoryMessage
from quarterdeck.kernel.timeline import BashResult, Entry, Kind, ToolStep, args_preview, entry_id, result_preview

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
            entry = _entry(message, block, shown.get(block.call_id))
            if entry is not None:
                shown[entry.id] = entry
    return list(shown.values())


def _entry(message: HistoryMessage, block: Block, call: Entry | None) -> Entry | None:
    if block.kind == "tool_call":
        return Entry(block.call_id, "tool", block.name, ToolStep(block.name, args_preview(block.args), "calling"))
    if block.kind == "tool_result":
        return _with_result(block, call)
    if block.kind == "bash":
        result = BashResult(block.name, block.text, block.exit_code)
        return Entry(entry_id(message.message_id, block.block), "bash", block.name, bash_result=result)
    return _said(message, block)


def _with_result(block: Block, call: Entry | None) -> Entry:
    """A result whose call is not in the history is still shown."""
    step = call.tool_step if call is not None else None
    name, args = (step.tool_name, step.tool_args) if step is not None else (block.name, "")
    done = ToolStep(name, args, "done" if block.ok else "error", result_preview(block.text))
    return replace(call, tool_step=done) if call is not None else Entry(block.call_id, "tool", name, done)


def _said(message: HistoryMessage, block: Block) -> Entry | None:
    if not block.text.strip() and not block.images:
        return None
    kind: Kind = "thinking" if block.kind == "thinking" else _TEXT_KINDS[message.role]
    # a user's message is one entry under the message's own id, as when it was sent
    identifier = message.message_id if kind == "user" else entry_id(message.message_id, block.block)
    return Entry(identifier, kind, block.text, images=block.images)
