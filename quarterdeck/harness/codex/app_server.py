"""Read `codex app-server`: JSON-RPC without the `jsonrpc` field, in both directions, one object a line.

What we send is read too: our requests show which thread is ours, our answers decide approvals. If only one direction is
recorded, the other is inferred from the shape of what arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quarterdeck import events as ev
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.approvals import Approvals
from quarterdeck.harness.codex.items import Items, content_text, history_of
from quarterdeck.harness.codex.session import CodexSession
from quarterdeck.harness.codex.threads import Thread, Threads

_OPENING_METHODS = frozenset({"thread/start", "thread/resume", "thread/fork"})

#: Notifications that say nothing about the state. They are listed so that only new ones count as unknown.
IGNORED_NOTIFICATIONS = frozenset(
    {
        "account/gatewayOAuth/changed",
        "account/login/completed",
        "account/updated",
        "app/list/updated",
        "autoApprovalReview/strictReviewRequired",
        "command/exec/outputDelta",
        "deprecationNotice",
        "externalAgentConfig/import/completed",
        "externalAgentConfig/import/progress",
        "fs/changed",
        "fuzzyFileSearch/sessionCompleted",
        "fuzzyFileSearch/sessionUpdated",
        "hook/completed",
        "hook/started",
        "item/autoApprovalReview/completed",
        "item/autoApprovalReview/started",
        "item/commandExecution/terminalInteraction",
        "item/fileChange/patchUpdated",
        "item/reasoning/summaryPartAdded",
        "mcpServer/event/stream/notification",
        "mcpServer/oauthLogin/completed",
        "model/safetyBuffering/updated",
        "model/verification",
        "modelProvider/authRecoveryCompleted",
        "modelProvider/authRecoveryStarted",
        "process/exited",
        "process/outputDelta",
        "project/changed",
        "rawResponseItem/completed",
        "remoteControl/status/changed",
        "skills/changed",
        "thread/archived",
        "thread/attachment/updated",
        "thread/environment/connected",
        "thread/environment/disconnected",
        "thread/goal/cleared",
        "thread/goal/updated",
        "thread/prediction/updated",
        "thread/project/updated",
        "thread/queue/changed",
        "thread/readState/changed",
        "thread/realtime/closed",
        "thread/realtime/error",
        "thread/realtime/item/completed",
        "thread/realtime/item/started",
        "thread/realtime/item/transcript/delta",
        "thread/realtime/itemAdded",
        "thread/realtime/outputAudio/delta",
        "thread/realtime/sdp",
        "thread/realtime/started",
        "thread/realtime/transcript/delta",
        "thread/realtime/transcript/done",
        "thread/reverted",
        "thread/unarchived",
        "turn/moderationMetadata",
        "windows/worldWritableWarning",
        "windowsSandbox/setupCompleted",
    }
)


class AppServer:
    """Reads both directions of one connection at a time."""

    def __init__(self, session: CodexSession) -> None:
        self.session = session
        self.tracker = session.tracker
        self.threads = Threads(session)
        self.items = Items(self.threads)
        self.approvals = Approvals(self.threads, self.items)
        self._version = ""
        #: Our requests that aren't answered yet: method and parameters by id.
        self._pending: dict[int | str, tuple[str, Object]] = {}
        self._notification_readers: dict[str, Callable[[Object], object]] = {
            "item/started": self.items.start,
            "item/completed": self.items.complete,
            "item/agentMessage/delta": self.items.read_message_delta,
            "item/plan/delta": self.items.read_message_delta,
            "item/reasoning/summaryTextDelta": self.items.read_summary_delta,
            "item/reasoning/textDelta": self.items.read_reasoning_delta,
            "item/commandExecution/outputDelta": self.items.read_output_delta,
            "item/fileChange/outputDelta": self.items.read_output_delta,
            "item/mcpToolCall/progress": self.items.read_progress,
            "thread/started": self._read_thread_started,
            "thread/status/changed": self._read_status,
            "thread/closed": self._read_thread_closed,
            "thread/deleted": self._read_thread_closed,
            "thread/name/updated": self._read_thread_name,
            "thread/settings/updated": self._read_settings,
            "thread/tokenUsage/updated": self.threads.read_token_usage,
            "thread/compacted": self.items.read_compacted,
            "account/rateLimits/updated": self.threads.read_rate_limits,
            "turn/started": self._read_turn_started,
            "turn/completed": self._read_turn_completed,
            "turn/plan/updated": self.items.read_plan,
            "turn/diff/updated": self.items.read_diff,
            "serverRequest/resolved": self.approvals.read_resolved,
            "error": self._read_error,
            "model/rerouted": self._read_model_rerouted,
            "mcpServer/startupStatus/updated": self._read_mcp_status,
            "warning": self._read_warning,
            "guardianWarning": self._read_warning,
            "configWarning": self._read_warning,
        }
        self._result_readers: dict[str, Callable[[Object, Object], None]] = {
            "initialize": self._read_initialized,
            "thread/start": self._read_opened,
            "thread/resume": self._read_opened,
            "thread/fork": self._read_opened,
            "turn/start": self._read_turn_accepted,
            "thread/backgroundTerminals/clean": self._read_terminals_ended,
            "thread/backgroundTerminals/terminate": self._read_terminals_ended,
        }

    def reset(self) -> None:
        """Forget the connection: another process serves."""
        self._pending.clear()
        self.threads.reset()
        self.items.reset()
        self.approvals.reset()

    # --- from the server

    def read_received(self, message: Object) -> bool:
        method = message.get("method")
        if not isinstance(method, str):
            self._read_response(message)
            return True
        params = object_of(message, "params")
        reader = self._notification_readers.get(method)
        if reader is not None:
            # Only the readers of items return False, for a type of item that they don't know.
            return reader(params) is not False
        if "id" in message:
            return self.approvals.read_request(method, message.get("id"), params)
        return method in IGNORED_NOTIFICATIONS

    def _read_response(self, message: Object) -> None:
        request_id = message.get("id")
        pending = self._pending.pop(request_id, None) if isinstance(request_id, int | str) else None
        method, params = pending or ("", {})
        if method in _OPENING_METHODS and self.threads.opening:
            self.threads.opening -= 1
        error, result = object_of(message, "error"), object_of(message, "result")
        if error:
            self._fail_request(request_id, method, params, error)
            return
        reader = self._result_readers.get(method or _guess_method(result))
        if reader is not None:
            reader(params, result)

    def _fail_request(self, request_id: Any, method: str, params: Object, error: Object) -> None:
        """Record that a request of ours failed. A text that was meant for the running turn is given back."""
        message_id = _message_id(request_id, params)
        text = self.threads.steers.pop(message_id, None) if method in ("turn/steer", "turn/start") else None
        if text is not None:
            self.tracker.emit(ev.PromptDropped(text=text, message_id=message_id))
        message = text_of(error, "message") or "Codex refused a request"
        self.tracker.emit(ev.CommandFailed(command_id=str(request_id), message=message))

    # --- results of our requests

    def _read_initialized(self, _params: Object, result: Object) -> None:
        """Read the version from `NAME/0.166.0 (Debian 12…)`: the client's name, then the server's version."""
        self._version = text_of(result, "userAgent").partition("/")[2].partition(" ")[0]

    def _read_opened(self, params: Object, result: Object) -> None:
        """Read that our thread is open: new, resumed or forked."""
        fields = object_of(result, "thread")
        is_new = not (text_of(params, "threadId") or list_of(fields, "turns") or text_of(fields, "preview"))
        if not text_of(fields, "cliVersion") and self._version:
            fields = fields | {"cliVersion": self._version}
        thread = self.threads.open_own(fields, text_of(result, "model"), is_new)
        if thread is None:
            return
        self.session.update_settings(
            mode=names.mode_of(result.get("approvalPolicy"), result.get("sandbox")),
            thinking=text_of(result, "reasoningEffort"),
        )
        self._synchronise(thread, fields, is_new)

    def _synchronise(self, thread: Thread, fields: Object, is_new: bool) -> None:
        """Adopt the state of an opened thread: at work, at the end of a turn that we thought open, or with a history."""
        status = object_of(fields, "status")
        kind, turns = text_of(status, "type"), list_of(fields, "turns")
        last_turn = object_of(turns[-1]) if turns else {}
        if kind == "active":
            self.threads.start_turn(thread, text_of(last_turn, "id"))
            self.threads.read_active(thread, status)
            if not thread.flags:
                self.tracker.close_gates("answered_elsewhere", "approval", "question")
        elif thread.is_working:
            # Whether its terminals outlived the old connection isn't known.
            thread.terminals.clear()
            self.threads.end_turn(thread, last_turn or {"status": "failed" if kind == "systemError" else "completed"})
        elif not is_new:
            self.tracker.record_history(text_of(last_turn, "status") == "completed", history_of(turns))

    def _read_turn_accepted(self, _params: Object, result: Object) -> None:
        """Remember the id that a turn has before it begins."""
        thread = self.threads.own()
        if thread is not None and not thread.is_working:
            thread.turn_id = text_of(object_of(result, "turn"), "id")

    def _read_terminals_ended(self, params: Object, result: Object) -> None:
        """Record that commands in the background were ended: all of them, or the one that the request names."""
        thread = self.threads.find(params)
        terminal_id = text_of(params, "processId", "itemId")
        if thread is None or thread.path or result.get("terminated") is False:
            return
        for task_id in [task_id for task_id, kind in self.tracker.background.items() if kind == "shell"]:
            if not terminal_id or task_id == terminal_id:
                self.session.end_call(task_id, names.EXEC, ok=False, result="ended by the user")

    # --- threads and turns

    def _read_thread_started(self, params: Object) -> None:
        self.threads.read_started(object_of(params, "thread"))

    def _read_status(self, params: Object) -> None:
        self.threads.read_status(params)
        thread = self.threads.find(params)
        if thread is not None and thread.held_calls and not thread.flags:
            self.items.release_held(thread)

    def _read_thread_closed(self, params: Object) -> None:
        thread = self.threads.find(params)
        if thread is not None and thread.path:
            self.threads.end_child(thread, ok=True)
        elif thread is not None:
            self.tracker.end_session("closed")

    def _read_thread_name(self, params: Object) -> None:
        thread = self.threads.find(params)
        if thread is not None and not thread.path:
            self.threads.record_title(text_of(params, "threadName", "name"))

    def _read_settings(self, params: Object) -> None:
        thread = self.threads.find(params)
        if thread is None or thread.path:
            return
        settings = object_of(params, "threadSettings")
        sandbox = settings.get("sandboxPolicy") or settings.get("sandbox")
        collaboration = text_of(object_of(settings, "collaborationMode"), "mode")
        self.session.update_settings(
            mode=names.mode_of(settings.get("approvalPolicy"), sandbox, collaboration),
            thinking=text_of(settings, "effort", "reasoningEffort"),
            model=text_of(settings, "model"),
        )

    def _read_turn_started(self, params: Object) -> None:
        thread = self.threads.find_or_adopt(params)
        if thread is not None:
            self.threads.start_turn(thread, text_of(object_of(params, "turn"), "id"))

    def _read_turn_completed(self, params: Object) -> None:
        thread = self.threads.find_or_adopt(params)
        if thread is not None:
            self.threads.end_turn(thread, object_of(params, "turn"))

    # --- errors and warnings

    def _read_error(self, params: Object) -> None:
        """Read a failed request. A retry or the end of the turn follows; outside a turn it is only shown."""
        thread, error = self.threads.find(params), object_of(params, "error")
        if thread is None or thread.path:
            return
        message = names.error_text(error)
        if params.get("willRetry") is True:
            self.items.cut_message(thread, keep=False)
            attempt, reason = names.retry_in(message)
            reason = text_of(error, "additionalDetails") or reason
            self.tracker.emit(ev.Retry(attempt=attempt, reason=reason, turn_id=self.tracker.turn_id or None))
        elif thread.is_working:
            thread.error = error
        else:
            self.session.add_notice_once(message, "error")

    def _read_model_rerouted(self, params: Object) -> None:
        thread, model = self.threads.find(params), text_of(params, "toModel")
        if thread is not None and not thread.path and model:
            self.tracker.emit(ev.ModelSwitched(to=model, from_=text_of(params, "fromModel")))
            self.session.model = model

    def _read_mcp_status(self, params: Object) -> None:
        if text_of(params, "status") == "failed":
            server, error = text_of(params, "name"), text_of(params, "error")
            self.session.add_notice_once(f"MCP server {server} did not start: {error}")

    def _read_warning(self, params: Object) -> None:
        thread_id = text_of(params, "threadId")
        if not thread_id or self.session.agent_path(thread_id) is not None:
            self.session.add_notice_once(text_of(params, "message", "summary"))

    # --- to the server

    def read_sent(self, message: Object) -> bool:
        method, request_id = message.get("method"), message.get("id")
        if not isinstance(method, str):
            self.approvals.read_reply(request_id, message)
            return "result" in message or "error" in message
        params = object_of(message, "params")
        if method == "initialize":
            self._reconnect()
        elif method in _OPENING_METHODS:
            self.threads.opening += 1
        elif method in ("turn/steer", "turn/start"):
            self._send_steer(request_id, params)
        elif method == "turn/interrupt" and (thread := self.threads.find(params)) is not None:
            thread.is_stopping = True
        if isinstance(request_id, int | str):
            self._pending[request_id] = (method, params)
        return True

    def _reconnect(self) -> None:
        """Forget open requests: a new connection starts its ids anew, and the server asks again what it asked."""
        self._pending.clear()
        self.approvals.reset()
        self.threads.opening = 0

    def _send_steer(self, request_id: Any, params: Object) -> None:
        """Record a text for a turn that runs. Any other text is recorded when the agent reads it."""
        thread = self.threads.find(params)
        if thread is None or thread.path or not (thread.is_working or "expectedTurnId" in params):
            return
        message_id, text = _message_id(request_id, params), content_text(list_of(params, "input"))
        self.threads.steers[message_id] = text
        self.tracker.emit(ev.SteeringReceived(ref=message_id, text=text, turn_id=self.tracker.turn_id or None))


def _message_id(request_id: Any, params: Object) -> str:
    return text_of(params, "clientUserMessageId") or f"steer-{request_id}"


def _guess_method(result: Object) -> str:
    """Guess which request a result answers, if it wasn't recorded. Only a request that opens a thread gets a policy."""
    if "userAgent" in result:
        return "initialize"
    if "thread" in result and "approvalPolicy" in result:
        return "thread/start"
    return "turn/start" if "turn" in result else ""
