"""The texts that are being streamed: which blocks have begun, and what they say so far."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from quarterdeck.events import Block
from quarterdeck.kernel.rope import Rope, grown, text_of


class _Text(Struct):
    kind: Literal["text", "thinking"]
    rope: Rope = ()


class _Message(Struct):
    path: tuple[str, ...]
    blocks: dict[int, _Text]


class Streams:
    """Open blocks by message. A message leaves when it is whole or dropped."""

    def __init__(self) -> None:
        self.messages: dict[str, _Message] = {}

    def add(
        self, message_id: str, block: int, kind: Literal["text", "thinking"], delta: str, path: tuple[str, ...] = ()
    ) -> bool:
        """More of a block; whether this is its first word."""
        message = self.messages.get(message_id)
        if message is None:
            message = self.messages[message_id] = _Message(path, {})
        text = message.blocks.get(block)
        begins = text is None
        if text is None:
            text = message.blocks[block] = _Text(kind)
        if delta:
            text.rope = grown(text.rope, delta)
        return begins

    def new_part(self, message_id: str, block: int, whole: str) -> str:
        """What `whole` adds to what is known. A text that was rewritten adds nothing; its end restates it."""
        message = self.messages.get(message_id)
        text = None if message is None else message.blocks.get(block)
        if text is None:
            return whole
        known = text_of(text.rope)
        return whole[len(known) :] if whole.startswith(known) else ""

    def taken(self, message_id: str) -> tuple[Block, ...]:
        """The message as it was streamed; it is over."""
        message = self.messages.pop(message_id, None)
        if message is None:
            return ()
        return tuple(
            [
                Block(block=number, kind=text.kind, text=text_of(text.rope))
                for number, text in sorted(message.blocks.items())
            ]
        )

    def open_messages(self, path: tuple[str, ...] | None = None) -> list[tuple[str, tuple[str, ...]]]:
        """The messages that are not whole yet, of one agent or of all."""
        if not self.messages:
            return []
        return [(name, one.path) for name, one in self.messages.items() if path is None or one.path == path]

    def drop(self, message_id: str) -> None:
        """The message is over, and was restated."""
        self.messages.pop(message_id, None)

    def clear(self) -> None:
        """Every message is over."""
        self.messages.clear()
