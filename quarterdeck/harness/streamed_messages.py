"""Collect the text and reasoning of messages that an agent is still streaming."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.events import Block
from quarterdeck.kernel.rope import Rope, grown, text_of

BlockKind: TypeAlias = Literal["text", "thinking"]


class _StreamedBlock(Struct):
    kind: BlockKind
    rope: Rope = ()


class _StreamedMessage(Struct):
    #: The sub-agent that writes the message; empty for the main agent.
    agent_path: tuple[str, ...]
    blocks: dict[int, _StreamedBlock]


class StreamedMessages:
    """The unfinished messages of one session, by message id and block number."""

    def __init__(self) -> None:
        self._messages: dict[str, _StreamedMessage] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def append(
        self, message_id: str, block: int, kind: BlockKind, delta: str, agent_path: tuple[str, ...] = ()
    ) -> bool:
        """Append to a block and return whether this created the block."""
        message = self._messages.get(message_id)
        if message is None:
            message = self._messages[message_id] = _StreamedMessage(agent_path, {})
        streamed = message.blocks.get(block)
        is_new = streamed is None
        if streamed is None:
            streamed = message.blocks[block] = _StreamedBlock(kind)
        if delta:
            streamed.rope = grown(streamed.rope, delta)
        return is_new

    def delta_to(self, message_id: str, block: int, full_text: str) -> str:
        """Return what `full_text` adds to the block.

        If the agent rewrote the text instead of extending it, return "": the end of the message restates the block.
        """
        message = self._messages.get(message_id)
        streamed = None if message is None else message.blocks.get(block)
        if streamed is None:
            return full_text
        known = text_of(streamed.rope)
        return full_text[len(known) :] if full_text.startswith(known) else ""

    def pop(self, message_id: str) -> tuple[Block, ...]:
        """Remove a message and return its blocks in order."""
        message = self._messages.pop(message_id, None)
        if message is None:
            return ()
        return tuple(
            Block(block=number, kind=streamed.kind, text=text_of(streamed.rope))
            for number, streamed in sorted(message.blocks.items())
        )

    def unfinished(self, agent_path: tuple[str, ...] | None = None) -> list[tuple[str, tuple[str, ...]]]:
        """Return (message id, agent path) of the messages of one agent, or of all agents."""
        return [
            (message_id, message.agent_path)
            for message_id, message in self._messages.items()
            if agent_path is None or message.agent_path == agent_path
        ]

    def discard(self, message_id: str) -> None:
        """Remove a message whose full content was reported by other means."""
        self._messages.pop(message_id, None)

    def clear(self) -> None:
        self._messages.clear()
