"""The say/ask vocabulary (seed 000) as canonical events: Cline 1 (two streams), Cline 2 and Kilo before 7.

One handler per message, named after it: `HANDLERS` says which. What means nothing to the state is in `IGNORED`; only
what stands in neither is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import (
    Object,
    Translator,
    ignore,
    int_of,
    is_object,
    list_of,
    object_of,
    text_of,
)
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.lines import LineBuffer, object_in, plain
from quarterdeck.harness.protocol_detection import Detecting, acp_or_sayask
from quarterdeck.harness.sayask.answers import Answers
from quarterdeck.harness.sayask.history import HOLD_PAST_S, HOLD_S, history_of, is_past
from quarterdeck.harness.sayask.message import Message, call_name, message_of, partial_message_of
from quarterdeck.harness.sayask.rows import MODES, Handler, Row
from quarterdeck.harness.sayask.turns import FAILED_ASKS
from quarterdeck.kernel.view import View

#: Calls whose ask Cline 1 shows in its state only after the answer.
EDITS = frozenset({"newFileCreated", "editedExistingFile"})
RESUMES = frozenset({"resume_task", "resume_completed_task"})

#: message → method.
HANDLERS: dict[str, str] = {
    "say:task": "say_task",
    "say:text": "say_text",
    "say:reasoning": "say_reasoning",
    "say:completion_result": "say_completion_result",
    "say:user_feedback": "say_user_feedback",
    "say:user_feedback_diff": "say_user_feedback_diff",
    "say:api_req_started": "say_api_req_started",
    "say:api_req_retried": "say_api_req_retried",
    "say:error_retry": "say_error_retry",
    "say:api_req_retry_delayed": "say_api_req_retry_delayed",
    "say:condense_context": "say_condense_context",
    "say:condense_context_error": "say_condense_context_error",
    "say:tool": "say_call",
    "say:command": "say_call",
    "say:use_mcp_server": "say_call",
    "say:browser_action": "say_call",
    "say:browser_action_launch": "say_call",
    "say:command_output": "command_output",
    "say:mcp_server_request_started": "say_runs",
    "say:mcp_server_response": "say_done",
    "say:browser_action_result": "say_done",
    "say:error": "say_error",
    "say:diff_error": "say_call_error",
    "say:command_permission_denied": "say_call_error",
    "say:clineignore_error": "say_warning",
    "say:rooignore_error": "say_warning",
    "say:shell_integration_warning": "say_warning",
    "say:too_many_tools_warning": "say_warning",
    "say:info": "say_info",
    "say:mcp_notification": "say_info",
    "say:subtask_result": "say_info",
    "say:task_progress": "say_task_progress",
    "say:checkpoint_created": "say_checkpoint",
    "say:checkpoint_saved": "say_checkpoint",
    "ask:tool": "ask_call",
    "ask:command": "ask_call",
    "ask:use_mcp_server": "ask_call",
    "ask:browser_action_launch": "ask_call",
    "ask:new_task": "ask_call",
    "ask:condense": "ask_call",
    "ask:report_bug": "ask_call",
    "ask:summarize_task": "ask_call",
    "ask:command_output": "command_output",
    "ask:followup": "ask_question",
    "ask:plan_mode_respond": "ask_question",
    "ask:act_mode_respond": "ask_question",
    "ask:completion_result": "ask_completion_result",
    **{f"ask:{name}": "ask_failed" for name in FAILED_ASKS},
    **{f"ask:{name}": "ask_resume" for name in RESUMES},
}

#: Said for the agent's own page, or told by other messages too.
IGNORED = frozenset(
    f"say:{name}"
    for name in (
        "api_req_finished",
        "api_req_deleted",
        "api_req_rate_limit_wait",
        "deleted_api_reqs",
        "load_mcp_documentation",
        "generate_explanation",
        "hook_status",
        "hook_output_stream",
        "conditional_rules_applied",
        "codebase_search_result",
        "sliding_window_truncation",
        "user_edit_todos",
        "image",
        "shell_integration_warning_with_suggestion",
    )
)
#: Lines of Kilo's own interface that are no messages of the agent.
_OWN_LINES: dict[str, Literal["info", "error"] | None] = {
    "system": "info",
    "error": "error",
    "user": None,
    "assistant": None,
    "empty": None,
    "requestCheckpointRestoreApproval": None,
}
#: The time that an entry's name begins with.
_TIME = re.compile(r"(?:call-)?(\d{1,19})(?:\D|$)")
#: How Cline words the end of a task that runs without a person.
GAVE_UP = "Task failed"
_SHUTTING_DOWN = " received, shutting down"


class SayAsk(Answers):
    """Reads the streams of one process."""

    def __init__(self) -> None:
        Answers.__init__(self)
        #: The first messages of a task, until it is known whether they are the past.
        self._held: list[Message] = []
        self._loading = True
        self._past_seen = False
        self._shutting_down = False
        #: File edits of Cline 1 that were asked on its partial stream.
        self._asked_early: set[str] = set()
        self.readers |= {
            "stdout": self.read_stdout,
            "stdout.state": self.read_state,
            "stdout.partial": self.read_partial,
            "stdout.view": ignore,
            "stdin": self.read_stdin,
            "stdin.rpc": ignore,
        }
        self.timer_callbacks |= {"output": self.on_output, "question": self.on_question, "loading": self.on_loading}

    def restore(self, view: View) -> None:
        """What the timeline holds was told; only what is newer is news."""
        super().restore(view)
        self.floor = max((int(found[1]) for name in view.timeline.positions if (found := _TIME.match(name))), default=0)
        self.model = view.state.profile.model
        self.requested = bool(self.floor)
        self._nameless = view.index
        self._loading = not self.requested
        self.pending = [call for call, one in self.tracker.calls.items() if not one.path]
        self.command = self.pending[-1] if self.pending else ""

    # --- sources

    def read_stdout(self, data: Json) -> bool:
        if not is_object(data):
            return self._read_other(data)
        found: Object = data
        message = message_of(found)
        if message is not None:
            if not self.tracker.is_ready:
                self._hello()
            return self._read_message(message)
        if len(found) == 1:
            raw = found.get("raw", found.get("_raw"))
            if isinstance(raw, str):
                return self._read_text(raw)
        return self._read_object(found)

    def read_partial(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return False
        self._hello()
        message = partial_message_of(cast(Object, data))
        if message.label == "ask:tool" and not message.partial:
            self._asked_early.add(message.ts)
        return self._read_message(message)

    def read_state(self, data: Json) -> bool:
        """Cline 1's state. A file edit that was asked on the other stream comes here only once it was answered."""
        known = self.read_stdout(data)
        message = message_of(cast(Object, data)) if self._asked_early and isinstance(data, dict) else None
        if message is not None and self._is_answered_edit(message):
            self.tracker.close_gate(message.ts, "answered_elsewhere")
        return known

    def _is_answered_edit(self, message: Message) -> bool:
        if message.label != "ask:tool" or message.partial or message.ts not in self._asked_early:
            return False
        self._asked_early.discard(message.ts)
        return call_name(message, message.data()) in EDITS

    def _read_other(self, data: Json) -> bool:
        if isinstance(data, str):
            return self._read_text(data)
        return isinstance(data, list) and self._read_list(cast("list[Any]", data))

    def _read_list(self, found: list[Any]) -> bool:
        """Kilo prints several messages as one list."""
        known = [self.read_stdout(one) for one in found if isinstance(one, dict)]
        return bool(known) and all(known)

    def _read_text(self, text: str) -> bool:
        """A line that the driver left as it was: objects in disguise, or words for people."""
        data = text.encode("utf-8", "replace")
        words = plain(data.decode()).strip()
        if words and words[0] not in "{[" and "\n" not in text:
            self._read_words(words)
            return True
        lines = LineBuffer()
        known = True
        for piece in (*lines.feed(data), *lines.flush()):
            if isinstance(piece, str):
                self._read_words(piece)
            else:
                known = self.read_stdout(piece) and known
        return known

    def _read_words(self, words: str) -> None:
        """Cline 2 says on its output that a signal ends it."""
        if _SHUTTING_DOWN in words:
            self._go_live()
            self._shutting_down = True
        self.tracker.add_notice(words)

    def _read_object(self, found: Object) -> bool:
        name = text_of(found, "event", "type")
        reader = _OBJECTS.get(name)
        if reader is not None and (name != "error" or found.get("source") != "cli"):
            reader(self, found)
            return True
        if name in _OWN_LINES:
            level = _OWN_LINES[name]
            if level is not None:
                self.tracker.add_notice(text_of(found, "content", "message"), level)
            return True
        return False

    def _read_message(self, message: Message) -> bool:
        handler = _HANDLERS.get(message.label)
        if handler is None:
            return message.label in IGNORED
        if not self._loading or message.key in self.rows or (self.floor and 0 < message.age <= self.floor):
            self.take(message, handler)
        elif message.what in RESUMES:
            self._past_loaded(message)
        elif message.partial or self._is_new_request(message):
            self._go_live()
            self.take(message, handler)
        else:
            self._held.append(message)
            self.set_timer("loading", HOLD_PAST_S if self._past_seen else HOLD_S)
        return True

    def _is_new_request(self, message: Message) -> bool:
        """Whether it begins new work. After a request with figures even one without is of the past: it was cut off."""
        if message.what != "api_req_started" or self._past_seen:
            return False
        self._past_seen = is_past(message)
        return not self._past_seen

    def on_loading(self) -> None:
        """Nothing more of a past came: this is new work."""
        self._go_live()

    def _go_live(self) -> None:
        for message in self._let_go():
            self.take(message, _HANDLERS[message.label])

    def _let_go(self) -> list[Message]:
        """It is known what they are: nothing is held any more."""
        self._loading = self._past_seen = False
        held = self._held
        if held:
            self._held = []
            self.clear_timer("loading")
        return held

    def _past_loaded(self, message: Message) -> None:
        """All that was held is the past, and nothing of it is new work."""
        held = self._let_go()
        for one in (*held, message):
            self.rows[one.key] = Row(partial=False, digest=hash(one.text), size=len(one.text))
            self._settings(one.raw)
        self.requested = self.offered = True
        last = held[-1].what if held else ""
        finished = message.what == "resume_completed_task" or last == "completion_result"
        self.tracker.record_history(finished, history_of(held))

    def _hello(self, native: str = "", model: str = "") -> None:
        if not self.tracker.is_ready or native:
            self.tracker.report_ready(native, model, resumable=True)

    def on_exit(self, code: int | None, signal: str | None) -> None:
        """An exit while the agent offers to resume, or that it said it would make, is no end of the work."""
        self._go_live()
        asked = self.tracker.stop_requested or self._shutting_down or (code == 0 and self.offered)
        self.timers.clear()
        self.calls_over()
        self.tracker.record_process_exit(code, signal, asked=asked)
        self.new_task()

    def new_task(self) -> None:
        super().new_task()
        self._loading = True
        self._shutting_down = False

    # --- lines that are no messages

    def session_created(self, found: Object) -> None:
        if self.requested and text_of(found, "sessionId", "taskId"):
            self.new_task()
        self._hello(text_of(found, "sessionId", "taskId"), text_of(found, "model"))

    def session_title_generated(self, found: Object) -> None:
        title = text_of(found, "title")
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    def mode_changed(self, found: Object) -> None:
        mode = MODES.get(text_of(found, "mode"))
        if mode is not None and mode != self.mode:
            self.mode, self.native_mode = mode, ""
            self.tracker.emit(ev.SettingChanged(mode=mode))

    def welcome(self, found: Object) -> None:
        """Where Kilo works, and what it was told there."""
        options = object_of(found, "metadata", "welcomeOptions") or object_of(found, "metadata")
        kept = {name: value for name, value in options.items() if isinstance(value, str) and value}
        instructions: list[Any] = [one for one in list_of(options, "instructions") if isinstance(one, str) and one]
        self._hello()
        self.tracker.emit(ev.PluginEvent(name="welcome", payload=kept | _given("instructions", instructions)))

    def error(self, found: Object) -> None:
        """Cline 2's last word before it leaves with a failure. An ask may have told it before."""
        self._go_live()
        self._hello()
        told = text_of(found, "message", "content")
        data = object_in(told) or {}
        words = text_of(data, "message") or told
        self.fail(failure_kind(words, int_of(data, "status")), words)

    def say_error(self, message: Message, row: Row) -> None:
        """Without a person nobody can be asked, so the agent gives up in so many words; any other error is a call's."""
        if GAVE_UP in message.text and row.partial and not message.partial and not self.halted:
            self.fail("turn_limit" if "mistake" in message.text else failure_kind(message.text), message.text)
        else:
            self.say_call_error(message, row)

    def say_info(self, message: Message, row: Row) -> None:
        if row.partial and not message.partial:
            self._whole_question()
            self.tracker.add_notice(message.text)

    def say_warning(self, message: Message, row: Row) -> None:
        if row.partial and not message.partial:
            self.tracker.add_notice(message.text, "warning")

    def say_checkpoint(self, message: Message, row: Row) -> None:
        """Internal: it has no text and changes nothing."""
        if row.fresh:
            saved = text_of(message.raw, "lastCheckpointHash") or message.ts
            self.tracker.emit(ev.CheckpointSaved(checkpoint_id=saved))


#: Lines that are no messages, by their event or type.
_OBJECTS: dict[str, Callable[[SayAsk, Object], None]] = {
    "session_created": SayAsk.session_created,
    "session_title_generated": SayAsk.session_title_generated,
    "mode_changed": SayAsk.mode_changed,
    "task_started": SayAsk.session_created,
    "welcome": SayAsk.welcome,
    "error": SayAsk.error,
}
_HANDLERS: dict[str, Handler] = {name: getattr(SayAsk, method) for name, method in HANDLERS.items()}


def _given(name: str, values: list[Any]) -> dict[str, list[Any]]:
    """An empty list counts as none."""
    return {name: values} if values else {}


def sayask() -> Translator:
    """Any agent that speaks it."""
    return SayAsk()


def cline() -> Translator:
    """Cline speaks ACP too, when it is started so: the first object tells."""
    return Detecting(_CLINE, acp_or_sayask)


@cache
def _acp() -> Callable[[], Translator]:
    from quarterdeck.harness.acp.translate import cline as cline_acp  # loaded only when it is spoken

    return cline_acp


_CLINE: dict[str, Callable[[], Translator]] = {"sayask": SayAsk, "acp": lambda: _acp()()}
