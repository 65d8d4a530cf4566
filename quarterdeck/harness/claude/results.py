"""`result` and the `system` lines: how turns begin and end on the stream, and what surrounds them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quarterdeck import events as ev
from quarterdeck.events import FailureKind
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.control import Control
from quarterdeck.harness.claude.failing import kind_of, moment, resets_in
from quarterdeck.harness.claude.spending import Spending
from quarterdeck.kernel.view import View


class Results(Control):
    """The frame of a turn."""

    __slots__ = (
        "failure",
        "hook_calls",
        "lifecycle",
        "resets_at",
        "spending",
        "stop_reason",
    )

    def __init__(self) -> None:
        self.spending = Spending()
        Control.__init__(self)

    def new_process(self) -> None:
        Control.new_process(self)
        self.spending.new_process()
        self.lifecycle = False
        self.stop_reason = ""
        self.failure: tuple[FailureKind, str] | None = None
        self.resets_at: int | None = None
        #: hooks that run → the call that waits for them
        self.hook_calls: dict[str, str] = {}

    def restore(self, view: View) -> None:
        super().restore(view)
        self.spending.restore(view.state.usage)

    # --- the end of a turn

    def result(self, found: Object) -> bool:
        self.stream = True
        self.clear_timer("lingers")
        for one in self.spending.result(found):
            self.book.usage(one.tokens, one.name, one.model, self.billing, one.path)
        self.command_due = False
        failure, self.failure = self.failure, None
        if self.owed:
            self.owed -= 1
        elif self.is_failure(found):
            self.failed(found, failure)
        elif self.book.turn:
            self.over_by(found)
        return True

    def over_by(self, found: Object) -> None:
        """A turn that did not fail."""
        reason = text_of(found, "terminal_reason")
        if reason.startswith("aborted") or (self.interrupted and text_of(found, "subtype") != "success"):
            self.stop()
        elif reason == "tool_deferred":
            self.pause()
        else:
            self.finish()

    def is_failure(self, found: Object) -> bool:
        """Failed requests come as `success` with is_error; interrupts as errors."""
        if text_of(found, "terminal_reason").startswith("aborted") or self.interrupted:
            return False
        return found.get("is_error") is True or text_of(found, "subtype").startswith("error")

    def failed(self, found: Object, known: tuple[FailureKind, str] | None) -> None:
        """The turn failed; or no turn ever began, because the session could not be opened."""
        errors = [one for one in list_of(found, "errors") if isinstance(one, str)]
        text = text_of(found, "result") or "\n".join(errors) or text_of(found, "subtype")
        kind = tables.RESULT_FAILURES.get(text_of(found, "subtype"))
        if kind is None and text_of(found, "subtype") == "success":
            names = text_of(found, "api_error_type"), text_of(found, "terminal_reason")
            kind, text = known or (kind_of(text, int_of(found, "api_error_status"), *names), text)
        if not self.book.turn and not self.sent and self.held is None:
            self.book.notice(text, "error")
            return
        if text_of(found, "terminal_reason") == "prompt_too_long":
            self.book.write(ev.ContextOverflow(reason=text, turn_id=self.book.turn or None))
        resets = self.resets_at if kind in ("usage_limit", "rate_limit") else None
        self.fail(kind or "internal", text, resets or resets_in(text))

    def failing_with(self, text: str, status: int, names: tuple[str, ...]) -> None:
        """Claude Code gave a request up; the result that follows closes the turn."""
        self.failure = (kind_of(text, status, *names), text)

    def rate_limit_event(self, found: Object) -> bool:
        info = object_of(found, "rate_limit_info")
        if text_of(info, "status") == "rejected":
            self.resets_at = moment(info.get("resetsAt"))
        return True

    def conversation_reset(self, _: Object) -> bool:
        """/clear: the process goes on with another session, and a result for the command follows."""
        self.command_due = True
        self.stream = True
        if self.book.turn:
            self.finish()
        return True

    # --- system lines

    def read_system(self, found: Object) -> bool:
        name = text_of(found, "subtype")
        reader = _SYSTEM.get(name)
        if reader is None:
            return name in tables.QUIET_SYSTEM
        reader(self, found)
        return True

    def system_init(self, found: Object) -> None:
        """Printed once per turn, when its prompt is taken."""
        self.stream = True
        source = text_of(found, "apiKeySource")
        if source and source != "none":
            self.billing = "metered"
        self.ready(text_of(found, "session_id"), text_of(found, "model"), text_of(found, "claude_code_version"))
        self.told_mode(text_of(found, "permissionMode"))
        if self.command_due:
            return
        if self.inited and self.book.turn and not self.is_busy():
            self.past_turn()
        told = next((ref for ref, sent in self.sent.items() if sent.told == "prompt"), None)
        if told is not None and self.held is None:
            self.reads(told)
        self.working(firm=False)
        self.inited = bool(self.book.turn)

    def is_busy(self) -> bool:
        """Whether the main agent is in the middle of something."""
        return self.book.runs_calls() or bool(self.book.texts.open_messages(())) or bool(self.book.gates)

    def system_status(self, found: Object) -> None:
        self.told_mode(text_of(found, "permissionMode"))
        status = text_of(found, "status")
        if status == "requesting":
            self.working(firm=False)
            if self.book.turn:
                self.requests_model()
        elif status == "compacting":
            self.compacts("")
        elif "compact_result" in found:
            self.book.compact_end(ok=text_of(found, "compact_result") in ("", "success"))

    def requests_model(self) -> None:
        """A request goes out. Texts that waited for the end of the calls are read with it."""
        follows = self.requested or self.asked_before
        self.requested = True
        self.clear_timer("lingers")
        if follows and not self.submits_told and not self.lifecycle:
            for ref in [ref for ref, sent in self.sent.items() if sent.told == "queued"]:
                self.reads(ref)
        self.asked_before = True
        self.book.request(self.model)

    def system_api_retry(self, found: Object) -> None:
        self.working(firm=False)
        reason = text_of(found, "error") or str(int_of(found, "error_status") or "")
        self.book.write(
            ev.Retry(
                attempt=int_of(found, "attempt"),
                delay_ms=int_of(found, "retry_delay_ms"),
                reason=reason,
                turn_id=self.book.turn or None,
            )
        )

    def system_compact_boundary(self, found: Object) -> None:
        self.book.compact_end()
        tokens = int_of(object_of(found, "compact_metadata"), "post_tokens")
        if tokens:
            self.book.write(ev.ContextUsage(tokens=tokens))

    def system_microcompact_boundary(self, found: Object) -> None:
        self.system_compact_boundary(found)

    def system_session_state_changed(self, found: Object) -> None:
        """`running` is said again while background agents work, so only `idle` says something that nothing else does."""
        if text_of(found, "state") != "idle":
            return
        self.owed = 0
        if self.book.turn and self.inited:
            self.stop() if self.interrupted else self.finish()

    def system_permission_denied(self, found: Object) -> None:
        call_id = text_of(found, "tool_use_id")
        self.book.resolve(call_id, "rejected", text_of(found, "decision_reason_type"), reason=text_of(found, "message"))
        self.decided[call_id] = None

    def system_informational(self, found: Object) -> None:
        outcome = object_of(found, "prompt_submit_outcome")
        if text_of(outcome, "kind") == "blocked_by_hook":
            if self.book.turn:
                self.refused("", text_of(outcome, "reason"))
        else:
            level = text_of(found, "level")
            self.book.notice(text_of(found, "content"), "warning" if level == "warning" else "info")

    def system_local_command_output(self, found: Object) -> None:
        self.book.notice(text_of(found, "content", "output"))

    def system_task_started(self, found: Object) -> None:
        task_id, kind = text_of(found, "task_id"), text_of(found, "task_type")
        title = text_of(found, "description")
        if not task_id:
            return
        if "agent" in kind:
            self.agent_begins(task_id, title, text_of(found, "tool_use_id"))
        if found.get("is_backgrounded") is True:
            self.task_runs(task_id, kind, title)

    def system_task_updated(self, found: Object) -> None:
        patch, task_id = object_of(found, "patch"), text_of(found, "task_id")
        status = text_of(patch, "status")
        if status in tables.TASK_ENDS:
            self.task_over(task_id, tables.TASK_ENDS[status])
        elif patch.get("is_backgrounded") is True and task_id:
            self.task_runs(task_id, "agent" if task_id in self.live else "shell", text_of(patch, "description"))

    def system_task_notification(self, found: Object) -> None:
        status = text_of(found, "status")
        self.task_over(text_of(found, "task_id"), tables.TASK_ENDS.get(status), text_of(found, "summary") or None)

    def system_background_tasks_changed(self, found: Object) -> None:
        self.tasks_are(list_of(found, "tasks"))

    # --- hooks as the stream tells them: only those matter that hold a call

    def system_hook_started(self, found: Object) -> None:
        event, _, tool = text_of(found, "hook_name").partition(":")
        if not self.session_id:
            self.session_id = text_of(found, "session_id")
        asks = event == "PermissionRequest" or (event == "PreToolUse" and tool == tables.QUESTION_TOOL)
        if not asks or self.hooked:
            return
        call_id = self.call_like(tool, None, ())
        if call_id:
            self.hook_calls[text_of(found, "hook_id")] = call_id
            self.asks(call_id, tool, self.args.get(call_id), ())

    def system_hook_response(self, found: Object) -> None:
        if text_of(found, "hook_event") == "SessionStart":
            self.ready(text_of(found, "session_id"))
        call_id = self.hook_calls.pop(text_of(found, "hook_id"), "")
        if not call_id:
            return
        if text_of(found, "outcome") == "cancelled":
            self.withdraws(call_id)
            return
        try:
            answer = object_of(msgspec.json.decode(text_of(found, "output") or "{}"))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        self.replied(text_of(found, "hook_event"), call_id, answer)


#: Lines of type `system`, by their subtype.
_SYSTEM: dict[str, Callable[[Results, Object], None]] = {
    "init": Results.system_init,
    "status": Results.system_status,
    "api_retry": Results.system_api_retry,
    "compact_boundary": Results.system_compact_boundary,
    "microcompact_boundary": Results.system_microcompact_boundary,
    "hook_started": Results.system_hook_started,
    "hook_response": Results.system_hook_response,
    "session_state_changed": Results.system_session_state_changed,
    "permission_denied": Results.system_permission_denied,
    "informational": Results.system_informational,
    "local_command_output": Results.system_local_command_output,
    "task_started": Results.system_task_started,
    "task_updated": Results.system_task_updated,
    "task_notification": Results.system_task_notification,
    "background_tasks_changed": Results.system_background_tasks_changed,
}
