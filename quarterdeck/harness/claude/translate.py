"""Translate Claude Code: build the parts of one session and give each source its reader.

The parts hold one shared `ClaudeSession` (`session.py`):

    prompts      texts that were sent or typed, and the turns that they start
    turns        how turns end
    calls        tool calls and the todo list
    subagents    sub-agents and background work
    approvals    approvals, questions and forms
    usage        tokens and cost

One reader per source writes through them: `stream` (stdout), `control` (stdin and the control protocol), `hooks` (hooks
and our answers to them), `status_file` (the session file). Telemetry is read by `usage`.
"""

from __future__ import annotations

from quarterdeck.events import Body, Json
from quarterdeck.harness.base import BaseTranslator, Signal, ignore, object_of, text_of
from quarterdeck.harness.claude.approvals import Approvals
from quarterdeck.harness.claude.calls import Calls
from quarterdeck.harness.claude.control import Control
from quarterdeck.harness.claude.hooks import Hooks
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.claude.status_file import StatusFile
from quarterdeck.harness.claude.stream import Stream
from quarterdeck.harness.claude.subagents import Subagents
from quarterdeck.harness.claude.turns import Turns
from quarterdeck.harness.claude.usage import Usage
from quarterdeck.kernel.view import View

#: How much of stderr is shown if the process fails.
_STDERR_LIMIT = 500


class ClaudeTranslator(BaseTranslator):
    """Reads all sources of one session of Claude Code."""

    def __init__(self) -> None:
        super().__init__()
        session = self.session = ClaudeSession(self)
        prompts = Prompts(session)
        subagents = Subagents(session)
        calls = Calls(session, prompts, subagents)
        approvals = Approvals(session, prompts, calls)
        self.turns = Turns(session, prompts, calls, subagents)
        self.usage = Usage(session)
        self.hooks = Hooks(session, prompts, self.turns, calls, approvals, subagents)
        control = Control(session, prompts, calls, approvals, subagents, self.hooks)
        stream = Stream(session, prompts, self.turns, calls, approvals, subagents, self.usage, self.hooks, control)
        status_file = StatusFile(session, prompts, self.turns, approvals)
        #: The parts whose state belongs to one process.
        self._parts = (
            session,
            prompts,
            subagents,
            calls,
            approvals,
            self.usage,
            self.hooks,
            control,
            stream,
            status_file,
        )
        self._stderr = ""
        self.readers |= {
            "stdout": stream.read,
            "stdin": control.read_stdin,
            "stderr": self.read_stderr,
            "hook": self.hooks.read,
            "hook.reply": self.hooks.read_reply,
            "hook.disconnect": self.hooks.read_disconnect,
            "file": status_file.read,
            "notify": self.read_notify,
            "otlp.log": self.usage.read_telemetry,
            "otlp.metric": ignore,
            "otlp.span": ignore,
        }
        self.timer_callbacks |= {
            "held": prompts.release_held,
            "silence": self.hooks.on_silence,
            "lingers": stream.on_lingers,
            "settled": status_file.on_settled,
        }

    def feed(self, signal: Signal, now: float) -> list[Body]:
        if self.tracker.signal == "stale":
            self.tracker.set_signal("live")
        return super().feed(signal, now)

    def restore(self, view: View) -> None:
        super().restore(view)
        self.session.restore(view)
        self.usage.restore(view.state.usage)

    def read_notify(self, data: Json) -> bool:
        """Read a notification, which may be forwarded as the hook that it is."""
        fields = object_of(data)
        return self.hooks.read(fields) if "hook_event_name" in fields else bool(fields)

    # ------------------------------------------------------------------------------------------------------------------
    # The process
    # ------------------------------------------------------------------------------------------------------------------

    def read_proc(self, data: Json) -> bool:
        event = object_of(data).get("event")
        if event == "start":
            for part in self._parts:
                part.reset()
            self.session.session_id = ""
            self._stderr = ""
        elif event == "stdin_closed":
            self.session.input_closed = True
        return super().read_proc(data)

    def read_stderr(self, data: Json) -> bool:
        text = data if isinstance(data, str) else text_of(object_of(data), "raw", "text")
        self._stderr = text.strip()[-_STDERR_LIMIT:] or self._stderr
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        if self.session.deferred_call_id:
            self.turns.defer()
        # Closing its input asks Claude Code to exit. The exit code then only repeats how the last turn ended.
        self.tracker.stop_requested |= self.session.input_closed
        if code and not self.tracker.stop_requested:
            self.tracker.add_notice(self._stderr, "error", "stderr")
        self.session.has_exited = True
        super().on_exit(code, signal)


def claude() -> ClaudeTranslator:
    """Return a new translator for one session of Claude Code."""
    return ClaudeTranslator()
