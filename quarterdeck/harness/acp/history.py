"""A loaded session's history, as it is replayed: collected, and told once as what it is."""

from __future__ import annotations

from typing import Literal

from quarterdeck.events import Block, HistoryMessage
from quarterdeck.harness.acp.content import arguments, asking_info, result_of, text_of_block
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.base import Object, object_of, text_of
from quarterdeck.kernel.timeline import json_text

Role = Literal["user", "assistant"]
_SPOKEN: dict[str, tuple[Role, Literal["text", "thinking"]]] = {
    "user_message_chunk": ("user", "text"),
    "agent_message_chunk": ("assistant", "text"),
    "agent_thought_chunk": ("assistant", "thinking"),
}
#: Updates that a replay consists of; the others say what holds now.
REPLAYED = frozenset({*_SPOKEN, "tool_call", "tool_call_update"})


class History:
    """What was replayed so far. `answered`: the load was answered. `marked`: the agent gave a sign that it is through."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.answered = False
        self.marked = False
        self._messages: list[tuple[str, Role, list[Block]]] = []
        self._open_calls: set[str] = set()

    def add(self, kind: str, update: Object) -> None:
        """One more update of the replay."""
        if kind in _SPOKEN:
            self._say(*_SPOKEN[kind], text_of(update, "messageId"), text_of_block(object_of(update, "content")))
        else:
            self._call(text_of(update, "toolCallId"), update)

    def _say(self, role: Role, kind: Literal["text", "thinking"], native: str, text: str) -> None:
        message_id, last_role, blocks = self._messages[-1] if self._messages else ("", "", [])
        same = last_role == role and (native == message_id if native else role == "assistant")
        if not same:
            blocks = self._begun(native, role)
        if blocks and blocks[-1].kind == kind:
            blocks[-1] = Block(block=len(blocks) - 1, kind=kind, text=blocks[-1].text + text)
        else:
            blocks.append(Block(block=len(blocks), kind=kind, text=text))

    def _begun(self, native: str, role: Role) -> list[Block]:
        blocks: list[Block] = []
        self._messages.append((native or f"history-{len(self._messages) + 1}", role, blocks))
        return blocks

    def _call(self, call_id: str, update: Object) -> None:
        blocks = self._messages[-1][2] if self._messages and self._messages[-1][1] == "assistant" else []
        if not blocks:
            blocks = self._begun("", "assistant")
        if update.get("sessionUpdate") == "tool_call":
            # in a replay, too, the title is what the call did
            name = asking_info(self.profile, call_id, update).name
            args = arguments(self.profile, update)
            blocks.append(Block(block=len(blocks), kind="tool_call", call_id=call_id, name=name, args=args))
            self._open_calls.add(call_id)
        status = update.get("status")
        if status in ("completed", "failed"):
            result = result_of(update)
            text = result if isinstance(result, str) else "" if result is None else json_text(result)
            block = Block(block=len(blocks), kind="tool_result", call_id=call_id, text=text, ok=status == "completed")
            blocks.append(block)
            self._open_calls.discard(call_id)

    def messages(self) -> tuple[HistoryMessage, ...]:
        """The conversation, without the notes that the agent hides among the prompts."""
        return tuple(
            HistoryMessage(message_id=message_id, role=role, blocks=tuple(blocks))
            for message_id, role, blocks in self._messages
            if not (role == "user" and blocks[0].text.startswith(self.profile.hidden))
        )

    @property
    def finished(self) -> bool:
        """Whether the last turn came to its end: the agent had the last word, and no call was left open."""
        return bool(self._messages) and self._messages[-1][1] == "assistant" and not self._open_calls
