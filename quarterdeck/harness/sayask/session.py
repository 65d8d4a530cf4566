"""Hold the state that all parts of one say/ask translator share, and merge repeated messages into rows.

The same message arrives many times: it grows while it is partial, arrives again on Cline 1's second stream, and again
when something about it changes. A complete message replaces a partial one, never the reverse; a longer text replaces a
shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Block
from quarterdeck.harness.base import BaseTranslator, Object, object_of
from quarterdeck.harness.sayask.message import Message, MessageKey

#: The agents' modes on our scale. In act mode they ask, unless they were started otherwise.
MODES = {"plan": "plan", "act": "ask", "architect": "plan", "code": "ask"}


class Row(Struct):
    """What is known about one message."""

    is_partial: bool = True
    #: Hash and length of the last text; the length is -1 before the first.
    digest: int = 0
    size: int = -1
    #: The call that the message became.
    call_id: str = ""
    #: The text in the timeline that the message became.
    message_id: str = ""
    #: Output of a command so far.
    output: str = ""
    #: What the message asks or reports was recorded.
    is_recorded: bool = False

    @property
    def is_new(self) -> bool:
        """Whether the message arrives for the first time."""
        return self.size < 0

    def is_completed_by(self, message: Message) -> bool:
        """Return whether this arrival of the message is the first complete one."""
        return self.is_partial and not message.partial


Handler: TypeAlias = Callable[[Message, Row], None]


class SayAskSession:
    """State of one session: rows by message, and the settings that every message repeats."""

    def __init__(self, translator: BaseTranslator) -> None:
        self._translator = translator
        self.tracker = translator.tracker
        self.rows: dict[MessageKey, Row] = {}
        #: Messages up to this time were recorded before this translator began.
        self.restored_until = 0
        #: The user cancelled. What still arrives repeats the past, until new work begins.
        self.is_halted = False
        self.model = ""
        self.mode: str = ""
        #: The mode as the last message named it; '' if something else has set the mode since.
        self.native_mode = ""
        self._last_id = 0

    def set_timer(self, name: str, seconds: float) -> None:
        self._translator.set_timer(name, seconds)

    def clear_timer(self, name: str) -> None:
        self._translator.clear_timer(name)

    def new_id(self) -> str:
        """Return an id for a message without a time."""
        self._last_id += 1
        return f"nameless-{self._last_id}"

    def reserve_ids(self, last_id: int) -> None:
        """Don't use ids up to this number: an earlier translator of this session may have used them."""
        self._last_id = last_id

    # --- rows

    def is_known(self, message: Message) -> bool:
        """Return whether the message was seen before, by this translator or by an earlier one."""
        return message.key in self.rows or 0 < message.time <= self.restored_until

    def merge(self, message: Message, handler: Handler) -> None:
        """Merge a message into its row and call the handler if it brings something new."""
        size, digest = len(message.text), hash(message.text)
        row = self.rows.get(message.key)
        if row is None:
            row = Row()
            # A message without a time can't be recognised again.
            if message.ts:
                self.rows[message.key] = row
                if self.restored_until and message.time <= self.restored_until:
                    row.is_partial, row.size = False, size
                    return
            self.read_settings(message.raw)
        elif _is_repeated(message, row, size, digest):
            row.size = max(row.size, size)
            return
        handler(message, row)
        row.size, row.digest = size, digest
        if not message.partial:
            row.is_partial = False

    def add_past(self, message: Message) -> None:
        """Add a message of a loaded history. Its settings are current, its content isn't news."""
        self.rows[message.key] = Row(is_partial=False, digest=hash(message.text), size=len(message.text))
        self.read_settings(message.raw)

    # --- settings

    def read_settings(self, raw: Object) -> None:
        """Record model and mode if they changed. Every message repeats both."""
        info = object_of(raw, "modelInfo")
        model, native_mode = info.get("modelId"), info.get("mode")
        if model != self.model and isinstance(model, str) and model:
            is_switch = bool(self.model)
            self.tracker.emit(
                ev.ModelSwitched(to=model, from_=self.model) if is_switch else ev.SettingChanged(model=model)
            )
            self.model = model
        if native_mode != self.native_mode and isinstance(native_mode, str):
            self.native_mode = native_mode
            mode = MODES.get(native_mode, self.mode)
            if mode != self.mode:
                # `ask` is the default, so it isn't worth an event at the start.
                if self.mode or mode == "plan":
                    self.tracker.emit(ev.SettingChanged(mode=mode))
                self.mode = mode

    def set_mode(self, native_mode: str) -> None:
        """Apply a change of mode that a line of its own announces."""
        mode = MODES.get(native_mode)
        if mode is not None and mode != self.mode:
            self.mode, self.native_mode = mode, ""
            self.tracker.emit(ev.SettingChanged(mode=mode))

    # --- texts

    def add_text(self, message: Message, row: Row, kind: Literal["text", "thinking"]) -> None:
        """Record a text that grows until it is complete. A text without words isn't shown."""
        if row.is_new and self.is_halted:
            return
        message_id = row.message_id = row.message_id or message.message_id or self.new_id()
        has_words = bool(message.text.strip())
        if message.partial:
            if message.text and kind == "text":
                self.tracker.update_text(message_id, 0, message.text)
            elif message.text:
                self.tracker.update_thinking(message_id, 0, message.text)
            return
        if self.tracker.turn_id and has_words and row.is_new:
            # Start the message, so that the run is seen to stream. A delta would only repeat the complete text.
            if kind == "text":
                self.tracker.add_text(message_id, 0, "")
            else:
                self.tracker.add_thinking(message_id, 0, "")
        self.tracker.finish_message(message_id, (Block(kind=kind, text=message.text),) if has_words else None)


def _is_repeated(message: Message, row: Row, size: int, digest: int) -> bool:
    """Return whether the row already has everything that this message says."""
    if row.is_partial:
        return message.partial and digest == row.digest and size > 0 and row.size == size
    if message.partial:
        return size <= row.size
    # The same text may still come with something new beside it.
    has_news = message.raw.get("commandCompleted") is True or isinstance(message.raw.get("metadata"), dict)
    return digest == row.digest and not message.is_answered and not has_news
