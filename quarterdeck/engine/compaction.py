"""Compact a conversation: replace its older messages with a summary that the model writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from quarterdeck import events as ev
from quarterdeck.engine.model import (
    Call,
    Finished,
    Message,
    ModelError,
    Part,
    Picture,
    Request,
    Result,
    Text,
    TextPiece,
    stall_timeout,
)

if TYPE_CHECKING:
    from quarterdeck.engine.turn import Turn

_SYSTEM = (
    "Summarise the work of a coding agent so that it can continue without the original messages. Include the user's "
    "requests, decisions and their reasons, the files and commands that matter, findings, what is done and what remains. "
    "Be exact with names, paths and numbers. Write plain text."
)
_COUNT_CHANGED = "not compacted: a plugin's before_compact returned a different number of messages than it got"
#: Longest arguments or result that the summary request includes in full.
_EXCERPT = 2000


def count_removable(messages: Sequence[Message], keep: int) -> int:
    """Return how many of the first messages can be removed.

    The rest begins with a prompt or a reply, because services reject results without the calls they belong to.
    """
    count = max(len(messages) - keep, 0)
    while count > 0 and messages[count].role == "tool":
        count -= 1
    return count


async def compact_conversation(turn: Turn, trigger: Literal["manual", "auto"]) -> bool:
    """Compact the conversation of a turn and return whether it is shorter now.

    On a failure the conversation stays as it was, and a notice is written.
    """
    messages = turn.messages()
    count = count_removable(messages, turn.runtime.options.keep_messages)
    if count < 2:
        count = count_removable(messages, 2)
    turn.record(ev.BeforeCompact, messages=len(messages))
    verdict = await turn.run_hook("before_compact", messages)
    if verdict.skip is not None:
        return False
    if verdict.messages is not None:
        # `removed_count` counts messages of the conversation, so a plugin must return one message for each.
        if len(verdict.messages) != len(messages):
            turn.record(ev.Notice, level="error", text=_COUNT_CHANGED, source="compaction")
            return False
        messages = tuple(verdict.messages)
    if count < 2:
        return False
    turn.record(ev.CompactStart, trigger=trigger)
    try:
        summary = await _summarise(turn, messages[:count])
    except ModelError as error:
        notice = turn.body(ev.Notice, level="warning", text=f"compaction failed: {error.message}", source="compaction")
        turn.write(turn.body(ev.CompactEnd, ok=False), notice)
        return False
    turn.record(ev.CompactEnd, removed_count=count, summary=summary)
    return True


async def _summarise(turn: Turn, messages: Sequence[Message]) -> str:
    transcript = "\n\n".join(_message_text(message) for message in messages)
    prompt = Message("user", (Text(f"The conversation so far:\n\n{transcript}\n\nSummarise it."),))
    model = turn.model
    stream = model.provider.stream(Request(model=model.name, messages=(prompt,), system=_SYSTEM, options=model.options))
    pieces: list[str] = []
    is_complete = False
    try:
        async with stall_timeout(turn.runtime.options.stall_after) as note_progress:
            async for chunks in stream:
                note_progress()
                for chunk in chunks:
                    if isinstance(chunk, TextPiece):
                        pieces.append(chunk.text)
                    elif isinstance(chunk, Finished):
                        is_complete = True
                        if chunk.usage is not None:
                            turn.runtime.record_side_usage(chunk.usage, model.full_name, turn)
    finally:
        await stream.aclose()
    summary = "".join(pieces).strip()
    if not is_complete or not summary:
        raise ModelError("network", "the summary is incomplete", is_transient=True)
    return summary


def _message_text(message: Message) -> str:
    parts = [_part_text(part) for part in message.parts]
    return f"[{message.role}]\n" + "\n".join(part for part in parts if part)


def _part_text(part: Part) -> str:
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Call):
        return f"call {part.name} {_excerpt(str(part.args))}"
    if isinstance(part, Result):
        return f"result of {part.name}: {_excerpt(part.text)}"
    return "(an image)" if isinstance(part, Picture) else ""


def _excerpt(text: str) -> str:
    """Shorten a long text to its beginning and end."""
    if len(text) <= _EXCERPT:
        return text
    half = _EXCERPT // 2
    return f"{text[:half]}\n… {len(text) - _EXCERPT} characters omitted …\n{text[-half:]}"
