"""Track what the app-server asks its client, and how that is answered: by us, by another client, or not at all.

After a reconnect the server sends an open request again with another JSON-RPC id but about the same item. So gates are
named after the item, or the approval within it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Option
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.items import Items
from quarterdeck.harness.codex.threads import APPROVAL_FLAG, QUESTION_FLAG, Thread, Threads

RequestId: TypeAlias = int | str

#: Requests that a program answers, not a person.
IGNORED_REQUESTS = frozenset(
    {
        "account/chatgptAuthTokens/refresh",
        "attestation/generate",
        "currentTime/read",
        "item/tool/call",
    }
)


class ServerRequest(Struct, frozen=True):
    """A request of the server that waits for its answer."""

    #: Ref of the gate that it opened.
    ref: str
    thread_id: str
    call_id: str
    #: Reads our answer to it.
    reply_reader: Callable[[ServerRequest, Object], None]
    #: Ids of the questions that it asks.
    question_ids: tuple[str, ...] = ()


class Approvals:
    """The open requests of the server, by JSON-RPC id. There is one reader for each method."""

    def __init__(self, threads: Threads, items: Items) -> None:
        self.threads = threads
        self.items = items
        self.session = threads.session
        self.tracker = threads.tracker
        self._requests: dict[RequestId, ServerRequest] = {}
        self._readers: dict[str, Callable[[RequestId, Thread, Object], ServerRequest | None]] = {
            "item/commandExecution/requestApproval": self._ask_command,
            "item/fileChange/requestApproval": self._ask_patch,
            "item/permissions/requestApproval": self._ask_permissions,
            "item/tool/requestUserInput": self._ask_user,
            "mcpServer/elicitation/request": self._open_elicitation,
            # The first version of the protocol.
            "execCommandApproval": self._ask_command,
            "applyPatchApproval": self._ask_patch,
        }

    def reset(self) -> None:
        """Forget the requests of an old connection: the new one gets them again under other ids."""
        self._requests.clear()

    def read_request(self, method: str, request_id: Any, params: Object) -> bool:
        """Read a request of the server. Return whether its method is known."""
        reader = self._readers.get(method)
        if reader is None:
            return method in IGNORED_REQUESTS
        thread = self.threads.find_or_adopt(params)
        if thread is not None and isinstance(request_id, int | str) and not self.tracker.has_exited:
            request = reader(request_id, thread, params)
            if request is not None:
                self._requests[request_id] = request
        return True

    def read_reply(self, request_id: Any, message: Object) -> None:
        """Apply our answer to a request."""
        request = self._take(request_id)
        if request is not None:
            request.reply_reader(request, object_of(message, "result"))

    def read_resolved(self, params: Object) -> None:
        """Read that the server doesn't wait any more. If we didn't answer, another client did."""
        request = self._take(params.get("requestId"))
        if request is None:
            return
        thread = self.threads.by_id.get(request.thread_id)
        if thread is not None and request.call_id in thread.held_calls:
            # After a refusal the end of the call follows at once.
            self.items.release_held(thread, request.call_id)
        self.tracker.close_gate(request.ref, "answered_elsewhere")

    def _take(self, request_id: Any) -> ServerRequest | None:
        return self._requests.pop(request_id, None) if isinstance(request_id, int | str) else None

    # --- approvals

    def _ask_command(self, request_id: RequestId, thread: Thread, params: Object) -> ServerRequest:
        call_id = text_of(params, "itemId", "callId")
        command = params.get("command")
        if isinstance(command, list):
            command = " ".join(str(word) for word in list_of(params, "command"))
        args: Object = {"command": names.plain_command(command) if isinstance(command, str) else ""}
        if params.get("cwd"):
            args["cwd"] = params["cwd"]
        host = text_of(object_of(params, "networkApprovalContext"), "host")
        ref = text_of(params, "approvalId") or call_id or f"request-{request_id}"
        self.tracker.open_approval(
            ref,
            names.EXEC,
            args,
            call_id,
            ask="command",
            hint=text_of(params, "reason"),
            options=names.options_in(list_of(params, "availableDecisions")),
            path=thread.path,
            network_host=host,
        )
        return ServerRequest(ref, thread.thread_id, call_id, self._apply_decision)

    def _ask_patch(self, request_id: RequestId, thread: Thread, params: Object) -> ServerRequest:
        call_id = text_of(params, "itemId", "callId")
        ref = call_id or f"request-{request_id}"
        self.tracker.open_approval(
            ref,
            names.PATCH,
            {name: params[name] for name in ("fileChanges", "grantRoot") if params.get(name)},
            call_id,
            hint=text_of(params, "reason"),
            options=names.options_in(["accept", "acceptForSession", "decline", "cancel"]),
            path=thread.path,
        )
        return ServerRequest(ref, thread.thread_id, call_id, self._apply_decision)

    def _ask_permissions(self, request_id: RequestId, thread: Thread, params: Object) -> ServerRequest:
        call_id = text_of(params, "itemId")
        ref = call_id or f"request-{request_id}"
        self.tracker.open_approval(
            ref,
            "request_permissions",
            params.get("permissions"),
            call_id,
            hint=text_of(params, "reason"),
            options=names.options_in(["accept", "acceptForSession"]),
            path=thread.path,
        )
        return ServerRequest(ref, thread.thread_id, call_id, self._apply_permissions)

    def _apply_decision(self, request: ServerRequest, result: Object) -> None:
        """Apply accept, decline, cancel or a variant of them. An unknown answer refuses."""
        name, decision, rule = names.decision_in(result.get("decision"))
        status = decision.status if name in names.DECISIONS else "rejected"
        self._close(request, status, rule, name)
        thread = self.threads.by_id.get(request.thread_id)
        if thread is not None and decision.kind == "cancel":
            thread.is_stopping = True
        if decision.scope:
            self._record_always(request, decision.scope, rule)

    def _apply_permissions(self, request: ServerRequest, result: Object) -> None:
        """Apply permissions, which are granted one by one. None of them is a refusal."""
        is_granted = any(object_of(result, "permissions").values())
        self._close(request, "approved" if is_granted else "rejected", "", "")

    def _close(self, request: ServerRequest, status: ev.GateStatus, rule: str, reason: str) -> None:
        thread = self.threads.by_id.get(request.thread_id)
        if status == "approved":
            self.tracker.approve_call(request.ref, "user", rule)
            if thread is not None and request.call_id in thread.held_calls:
                thread.held_calls.remove(request.call_id)
        elif status == "rejected":
            self.tracker.reject_call(request.ref, "user", rule, reason)
        else:
            self.tracker.resolve_approval(request.ref, status, "user", rule, reason)

    def _record_always(self, request: ServerRequest, decision_scope: str, rule: str) -> None:
        call = self.tracker.calls.get(request.call_id)
        tool = call.name if call is not None else names.EXEC
        scope: Literal["session", "user"] = "session" if decision_scope == "session" else "user"
        self.tracker.emit(ev.ToolApprovedAlways(tool=tool, command_family=rule, scope=scope, rule=rule))

    # --- questions and dialogs

    def _ask_user(self, request_id: RequestId, thread: Thread, params: Object) -> ServerRequest | None:
        fields = [object_of(question) for question in list_of(params, "questions")]
        questions = tuple(names.question_in(question) for question in fields)
        if not questions:
            return None
        call_id = text_of(params, "itemId")
        ref = call_id or f"request-{request_id}"
        timeout_ms, asked_at = int_of(params, "autoResolutionMs"), int_of(params, "startedAtMs")
        self.tracker.open_question(
            ref,
            questions[0].text,
            questions[0].options,
            questions,
            call_id,
            asked_at + timeout_ms if timeout_ms > 0 and asked_at > 0 else None,
            thread.path,
        )
        question_ids = tuple(text_of(question, "id") for question in fields)
        return ServerRequest(ref, thread.thread_id, call_id, self._apply_answers, question_ids)

    def _apply_answers(self, request: ServerRequest, result: Object) -> None:
        answers = object_of(result, "answers")
        lines = [_answer_line(object_of(answers, question_id)) for question_id in request.question_ids]
        text = "\n".join(filter(None, lines))
        thread = self.threads.by_id.get(request.thread_id)
        if thread is not None:
            thread.has_run_calls = True
        if text:
            self.tracker.answer_question(request.ref, text, by="user")
        else:
            self.tracker.answer_question(request.ref, status="withdrawn", by="user")

    def _open_elicitation(self, request_id: RequestId, thread: Thread, params: Object) -> ServerRequest:
        """Open a dialog for an MCP server that wants a confirmation or the fields of a form."""
        properties = object_of(params, "requestedSchema", "properties")
        ref = f"elicitation:{text_of(params, 'elicitationId') or request_id}"
        method, options = _dialog_of([object_of(properties, name) for name in properties])
        message = "\n".join(filter(None, (text_of(params, "message"), text_of(params, "url"))))
        title = text_of(params, "serverName")
        self.tracker.open_dialog(ref, method, title=title, message=message, options=options)
        return ServerRequest(ref, thread.thread_id, "", self._apply_elicitation)

    def _apply_elicitation(self, request: ServerRequest, result: Object) -> None:
        if text_of(result, "action") == "accept":
            self.tracker.close_dialog(request.ref, result.get("content"), "answered", by="user")
        else:
            self.tracker.close_dialog(request.ref, None, "cancelled", by="user")

    # --- requests that only the status of the thread shows

    def on_flagged(self) -> None:
        """Open a gate because the status says that the thread waits for the user and no request arrived.

        That happens on a connection that isn't subscribed to the thread.
        """
        thread = self.threads.own()
        if thread is None or self.tracker.is_waiting_for_person():
            return
        if APPROVAL_FLAG in thread.flags:
            self.tracker.open_approval(f"{APPROVAL_FLAG}:{thread.thread_id}", "", title="Codex waits for an approval")
        elif QUESTION_FLAG in thread.flags:
            self.tracker.open_question(f"{QUESTION_FLAG}:{thread.thread_id}", "Codex waits for an answer")


def _answer_line(fields: Object) -> str:
    return ", ".join(answer for answer in list_of(fields, "answers") if isinstance(answer, str))


_DialogMethod: TypeAlias = Literal["select", "confirm", "input", "editor"]


def _dialog_of(form: list[Object]) -> tuple[_DialogMethod, tuple[Option, ...]]:
    """Choose a dialog for a form: no fields or one flag is a confirmation, one choice a selection, the rest is typed."""
    if not form:
        return "confirm", ()
    choices = [value for value in list_of(form[0], "enum") if isinstance(value, str)]
    if len(form) == 1 and choices:
        return "select", tuple(Option(id=value, label=value) for value in choices)
    if len(form) == 1 and text_of(form[0], "type") == "boolean":
        return "confirm", ()
    return "input" if len(form) == 1 else "editor", ()
