"""Translate the say/ask messages (seed 000) of Cline 1 (two streams), Cline 2 and Kilo before 7.

The translator finds the handler of each message. The parts that do the work hold one shared `SayAskSession`
(`session.py`), which also merges the many arrivals of one message:

    calls    calls, approvals and questions
    turns    prompts, requests, ends
    Answers  what we send (here)

A resumed task first sends its whole past as if it happened now: in one burst, every message complete and every request
with its usage, up to the offer to resume. New work begins with a prompt alone, then a request without usage. So the first
messages of a task are held for a moment, until one of the two shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import (
    BaseTranslator,
    Object,
    Translator,
    ignore,
    int_of,
    list_of,
    object_of,
    objects_of,
    text_of,
)
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.lines import LineBuffer, object_in, plain
from quarterdeck.harness.protocol_detection import DetectingTranslator, acp_or_sayask
from quarterdeck.harness.sayask.calls import Calls
from quarterdeck.harness.sayask.message import (
    Message,
    call_name,
    history_of,
    is_past_request,
    message_of,
    partial_message_of,
)
from quarterdeck.harness.sayask.session import Handler, Row, SayAskSession
from quarterdeck.harness.sayask.turns import FAILED_ASKS, Turns
from quarterdeck.kernel.view import View

#: How long the first messages of a task are held while nothing shows what they are.
HOLD_S = 0.25
#: The same after a request with usage, which looks like the past.
HOLD_PAST_S = 2.0

#: Calls whose ask appears in Cline 1's state only after the answer.
_EDITS = frozenset({"newFileCreated", "editedExistingFile"})
_RESUME_ASKS = frozenset({"resume_task", "resume_completed_task"})
#: Messages for the agent's own page, and messages that repeat what others say.
_IGNORED = frozenset(
    f"say:{subtype}"
    for subtype in (
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
#: Lines of Kilo's own interface, with the level of the notice that each becomes. None: it is ignored.
_INTERFACE_LINES: dict[str, Literal["info", "error"] | None] = {
    "system": "info",
    "error": "error",
    "user": None,
    "assistant": None,
    "empty": None,
    "requestCheckpointRestoreApproval": None,
}
#: The time that an id in the timeline begins with.
_TIME_IN_ID = re.compile(r"(?:call-)?(\d{1,19})(?:\D|$)")
#: Cline 2 prints this when a signal ends it.
_SHUTTING_DOWN = " received, shutting down"

# ----------------------------------------------------------------------------------------------------------------------
# What we send
# ----------------------------------------------------------------------------------------------------------------------


class Answers:
    """What we send: a button or a text for whatever the agent asks now, a prompt, a cancel.

    Three forms are known: Kilo's messages, its versioned messages, and the calls of Cline 1's own interface.
    """

    def __init__(self, calls: Calls, turns: Turns) -> None:
        self.tracker = calls.tracker
        self.calls = calls
        self.turns = turns

    def send_ask_response(self, message: Object) -> None:
        """Read a button, a text, or one decision for each of several files, where one yes lets the call run."""
        response, text = text_of(message, "askResponse", "responseType"), text_of(message, "text")
        by_file = object_in(text) if response == "objectResponse" else None
        is_yes = response == "yesButtonClicked" or (by_file is not None and True in by_file.values())
        self._apply(message, text, is_yes, is_button=response != "messageResponse")

    def send_approval_response(self, message: Object) -> None:
        self._apply(message, text_of(message, "text"), message.get("approved") is True, is_button=True)

    def send_approval(self, message: Object) -> None:
        self._apply(message, text_of(message, "content"), True, is_button=True)

    def send_rejection(self, message: Object) -> None:
        self._apply(message, text_of(message, "content"), False, is_button=True)

    def send_text(self, message: Object) -> None:
        self._apply(message, text_of(message, "content", "text"), False, is_button=False)

    def send_cancel(self, _message: Object) -> None:
        """Note that we cancel. The turn continues until the agent's messages show that it was cancelled."""
        self.turns.is_cancelling = bool(self.tracker.turn_id)

    def _apply(self, message: Object, text: str, is_yes: bool, is_button: bool) -> None:
        """Apply a button or a text to whatever is asked now. A text that answers nothing is a prompt."""
        approval, question = self.calls.open_gate("approval"), self.calls.open_gate("question")
        if approval:
            call_id = self.tracker.gates[approval].call_id
            if is_yes:
                self.calls.allow(call_id, "user")
            else:
                self.calls.refuse(call_id, "user", text)
        elif question:
            self.turns.sent_texts.append(text)
            self.tracker.answer_question(question, text or ("yes" if is_yes else "no"), by="user")
        elif text and not is_button:
            self.turns.record_prompt(text, text_of(message, "id", "message_id"))
            self.turns.sent_texts.append(text)


