"""One reply of the model, from its chunks to its events: what one read of the network brought becomes one list of bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
from quarterdeck.engine.tags import Tag, Tags
from quarterdeck.events import Block, Body, Json

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class _Growing:
    """A block that grows: its pieces, joined once."""

    __slots__ = ("args", "broken", "call_id", "index", "kind", "name", "pieces", "place", "signature")

    def __init__(self, kind: str, place: int, index: int = -1, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.place = place
        self.index = index
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.signature = ""
        self.args: dict[str, Json] = {}
        self.broken = ""

    def block(self) -> Block:
        if self.kind == "tool_call":
            return Block(
                block=self.place,
                kind="tool_call",
                call_id=self.call_id,
                name=self.name,
                args=self.args,
                text=self.broken,
            )
        text = "".join(self.pieces)
        if self.kind == "thinking":
            return Block(block=self.place, kind="thinking", text=text, signature=self.signature)
        return Block(block=self.place, text=text)


class Reply:
    """What came so far. `finished` is set by the last chunk; without it the stream was cut."""

    __slots__ = ("_blocks", "_now", "_path", "_tags", "_turn_id", "finished", "message_id", "said")

    def __init__(self, message_id: str, turn_id: str, path: tuple[str, ...] = ()) -> None:
        self.message_id = message_id
        self.finished: Finished | None = None
        #: Something of it was told, so that its end must be told too.
        self.said = False
        self._turn_id = turn_id
        self._path = path
        self._blocks: list[_Growing] = []
        self._now: _Growing | None = None
        self._tags = Tags()

    def feed(self, chunks: Sequence[Chunk]) -> list[Body]:
        """The events of these chunks."""
        out: list[Body] = []
        for chunk in chunks:
            _HANDLERS[type(chunk)](self, chunk, out)
        if out:
            self.said = True
        return out

    def complete(self) -> ev.ResponseComplete:
        """The whole, restated; the tags are gone."""
        assert self.finished is not None
        return ev.ResponseComplete(
            message_id=self.message_id,
            blocks=self.blocks(),
            stop_reason=self.finished.stop_reason,
            turn_id=self._turn_id,
            agent_path=self._path,
        )

    def aborted(self, keep: bool) -> ev.MessageAborted:
        """Cut off; what was held back because it might have become a tag is text."""
        if self._now is not None and self._now.kind == "text":
            self._now.pieces.extend(piece for piece in self._tags.close() if isinstance(piece, str))
        blocks = tuple(one.block() for one in self._blocks if one.kind != "tool_call")
        return ev.MessageAborted(
            message_id=self.message_id,
            keep=keep,
            blocks=blocks if keep else (),
            turn_id=self._turn_id,
            agent_path=self._path,
        )

    def blocks(self) -> tuple[Block, ...]:
        return tuple(one.block() for one in self._blocks)

    # --- one kind of chunk each

    def _text(self, chunk: TextPiece, out: list[Body]) -> None:
        now, text = self._now, chunk.text
        if now is None or now.kind != "text":
            if not text:
                return
            now = self._begin(_Growing("text", len(self._blocks)), out)
            out.append(self._told(ev.MessageStart, block=now.place))
        if not self._tags.held and "<" not in text:
            now.pieces.append(text)
            out.append(
                ev.MessageDelta(
                    delta=text,
                    message_id=self.message_id,
                    block=now.place,
                    turn_id=self._turn_id,
                    agent_path=self._path,
                )
            )
        else:
            self._sift(now, self._tags.feed(text), out)

    def _sift(self, now: _Growing, found: Iterable[str | Tag], out: list[Body]) -> None:
        """Texts that are next to each other are one delta; a tag stands where it was."""
        texts: list[str] = []
        for one in found:
            if isinstance(one, str):
                texts.append(one)
                continue
            self._grow(now, "".join(texts), out)
            texts.clear()
            if one.kind == "title" and one.text:
                out.append(ev.TitleGenerated(title=one.text, turn_id=self._turn_id, agent_path=self._path))
            elif one.text:
                out.append(ev.StatusUpdate(text=one.text, turn_id=self._turn_id, agent_path=self._path))
        self._grow(now, "".join(texts), out)

    def _grow(self, now: _Growing, text: str, out: list[Body]) -> None:
        if text:
            now.pieces.append(text)
            out.append(self._told(ev.MessageDelta, block=now.place, delta=text))

    def _thinking(self, chunk: ThinkingPiece, out: list[Body]) -> None:
        now = self._now
        if now is None or now.kind != "thinking" or now.signature:
            now = self._begin(_Growing("thinking", len(self._blocks)), out)
            out.append(self._told(ev.ThinkingStart, block=now.place))
        if chunk.text:
            now.pieces.append(chunk.text)
            out.append(self._told(ev.ThinkingDelta, block=now.place, delta=chunk.text))

    def _signed(self, chunk: ThinkingSigned, out: list[Body]) -> None:
        now = self._now
        if now is None or now.kind != "thinking" or now.signature:
            now = self._begin(_Growing("thinking", len(self._blocks)), out)
            out.append(self._told(ev.ThinkingStart, block=now.place))
        now.signature = chunk.signature

    def _call_begun(self, chunk: CallBegun, out: list[Body]) -> None:
        call_id = self._own_id(chunk.call_id)
        begun = _Growing("tool_call", len(self._blocks), chunk.index, call_id, chunk.name)
        self._begin(begun, out)
        out.append(self._call(begun, True))

    def _own_id(self, call_id: str) -> str:
        """Results are told apart by it, and services refuse a conversation in which one is there twice."""
        known = {one.call_id for one in self._blocks if one.kind == "tool_call"}
        if call_id and call_id not in known:
            return call_id
        return f"{call_id or 'call'}-{self.message_id}-{len(self._blocks)}"

    def _call_piece(self, chunk: CallPiece, out: list[Body]) -> None:
        for one in reversed(self._blocks):
            if one.index == chunk.index:
                one.pieces.append(chunk.arguments)
                return

    def _finished(self, chunk: Finished, out: list[Body]) -> None:
        self._end(out)
        for one in self._blocks:
            if one.kind == "tool_call":
                one.args, one.broken = _arguments("".join(one.pieces))
                out.append(self._call(one, False))
        self.finished = chunk

    # --- pieces

    def _begin(self, block: _Growing, out: list[Body]) -> _Growing:
        self._end(out)
        self._blocks.append(block)
        self._now = block
        return block

    def _end(self, out: list[Body]) -> None:
        """The block that grew is whole: what was held back is decided."""
        if self._now is not None and self._now.kind == "text" and self._tags.held:
            self._sift(self._now, self._tags.close(), out)
        self._now = None

    def _call(self, one: _Growing, partial: bool) -> ev.ToolCall:
        return ev.ToolCall(
            name=one.name,
            call_id=one.call_id,
            args=None if partial else one.args,
            partial=partial,
            message_id=self.message_id,
            block=one.place,
            turn_id=self._turn_id,
            agent_path=self._path,
        )

    def _told(self, kind: Callable[..., Body], **fields: Any) -> Body:
        return kind(message_id=self.message_id, turn_id=self._turn_id, agent_path=self._path, **fields)


def _arguments(text: str) -> tuple[dict[str, Json], str]:
    """The arguments, and the text where it is no JSON object. No text at all is a call without arguments."""
    if not text.strip():
        return {}, ""
    try:
        return _decode(text), ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}, text


_HANDLERS: dict[type[Any], Callable[[Reply, Any, list[Body]], None]] = {
    TextPiece: Reply._text,  # pyright: ignore[reportPrivateUsage]
    ThinkingPiece: Reply._thinking,  # pyright: ignore[reportPrivateUsage]
    ThinkingSigned: Reply._signed,  # pyright: ignore[reportPrivateUsage]
    CallBegun: Reply._call_begun,  # pyright: ignore[reportPrivateUsage]
    CallPiece: Reply._call_piece,  # pyright: ignore[reportPrivateUsage]
    Finished: Reply._finished,  # pyright: ignore[reportPrivateUsage]
}
