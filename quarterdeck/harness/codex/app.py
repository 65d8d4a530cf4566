"""`codex app-server`: JSON-RPC without the `jsonrpc` field, in both directions, one object a line.

What we send is read too: our requests name the thread that is ours, our answers decide approvals. Where only one
direction is seen, the other is inferred from the shape of what came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from quarterdeck import events as ev
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.approvals import Asks
from quarterdeck.harness.codex.ignored import NOTIFICATIONS
from quarterdeck.harness.codex.items import Items, history_of, words_of
from quarterdeck.harness.codex.session import Desk
from quarterdeck.harness.codex.threads import Thread, Threads

_Reader: TypeAlias = Callable[["AppServer", Object], None]
_OPENERS = frozenset({"thread/start", "thread/resume", "thread/fork"})


class AppServer:
    """Reads both directions of one connection at a time."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tracker = desk.tracker
        self.threads = Threads(desk)
        self.items = Items(self.threads)
        self.asks = Asks(self.threads, self.items)
        self.version = ""
        #: our requests that are not answered yet
        self.pending: dict[int | str, tuple[str, Object]] = {}

    def reset(self) -> None:
        """Another process: nothing of the old connection is left."""
        self.pending.clear()
        self.threads.reset()
        self.items.reset()
        self.asks.reset()

    # --- from the server

    def read_out(self, found: Object) -> bool:
        method = found.get("method")
        if not isinstance(method, str):
            self.response(found)
            return True
        params = object_of(found, "params")
        reader = _NOTIFICATIONS.get(method)
        if reader is not None:
            reader(self, params)
            return True
        if method == "item/started":
            return self.items.started(params)
        if method == "item/completed":
            return self.items.completed(params)
        if "id" in found:
            return self.asks.request(method, found.get("id"), params)
        return method in NOTIFICATIONS

    def response(self, found: Object) -> None:
        """The server answers a request of ours."""
        method, params = self._asked(found)
        result = object_of(found, "result")
        if method in _OPENERS and self.threads.opening:
            self.threads.opening -= 1
        error = object_of(found, "error")
        if error:
            self.refused(found.get("id"), method, params, error)
            return
        reader = _RESULTS.get(method or _guessed(result))
        if reader is not None:
            reader(self, params, result)

    def _asked(self, found: Object) -> tuple[str, Object]:
        request_id = found.get("id")
        asked = self.pending.pop(request_id, None) if isinstance(request_id, int | str) else None
        return asked or ("", {})

    def refused(self, request_id: Any, method: str, params: Object, error: Object) -> None:
        """A request of ours failed. A text that was meant for the running turn is given back."""
        ref = _message_id(request_id, params)
        text = self.threads.steers.pop(ref, None) if method in ("turn/steer", "turn/start") else None
        if text is not None:
            self.tracker.emit(ev.PromptDropped(text=text, message_id=ref))
        message = text_of(error, "message") or "Codex refused a request"
        self.tracker.emit(ev.CommandFailed(command_id=str(request_id), message=message))

    # --- what our requests brought

    def initialized(self, _params: Object, result: Object) -> None:
        """`NAME/0.166.0 (Debian 12…)`: the client's name, then the server's version."""
        self.version = text_of(result, "userAgent").partition("/")[2].partition(" ")[0]

    def opened(self, params: Object, result: Object) -> None:
        """Our thread is open: new, resumed or forked."""
        found = object_of(result, "thread")
        fresh = not (text_of(params, "threadId") or list_of(found, "turns") or text_of(found, "preview"))
        if not text_of(found, "cliVersion") and self.version:
            found = found | {"cliVersion": self.version}
        thread = self.threads.open_own(found, text_of(result, "model"), fresh)
        if thread is None:
            return
        self.desk.note_settings(
            mode=names.mode_of(result.get("approvalPolicy"), result.get("sandbox")),
            thinking=text_of(result, "reasoningEffort"),
        )
        self._where_it_stands(thread, found, fresh)

    def _where_it_stands(self, thread: Thread, found: Object, fresh: bool) -> None:
        """A resumed thread may be at work; else what we thought open is over, and its history is read back."""
        status = object_of(found, "status")
        kind, turns = text_of(status, "type"), list_of(found, "turns")
        last = object_of(turns[-1]) if turns else {}
        if kind == "active":
            self.threads.begins(thread, text_of(last, "id"))
            self.threads.active(thread, status)
            if not thread.flags:
                self.tracker.close_gates("answered_elsewhere", "approval", "question")
        elif thread.works:
            thread.terminals.clear()  # whether they outlived the connection is not known
            self.threads.ends(thread, last or {"status": "failed" if kind == "systemError" else "completed"})
        elif not fresh:
            self.tracker.record_history(text_of(last, "status") == "completed", history_of(turns))

    def turn_accepted(self, _params: Object, result: Object) -> None:
        """The turn has an id before it begins."""
        thread = self.threads.own_thread()
        if thread is not None and not thread.works:
            thread.turn = text_of(object_of(result, "turn"), "id")

    def terminals_cleaned(self, params: Object, result: Object) -> None:
        """Commands in the background were ended, all or one."""
        thread = self.threads.of(params)
        one = text_of(params, "processId", "itemId")
        if thread is None or thread.path or result.get("terminated") is False:
            return
        for name in [name for name, kind in self.tracker.background.items() if kind == "shell"]:
            if not one or name == one:
                self.desk.end_call(name, names.EXEC, ok=False, result="ended by the user")

    # --- threads and turns

    def thread_started(self, params: Object) -> None:
        self.threads.started(object_of(params, "thread"))

    def status_changed(self, params: Object) -> None:
        self.threads.status_changed(params)
        thread = self.threads.of(params)
        if thread is not None and thread.held and not thread.flags:
            self.items.release(thread)

    def thread_closed(self, params: Object) -> None:
        thread = self.threads.of(params)
        if thread is not None and thread.path:
            self.threads.child_ends(thread, ok=True)
        elif thread is not None:
            self.tracker.end_session("closed")

    def thread_named(self, params: Object) -> None:
        thread = self.threads.of(params)
        if thread is not None and not thread.path:
            self.threads.named(text_of(params, "threadName", "name"))

    def settings_updated(self, params: Object) -> None:
        thread = self.threads.of(params)
        if thread is None or thread.path:
            return
        found = object_of(params, "threadSettings")
        sandbox = found.get("sandboxPolicy") or found.get("sandbox")
        mode = text_of(object_of(found, "collaborationMode"), "mode")
        self.desk.note_settings(
            mode=names.mode_of(found.get("approvalPolicy"), sandbox, mode),
            thinking=text_of(found, "effort", "reasoningEffort"),
            model=text_of(found, "model"),
        )

    def turn_started(self, params: Object) -> None:
        thread = self.threads.heard(params)
        if thread is not None:
            self.threads.begins(thread, text_of(object_of(params, "turn"), "id"))

    def turn_completed(self, params: Object) -> None:
        thread = self.threads.heard(params)
        if thread is not None:
            self.threads.ends(thread, object_of(params, "turn"))

    # --- what goes wrong, and what a person should read

    def error(self, params: Object) -> None:
        """A broken request. It is tried again, or the turn's end follows; outside a turn it is only told."""
        thread, error = self.threads.of(params), object_of(params, "error")
        if thread is None or thread.path:
            return
        message = names.error_text(error)
        if params.get("willRetry") is True:
            self.items.cut(thread, keep=False)
            attempt, reason = retry_in(message)
            reason = text_of(error, "additionalDetails") or reason
            self.tracker.emit(ev.Retry(attempt=attempt, reason=reason, turn_id=self.tracker.turn_id or None))
        elif thread.works:
            thread.error = error
        else:
            self.desk.notice_once(message, "error")

    def model_rerouted(self, params: Object) -> None:
        thread, to = self.threads.of(params), text_of(params, "toModel")
        if thread is not None and not thread.path and to:
            self.tracker.emit(ev.ModelSwitched(to=to, from_=text_of(params, "fromModel")))
            self.desk.model = to

    def mcp_startup(self, params: Object) -> None:
        if text_of(params, "status") == "failed":
            why = text_of(params, "error")
            self.desk.notice_once(f"MCP server {text_of(params, 'name')} did not start: {why}")

    def warning(self, params: Object) -> None:
        thread_id = text_of(params, "threadId")
        if not thread_id or self.desk.path_of(thread_id) is not None:
            self.desk.notice_once(text_of(params, "message", "summary"))

    # --- to the server

    def read_in(self, found: Object) -> bool:
        method, request_id = found.get("method"), found.get("id")
        if not isinstance(method, str):
            self.asks.reply(request_id, found)
            return "result" in found or "error" in found
        params = object_of(found, "params")
        if method == "initialize":
            self.reconnected()
        elif method in _OPENERS:
            self.threads.opening += 1
        elif method in ("turn/steer", "turn/start"):
            self.steer(request_id, params)
        elif method == "turn/interrupt" and (thread := self.threads.of(params)) is not None:
            thread.stopping = True
        if isinstance(request_id, int | str):
            self.pending[request_id] = (method, params)
        return True

    def reconnected(self) -> None:
        """A new connection numbers its requests anew; what the old one asked is asked again."""
        self.pending.clear()
        self.asks.reset()
        self.threads.opening = 0

    def steer(self, request_id: Any, params: Object) -> None:
        """A text for a turn that runs. Any other one is told when the agent reads it."""
        thread = self.threads.of(params)
        if thread is None or thread.path or not (thread.works or "expectedTurnId" in params):
            return
        ref, text = _message_id(request_id, params), words_of(list_of(params, "input"))
        self.threads.steers[ref] = text
        self.tracker.emit(ev.SteeringReceived(ref=ref, text=text, turn_id=self.tracker.turn_id or None))


