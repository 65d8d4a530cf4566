"""Turn the chunks of one model reply into events.

`Reply` assembles blocks of text, reasoning and tool calls, and returns the events of each network read. `TagFilter` removes
inline tags (`<status>…</status>`, `<title>…</title>`) from the text while it streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from quarterdeck import events as ev
from quarterdeck.engine.model import (
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    TextPiece,
    ThinkingPiece,
    ThinkingSigned,
)
from quarterdeck.events import Block, Body, Json

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode

BlockKind = Literal["text", "thinking", "tool_call"]

# -------------------------------------------------------------------------------------------------------------- reply


class _BlockBuilder:
    """A block that is still growing."""

    def __init__(self, kind: BlockKind, number: int, call_index: int = -1, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.number = number
        #: Index of the call within the reply, as the provider counts. -1 if this block isn't a call.
        self.call_index = call_index
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.signature = ""
        self.args: dict[str, Json] = {}
        self.broken = ""

    def build(self) -> Block:
        if self.kind == "tool_call":
            return Block(
                block=self.number,
                kind="tool_call",
                call_id=self.call_id,
                name=self.name,
                args=self.args,
                text=self.broken,
            )
        text = "".join(self.pieces)
        if self.kind == "thinking":
            return Block(block=self.number, kind="thinking", text=text, signature=self.signature)
        return Block(block=self.number, text=text)


class Reply:
    """The part of a reply that has arrived so far.

    Attributes:
        finished: the last chunk. If it is missing when the stream ends, the reply was cut off.
        has_events: whether any event of this reply was written, so that its end must be written too.
    """

    def __init__(self, message_id: str, turn_id: str, path: tuple[str, ...] = ()) -> None:
        self.message_id = message_id
        self.finished: Finished | None = None
        self.has_events = False
        self._turn_id = turn_id
        self._path = path
        self._blocks: list[_BlockBuilder] = []
        self._open: _BlockBuilder | None = None
        self._tags = TagFilter()

    def feed(self, chunks: Sequence[Chunk]) -> list[Body]:
        """Add chunks and return their events."""
        out: list[Body] = []
        for chunk in chunks:
            match chunk:
                case TextPiece():
                    self._add_text(chunk.text, out)
                case ThinkingPiece():
                    self._add_thinking(chunk.text, out)
                case ThinkingSigned():
                    self._thinking_block(out).signature = chunk.signature
                case CallBegun():
                    self._begin_call(chunk, out)
                case CallPiece():
                    self._add_arguments(chunk)
                case Finished():
                    self._finish(chunk, out)
        if out:
            self.has_events = True
        return out

    def blocks(self) -> tuple[Block, ...]:
        return tuple(block.build() for block in self._blocks)

    def complete(self) -> ev.ResponseComplete:
        """Return the event that restates the whole reply, without inline tags."""
        assert self.finished is not None
        return ev.ResponseComplete(
            message_id=self.message_id,
            blocks=self.blocks(),
            stop_reason=self.finished.stop_reason,
            turn_id=self._turn_id,
            agent_path=self._path,
        )

    def abort(self, keep: bool) -> ev.MessageAborted:
        """Return the event for a reply that was cut off. With `keep`, its text stays in the conversation."""
        if self._open is not None and self._open.kind == "text":
            # The filter still holds text that could have become a tag. No more text follows, so it isn't one.
            self._open.pieces.extend(piece for piece in self._tags.close() if isinstance(piece, str))
        blocks = tuple(block.build() for block in self._blocks if block.kind != "tool_call")
        return ev.MessageAborted(
            message_id=self.message_id,
            keep=keep,
            blocks=blocks if keep else (),
            turn_id=self._turn_id,
            agent_path=self._path,
        )

    # --- text

    def _add_text(self, text: str, out: list[Body]) -> None:
        block = self._open
        if block is None or block.kind != "text":
            if not text:
                return
            block = self._begin(_BlockBuilder("text", len(self._blocks)), out)
            out.append(self._event(ev.MessageStart, block=block.number))
        self._add_filtered(block, self._tags.feed(text), out)

    def _add_filtered(self, block: _BlockBuilder, pieces: Iterable[str | Tag], out: list[Body]) -> None:
        """Append filtered text and tags to a block, joining adjacent texts to one delta."""
        texts: list[str] = []
        for piece in pieces:
            if isinstance(piece, str):
                texts.append(piece)
                continue
            self._append_text(block, texts, out)
            texts = []
            if piece.text and piece.kind == "title":
                out.append(ev.TitleGenerated(title=piece.text, turn_id=self._turn_id, agent_path=self._path))
            elif piece.text:
                out.append(ev.StatusUpdate(text=piece.text, turn_id=self._turn_id, agent_path=self._path))
        self._append_text(block, texts, out)

    def _append_text(self, block: _BlockBuilder, texts: Sequence[str], out: list[Body]) -> None:
        text = "".join(texts)
        if text:
            block.pieces.append(text)
            out.append(self._event(ev.MessageDelta, block=block.number, delta=text))

    # --- reasoning

    def _add_thinking(self, text: str, out: list[Body]) -> None:
        block = self._thinking_block(out)
        if text:
            block.pieces.append(text)
            out.append(self._event(ev.ThinkingDelta, block=block.number, delta=text))

    def _thinking_block(self, out: list[Body]) -> _BlockBuilder:
        """Return the open reasoning block. A signature ends a block, so what follows it is a new one."""
        block = self._open
        if block is None or block.kind != "thinking" or block.signature:
            block = self._begin(_BlockBuilder("thinking", len(self._blocks)), out)
            out.append(self._event(ev.ThinkingStart, block=block.number))
        return block

    # --- calls

    def _begin_call(self, chunk: CallBegun, out: list[Body]) -> None:
        call_id = self._unique_call_id(chunk.call_id)
        block = _BlockBuilder("tool_call", len(self._blocks), chunk.index, call_id, chunk.name)
        self._begin(block, out)
        out.append(self._call_event(block, partial=True))

    def _unique_call_id(self, call_id: str) -> str:
        """Return the id if it is new in this reply, else one made from it.

        Results are matched to calls by id, and services reject a conversation in which one id appears twice. Some models
        send an empty id or repeat one.
        """
        known = {block.call_id for block in self._blocks if block.kind == "tool_call"}
        if call_id and call_id not in known:
            return call_id
        return f"{call_id or 'call'}-{self.message_id}-{len(self._blocks)}"

    def _add_arguments(self, chunk: CallPiece) -> None:
        for block in reversed(self._blocks):
            if block.call_index == chunk.index:
                block.pieces.append(chunk.arguments)
                return

    def _finish(self, chunk: Finished, out: list[Body]) -> None:
        self._end_block(out)
        for block in self._blocks:
            if block.kind == "tool_call":
                block.args, block.broken = _parse_arguments("".join(block.pieces))
                out.append(self._call_event(block, partial=False))
        self.finished = chunk

    # --- blocks and events

    def _begin(self, block: _BlockBuilder, out: list[Body]) -> _BlockBuilder:
        self._end_block(out)
        self._blocks.append(block)
        self._open = block
        return block

    def _end_block(self, out: list[Body]) -> None:
        if self._open is not None and self._open.kind == "text":
            self._add_filtered(self._open, self._tags.close(), out)
        self._open = None

    def _call_event(self, block: _BlockBuilder, partial: bool) -> Body:
        return self._event(
            ev.ToolCall,
            name=block.name,
            call_id=block.call_id,
            args=None if partial else block.args,
            partial=partial,
            block=block.number,
        )

    def _event(self, kind: Callable[..., Body], **fields: Any) -> Body:
        return kind(message_id=self.message_id, turn_id=self._turn_id, agent_path=self._path, **fields)


def _parse_arguments(text: str) -> tuple[dict[str, Json], str]:
    """Return the arguments, or the raw text if it isn't a JSON object. Empty text is a call without arguments."""
    if not text.strip():
        return {}, ""
    try:
        return _decode_object(text), ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}, text


