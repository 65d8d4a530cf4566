"""Track what pi's extensions show and ask. pi itself never asks a person: its gates are dialogs of extensions.

A dialog is closed by our answer, by its own timeout, or by what follows it: the call that it held continues, the command
that opened it is handled, the turn is aborted. pi doesn't report that a dialog timed out; it continues as if the user had
cancelled.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from quarterdeck.events import Json, Option
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.pi.session import PiSession

_Method: TypeAlias = Literal["select", "confirm", "input", "editor"]
_METHODS: dict[str, _Method] = {"select": "select", "confirm": "confirm", "input": "input", "editor": "editor"}
_CONFIRM = (Option(id="yes", label="Yes"), Option(id="no", label="No"))
_LEVELS: dict[str, Literal["info", "warning", "error"]] = {"warning": "warning", "error": "error"}
#: How far pi's clock and ours may be apart.
CLOCK_SKEW_S = 0.1
EDITOR_NOTICE = "An extension put a text into the editor"


class _Dialog(Struct):
    """An open dialog."""

    #: When it times out; None if it doesn't.
    expires_at: float | None
    #: The calls that ran when it opened. One of them may wait for it.
    call_ids: set[str]


class Dialogs:
    """The open dialogs, by id."""

    def __init__(self, session: PiSession) -> None:
        self.session = session
        self.tracker = session.tracker
        self._open: dict[str, _Dialog] = {}

    def clear(self) -> None:
        """Forget all dialogs: the process exited, and the tracker closes them."""
        self._open.clear()

    # --- what extensions send

    def read_request(self, message: Object) -> None:
        """Open a dialog or show a notice. Decoration of pi's own screen (status, widget, title) is ignored."""
        method = text_of(message, "method")
        dialog_method = _METHODS.get(method)
        if dialog_method is not None:
            self._open_dialog(dialog_method, message)
        elif method == "notify":
            level = _LEVELS.get(text_of(message, "notifyType"), "info")
            self.tracker.add_notice(text_of(message, "message"), level, "extension")
        elif method == "set_editor_text":
            self.tracker.add_notice(EDITOR_NOTICE, source="extension")

    def read_error(self, message: Object) -> None:
        self.tracker.add_notice(text_of(message, "error"), "error", text_of(message, "extensionPath"))

    def _open_dialog(self, method: _Method, message: Object) -> None:
        dialog_id = text_of(message, "id")
        if not dialog_id:
            return
        self.tracker.open_dialog(
            dialog_id,
            method,
            title=text_of(message, "title"),
            message=text_of(message, "message", "placeholder"),
            options=_CONFIRM if method == "confirm" else _options(list_of(message, "options")),
            prefill=text_of(message, "prefill"),
        )
        timeout_ms = int_of(message, "timeout")
        expires_at = self.session.now + timeout_ms / 1000 if timeout_ms > 0 else None
        running = {call_id for call_id, call in self.tracker.calls.items() if call.running}
        self._open[dialog_id] = _Dialog(expires_at, running)
        self._set_timer()

    # --- how dialogs end

    def read_answer(self, message: Object) -> None:
        """Apply our answer to a dialog."""
        dialog_id = text_of(message, "id")
        if message.get("cancelled") is True:
            self.tracker.close_dialog(dialog_id, status="cancelled", by="user")
        else:
            self.tracker.close_dialog(dialog_id, _answer_of(message), by="user")
        self._forget(dialog_id)

    def expire(self) -> None:
        """Close the dialogs that timed out."""
        for dialog_id, dialog in list(self._open.items()):
            if dialog.expires_at is not None and dialog.expires_at <= self.session.now:
                self.tracker.close_dialog(dialog_id, status="timeout")
                self._forget(dialog_id)
        self._set_timer()

    def close_all(self) -> None:
        """Close all dialogs: the command that opened them is handled, so each has an answer."""
        for dialog_id in list(self._open):
            self._close_unseen(dialog_id)

    def call_continued(self, call_id: str) -> None:
        """Note that a call continues or ended, so it doesn't wait for a dialog.

        A dialog that no other call can wait for was answered.
        """
        for dialog_id, dialog in list(self._open.items()):
            if call_id in dialog.call_ids:
                dialog.call_ids.discard(call_id)
                if not dialog.call_ids:
                    self._close_unseen(dialog_id)

    def forget_closed(self) -> None:
        """Forget the dialogs that the tracker closed.

        An aborted turn withdraws its dialogs. A turn that ends normally doesn't, because an extension's command may ask
        outside of turns.
        """
        for dialog_id in [dialog_id for dialog_id in self._open if dialog_id not in self.tracker.gates]:
            self._forget(dialog_id)

    def _close_unseen(self, dialog_id: str) -> None:
        """Close a dialog whose answer we didn't see: it timed out, or another client answered.

        pi's clock may be slightly ahead of ours, so a dialog that is about to time out counts as timed out.
        """
        expires_at = self._open[dialog_id].expires_at
        timed_out = expires_at is not None and self.session.now > expires_at - CLOCK_SKEW_S
        self.tracker.close_dialog(dialog_id, status="timeout" if timed_out else "answered_elsewhere")
        self._forget(dialog_id)

    def _forget(self, dialog_id: str) -> None:
        self._open.pop(dialog_id, None)
        self._set_timer()

    def _set_timer(self) -> None:
        times = [dialog.expires_at for dialog in self._open.values() if dialog.expires_at is not None]
        if times:
            self.session.set_timer_at("dialog", min(times))
        else:
            self.session.clear_timer("dialog")


def _options(choices: list[Any]) -> tuple[Option, ...]:
    labels = [choice if isinstance(choice, str) else text_of(object_of(choice), "value", "label") for choice in choices]
    return tuple(Option(id=label, label=label) for label in labels if label)


def _answer_of(message: Object) -> Json:
    return message["confirmed"] if "confirmed" in message else message.get("value")
