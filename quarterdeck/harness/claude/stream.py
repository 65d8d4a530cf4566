"""Read stdout of Claude Code: one JSON object per line (stream-json).

`system/init` is printed once per turn, `result` when the turn is over. A reply arrives as one `assistant` line per block;
with partial messages its pieces arrive before as `stream_event`s. A call runs from the line that announces it, since
nothing on the stream says more, until its tool_result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from quarterdeck import events as ev
from quarterdeck.events import FailureKind, Json
from quarterdeck.harness.base import Object, int_of, is_object, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.approvals import Approvals
from quarterdeck.harness.claude.calls import Calls
from quarterdeck.harness.claude.control import Control, content_of
from quarterdeck.harness.claude.failures import epoch_ms, failure_kind_of, reset_time_in
from quarterdeck.harness.claude.hooks import Hooks
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.claude.subagents import Subagents
from quarterdeck.harness.claude.turns import Turns
from quarterdeck.harness.claude.usage import Usage
from quarterdeck.harness.tracker import AgentPath

#: Reads a line and returns whether it knew what the line is.
_LineReader: TypeAlias = Callable[[Object], bool]

_MESSAGES_LIMIT = 64
#: Stop reasons of replies that end a turn, unless a hook objects.
_FINAL_STOP_REASONS = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})
#: In text mode the result of a turn is printed only after its background work. After this long the turn is over.
LINGERS_S = 1.0


class Stream:
    """Reads the lines of stdout."""

    def __init__(
        self,
        session: ClaudeSession,
        prompts: Prompts,
        turns: Turns,
        calls: Calls,
        approvals: Approvals,
        subagents: Subagents,
        usage: Usage,
        hooks: Hooks,
        control: Control,
    ) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.turns = turns
        self.calls = calls
        self.approvals = approvals
        self.subagents = subagents
        self.usage = usage
        self.hooks = hooks
        self._lines: dict[str, _LineReader] = {
            "system": self._read_system,
            "stream_event": self._read_stream_event,
            "assistant": self._read_assistant,
            "user": self._read_user,
            "result": self._read_result,
            "control_request": control.read_request,
            "control_response": control.read_answer,
            "control_cancel_request": control.read_cancel,
            "command_lifecycle": self._read_command_lifecycle,
            "conversation_reset": self._read_conversation_reset,
            "tool_progress": self._read_tool_progress,
            "rate_limit_event": self._read_rate_limit,
        }
        self._system_lines: dict[str, Callable[[Object], None]] = {
            "init": self._system_init,
            "status": self._system_status,
            "api_retry": self._system_api_retry,
            "compact_boundary": self._system_compact_boundary,
            "microcompact_boundary": self._system_compact_boundary,
            "session_state_changed": self._system_session_state,
            "permission_denied": self._system_permission_denied,
            "informational": self._system_informational,
            "local_command_output": self._system_local_output,
            "task_started": self._system_task_started,
            "task_updated": self._system_task_updated,
            "task_notification": self._system_task_notification,
            "background_tasks_changed": self._system_background_tasks,
            "hook_started": self._system_hook_started,
            "hook_response": self._system_hook_response,
        }
        self._reply_events: dict[str, _LineReader] = {
            "message_start": self._message_start,
            "content_block_start": self._content_block_start,
            "content_block_delta": self._content_block_delta,
            "message_delta": self._message_delta,
            "message_stop": self._message_stop,
        }
        self.reset()

    def reset(self) -> None:
        #: The message that each agent streams now.
        self._streaming: dict[AgentPath, str] = {}
        #: How many blocks of a message were printed as a whole.
        self._block_counts: dict[str, int] = {}
        self._stop_reason = ""
        #: command_lifecycle lines are printed: they show when queued texts are read.
        self._has_lifecycle = False
        #: Why Claude Code gave a request up. The result that follows fails the turn.
        self._failure: tuple[FailureKind, str] | None = None
        self._limit_resets_at: int | None = None
        #: Running hooks that hold a call → the call.
        self._hook_calls: dict[str, str] = {}

    def read(self, data: Json) -> bool:
        if not is_object(data):
            return True
        kind = text_of(data, "type")
        reader = self._lines.get(kind)
        if reader is None:
            return kind in tables.QUIET_LINES or "raw" in data
        if self.session.has_exited:
            return True
        return reader(data)

    # ------------------------------------------------------------------------------------------------------------------
    # Replies in pieces (partial messages)
    # ------------------------------------------------------------------------------------------------------------------

    def _read_stream_event(self, line: Object) -> bool:
        kind = text_of(object_of(line, "event"), "type")
        reader = self._reply_events.get(kind)
        return reader(line) if reader is not None else kind in tables.QUIET_EVENTS

    def _message_start(self, line: Object) -> bool:
        message = object_of(line, "event", "message")
        path = self.subagents.path_in(line)
        message_id = text_of(message, "id") or self.session.new_id("message")
        self._streaming[path] = message_id
        self._start_reply(message_id, path)
        self.usage.add_message(message_id, object_of(message, "usage"), text_of(message, "model"), path)
        return True

    def _start_reply(self, message_id: str, path: AgentPath) -> None:
        """Record that the model replies. Without partial messages this is also the only sign of its request."""
        if message_id in self._block_counts:
            return
        self._block_counts[message_id] = 0
        while len(self._block_counts) > _MESSAGES_LIMIT:
            del self._block_counts[next(iter(self._block_counts))]
        if path:
            return
        self.session.clear_timer("lingers")
        self.prompts.note_work()
        if not self.session.request_is_open:
            self._start_request()
        self.session.request_is_open = False

    def _content_block_start(self, line: Object) -> bool:
        event = object_of(line, "event")
        block = object_of(event, "content_block")
        if text_of(block, "type") == "tool_use":
            path = self.subagents.path_in(line)
            message_id, index = self._streaming.get(path, ""), int_of(event, "index")
            self.calls.open(text_of(block, "id"), text_of(block, "name"), None, message_id, index, path)
        return True

    def _content_block_delta(self, line: Object) -> bool:
        event = object_of(line, "event")
        delta, index = event.get("delta"), event.get("index")
        if not is_object(delta) or not isinstance(index, int):
            return True
        kind = text_of(delta, "type")
        if kind not in ("text_delta", "thinking_delta"):
            return kind in tables.QUIET_DELTAS
        path = self.subagents.path_in(line)
        message_id = self._streaming.get(path)
        text = delta.get("text" if kind == "text_delta" else "thinking")
        if isinstance(text, str) and message_id is not None and (self.session.turn_is_open or path):
            add = self.tracker.add_text if kind == "text_delta" else self.tracker.add_thinking
            add(message_id, index, text, path)
        return True

    def _message_delta(self, line: Object) -> bool:
        event, path = object_of(line, "event"), self.subagents.path_in(line)
        message_id = self._streaming.get(path)
        if message_id is not None:
            self.usage.add_message(message_id, object_of(event, "usage"), self.session.model, path)
            self._stop_reason = text_of(object_of(event, "delta"), "stop_reason")
        return True

    def _message_stop(self, line: Object) -> bool:
        path = self.subagents.path_in(line)
        message_id = self._streaming.pop(path, None)
        if message_id is None:
            return True
        self.tracker.finish_message(message_id, stop_reason=self._stop_reason, path=path)
        if not path and self._stop_reason in _FINAL_STOP_REASONS and self.tracker.background:
            self.session.set_timer("lingers", LINGERS_S)
        was_cut_off = "abandoned_blocks" in line and not path and not self.session.interrupted
        if was_cut_off and self.session.turn_is_open:
            self.tracker.emit(ev.StreamError(reason="the reply was cut off", turn_id=self.tracker.turn_id))
        return True

    def on_lingers(self) -> None:
        if self.session.turn_is_open and not self.turns.is_busy():
            self.turns.finish_before_result()

    # ------------------------------------------------------------------------------------------------------------------
    # Replies by blocks
    # ------------------------------------------------------------------------------------------------------------------

    def _read_assistant(self, line: Object) -> bool:
        message = object_of(line, "message")
        path = self.subagents.path_in(line)
        blocks = list_of(message, "content")
        if text_of(message, "model") == "<synthetic>":
            self._read_synthetic(line, blocks)
            return True
        message_id = text_of(message, "id") or self.session.new_id("message")
        self._start_reply(message_id, path)
        if self._streaming.get(path) != message_id:
            self.usage.add_message(message_id, object_of(message, "usage"), text_of(message, "model"), path)
        for block in blocks:
            self._read_block(message_id, object_of(block), path)
        if self._streaming.get(path) != message_id:
            self.tracker.finish_message(message_id, stop_reason=text_of(message, "stop_reason"), path=path)
        return True

    def _read_block(self, message_id: str, block: Object, path: AgentPath) -> None:
        """Record one complete block of a reply."""
        index = self._block_counts.get(message_id, 0)
        self._block_counts[message_id] = index + 1
        kind = text_of(block, "type")
        if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            call_id, tool = text_of(block, "id") or self.session.new_id("call"), text_of(block, "name")
            self.calls.open(call_id, tool, block.get("input"), message_id, index, path)
            if kind == "tool_use":
                self.calls.start(call_id, tool, block.get("input"), path)
        elif kind == "text" and (path or self.session.turn_is_open):
            self.tracker.update_text(message_id, index, text_of(block, "text"), path)
        elif kind == "thinking" and (path or self.session.turn_is_open):
            self.tracker.update_thinking(message_id, index, text_of(block, "thinking"), path)

    def _read_synthetic(self, line: Object, blocks: list[Any]) -> None:
        """Read a message that Claude Code wrote itself: why a request failed, or what a local command printed."""
        text, _ = content_of(blocks)
        if line.get("is_api_error_message") is True or text_of(line, "error"):
            names = text_of(line, "error"), text_of(line, "api_error_type")
            self._failure = (failure_kind_of(text, int_of(line, "api_error_status"), *names), text)
        else:
            self.tracker.add_notice(text)

    # ------------------------------------------------------------------------------------------------------------------
    # What returns to the model: results of calls, texts in the user's role
    # ------------------------------------------------------------------------------------------------------------------

    def _read_user(self, line: Object) -> bool:
        content = object_of(line, "message").get("content")
        path = self.subagents.path_in(line)
        for block in map(object_of, cast("list[Any]", content) if isinstance(content, list) else ()):
            if text_of(block, "type") == "tool_result":
                self._read_tool_result(line, block, path)
        if not path:
            text, _ = content_of(content)
            if text:
                self._read_user_text(line, text)
        return True

    def _read_tool_result(self, line: Object, block: Object, path: AgentPath) -> None:
        call_id = text_of(block, "tool_use_id")
        if not call_id or self.calls.has_ended(call_id):
            return
        if not path:
            # A resumed process runs the deferred call before it prints anything else of its turn.
            self.prompts.note_work()
            self.approvals.close_forms()
        ok = block.get("is_error") is not True
        self.calls.end(call_id, ok, block.get("content"), path=path, response=line.get("tool_use_result"))

    def _read_user_text(self, line: Object, text: str) -> None:
        """Read a text in the user's role: an interrupt, a command's output, an echo of ours, or a hook's feedback."""
        message_id = text_of(line, "uuid")
        if text.startswith(tables.INTERRUPTED):
            self.session.interrupted = self.session.turn_is_open
        elif text.startswith(tables.LOCAL_OUTPUT):
            output = text.partition(">")[2].rpartition("</")[0]
            # A switch of the model is reported by its own line too.
            self.tracker.add_notice("" if output.startswith("Set model to") else output)
        elif line.get("isReplay") is True:
            if message_id in self.prompts.sent:
                self.prompts.mark_read(message_id)
        elif line.get("isSynthetic") is True and text.startswith("Stop hook feedback:"):
            self.turns.reopen()
            self.tracker.emit(ev.Intervention(prompt=text, turn_id=self.tracker.turn_id or None))

    def _read_tool_progress(self, line: Object) -> bool:
        call_id = text_of(line, "tool_use_id")
        call = self.tracker.calls.get(call_id)
        if call is not None and not call.running:
            self.calls.start(call_id, call.name, self.calls.args.get(call_id), call.path)
        return True

    def _read_command_lifecycle(self, line: Object) -> bool:
        message_id, state = text_of(line, "command_uuid"), text_of(line, "state")
        self._has_lifecycle = True
        if message_id in self.prompts.sent:
            if state == "started":
                self.prompts.mark_read(message_id)
            elif state in ("cancelled", "dropped"):
                self.prompts.drop(message_id)
        return True

    # ------------------------------------------------------------------------------------------------------------------
    # The end of a turn
    # ------------------------------------------------------------------------------------------------------------------

    def _read_result(self, line: Object) -> bool:
        self.session.has_stream = True
        self.session.clear_timer("lingers")
        self.usage.apply_result(line)
        self.session.command_result_due = False
        failure, self._failure = self._failure, None
        if self.session.results_owed:
            self.session.results_owed -= 1
        elif self._is_failure(line):
            self._fail(line, failure)
        elif self.session.turn_is_open:
            self._end_turn(line)
        return True

    def _is_failure(self, result: Object) -> bool:
        """Return whether a result is a failure. A failed request is `success` with is_error, an interrupt an error."""
        if text_of(result, "terminal_reason").startswith("aborted") or self.session.interrupted:
            return False
        return result.get("is_error") is True or text_of(result, "subtype").startswith("error")

    def _end_turn(self, result: Object) -> None:
        reason = text_of(result, "terminal_reason")
        was_interrupted = self.session.interrupted and text_of(result, "subtype") != "success"
        if reason.startswith("aborted") or was_interrupted:
            self.turns.interrupt()
        elif reason == "tool_deferred":
            self.turns.defer()
        else:
            self.turns.finish()

    def _fail(self, result: Object, known: tuple[FailureKind, str] | None) -> None:
        """Fail the turn, or write a notice if no turn ever started because the session couldn't be opened."""
        errors = [error for error in list_of(result, "errors") if isinstance(error, str)]
        subtype, reason = text_of(result, "subtype"), text_of(result, "terminal_reason")
        text = text_of(result, "result") or "\n".join(errors) or subtype
        kind = tables.RESULT_FAILURES.get(subtype)
        if kind is None and subtype == "success":
            names = text_of(result, "api_error_type"), reason
            kind, text = known or (failure_kind_of(text, int_of(result, "api_error_status"), *names), text)
        if not self.session.turn_is_open and not self.prompts.sent and not self.prompts.is_holding:
            self.tracker.add_notice(text, "error")
            return
        if reason == "prompt_too_long":
            self.tracker.emit(ev.ContextOverflow(reason=text, turn_id=self.tracker.turn_id or None))
        resets_at = self._limit_resets_at if kind in ("usage_limit", "rate_limit") else None
        self.turns.fail(kind or "internal", text, resets_at or reset_time_in(text))

    def _read_rate_limit(self, line: Object) -> bool:
        info = object_of(line, "rate_limit_info")
        if text_of(info, "status") == "rejected":
            self._limit_resets_at = epoch_ms(info.get("resetsAt"))
        return True

    def _read_conversation_reset(self, _: Object) -> bool:
        """Read /clear: the process continues with another session, and a result for the command follows."""
        self.session.command_result_due = True
        self.session.has_stream = True
        if self.session.turn_is_open:
            self.turns.finish()
        return True

    # ------------------------------------------------------------------------------------------------------------------
    # Lines of type `system`
    # ------------------------------------------------------------------------------------------------------------------

    def _read_system(self, line: Object) -> bool:
        subtype = text_of(line, "subtype")
        reader = self._system_lines.get(subtype)
        if reader is None:
            return subtype in tables.QUIET_SYSTEM
        reader(line)
        return True

    def _system_init(self, line: Object) -> None:
        """Read the line that is printed once per turn, when its prompt is taken."""
        session = self.session
        session.has_stream = True
        if text_of(line, "apiKeySource") not in ("", "none"):
            session.billing = "metered"
        session.report_ready(text_of(line, "session_id"), text_of(line, "model"), text_of(line, "claude_code_version"))
        session.set_mode(text_of(line, "permissionMode"))
        if session.command_result_due:
            return
        if session.has_init and session.turn_is_open and not self.turns.is_busy():
            self.turns.close_previous()
        prompt_id = self.prompts.sent_prompt_id()
        if prompt_id is not None and not self.prompts.is_holding:
            self.prompts.mark_read(prompt_id)
        self.prompts.note_work(firm=False)
        session.has_init = session.turn_is_open

    def _system_status(self, line: Object) -> None:
        self.session.set_mode(text_of(line, "permissionMode"))
        status = text_of(line, "status")
        if status == "requesting":
            self.prompts.note_work(firm=False)
            if self.session.turn_is_open:
                self._start_request()
        elif status == "compacting":
            self.turns.start_compaction("")
        elif "compact_result" in line:
            self.tracker.end_compaction(ok=text_of(line, "compact_result") in ("", "success"))

    def _start_request(self) -> None:
        """Record a request to the model. Texts that waited for the end of the calls are read with it."""
        is_follow_up = self.session.request_is_open or self.session.has_requested
        self.session.request_is_open = True
        self.session.clear_timer("lingers")
        # Where hooks or command_lifecycle lines show exactly when a text is read, don't guess.
        if is_follow_up and not self.prompts.submits_seen and not self._has_lifecycle:
            self.prompts.mark_queued_read()
        self.session.has_requested = True
        self.tracker.start_request(self.session.model)

    def _system_api_retry(self, line: Object) -> None:
        self.prompts.note_work(firm=False)
        self.tracker.emit(
            ev.Retry(
                attempt=int_of(line, "attempt"),
                delay_ms=int_of(line, "retry_delay_ms"),
                reason=text_of(line, "error") or str(int_of(line, "error_status") or ""),
                turn_id=self.tracker.turn_id or None,
            )
        )

    def _system_compact_boundary(self, line: Object) -> None:
        self.tracker.end_compaction()
        tokens = int_of(object_of(line, "compact_metadata"), "post_tokens")
        if tokens:
            self.tracker.emit(ev.ContextUsage(tokens=tokens))

    def _system_session_state(self, line: Object) -> None:
        """Read the session's state. `running` is repeated while background agents work, so only `idle` says something."""
        if text_of(line, "state") != "idle":
            return
        self.session.results_owed = 0
        if not self.session.turn_is_open or not self.session.has_init:
            return
        if self.session.interrupted:
            self.turns.interrupt()
        else:
            self.turns.finish()

    def _system_permission_denied(self, line: Object) -> None:
        call_id = text_of(line, "tool_use_id")
        by, reason = text_of(line, "decision_reason_type"), text_of(line, "message")
        self.tracker.resolve_approval(call_id, "rejected", by, reason=reason)
        self.calls.decided.add(call_id)

    def _system_informational(self, line: Object) -> None:
        outcome = object_of(line, "prompt_submit_outcome")
        if text_of(outcome, "kind") == "blocked_by_hook":
            if self.session.turn_is_open:
                self.prompts.reject("", text_of(outcome, "reason"))
        else:
            level = "warning" if text_of(line, "level") == "warning" else "info"
            self.tracker.add_notice(text_of(line, "content"), level)

    def _system_local_output(self, line: Object) -> None:
        self.tracker.add_notice(text_of(line, "content", "output"))

    def _system_task_started(self, line: Object) -> None:
        task_id, kind, title = text_of(line, "task_id"), text_of(line, "task_type"), text_of(line, "description")
        if not task_id:
            return
        if "agent" in kind:
            self.subagents.start(task_id, title, text_of(line, "tool_use_id"))
        if line.get("is_backgrounded") is True:
            self.subagents.start_task(task_id, kind, title)

    def _system_task_updated(self, line: Object) -> None:
        patch, task_id = object_of(line, "patch"), text_of(line, "task_id")
        status = text_of(patch, "status")
        if status in tables.TASK_ENDS:
            self.subagents.end_task(task_id, tables.TASK_ENDS[status])
        elif patch.get("is_backgrounded") is True and task_id:
            kind = "agent" if task_id in self.subagents.working else "shell"
            self.subagents.start_task(task_id, kind, text_of(patch, "description"))

    def _system_task_notification(self, line: Object) -> None:
        ok = tables.TASK_ENDS.get(text_of(line, "status"))
        self.subagents.end_task(text_of(line, "task_id"), ok, text_of(line, "summary") or None)

    def _system_background_tasks(self, line: Object) -> None:
        self.subagents.sync_tasks(list_of(line, "tasks"))

    # ------------------------------------------------------------------------------------------------------------------
    # Hooks as the stream reports them. Only those that hold a call matter.
    # ------------------------------------------------------------------------------------------------------------------

    def _system_hook_started(self, line: Object) -> None:
        event, _, tool = text_of(line, "hook_name").partition(":")
        if not self.session.session_id:
            self.session.session_id = text_of(line, "session_id")
        asks = event == "PermissionRequest" or (event == "PreToolUse" and tool == tables.QUESTION_TOOL)
        if not asks or self.session.has_hooks:
            return
        call_id = self.calls.find(tool, None, ())
        if call_id:
            self._hook_calls[text_of(line, "hook_id")] = call_id
            self.approvals.open(call_id, tool, self.calls.args.get(call_id), ())

    def _system_hook_response(self, line: Object) -> None:
        if text_of(line, "hook_event") == "SessionStart":
            self.session.report_ready(text_of(line, "session_id"))
        call_id = self._hook_calls.pop(text_of(line, "hook_id"), "")
        if not call_id:
            return
        if text_of(line, "outcome") == "cancelled":
            self.approvals.withdraw(call_id)
            return
        try:
            answer = object_of(msgspec.json.decode(text_of(line, "output") or "{}"))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        self.hooks.apply_answer(text_of(line, "hook_event"), call_id, answer)
