"""Claude Code's translator: all of its sources together.

stdout and stdin are read by stream.py, results.py and control.py, hooks and our answers to them by hooks.py and replies.py.
Below them stands what they share: asks.py (what a person is asked), calls.py, agents.py, core.py (session, turn, prompts).
Here are the sources that only add to those: the session file, telemetry, and the process.
"""

from __future__ import annotations

import msgspec

from quarterdeck import events as ev
from quarterdeck.events import Json, TokenUsage
from quarterdeck.harness.base import Object, ignore, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.core import FILE_LAG_S
from quarterdeck.harness.claude.spending import tokens_of
from quarterdeck.harness.claude.stream import Stream

_STDERR_KEPT = 500


def claude() -> Claude:
    """A new translator."""
    return Claude()


class Claude(Stream):
    """Everything that is known of one session of Claude Code."""

    def __init__(self) -> None:
        super().__init__()
        self.readers |= {
            "stdout": self.read_stdout,
            "stdin": self.read_stdin,
            "stderr": self.read_stderr,
            "hook": self.read_hook,
            "hook.reply": self.read_reply,
            "hook.disconnect": self.read_disconnect,
            "file": self.read_file,
            "notify": self.read_notify,
            "otlp.log": self.read_otlp,
            "otlp.metric": ignore,
            "otlp.span": ignore,
        }
        self.timer_callbacks |= {
            "held": self.on_held,
            "silence": self.on_silence,
            "lingers": self.on_lingers,
            "settled": self.on_settled,
        }

    def new_process(self) -> None:
        Stream.new_process(self)
        self.waits_for = ""
        self.dialog_left = False
        self.title = ""
        self.last_words = ""

    # --- the session file: idle, busy or waiting, and nothing more

    def read_file(self, data: Json) -> bool:
        found = content_in(data)
        status = text_of(found, "status")
        if self.stream or self.gone or not status:
            return data is None or isinstance(data, dict | str)
        before, self.status = self.status, status
        self.told_title(text_of(found, "name"))
        session_id = text_of(found, "sessionId")
        if session_id and (session_id != self.session_id or not self.tracker.is_ready or self.tracker.has_exited):
            self.ready(session_id, version=text_of(found, "version"))
        self.waits_for = text_of(found, "waitingFor")
        if not self.hooked:
            self.alone(status)
        elif status != before:
            # hooks know more, but not that a turn was interrupted, nor of a dialog whose hook is not installed
            self.dialog_left = before == "waiting" and status == "busy"
            self.clear_timer("silence")
            self.set_timer("settled", FILE_LAG_S)
        return True

    def alone(self, status: str) -> None:
        """No hook has come: the file is all there is."""
        if status == "idle":
            self.unask_vague()
            self.finish()
            return
        self.working()
        if status == "waiting":
            self.asks_vaguely(self.waits_for)
        else:
            self.unask_vague()

    def on_settled(self) -> None:
        """What the file says still holds, and no hook has said more since."""
        if self.status == "idle":
            # nobody told the end of the turn: it was interrupted
            self.stop()
        elif self.status == "waiting":
            self.asks_vaguely(self.waits_for)
        elif self.dialog_left:
            # somebody answered in the terminal, whoever asked: no dialog is left there
            for path in {gate.path for gate in self.tracker.gates.values()}:
                self.moved_on(path)

    def told_title(self, title: str) -> None:
        if title and title != self.title:
            self.title = title
            self.tracker.emit(ev.TitleGenerated(title=title))

    # --- telemetry: late and batched, so it is for the cost only

    def read_otlp(self, data: Json) -> bool:
        found = object_of(data)
        attributes = object_of(found, "attributes")
        name = text_of(attributes, "event.name") or text_of(found, "body")
        if self.stream or name.removeprefix(tables.OTLP_PREFIX) != tables.OTLP_USAGE:
            return bool(name)
        session_id = text_of(attributes, "session.id")
        if not session_id or not self.session_id or session_id == self.session_id:
            self.api_request(attributes)
        return True

    def api_request(self, attributes: Object) -> None:
        told = tokens_of(attributes)
        cost = number_in(attributes.get("cost_usd"))
        tokens = TokenUsage(
            input=told.input,
            output=told.output,
            cache_read=told.cache_read,
            cache_write=told.cache_write,
            cost_usd=cost,
        )
        name = text_of(attributes, "request_id") or self.named("request")
        self.tracker.record_usage(tokens, name, text_of(attributes, "model"), self.billing)

    def read_notify(self, data: Json) -> bool:
        """A notification may be forwarded as the hook that it is."""
        found = object_of(data)
        return self.read_hook(found) if "hook_event_name" in found else bool(found)

    # --- the process

    def read_stderr(self, data: Json) -> bool:
        text = data if isinstance(data, str) else text_of(object_of(data), "raw", "text")
        self.last_words = text.strip()[-_STDERR_KEPT:] or self.last_words
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        if self.deferred:
            self.pause()
        # whoever closes its input asks it to leave: the code then only repeats how the last turn ended
        self.tracker.stop_requested |= self.closing
        if code and not self.tracker.stop_requested:
            self.tracker.add_notice(self.last_words, "error", "stderr")
        self.gone = True
        Stream.on_exit(self, code, signal)


def content_in(data: Json) -> Object:
    """A file's content: itself, beside its path, or still as text."""
    found = object_of(data)
    content = next((found[name] for name in ("content", "data", "json", "text") if name in found), data)
    if isinstance(content, str):
        try:
            content = msgspec.json.decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return {}
    return object_of(content)


def number_in(value: Json) -> float | None:
    """A number, also one written as text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return None
    return float(value)