# ----------------------------------------------------------------------------------------------------------------------
# The translator
# ----------------------------------------------------------------------------------------------------------------------


class SayAskTranslator(BaseTranslator):
    """Reads the streams of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.session = SayAskSession(self)
        self.calls = Calls(self.session)
        self.turns = Turns(self.session, self.calls)
        self.answers = Answers(self.calls, self.turns)
        #: The first messages of a task, until it is known whether they are its past.
        self._held: list[Message] = []
        #: It isn't known yet whether the task is new or resumed.
        self._is_loading = True
        #: A request with usage was held, so the messages look like the past.
        self._has_past_request = False
        #: The agent said that a signal ends it.
        self._is_shutting_down = False
        #: Times of the file edits that were asked on Cline 1's partial stream.
        self._asked_edits: set[str] = set()
        self.readers |= {
            "stdout": self.read_stdout,
            "stdout.state": self.read_state,
            "stdout.partial": self.read_partial,
            "stdout.view": ignore,
            "stdin": self.read_stdin,
            "stdin.rpc": ignore,
        }
        self.timer_callbacks |= {
            "output": self.calls.end_command,
            "question": self.calls.ask_partial_question,
            "loading": self._release_held,
        }
        #: Handlers by label of the message. A label that is neither here nor in `_IGNORED` counts as unknown.
        self.handlers: dict[str, Handler] = self._message_handlers()
        self._objects: dict[str, Callable[[Object], None]] = {
            "session_created": self._read_session_created,
            "task_started": self._read_session_created,
            "session_title_generated": self._read_title,
            "mode_changed": self._read_mode,
            "welcome": self._read_welcome,
            "error": self._read_last_error,
        }
        self._commands: dict[str, Callable[[Object], None]] = {
            "askResponse": self.answers.send_ask_response,
            "respondToApproval": self.answers.send_approval_response,
            "approval": self.answers.send_approval,
            "rejection": self.answers.send_rejection,
            "newTask": self.answers.send_text,
            "user_input": self.answers.send_text,
            "response": self.answers.send_text,
            "cancelTask": self.answers.send_cancel,
            "abort": self.answers.send_cancel,
            "showTaskWithId": self._send_show_task,
        }

    def _message_handlers(self) -> dict[str, Handler]:
        calls, turns = self.calls, self.turns
        return {
            "say:task": turns.read_task,
            "say:text": turns.read_text,
            "say:reasoning": turns.read_reasoning,
            "say:completion_result": turns.read_completion,
            "say:user_feedback": turns.read_user_feedback,
            "say:user_feedback_diff": turns.read_user_edit,
            "say:api_req_started": turns.read_request,
            "say:api_req_retried": turns.read_request_retried,
            "say:error_retry": turns.read_error_retry,
            "say:api_req_retry_delayed": turns.read_retry_delayed,
            "say:condense_context": turns.read_condense,
            "say:condense_context_error": turns.read_condense_error,
            "say:tool": calls.read_said_call,
            "say:command": calls.read_said_call,
            "say:use_mcp_server": calls.read_said_call,
            "say:browser_action": calls.read_said_call,
            "say:browser_action_launch": calls.read_said_call,
            "say:command_output": calls.read_output,
            "say:mcp_server_request_started": calls.read_request_sent,
            "say:mcp_server_response": calls.read_answer,
            "say:browser_action_result": calls.read_answer,
            "say:error": turns.read_error,
            "say:diff_error": calls.read_error,
            "say:command_permission_denied": calls.read_error,
            "say:clineignore_error": self._read_warning,
            "say:rooignore_error": self._read_warning,
            "say:shell_integration_warning": self._read_warning,
            "say:too_many_tools_warning": self._read_warning,
            "say:info": self._read_info,
            "say:mcp_notification": self._read_info,
            "say:subtask_result": self._read_info,
            "say:task_progress": calls.read_task_progress,
            "say:checkpoint_created": self._read_checkpoint,
            "say:checkpoint_saved": self._read_checkpoint,
            "ask:tool": calls.read_asked_call,
            "ask:command": calls.read_asked_call,
            "ask:use_mcp_server": calls.read_asked_call,
            "ask:browser_action_launch": calls.read_asked_call,
            "ask:new_task": calls.read_asked_call,
            "ask:condense": calls.read_asked_call,
            "ask:report_bug": calls.read_asked_call,
            "ask:summarize_task": calls.read_asked_call,
            "ask:command_output": calls.read_output,
            "ask:followup": calls.read_question,
            "ask:plan_mode_respond": calls.read_question,
            "ask:act_mode_respond": calls.read_question,
            "ask:completion_result": turns.read_completion_ask,
            **{f"ask:{subtype}": turns.read_failed_ask for subtype in FAILED_ASKS},
            **{f"ask:{subtype}": turns.read_resume_offer for subtype in _RESUME_ASKS},
        }

    def restore(self, view: View) -> None:
        """Continue after the messages that the timeline has: only later ones are news."""
        super().restore(view)
        times = [int(match[1]) for entry_id in view.timeline.positions if (match := _TIME_IN_ID.match(entry_id))]
        self.session.restored_until = max(times, default=0)
        self.session.model = view.state.profile.model
        self.session.reserve_ids(view.index)
        self.turns.has_requested = bool(self.session.restored_until)
        self._is_loading = not self.turns.has_requested
        self.calls.restore(view)

    # --- sources

    def read_stdin(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return isinstance(data, str)
        message = cast(Object, data)
        sender = self._commands.get(text_of(message, "type") or text_of(message, "call").rpartition(".")[2])
        if sender is not None:
            sender(message)
        return sender is not None

    def _send_show_task(self, _message: Object) -> None:
        """Open another task: its past follows."""
        self._start_task()

    def read_stdout(self, data: Json) -> bool:
        if isinstance(data, str):
            return self._read_text(data)
        if isinstance(data, list):
            # Kilo prints several messages as one list. Read all of them, also after an unknown one.
            known = [self.read_stdout(item) for item in objects_of({"list": data}, "list")]
            return bool(known) and all(known)
        if not isinstance(data, dict):
            return False
        fields = cast(Object, data)
        message = message_of(fields)
        if message is not None:
            self._record_ready()
            return self._read_message(message)
        raw = fields.get("raw", fields.get("_raw")) if len(fields) == 1 else None
        return self._read_text(raw) if isinstance(raw, str) else self._read_object(fields)

    def read_partial(self, data: Json) -> bool:
        """Read Cline 1's second stream."""
        if not isinstance(data, dict):
            return False
        self._record_ready()
        message = partial_message_of(cast(Object, data))
        if message.label == "ask:tool" and not message.partial:
            self._asked_edits.add(message.ts)
        return self._read_message(message)

    def read_state(self, data: Json) -> bool:
        """Read Cline 1's state. A file edit that was asked on the other stream appears here only after the answer."""
        known = self.read_stdout(data)
        message = message_of(object_of(data))
        if message is not None and self._take_answered_edit(message):
            self.tracker.close_gate(message.ts, "answered_elsewhere")
        return known

    def _take_answered_edit(self, message: Message) -> bool:
        """Return whether this is a file edit that was asked on the partial stream, and forget that it was asked."""
        if message.label != "ask:tool" or message.partial or message.ts not in self._asked_edits:
            return False
        self._asked_edits.discard(message.ts)
        return call_name(message) in _EDITS

    def _read_text(self, text: str) -> bool:
        """Read a line that the driver passed on as it was: JSON objects after all, or prose."""
        data = text.encode("utf-8", "replace")
        prose = plain(data.decode()).strip()
        if prose and prose[0] not in "{[" and "\n" not in text:
            self._read_prose(prose)
            return True
        lines = LineBuffer()
        known = True
        for piece in (*lines.feed(data), *lines.flush()):
            if isinstance(piece, str):
                self._read_prose(piece)
            else:
                known = self.read_stdout(piece) and known
        return known

    def _read_prose(self, text: str) -> None:
        if _SHUTTING_DOWN in text:
            self._release_held()
            self._is_shutting_down = True
        self.tracker.add_notice(text)

    def _read_object(self, fields: Object) -> bool:
        """Read a line that isn't a message."""
        name = text_of(fields, "event", "type")
        reader = self._objects.get(name)
        # Kilo's own interface also prints errors, which don't end the task.
        if reader is not None and not (name == "error" and fields.get("source") == "cli"):
            reader(fields)
            return True
        level = _INTERFACE_LINES.get(name)
        if level is not None:
            self.tracker.add_notice(text_of(fields, "content", "message"), level)
        return name in _INTERFACE_LINES

    # --- messages, and whether they are the past of a resumed task

    def _read_message(self, message: Message) -> bool:
        handler = self.handlers.get(message.label)
        if handler is None:
            return message.label in _IGNORED
        if not self._is_loading or self.session.is_known(message):
            self.session.merge(message, handler)
        elif message.subtype in _RESUME_ASKS:
            self._record_history(message)
        elif message.partial or self._detect_new_request(message):
            self._release_held()
            self.session.merge(message, handler)
        else:
            self._held.append(message)
            self.set_timer("loading", HOLD_PAST_S if self._has_past_request else HOLD_S)
        return True

    def _detect_new_request(self, message: Message) -> bool:
        """Return whether a message is a request that begins new work, and remember a request of the past.

        After a request with usage even one without is of the past: that one was cut off.
        """
        if message.subtype != "api_req_started" or self._has_past_request:
            return False
        self._has_past_request = is_past_request(message)
        return not self._has_past_request

    def _release_held(self) -> None:
        """Read the held messages as new work."""
        for message in self._take_held():
            self.session.merge(message, self.handlers[message.label])

    def _take_held(self) -> list[Message]:
        self._is_loading = self._has_past_request = False
        self.clear_timer("loading")
        held, self._held = self._held, []
        return held

    def _record_history(self, offer: Message) -> None:
        """Record the held messages as history. `offer` is the offer to resume that follows them."""
        held = self._take_held()
        for message in (*held, offer):
            self.session.add_past(message)
        self.turns.has_requested = self.turns.offers_resume = True
        last = held[-1].subtype if held else ""
        is_finished = offer.subtype == "resume_completed_task" or last == "completion_result"
        self.tracker.record_history(is_finished, history_of(held))

    def _start_task(self) -> None:
        self.turns.start_task()
        self._is_loading = True
        self._is_shutting_down = False

    # --- the session and the process

    def _record_ready(self, session_id: str = "", model: str = "") -> None:
        if not self.tracker.is_ready or session_id:
            self.tracker.report_ready(session_id, model, resumable=True)

    def on_exit(self, code: int | None, signal: str | None) -> None:
        """Record the exit. It doesn't end the work if the agent announced it or offered to resume before."""
        self._release_held()
        offered_resume = code == 0 and self.turns.offers_resume
        asked = self.tracker.stop_requested or self._is_shutting_down or offered_resume
        self.timers.clear()
        self.calls.clear()
        self.tracker.record_process_exit(code, signal, asked=asked)
        self._start_task()

    # --- lines that aren't messages

    def _read_session_created(self, fields: Object) -> None:
        session_id = text_of(fields, "sessionId", "taskId")
        if self.turns.has_requested and session_id:
            self._start_task()
        self._record_ready(session_id, text_of(fields, "model"))

    def _read_title(self, fields: Object) -> None:
        title = text_of(fields, "title")
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    def _read_mode(self, fields: Object) -> None:
        self.session.set_mode(text_of(fields, "mode"))

    def _read_welcome(self, fields: Object) -> None:
        """Record where Kilo works and which instructions it has."""
        options = object_of(fields, "metadata", "welcomeOptions") or object_of(fields, "metadata")
        payload: dict[str, Any] = {name: value for name, value in options.items() if isinstance(value, str) and value}
        instructions = [text for text in list_of(options, "instructions") if isinstance(text, str) and text]
        if instructions:
            payload["instructions"] = instructions
        self._record_ready()
        self.tracker.emit(ev.PluginEvent(name="welcome", payload=payload))

    def _read_last_error(self, fields: Object) -> None:
        """Read the last line of Cline 2 before it exits with a failure. An ask may have reported it before."""
        self._release_held()
        self._record_ready()
        text = text_of(fields, "message", "content")
        data = object_in(text) or {}
        message = text_of(data, "message") or text
        self.turns.fail(failure_kind(message, int_of(data, "status")), message)

    # --- messages that only inform

    def _read_info(self, message: Message, row: Row) -> None:
        if row.is_completed_by(message):
            self.calls.drop_partial_question()
            self.tracker.add_notice(message.text)

    def _read_warning(self, message: Message, row: Row) -> None:
        if row.is_completed_by(message):
            self.tracker.add_notice(message.text, "warning")

    def _read_checkpoint(self, message: Message, row: Row) -> None:
        if row.is_new:
            checkpoint_id = text_of(message.raw, "lastCheckpointHash") or message.ts
            self.tracker.emit(ev.CheckpointSaved(checkpoint_id=checkpoint_id))


# ----------------------------------------------------------------------------------------------------------------------
# Entry points for the registry
# ----------------------------------------------------------------------------------------------------------------------


def sayask() -> Translator:
    """Create a translator for any agent that prints say/ask messages."""
    return SayAskTranslator()


def cline() -> Translator:
    """Create a translator for any Cline. It speaks ACP if it was started with `--acp`; the first object tells."""
    return DetectingTranslator(_CLINE, acp_or_sayask)


@cache
def _acp() -> Callable[[], Translator]:
    # Import the other protocol only when an agent speaks it.
    from quarterdeck.harness.acp.translate import cline as cline_acp

    return cline_acp


_CLINE: dict[str, Callable[[], Translator]] = {"sayask": SayAskTranslator, "acp": lambda: _acp()()}
