"""Read the file in which Claude Code says whether a session is idle, busy or waiting, and nothing more."""

from __future__ import annotations

import msgspec

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, object_of, text_of
from quarterdeck.harness.claude.approvals import Approvals
from quarterdeck.harness.claude.hooks import FILE_LAG_S
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.claude.turns import Turns


class StatusFile:
    """Reads the session file of one session."""

    def __init__(self, session: ClaudeSession, prompts: Prompts, turns: Turns, approvals: Approvals) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.turns = turns
        self.approvals = approvals
        self.reset()

    def reset(self) -> None:
        self._title = ""
        self._waits_for = ""
        #: The file changed from waiting to busy: the dialog in the terminal was answered.
        self._dialog_closed = False

    def read(self, data: Json) -> bool:
        content = _content_of(data)
        status = text_of(content, "status")
        if self.session.has_stream or self.session.has_exited or not status:
            return data is None or isinstance(data, dict | str)
        before, self.session.file_status = self.session.file_status, status
        self._set_title(text_of(content, "name"))
        session_id = text_of(content, "sessionId")
        if session_id and (session_id != self.session.session_id or self.session.is_dormant):
            self.session.report_ready(session_id, version=text_of(content, "version"))
        self._waits_for = text_of(content, "waitingFor")
        if not self.session.has_hooks:
            self._apply_alone(status)
        elif status != before:
            # Hooks know more, except that a turn was interrupted, and of dialogs whose hook isn't installed. Wait for
            # them first.
            self._dialog_closed = before == "waiting" and status == "busy"
            self.session.clear_timer("silence")
            self.session.set_timer("settled", FILE_LAG_S)
        return True

    def _set_title(self, title: str) -> None:
        if title != self._title:
            self._title = title or self._title
            self.session.set_title(title)

    def _apply_alone(self, status: str) -> None:
        """Apply the status in a session without hooks: the file is the only source."""
        if status == "idle":
            self.approvals.close_terminal_dialog()
            self.turns.finish()
            return
        self.prompts.note_work()
        if status == "waiting":
            self.approvals.open_terminal_dialog(self._waits_for)
        else:
            self.approvals.close_terminal_dialog()

    def on_settled(self) -> None:
        """Apply the status in a session with hooks: no hook has said more since the file changed."""
        if self.session.file_status == "idle":
            # No hook reported the end of the turn, so it was interrupted.
            self.turns.interrupt()
        elif self.session.file_status == "waiting":
            self.approvals.open_terminal_dialog(self._waits_for)
        elif self._dialog_closed:
            # A person answered in the terminal. No dialog is left there, whichever agent asked.
            for path in {gate.path for gate in self.tracker.gates.values()}:
                self.approvals.close_answered_elsewhere(path)


def _content_of(data: Json) -> Object:
    """Return a file's content, which arrives as it is, in a field beside its path, or as text."""
    fields = object_of(data)
    content = next((fields[name] for name in ("content", "data", "json", "text") if name in fields), data)
    if isinstance(content, str):
        try:
            content = msgspec.json.decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return {}
    return object_of(content)
