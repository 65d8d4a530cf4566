"""What the model says, by message and block."""

from __future__ import annotations

from typing import Any, Literal

from quarterdeck import events as ev
from quarterdeck.events import Block
from quarterdeck.harness.tracker.core import Core, Path


class Texts(Core):
    """Text and reasoning, in pieces or repeated whole; a message is restated when it is over."""

    def aside(self, message_id: str, block: int, delta: str) -> None:
        """Text that the agent says outside of a turn: it is told, and begins none."""
        if self.texts.add(message_id, block, "text", delta):
            self.out.append(ev.MessageStart(message_id=message_id, block=block))
        if delta:
            self.out.append(ev.MessageDelta(message_id=message_id, block=block, delta=delta))

    def text(self, message_id: str, block: int, delta: str, path: Path = ()) -> None:
        """More text of a block."""
        self._grow(ev.MessageStart, ev.MessageDelta, "text", message_id, block, delta, path)

    def thinking(self, message_id: str, block: int, delta: str, path: Path = ()) -> None:
        """More reasoning of a block."""
        self._grow(ev.ThinkingStart, ev.ThinkingDelta, "thinking", message_id, block, delta, path)

    def text_so_far(self, message_id: str, block: int, whole: str, path: Path = ()) -> None:
        """A block whose agent repeats all of it each time: only what is new is written."""
        self.text(message_id, block, self.texts.new_part(message_id, block, whole), path)

    def thinking_so_far(self, message_id: str, block: int, whole: str, path: Path = ()) -> None:
        """The same for reasoning."""
        self.thinking(message_id, block, self.texts.new_part(message_id, block, whole), path)

    def _grow(
        self,
        start: Any,
        more: Any,
        kind: Literal["text", "thinking"],
        message_id: str,
        block: int,
        delta: str,
        path: Path,
    ) -> None:
        if not self.turn or self.exited:
            self.live() if path else self.begin()
        turn = self.turn or None
        if self.texts.add(message_id, block, kind, delta, path):
            self.out.append(start(message_id=message_id, block=block, turn_id=turn, agent_path=path))
            if not path:
                self._answers()
        if delta:
            self.out.append(more(message_id=message_id, block=block, delta=delta, turn_id=turn, agent_path=path))

    def message_done(
        self,
        message_id: str,
        blocks: tuple[Block, ...] | None = None,
        stop_reason: str = "",
        path: Path = (),
    ) -> None:
        """The reply is whole. Without blocks it is what was streamed; calls must be announced besides."""
        if blocks is None:
            blocks = self.texts.taken(message_id)
        else:
            self.texts.drop(message_id)
        if blocks:
            self.out.append(
                ev.ResponseComplete(
                    message_id=message_id,
                    blocks=blocks,
                    stop_reason=stop_reason,
                    turn_id=self.turn or None,
                    agent_path=path,
                )
            )

    def message_dropped(self, message_id: str, keep: bool = False, path: Path = ()) -> None:
        """The reply was cut off; kept as it is, or taken back because it will be said again."""
        blocks = self.texts.taken(message_id)
        if blocks:
            self.out.append(
                ev.MessageAborted(
                    message_id=message_id,
                    keep=keep,
                    blocks=blocks if keep else (),
                    turn_id=self.turn or None,
                    agent_path=path,
                )
            )

    def _cut_texts(self, path: Path | None) -> None:
        """Texts that will not go on are restated as far as they came, so that the log may drop their pieces."""
        for message_id, owner in self.texts.open_messages(path):
            self.message_dropped(message_id, keep=True, path=owner)
