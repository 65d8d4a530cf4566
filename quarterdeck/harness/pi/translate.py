"""Translate `pi --mode rpc`, versions 0.73 to 1.5: what differs between them is read from the lines themselves.

The translator finds the reader of each line. The parts that do the work hold one shared `PiSession` (`session.py`):

    session.Queues  texts that wait in pi
    run.Run         replies, calls, retries, compaction and the end of the turn
    dialogs         what extensions ask
    Commands        what we send and what pi answers to it (here)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import BaseTranslator, Object, Translator, int_of, list_of, object_of, text_of
from quarterdeck.harness.failures import failure_kind, failure_message
from quarterdeck.harness.lines import LineBuffer
from quarterdeck.harness.pi.content import exit_code_of, history_of, is_finished, messages_in_entries, model_name
from quarterdeck.harness.pi.dialogs import Dialogs
from quarterdeck.harness.pi.run import Run
from quarterdeck.harness.pi.session import PiSession, Queues
from quarterdeck.kernel.view import View

#: pi takes text while it works.
CAPABILITIES = ("steer",)
#: The list that each `streamingBehavior` of a prompt means.
_LIST_OF_BEHAVIOUR = {"steer": "steering", "followUp": "followUp"}
#: Events that repeat what others said, or concern pi's own files.
_IGNORED = frozenset(
    {"turn_end", "entry_appended", "summarization_retry_attempt_start", "summarization_retry_finished"}
)

# ----------------------------------------------------------------------------------------------------------------------
# Commands
# ----------------------------------------------------------------------------------------------------------------------


class Commands:
    """What we send to pi and what it answers. A command carries an id of ours, and the response repeats it."""

    def __init__(self, session: PiSession, queues: Queues, run: Run, dialogs: Dialogs) -> None:
        self.session = session
        self.tracker = session.tracker
        self.queues = queues
        self.run = run
        self.dialogs = dialogs
        #: Commands that aren't answered yet, by id.
        self._sent: dict[str, Object] = {}
        #: The user's own shell commands that run, by id.
        self._bashes: dict[str, str] = {}
        self._senders: dict[str, Callable[[Object], None]] = {
            "prompt": self._send_prompt,
            "steer": self._send_steer,
            "follow_up": self._send_follow_up,
            "abort": self._send_abort,
            "bash": self._send_bash,
        }
        self._response_readers: dict[str, Callable[[Object, Object], None]] = {
            "prompt": self._read_prompt_accepted,
            "get_state": self._read_state,
            "get_messages": self._read_messages,
            "get_entries": self._read_entries,
            "get_session_stats": self._read_stats,
            "get_context_usage": self._read_context_usage,
            "clear_queue": self._read_queue_cleared,
            "abort": self._read_aborted,
            "bash": self._read_bash_end,
            "set_model": self._read_model,
            "cycle_model": self._read_model_cycled,
            "cycle_thinking_level": self._read_thinking_cycled,
            "switch_session": self._read_session_switched,
            "new_session": self._read_session_switched,
            "fork": self._read_session_switched,
            "clone": self._read_session_switched,
        }

    # --- what we send

    def send(self, message: Object) -> None:
        """Record a command that we send. What pi doesn't understand, it answers with an error."""
        kind = text_of(message, "type")
        if kind == "extension_ui_response":
            # Not a command: pi doesn't answer it.
            self.dialogs.read_answer(message)
            return
        command_id = text_of(message, "id")
        if command_id:
            self._sent[command_id] = message
        sender = self._senders.get(kind)
        if sender is not None:
            sender(message)

    def _send_prompt(self, message: Object) -> None:
        command_id, text = text_of(message, "id"), text_of(message, "message")
        if command_id and text:
            self.session.prompts[command_id] = text
        list_name = _LIST_OF_BEHAVIOUR.get(text_of(message, "streamingBehavior"))
        if list_name is not None:
            self.queues.offer(command_id, text, list_name)

    def _send_steer(self, message: Object) -> None:
        self.queues.offer(text_of(message, "id"), text_of(message, "message"), "steering")

    def _send_follow_up(self, message: Object) -> None:
        self.queues.offer(text_of(message, "id"), text_of(message, "message"), "followUp")

    def _send_abort(self, _message: Object) -> None:
        self.run.is_aborting = bool(self.tracker.turn_id)

    def _send_bash(self, message: Object) -> None:
        command_id, command = text_of(message, "id"), text_of(message, "command")
        if command_id:
            self._bashes[command_id] = command
            self.tracker.emit(ev.BashStart(bash_id=command_id, command=command))

    # --- what pi answers

    def read_response(self, message: Object) -> None:
        command_id, command = text_of(message, "id"), text_of(message, "command")
        sent = self._sent.pop(command_id, {})
        if message.get("success") is False:
            self._fail(command_id, command, text_of(message, "error"))
            return
        reader = self._response_readers.get(command)
        if reader is not None:
            reader(object_of(message, "data"), {"id": command_id, **sent})

    def _fail(self, command_id: str, command: str, error: str) -> None:
        """Record that pi refused a command. A refused prompt outside a turn is a turn that failed."""
        self.tracker.emit(ev.CommandFailed(command_id=command_id, message=error))
        self.queues.withdraw_offer(command_id)
        prompt = self.session.prompts.pop(command_id, "")
        if command == "bash":
            self._end_bash(command_id, "", None)
        elif prompt and not self.tracker.turn_id:
            kind = failure_kind(error)
            self.tracker.fail_turn(kind, failure_message(kind, error))

    def _read_prompt_accepted(self, data: Object, sent: Object) -> None:
        """Read the answer to a prompt: `handled` by an extension's command, `queued`, or accepted by an idle agent."""
        session = self.session
        command_id = text_of(sent, "id")
        disposition = text_of(data, "disposition")
        if disposition == "handled":
            session.prompts.pop(command_id, None)
            self.dialogs.close_all()
        elif disposition == "queued" or self.queues.is_waiting(command_id):
            session.prompts.pop(command_id, None)
        else:
            self.run.settle_if_paused()
            self.queues.withdraw_offer(command_id)
            session.prompts = {command_id: session.prompts[command_id]} if command_id in session.prompts else {}
            session.accepted_id = command_id

    def _read_aborted(self, _data: Object, _sent: Object) -> None:
        """Read the answer to an abort, which comes when everything is over. Newer versions settled before it."""
        if not self.tracker.turn_id:
            # The abort stopped a compaction, so the next turn isn't aborted.
            self.run.is_aborting = False
        elif not self.run.is_running:
            self.run.settle()

    def _read_state(self, data: Object, _sent: Object) -> None:
        session = self.session
        session_id, model = text_of(data, "sessionId"), object_of(data, "model")
        session.context_limit = int_of(model, "contextWindow") or session.context_limit
        name = model_name(model)
        if session_id != session.session_id or (name and name != session.model):
            session.session_id, session.model = session_id, name or session.model
            resumable = bool(text_of(data, "sessionFile"))
            self.tracker.report_ready(session_id, name, capabilities=CAPABILITIES, resumable=resumable)
        self.read_thinking_level(data)
        # pi's own description of its state outweighs what we concluded from its events.
        if data.get("isCompacting") is True:
            self.tracker.start_compaction("auto")
        elif data.get("isStreaming") is True:
            self.tracker.start_turn()
        elif data.get("isStreaming") is False:
            self.run.settle_if_paused()

    def _read_messages(self, data: Object, _sent: Object) -> None:
        self._restore_history(list_of(data, "messages"))

    def _read_entries(self, data: Object, sent: Object) -> None:
        if not text_of(sent, "since"):
            self._restore_history(messages_in_entries(list_of(data, "entries")))

    def _restore_history(self, messages: list[Any]) -> None:
        """Record the history of a resumed session, unless we saw it happen ourselves."""
        history = history_of(messages)
        if self.session.may_restore and history:
            self.session.may_restore = False
            self.tracker.record_history(is_finished(messages), history)

    def _read_stats(self, data: Object, sent: Object) -> None:
        self._read_context_usage(object_of(data, "contextUsage"), sent)

    def _read_context_usage(self, data: Object, _sent: Object) -> None:
        tokens: Any = data.get("tokens")
        percent: Any = data.get("percent")
        limit = int_of(data, "contextWindow")
        if not limit:
            return
        self.session.context_limit = limit
        is_count = isinstance(tokens, int) and not isinstance(tokens, bool)
        is_number = isinstance(percent, int | float) and not isinstance(percent, bool)
        self.tracker.emit(
            ev.ContextUsage(
                tokens=tokens if is_count else None,
                limit=limit,
                percent=float(percent) if is_number else None,
            )
        )

    def _read_queue_cleared(self, _data: Object, _sent: Object) -> None:
        self.queues.drop_leaving()

    def _read_model(self, data: Object, _sent: Object) -> None:
        session = self.session
        session.context_limit = int_of(data, "contextWindow") or session.context_limit
        name = model_name(data)
        if name and name != session.model:
            self.tracker.emit(ev.ModelSwitched(to=name, from_=session.model))
            session.model = name

    def _read_model_cycled(self, data: Object, sent: Object) -> None:
        self._read_model(object_of(data, "model"), sent)
        self.read_thinking_level(data)

    def _read_thinking_cycled(self, data: Object, _sent: Object) -> None:
        self.read_thinking_level(data)

    def read_thinking_level(self, message: Object) -> None:
        """Record the reasoning effort if it changed."""
        level = text_of(message, "level", "thinkingLevel")
        if level and level != self.session.thinking:
            self.session.thinking = level
            self.tracker.emit(ev.SettingChanged(thinking=level))

    def _read_session_switched(self, data: Object, sent: Object) -> None:
        """Switch to another session. Its id comes with the next `get_state`, or is in the name of its file."""
        if data.get("cancelled") is True:
            return
        if self.tracker.turn_id:
            self.tracker.abort_turn("another session was opened")
        self.queues.clear()
        file_stem = text_of(sent, "sessionPath").rpartition("/")[2].removesuffix(".jsonl")
        self.session.session_id = file_stem.rpartition("_")[2]
        self.session.may_restore = True
        self.run.abandon()
        self.tracker.report_ready(self.session.session_id, capabilities=CAPABILITIES)

    # --- the user's own shell commands

    def read_bash_output(self, message: Object) -> None:
        command_id, delta = text_of(message, "id"), text_of(message, "delta")
        if command_id in self._bashes and delta:
            self.tracker.emit(ev.BashOutput(bash_id=command_id, delta=delta))

    def _read_bash_end(self, data: Object, sent: Object) -> None:
        self._end_bash(text_of(sent, "id"), text_of(data, "output"), exit_code_of(data))

    def _end_bash(self, command_id: str, output: str, exit_code: int | None) -> None:
        command = self._bashes.pop(command_id, None)
        if command is not None:
            self.tracker.emit(ev.BashEnd(bash_id=command_id, exit_code=exit_code, output=output, command=command))

    def end_bashes(self) -> None:
        """End the user's shell commands: the process that ran them exited."""
        for command_id in list(self._bashes):
            self._end_bash(command_id, "", None)


