"""Messages merged into rows: one row for each (time, kind, what), and what is being said in them.

The same message comes many times: it grows while it is partial, comes again on Cline 1's second stream, and again when
something about it changes. A whole message takes the place of a partial one, never the reverse; a longer text takes the
place of a shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Block
from quarterdeck.harness.base import BaseTranslator, Object, is_object
from quarterdeck.harness.sayask.message import Key, Message

#: How the modes of these agents are called on our scale. In act mode they ask, unless they were started otherwise.
MODES = {"plan": "plan", "act": "ask", "architect": "plan", "code": "ask"}


class Row(Struct, gc=False):
    """What is known of a message. `call` and `said` name the call and the text that it became."""

    partial: bool = True
    digest: int = 0
    size: int = -1
    call: str = ""
    said: str = ""
    told: bool = False

    @property
    def fresh(self) -> bool:
        """Whether the message is here for the first time."""
        return self.size < 0


Handler: TypeAlias = Callable[[Any, Message, Row], None]


class Rows(BaseTranslator):
    """Rows, and the texts in them."""

    def __init__(self) -> None:
        BaseTranslator.__init__(self)
        self.rows: dict[Key, Row] = {}
        #: Messages up to this time were told before this translator began.
        self.floor = 0
        #: A person cancelled: what still comes restates the past until new work begins.
        self.halted = False
        self.model = ""
        self.mode = ""
        #: The mode as the last message called it; '' when something else has said another one since.
        self.native_mode = ""
        self._nameless = 0

    def take(self, message: Message, handler: Handler) -> None:
        """Merges a message and tells what is new in it."""
        text = message.text
        size, digest = len(text), hash(text)
        row = self.rows.get(message.key)
        if row is None:
            row = Row()
            if message.ts:  # one without a time is never seen again
                self.rows[message.key] = row
                if self.floor and message.age <= self.floor:
                    row.partial, row.size = False, size
                    return
            self._settings(message.raw)
        elif _is_old(message, row, size, digest):
            row.size = max(row.size, size)
            return
        handler(self, message, row)
        row.size, row.digest = size, digest
        if not message.partial:
            row.partial = False

    def _settings(self, raw: Object) -> None:
        """The model and the mode stand on every message."""
        info: Any = raw.get("modelInfo")
        if not is_object(info):
            return
        model, mode = info.get("modelId"), info.get("mode")
        if model != self.model and isinstance(model, str) and model:
            self.tracker.emit(
                ev.ModelSwitched(to=model, from_=self.model) if self.model else ev.SettingChanged(model=model)
            )
            self.model = model
        if mode != self.native_mode and isinstance(mode, str):
            self.native_mode = mode
            self._mode_is(MODES.get(mode, self.mode))

    def _mode_is(self, mode: str) -> None:
        if mode != self.mode:
            if self.mode or mode == "plan":
                self.tracker.emit(ev.SettingChanged(mode=mode))
            self.mode = mode

    def new_name(self) -> str:
        """A name for what came without a time."""
        self._nameless += 1
        return f"nameless-{self._nameless}"

    # --- what is said

    def say_text(self, message: Message, row: Row) -> None:
        self.speak(message, row, "text")

    def say_reasoning(self, message: Message, row: Row) -> None:
        self.speak(message, row, "thinking")

    def speak(self, message: Message, row: Row, kind: Literal["text", "thinking"]) -> None:
        """A text that grows, then is whole. Without words there is nothing to show."""
        if row.fresh and self.halted:
            return
        name = row.said = row.said or message.name or self.new_name()
        words = message.text if message.text.strip() else ""
        if message.partial and message.text:
            (self.tracker.update_text if kind == "text" else self.tracker.update_thinking)(name, 0, message.text)
        elif not message.partial:
            if self.tracker.turn_id and words and row.fresh:
                # it begins, so that the run is seen to speak; its pieces would only say twice what the whole says
                (self.tracker.add_text if kind == "text" else self.tracker.add_thinking)(name, 0, "")
            self.tracker.finish_message(name, (Block(kind=kind, text=words),) if words else None)


def _is_old(message: Message, row: Row, size: int, digest: int) -> bool:
    """Whether the row says all of this already."""
    if row.partial:
        return message.partial and digest == row.digest and size > 0 and row.size == size
    if message.partial:
        return size <= row.size
    return digest == row.digest and not message.answered and not _changes(message)


def _changes(message: Message) -> bool:
    """Whether a message that says the same words still says something new."""
    return message.raw.get("commandCompleted") is True or isinstance(message.raw.get("metadata"), dict)
