"""Translate Codex. Which source decides what:

1. A stream of the agent itself leads if there is one: `codex app-server` (JSON-RPC) or `codex exec --json`. The shape of
   the lines distinguishes the two. The stream reports everything about turns, calls, texts and gates, and the other
   sources only add what it never reports (a call without an item, the prompt of `codex exec`, a session that ended with
   a turn open).
2. For a Codex that the user started, hooks and telemetry (OTLP logs) write to the same tracker, each what it knows. They
   use the same call ids, so what both report is recorded once. Hooks know more (`hooks.py`), telemetry follows 003's
   diagram (`telemetry.py`), and what neither can know shows in `signal`.
3. `notify` confirms that a turn is complete.

Everything is assigned by thread id, which is the same in all sources (thread, session, conversation): our thread changes
the state, sub-agents have their own agent path, other threads change nothing.
"""

from __future__ import annotations

from typing import cast

from quarterdeck.events import Body, Json
from quarterdeck.harness.base import BaseTranslator, Object, Signal, ignore, int_of, object_of, text_of
from quarterdeck.harness.codex.app_server import AppServer
from quarterdeck.harness.codex.exec import Exec
from quarterdeck.harness.codex.hooks import Hooks
from quarterdeck.harness.codex.session import SUPPRESSION_S, CodexSession
from quarterdeck.harness.codex.telemetry import Telemetry
from quarterdeck.kernel.view import View

_SIGINT = 2


class CodexTranslator(BaseTranslator):
    """Reads all sources of one Codex session."""

    def __init__(self) -> None:
        super().__init__()
        self.session = CodexSession(self)
        self.app_server = AppServer(self.session)
        self.exec = Exec(self.session)
        self.hooks = Hooks(self.session)
        self.telemetry = Telemetry(self.session, self.hooks)
        #: Suffix of the connection that is read, if the recording has several.
        self._connection: str | None = None
        self.readers |= {
            "stdout": self.read_stdout,
            "stdin": self.read_stdin,
            "hook": self.hooks.read,
            "hook.reply": self.hooks.read_reply,
            "hook.disconnect": ignore,
            "otlp.log": self.telemetry.read,
            "notify": self.read_notify,
        }
        self.timer_callbacks |= {
            "settled": self.app_server.threads.on_settled,
            "flagged": self.app_server.approvals.on_flagged,
            "interrupted": self.hooks.on_interrupted,
            "question": self.hooks.on_question,
            "give_up": self._give_up,
            "idle": self.telemetry.on_idle,
            "unseen": self.telemetry.on_unseen,
            "quiet": self.telemetry.on_quiet,
            "watchdog": self.telemetry.on_watchdog,
        }

    def feed(self, signal: Signal, now: float) -> list[Body]:
        """Read one connection of several to the same server: the one without a suffix, else the first.

        All of them receive the same notifications.
        """
        src, _, suffix = signal.src.partition(".")
        if signal.src in self.readers or src not in ("stdout", "stdin"):
            return super().feed(signal, now)
        if self._connection is None and not self.session.leading_stream:
            self._connection = suffix
        return super().feed(Signal(src, signal.data), now) if suffix == self._connection else []

    def restore(self, view: View) -> None:
        super().restore(view)
        self.session.restore(view)
        self.exec.restore(view)
        self.telemetry.restore()

    # --- the agent's own streams

    def read_stdout(self, data: Json) -> bool:
        if not isinstance(data, dict):
            # A line that isn't JSON is meant for people.
            return isinstance(data, str)
        message = cast(Object, data)
        if "method" in message or "result" in message or ("error" in message and "id" in message):
            self.session.follow("app")
            return self.app_server.read_received(message)
        if "type" in message:
            self.session.follow("exec")
            return self.exec.read(message)
        return "line" in message

    def read_stdin(self, data: Json) -> bool:
        message = object_of(data)
        if "method" in message or "result" in message or "error" in message:
            self.session.follow("app")
            return self.app_server.read_sent(message)
        # Typed text, or a prompt for `codex exec`, is recorded when Codex takes it.
        return True

    # --- notify

    def read_notify(self, data: Json) -> bool:
        """Read that a turn is complete, ours or another thread's."""
        fields = object_of(data)
        if text_of(fields, "type") != "agent-turn-complete":
            return False
        session = self.session
        thread_id = text_of(fields, "thread-id")
        if session.leading_stream or not thread_id or thread_id != (session.thread_id or thread_id):
            return True
        if not session.thread_id:
            session.bind(thread_id)
        session.record_last_text(text_of(fields, "turn-id"), text_of(fields, "last-assistant-message"))
        self.telemetry.confirm_end()
        return True

    def _give_up(self) -> None:
        self.hooks.on_give_up()
        self.telemetry.on_give_up()

    # --- the process

    def read_proc(self, data: Json) -> bool:
        known = super().read_proc(data)
        fields = object_of(data)
        event = fields.get("event")
        if event == "start":
            self.session.restart()
            self.app_server.reset()
            self.hooks.reset()
            self.telemetry.reset()
            self.exec.start_process(fields)
        elif event == "stdin_closed" and self.session.leading_stream == "app":
            # The app-server exits when its input ends, whatever it does.
            self.tracker.stop_requested = True
        elif event == "signal" and int_of(fields, "signal") == _SIGINT and not self.session.leading_stream:
            self.tracker.abort_turn("interrupted")
            self.session.confirm_turn_end(SUPPRESSION_S)
        return known

    def on_exit(self, code: int | None, signal: str | None) -> None:
        super().on_exit(code, signal)
        self.session.exit()
        self.app_server.threads.exit()

    def is_server(self) -> bool:
        return self.session.leading_stream == "app"


def codex() -> CodexTranslator:
    """Create a translator for one Codex session."""
    return CodexTranslator()