# ----------------------------------------------------------------------------------------------------------------------
# The translator
# ----------------------------------------------------------------------------------------------------------------------


class PiTranslator(BaseTranslator):
    """Reads the standard streams of one pi process."""

    def __init__(self) -> None:
        super().__init__()
        self.session = PiSession(self)
        self.queues = Queues(self.session)
        self.dialogs = Dialogs(self.session)
        self.run = Run(self.session, self.queues, self.dialogs)
        self.commands = Commands(self.session, self.queues, self.run, self.dialogs)
        self._lines = LineBuffer()
        self.readers |= {"stdout": self.read_stdout, "stdin": self.read_stdin}
        self.timer_callbacks |= {"settle": self.run.settle, "dialog": self.dialogs.expire}
        #: Readers by the type of pi's event.
        self.event_readers: dict[str, Callable[[Object], None]] = {
            "response": self.commands.read_response,
            "agent_start": self.run.start,
            "agent_end": self.run.end,
            "agent_settled": self.run.read_settled,
            "turn_start": self.run.start_request,
            "message_start": self.run.start_message,
            "message_update": self.run.update_message,
            "message_end": self.run.end_message,
            "tool_execution_start": self.run.start_call,
            "tool_execution_update": self.run.update_call,
            "tool_execution_end": self.run.end_call,
            "queue_update": self.queues.read_update,
            "compaction_start": self.run.start_compaction,
            "compaction_end": self.run.end_compaction,
            "auto_retry_start": self.run.start_retry,
            "auto_retry_end": self.run.end_retry,
            "summarization_retry_scheduled": self.run.schedule_summary_retry,
            "session_info_changed": self._read_session_info,
            "thinking_level_changed": self.commands.read_thinking_level,
            "bash_execution_update": self.commands.read_bash_output,
            "extension_ui_request": self.dialogs.read_request,
            "extension_error": self.dialogs.read_error,
        }

    def restore(self, view: View) -> None:
        super().restore(view)
        session, profile = self.session, view.state.profile
        session.session_id, session.model = profile.native_session_id, profile.model
        session.thinking = profile.thinking or ""
        session.context_limit = (profile.context.limit or 0) if profile.context is not None else 0
        session.may_restore = not len(view.timeline.entries)
        self.queues.restore(view)
        self.run.restore(view)

    # --- sources

    def read_stdin(self, data: Json) -> bool:
        if isinstance(data, dict):
            self.commands.send(cast(Object, data))
        return True

    def read_stdout(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return isinstance(data, str) and self._read_text(data)
        message = cast(Object, data)
        kind = message.get("type")
        if not isinstance(kind, str):
            raw = message.get("raw")
            return isinstance(raw, str) and self._read_text(raw)
        reader = self.event_readers.get(kind)
        if reader is None:
            return kind in _IGNORED
        if not self.tracker.is_ready:
            self._record_ready(message)
        if kind == "agent_start":
            self.session.may_restore = False
        reader(message)
        return True

    def _record_ready(self, message: Object) -> None:
        """Take pi's first message as a sign that it is ready. Its answer to `get_state` says so in more detail."""
        if message.get("command") != "get_state" or message.get("success") is not True:
            self.tracker.report_ready(capabilities=CAPABILITIES)

    def _read_text(self, text: str) -> bool:
        """Read a line that the driver passed on as it was: an object after all, or an extension's prose."""
        known = True
        for piece in (*self._lines.feed(text.encode("utf-8", "replace")), *self._lines.flush()):
            if isinstance(piece, dict) and "raw" not in piece:
                known = self.read_stdout(piece) and known
        return known

    def _read_session_info(self, message: Object) -> None:
        title = text_of(message, "name")
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    # --- the process

    def is_server(self) -> bool:
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        self.run.exit()
        self.commands.end_bashes()
        self.dialogs.clear()
        super().on_exit(code, signal)
        self.session.may_restore = True


def pi() -> Translator:
    """Create a translator for pi."""
    return PiTranslator()
