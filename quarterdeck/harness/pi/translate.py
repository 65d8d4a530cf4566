"""`pi --mode rpc` as canonical events, versions 0.73 to 1.5 alike: what differs is read from the lines themselves.

One method per event of pi, named as pi names it; `HANDLED` lists them. Layers, one file each: queue (texts that wait) →
run (replies, calls, ends) → dialogs (extensions) → commands (what we send and what is answered) → this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import Object, Translator, text_of
from quarterdeck.harness.lines import LineBuffer
from quarterdeck.harness.pi.commands import CAPABILITIES, Commands

#: Repeat what other events said, or concern pi's own files.
IGNORED = frozenset({"turn_end", "entry_appended", "summarization_retry_attempt_start", "summarization_retry_finished"})


class Pi(Commands):
    """Reads the streams of one process."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = LineBuffer()
        self.readers |= {"stdout": self.read_stdout, "stdin": self.read_stdin}
        self.timer_callbacks |= {"settle": self.on_settle, "dialog": self.on_dialog}

    def read_stdout(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return isinstance(data, str) and self._read_text(data)
        found = cast(Object, data)
        kind = found.get("type")
        handler = HANDLED.get(kind) if isinstance(kind, str) else None
        if handler is None:
            return kind in IGNORED if isinstance(kind, str) else self._read_raw(found)
        if not self.tracker.is_ready:
            self._hello(found)
        if kind == "agent_start":
            self.fresh = False
        handler(self, found)
        return True

    def _hello(self, found: Object) -> None:
        """The first word shows that pi is there. What it says of itself, it says in its answer to get_state."""
        if found.get("command") != "get_state" or found.get("success") is not True:
            self.tracker.report_ready(capabilities=CAPABILITIES)

    def _read_raw(self, found: Object) -> bool:
        raw = found.get("raw")
        return isinstance(raw, str) and self._read_text(raw)

    def _read_text(self, text: str) -> bool:
        """A line that the driver left as it was: an object after all, or prose of an extension, which means nothing."""
        known = True
        for piece in (*self._lines.feed(text.encode("utf-8", "replace")), *self._lines.flush()):
            if isinstance(piece, dict) and "raw" not in piece:
                known = self.read_stdout(piece) and known
        return known

    def session_info_changed(self, found: Object) -> None:
        name = text_of(found, "name")
        if name:
            self.tracker.emit(ev.TitleGenerated(title=name))

    def is_server(self) -> bool:
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        if "settle" in self.timers:
            self.settle()
        self.end_bashes()
        self.dialogs.clear()
        self.running = self.aborting = self.settles = False
        super().on_exit(code, signal)
        self.fresh = True


HANDLED: dict[str, Callable[[Pi, Object], None]] = {
    "response": Pi.response,
    "agent_start": Pi.agent_start,
    "agent_end": Pi.agent_end,
    "agent_settled": Pi.agent_settled,
    "turn_start": Pi.turn_start,
    "message_start": Pi.message_start,
    "message_update": Pi.message_update,
    "message_end": Pi.message_end,
    "tool_execution_start": Pi.tool_execution_start,
    "tool_execution_update": Pi.tool_execution_update,
    "tool_execution_end": Pi.tool_execution_end,
    "queue_update": Pi.queue_update,
    "compaction_start": Pi.compaction_start,
    "compaction_end": Pi.compaction_end,
    "auto_retry_start": Pi.auto_retry_start,
    "auto_retry_end": Pi.auto_retry_end,
    "summarization_retry_scheduled": Pi.summarization_retry_scheduled,
    "session_info_changed": Pi.session_info_changed,
    "thinking_level_changed": Pi.thinking_level_changed,
    "bash_execution_update": Pi.bash_execution_update,
    "extension_ui_request": Pi.extension_ui_request,
    "extension_error": Pi.extension_error,
}


def pi() -> Translator:
    """A translator for pi."""
    return Pi()