def _message_id(request_id: Any, params: Object) -> str:
    return text_of(params, "clientUserMessageId") or f"steer-{request_id}"


def _guessed(result: Object) -> str:
    """Which request this answers, when we did not see it sent. Only what opens a thread says its model too."""
    if "userAgent" in result:
        return "initialize"
    if "thread" in result and "approvalPolicy" in result:
        return "thread/start"
    return "turn/start" if "turn" in result else ""


def retry_in(message: str) -> tuple[int, str]:
    """`Reconnecting... 2/5 (why)`: which attempt comes, and why."""
    count, _, rest = message.partition("...")[2].strip().partition(" ")
    attempt = int_of({"n": count.partition("/")[0]}, "n")
    return attempt or 1, rest.strip().removeprefix("(").removesuffix(")") or message


#: What the server tells, by its method.
_NOTIFICATIONS: dict[str, _Reader] = {
    "item/agentMessage/delta": lambda app, params: app.items.message_delta(params),
    "item/plan/delta": lambda app, params: app.items.message_delta(params),
    "item/reasoning/summaryTextDelta": lambda app, params: app.items.summary_delta(params),
    "item/reasoning/textDelta": lambda app, params: app.items.reasoning_delta(params),
    "item/commandExecution/outputDelta": lambda app, params: app.items.output_delta(params),
    "item/fileChange/outputDelta": lambda app, params: app.items.output_delta(params),
    "item/mcpToolCall/progress": lambda app, params: app.items.progress(params),
    "thread/started": AppServer.thread_started,
    "thread/status/changed": AppServer.status_changed,
    "thread/closed": AppServer.thread_closed,
    "thread/deleted": AppServer.thread_closed,
    "thread/name/updated": AppServer.thread_named,
    "thread/settings/updated": AppServer.settings_updated,
    "thread/tokenUsage/updated": lambda app, params: app.threads.token_usage(params),
    "thread/compacted": lambda app, params: app.items.compacted(params),
    "account/rateLimits/updated": lambda app, params: app.threads.rate_limits(params),
    "turn/started": AppServer.turn_started,
    "turn/completed": AppServer.turn_completed,
    "turn/plan/updated": lambda app, params: app.items.plan_updated(params),
    "turn/diff/updated": lambda app, params: app.items.diff_updated(params),
    "serverRequest/resolved": lambda app, params: app.asks.resolved(params),
    "error": AppServer.error,
    "model/rerouted": AppServer.model_rerouted,
    "mcpServer/startupStatus/updated": AppServer.mcp_startup,
    "warning": AppServer.warning,
    "guardianWarning": AppServer.warning,
    "configWarning": AppServer.warning,
}
#: What it answers, by our method.
_RESULTS: dict[str, Callable[[AppServer, Object, Object], None]] = {
    "initialize": AppServer.initialized,
    "thread/start": AppServer.opened,
    "thread/resume": AppServer.opened,
    "thread/fork": AppServer.opened,
    "turn/start": AppServer.turn_accepted,
    "thread/backgroundTerminals/clean": AppServer.terminals_cleaned,
    "thread/backgroundTerminals/terminate": AppServer.terminals_cleaned,
}