# -------------------------------------------------------------------------------------------------------- inline tags

TITLE_LENGTH = 60
#: Longest content of a tag. A longer one is treated as text, so that an unclosed tag can't hold back the stream forever.
LONGEST = 400

_CLOSINGS = {"<status>": "</status>", "<title>": "</title>"}


class Tag(NamedTuple):
    """An inline tag of a reply."""

    kind: Literal["status", "title"]
    text: str


class TagFilter:
    """Separate inline tags from the text of one reply while it streams.

    A network read may cut a tag anywhere. Text that could still become a tag is held back until that is decided, so the
    result doesn't depend on the cuts. A tag that is never closed, or whose content is too long, is text.
    """

    def __init__(self) -> None:
        #: Text that is held back.
        self.held = ""

    def feed(self, text: str) -> Iterator[str | Tag]:
        """Add text and yield what is decided by it, in order."""
        self.held += text
        yield from self._decide(is_closed=False)

    def close(self) -> Iterator[str | Tag]:
        """Yield what was held back. No more text follows."""
        yield from self._decide(is_closed=True)

    def _decide(self, is_closed: bool) -> Iterator[str | Tag]:
        while self.held:
            start = self.held.find("<")
            if start != 0:
                yield self._take(len(self.held) if start < 0 else start)
                continue
            piece = self._decide_bracket(is_closed)
            if piece is None:
                return
            yield piece

    def _take(self, length: int) -> str:
        text, self.held = self.held[:length], self.held[length:]
        return text

    def _decide_bracket(self, is_closed: bool) -> str | Tag | None:
        """Decide the `<` at the start of the held text. Return None if more text is needed."""
        held = self.held
        opening = next((tag for tag in _CLOSINGS if held.startswith(tag)), None)
        if opening is None:
            may_become_tag = not is_closed and any(tag.startswith(held) for tag in _CLOSINGS)
            return None if may_become_tag else self._take(1)
        closing = _CLOSINGS[opening]
        limit = len(opening) + LONGEST + len(closing)
        end = held.find(closing, len(opening), limit)
        if end >= 0:
            content = " ".join(held[len(opening) : end].split())
            self._take(end + len(closing))
            return Tag("title", content[:TITLE_LENGTH]) if opening == "<title>" else Tag("status", content)
        if is_closed or len(held) >= limit:
            return self._take(len(opening))
        return None
