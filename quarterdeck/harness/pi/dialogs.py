"""What extensions show and ask. pi itself never asks a person: its gates are dialogs of extensions.

A dialog is closed by our answer, by its own timeout, or by what follows it: the call that it held goes on, the command
that opened it is handled, the turn is aborted. pi does not say that a dialog has timed out; it goes on as if cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from quarterdeck.events import Json, Option
from quarterdeck.harness.base import Object, int_of, list_of, text_of
from quarterdeck.harness.pi.run import Run

_Method: TypeAlias = Literal["select", "confirm", "input", "editor"]
_METHODS: dict[str, _Method] = {"select": "select", "confirm": "confirm", "input": "input", "editor": "editor"}
_CONFIRM = (Option(id="yes", label="Yes"), Option(id="no", label="No"))
_LEVELS: dict[str, Literal["info", "warning", "error"]] = {"warning": "warning", "error": "error"}
#: How far pi's clock and ours may be apart.
CLOCKS_S = 0.1
EDITOR_NOTICE = "An extension put a text into the editor"


class Dialog(Struct, gc=False):
    """An open dialog: when it gives up, and the calls that ran when it opened: one of them waits for it."""

    until: float | None
    calls: set[str]


class Dialogs(Run):
    """Requests of extensions."""

    def __init__(self) -> None:
        super().__init__()
        self.dialogs: dict[str, Dialog] = {}

    def extension_ui_request(self, found: Object) -> None:
        """A dialog, a notice, or decoration of pi's own screen (status, widget, title), which is not ours."""
        method = text_of(found, "method")
        kind = _METHODS.get(method)
        if kind is not None:
            self._open(kind, found)
        elif method in _NOTICES:
            _NOTICES[method](self, found)

    def notify(self, found: Object) -> None:
        self.tracker.add_notice(
            text_of(found, "message"), _LEVELS.get(text_of(found, "notifyType"), "info"), "extension"
        )

    def set_editor_text(self, found: Object) -> None:
        del found
        self.tracker.add_notice(EDITOR_NOTICE, source="extension")

    def extension_error(self, found: Object) -> None:
        self.tracker.add_notice(text_of(found, "error"), "error", text_of(found, "extensionPath"))

    def _open(self, method: _Method, found: Object) -> None:
        ref = text_of(found, "id")
        if not ref:
            return
        options = _CONFIRM if method == "confirm" else _options(list_of(found, "options"))
        self.tracker.open_dialog(
            ref,
            method,
            title=text_of(found, "title"),
            message=text_of(found, "message", "placeholder"),
            options=options,
            prefill=text_of(found, "prefill"),
        )
        timeout = int_of(found, "timeout")
        running = {name for name, call in self.tracker.calls.items() if call.running}
        self.dialogs[ref] = Dialog(self.now + timeout / 1000 if timeout > 0 else None, running)
        self._watch()

    def extension_ui_response(self, found: Object) -> None:
        """What we answered."""
        ref = text_of(found, "id")
        if found.get("cancelled") is True:
            self.tracker.close_dialog(ref, status="cancelled", by="user")
        else:
            self.tracker.close_dialog(ref, _answer(found), by="user")
        self._forget_dialog(ref)

    def on_dialog(self) -> None:
        """The dialogs whose time is over are over."""
        for ref, dialog in list(self.dialogs.items()):
            if dialog.until is not None and dialog.until <= self.now:
                self.tracker.close_dialog(ref, status="timeout")
                self._forget_dialog(ref)
        self._watch()

    def close_dialogs(self) -> None:
        """What opened them is over: whoever was asked has answered."""
        for ref in list(self.dialogs):
            self._close_elsewhere(ref)

    def _went_on(self, call_id: str) -> None:
        """A call goes on, or ended: it does not wait for a dialog. When no other call can, the dialog was answered."""
        for ref, dialog in list(self.dialogs.items()):
            if call_id in dialog.calls:
                dialog.calls.discard(call_id)
                if not dialog.calls:
                    self._close_elsewhere(ref)

    def _close_elsewhere(self, ref: str) -> None:
        """Somebody else answered, or its time was over: pi's clock may be a moment ahead of ours."""
        until = self.dialogs[ref].until
        timed_out = until is not None and self.now > until - CLOCKS_S
        self.tracker.close_dialog(ref, status="timeout" if timed_out else "answered_elsewhere")
        self._forget_dialog(ref)

    def _forget_dialog(self, ref: str) -> None:
        self.dialogs.pop(ref, None)
        self._watch()

    def _watch(self) -> None:
        times = [dialog.until for dialog in self.dialogs.values() if dialog.until is not None]
        if times:
            self.timers["dialog"] = min(times)
        else:
            self.clear_timer("dialog")

    # --- what follows a dialog

    def tool_execution_update(self, found: Object) -> None:
        if self.dialogs:
            self._went_on(text_of(found, "toolCallId"))
        super().tool_execution_update(found)

    def tool_execution_end(self, found: Object) -> None:
        if self.dialogs:
            self._went_on(text_of(found, "toolCallId"))
        super().tool_execution_end(found)

    def settle(self, aborted: bool | None = None) -> None:
        """An abort withdraws what is still asked. A turn that ends does not: a command may ask outside of turns."""
        super().settle(aborted)
        for ref in [name for name in self.dialogs if name not in self.tracker.gates]:
            self._forget_dialog(ref)


def _options(labels: list[Any]) -> tuple[Option, ...]:
    found = [one if isinstance(one, str) else _label(one) for one in labels]
    return tuple(Option(id=label, label=label) for label in found if label)


def _label(one: Any) -> str:
    return text_of(cast(Object, one), "value", "label") if isinstance(one, dict) else ""


def _answer(found: Object) -> Json:
    return found["confirmed"] if "confirmed" in found else found.get("value")


#: Requests that want no answer.
_NOTICES: dict[str, Callable[[Dialogs, Object], None]] = {
    "notify": Dialogs.notify,
    "set_editor_text": Dialogs.set_editor_text,
}
