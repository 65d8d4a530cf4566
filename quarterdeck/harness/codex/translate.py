"""The Codex translator. Which source decides what:

1. A stream of the agent itself leads where there is one: `codex app-server` (JSON-RPC) or `codex exec --json`, told apart
   by the shape of the lines. It says everything about turns, calls, texts and gates, and the other sources only add what
   it never says (a call that has no item, the prompt of `codex exec`, a session that ended with a turn open).
2. For a Codex that the user started, hooks and telemetry (OTLP logs) write into the same tracker, each what it knows. They
   name calls by the same ids, so what both tell is told once. Hooks know more (hooks.py), telemetry is 003's diagram
   (telemetry.py), and what neither can know shows in `signal`.
3. `notify` confirms that a turn is complete.

Everything goes by the id of the thread, which is the same in all sources (thread, session, conversation): ours moves the
state, sub-agents stand under their agent_path, strangers move nothing.
"""

from __future__ import annotations

from typing import cast

from quarterdeck.events import Body, Json
from quarterdeck.harness.base import BaseTranslator, Object, Signal, ignore, int_of, object_of, text_of
from quarterdeck.harness.codex.app import AppServer
from quarterdeck.harness.codex.exec import Exec
from quarterdeck.harness.codex.hooks import Hooks
from quarterdeck.harness.codex.session import SUPPRESSION_S, Desk
from quarterdeck.harness.codex.telemetry import Telemetry
from quarterdeck.kernel.view import View

_SIGINT = 2


class Codex(Desk):
    """All sources of one session."""

    def __init__(self) -> None:
        Desk.__init__(self)
        self._connection: str | None = None
        self.app = AppServer(self)
        self.exec = Exec(self)
        self.hooks = Hooks(self)
        self.telemetry = Telemetry(self, self.hooks)
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
            "settled": self.app.threads.on_settled,
            "flagged": self.app.asks.on_flagged,
            "interrupted": self.hooks.on_interrupted,
            "question": self.hooks.on_question,
            "give_up": self.on_give_up,
            "idle": self.telemetry.on_idle,
            "unseen": self.telemetry.on_unseen,
            "quiet": self.telemetry.on_quiet,
            "watchdog": self.telemetry.on_watchdog,
        }

    def feed(self, signal: Signal, now: float) -> list[Body]:
        """Of several connections to one server the plain one is read, or the first: the others hear the same."""
        if signal.src not in self.readers:
            src, _, suffix = signal.src.partition(".")
            if src in ("stdout", "stdin"):
                return self._from_connection(Signal(src, signal.data), suffix, now)
        return BaseTranslator.feed(self, signal, now)

    def _from_connection(self, signal: Signal, name: str, now: float) -> list[Body]:
        if self._connection is None and not self.lead:
            self._connection = name
        return BaseTranslator.feed(self, signal, now) if name == self._connection else []

    def restore(self, view: View) -> None:
        super().restore(view)
        self.exec.restore(view)
        self.telemetry.restore()

    def on_exit(self, code: int | None, signal: str | None) -> None:
        Desk.on_exit(self, code, signal)
        self.app.threads.exited()

    def restarted(self, data: Object) -> None:
        Desk.restarted(self, data)
        self.app.reset()
        self.hooks.reset()
        self.telemetry.reset()
        self.exec.started(data)

    # --- the agent's own streams

    def read_stdout(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return isinstance(data, str)  # a line that is no JSON
        found = cast(Object, data)
        if "method" in found or "result" in found or ("error" in found and "id" in found):
            self.follow("app")
            return self.app.read_out(found)
        if "type" in found:
            self.follow("exec")
            return self.exec.read(found)
        return "line" in found

    def read_stdin(self, data: Json) -> bool:
        found = object_of(data)
        if "method" in found or "result" in found or "error" in found:
            self.follow("app")
            return self.app.read_in(found)
        return True  # what a person typed, or a prompt for `codex exec`: it is told when Codex takes it

    # --- what others tell of it

    def read_notify(self, data: Json) -> bool:
        """A turn is complete: ours, or one that is none of our business."""
        found = object_of(data)
        if text_of(found, "type") != "agent-turn-complete":
            return False
        thread = text_of(found, "thread-id")
        if self.lead or not thread or thread != (self.own or thread):
            return True
        if not self.own:
            self.bind(thread)
        self.last_text(text_of(found, "turn-id"), text_of(found, "last-assistant-message"))
        self.telemetry.confirmed()
        return True

    def read_proc(self, data: Json) -> bool:
        known = Desk.read_proc(self, data)
        found = object_of(data)
        event = found.get("event")
        if event == "stdin_closed" and self.lead == "app":
            self.tracker.stop_requested = True  # the app-server leaves when its input ends, whatever it does
        elif event == "signal" and int_of(found, "signal") == _SIGINT and not self.lead:
            self.tracker.abort_turn("interrupted")
            self.turn_over(SUPPRESSION_S)
        return known

    def on_give_up(self) -> None:
        self.hooks.on_give_up()
        self.telemetry.on_give_up()


def codex() -> Codex:
    """A new translator for one Codex session."""
    return Codex()
