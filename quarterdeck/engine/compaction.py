"""Makes the conversation shorter: the older messages give way to a summary that the model writes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Literal

from quarterdeck import events as ev
from quarterdeck.engine.model import (
    Call,
    Chunk,
    Finished,
    Message,
    ModelError,
    Picture,
    Request,
    Result,
    Text,
    TextPiece,
)
from quarterdeck.engine.request import Stalled

if TYPE_CHECKING:
    from quarterdeck.engine.turn import Turn

_SYSTEM = (
    "You summarise the work of a coding agent so that it can go on without the messages themselves. Keep what it was "
    "asked, what was decided and why, which files and commands matter, what was found, what is done and what is left. "
    "Be exact with names, paths and numbers. Write plain text."
)
_NOT_ONE_EACH = "not compacted: a plugin's before_compact gave messages in place of others, and not one for each"
#: Of a long result the beginning and the end are enough to summarise it.
_EXCERPT = 2000


def cut_at(messages: Sequence[Message], keep: int) -> int:
    """How many messages go. What stays begins with a text of the user or a reply, never with results without their calls."""
    cut = max(len(messages) - keep, 0)
    while cut > 0 and messages[cut].role == "tool":
        cut -= 1
    return cut


async def compacted(turn: Turn, trigger: Literal["manual", "auto"]) -> bool:
    """Whether the conversation is shorter now. What goes wrong is told; the conversation then stays as it was."""
    messages = turn.messages()
    cut = cut_at(messages, turn.core.options.keep_messages)
    if cut < 2:
        cut = cut_at(messages, 2)
    turn.tell(ev.BeforeCompact, messages=len(messages))
    if turn.core.hooks.has("before_compact"):
        verdict = await turn.hook("before_compact", messages)
        if verdict.skip is not None:
            return False
        if verdict.messages is not None:
            if len(verdict.messages) != len(messages):
                turn.tell(ev.Notice, level="error", text=_NOT_ONE_EACH, source="compaction")
                return False
            messages = tuple(verdict.messages)
    if cut < 2:
        return False
    turn.tell(ev.CompactStart, trigger=trigger)
    try:
        summary = await _summary(turn, messages[:cut])
    except ModelError as error:
        failed = turn.made(ev.Notice, level="warning", text=f"compaction failed: {error.message}", source="compaction")
        turn.say(turn.made(ev.CompactEnd, ok=False), failed)
        return False
    turn.tell(ev.CompactEnd, removed_count=cut, summary=summary)
    return True


async def _summary(turn: Turn, messages: Sequence[Message]) -> str:
    said = "\n\n".join(_told(one) for one in messages)
    prompt = Message("user", (Text(f"The conversation so far:\n\n{said}\n\nSummarise it."),))
    request = Request(model=turn.own_model_name, messages=(prompt,), system=_SYSTEM, options=turn.provider_opts)
    stall_s = turn.core.options.stall_s
    stream = turn.model.stream(request)
    try:
        async with asyncio.timeout(stall_s) as limit:
            text = await _heard(turn, stream, lambda: limit.reschedule(asyncio.get_running_loop().time() + stall_s))
    except TimeoutError:
        raise Stalled(stall_s) from None
    finally:
        await stream.aclose()
    if not text:
        raise ModelError("network", "the summary did not come whole", is_passing=True)
    return text


async def _heard(turn: Turn, stream: AsyncGenerator[Sequence[Chunk]], seen: Callable[[], None]) -> str:
    """The whole text; "" when it was cut off."""
    pieces: list[str] = []
    finished = False
    async for chunks in stream:
        seen()
        for chunk in chunks:
            if isinstance(chunk, TextPiece):
                pieces.append(chunk.text)
            elif isinstance(chunk, Finished):
                finished = True
                if chunk.usage is not None:
                    turn.core.count(chunk.usage, turn.model_name, turn)
    return "".join(pieces).strip() if finished else ""


def _told(message: Message) -> str:
    parts = [_part(part) for part in message.parts]
    return f"[{message.role}]\n" + "\n".join(part for part in parts if part)


def _part(part: object) -> str:
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Call):
        return f"call {part.name} {_excerpt(str(part.args))}"
    if isinstance(part, Result):
        return f"result of {part.name}: {_excerpt(part.text)}"
    return "(an image)" if isinstance(part, Picture) else ""


def _excerpt(text: str) -> str:
    if len(text) <= _EXCERPT:
        return text
    half = _EXCERPT // 2
    return f"{text[:half]}\n… {len(text) - _EXCERPT} characters left out …\n{text[-half:]}"
