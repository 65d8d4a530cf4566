"""What the app-server asks its client, and how it is answered: by us, by another client, or not at all.

A request that is sent again after a reconnect has another JSON-RPC id but is about the same item, so gates go by the
item (or the approval within it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Option
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.ignored import REQUESTS
from quarterdeck.harness.codex.items import Items
from quarterdeck.harness.codex.threads import APPROVAL, QUESTION, Thread, Threads

#: Our answer to a request: accepted or refused on what terms.
Reply: TypeAlias = "Callable[[Asked, Object], None]"
RequestId: TypeAlias = "int | str"


class Asked(Struct, frozen=True):
    """A request of the server that waits for its answer."""

    ref: str
    thread: str
    call_id: str
    reply: Reply
    questions: tuple[str, ...] = ()


class Asks:
    """One reader for each kind of request."""

    def __init__(self, threads: Threads, items: Items) -> None:
        self.threads = threads
        self.items = items
        self.desk = threads.desk
        self.tracker = threads.tracker
        self.open: dict[RequestId, Asked] = {}

    def reset(self) -> None:
        """Another connection: what the old one asked is asked again under other ids."""
        self.open.clear()

    def request(self, method: str, request_id: Any, params: Object) -> bool:
        """The server asks something."""
        reader = _READERS.get(method)
        if reader is None:
            return method in REQUESTS
        thread = self.threads.heard(params)
        if thread is not None and isinstance(request_id, int | str) and not self.tracker.has_exited:
            asked = reader(self, request_id, thread, params)
            if asked is not None:
                self.open[request_id] = asked
        return True

    def reply(self, request_id: Any, found: Object) -> None:
        """We answered."""
        asked = self.open.pop(request_id, None) if isinstance(request_id, int | str) else None
        if asked is not None:
            asked.reply(asked, object_of(found, "result"))

    def resolved(self, params: Object) -> None:
        """Whoever asked does not wait any more. Where we did not answer, somebody else did."""
        request_id = params.get("requestId")
        asked = self.open.pop(request_id, None) if isinstance(request_id, int | str) else None
        if asked is None:
            return
        thread = self.threads.by_id.get(asked.thread)
        if thread is not None and asked.call_id in thread.held:
            self.items.release(thread, asked.call_id)  # a refusal follows at once and ends it again
        self.tracker.close_gate(asked.ref, "answered_elsewhere")

    # --- approvals

    def command_approval(self, request_id: RequestId, thread: Thread, params: Object) -> Asked:
        call_id = text_of(params, "itemId", "callId")
        host = text_of(object_of(params, "networkApprovalContext"), "host")
        args, command = self._command(params)
        ref = text_of(params, "approvalId") or call_id or f"request-{request_id}"
        self.tracker.open_approval(
            ref,
            names.EXEC,
            args,
            call_id,
            ask="command",
            title=f"Network access to {host}" if host else command,
            hint=text_of(params, "reason"),
            options=names.options_in(list_of(params, "availableDecisions")),
            path=thread.path,
        )
        return Asked(ref, thread.id, call_id, self.decided)

    def _command(self, params: Object) -> tuple[Object, str]:
        command = params.get("command")
        if isinstance(command, list):
            command = " ".join(str(word) for word in list_of(params, "command"))
        text = names.plain_command(command) if isinstance(command, str) else ""
        args: Object = {"command": text} | {name: params[name] for name in ("cwd",) if params.get(name)}
        return args, text

    def patch_approval(self, request_id: RequestId, thread: Thread, params: Object) -> Asked:
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
        return Asked(ref, thread.id, call_id, self.decided)

    def permissions_approval(self, request_id: RequestId, thread: Thread, params: Object) -> Asked:
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
        return Asked(ref, thread.id, call_id, self.permitted)

    def decided(self, asked: Asked, result: Object) -> None:
        """Accept, decline, cancel and their kin. An answer that is none of them refuses."""
        name, decision, rule = names.decision_in(result.get("decision"))
        status = decision.status if name in names.DECISIONS else "rejected"
        self._close(asked, status, rule, name)
        thread = self.threads.by_id.get(asked.thread)
        if thread is not None and decision.kind == "cancel":
            thread.stopping = True
        if decision.scope:
            self._always(asked, decision.scope, rule)

    def permitted(self, asked: Asked, result: Object) -> None:
        """Permissions are given one by one; none given is a refusal."""
        given = any(object_of(result, "permissions").values())
        self._close(asked, "approved" if given else "rejected", "", "")

    def _close(self, asked: Asked, status: ev.GateStatus, rule: str, reason: str) -> None:
        thread = self.threads.by_id.get(asked.thread)
        if status == "approved":
            self.tracker.approve_call(asked.ref, "user", rule)
            if thread is not None and asked.call_id in thread.held:
                thread.held.remove(asked.call_id)
        elif status == "rejected":
            self.tracker.reject_call(asked.ref, "user", rule, reason)
        else:
            self.tracker.resolve_approval(asked.ref, status, "user", rule, reason)

    def _always(self, asked: Asked, scope: str, rule: str) -> None:
        call = self.tracker.calls.get(asked.call_id)
        tool = call.name if call is not None else names.EXEC
        kept: Literal["session", "user"] = "session" if scope == "session" else "user"
        self.tracker.emit(ev.ToolApprovedAlways(tool=tool, command_family=rule, scope=kept, rule=rule))

    # --- questions and dialogs

    def user_input(self, request_id: RequestId, thread: Thread, params: Object) -> Asked | None:
        found = [object_of(one) for one in list_of(params, "questions")]
        questions = tuple(names.question_in(one) for one in found)
        if not questions:
            return None
        call_id = text_of(params, "itemId")
        ref = call_id or f"request-{request_id}"
        wait, asked_at = int_of(params, "autoResolutionMs"), int_of(params, "startedAtMs")
        self.tracker.open_question(
            ref,
            questions[0].text,
            questions[0].options,
            questions,
            call_id,
            asked_at + wait if wait > 0 and asked_at > 0 else None,
            thread.path,
        )
        return Asked(ref, thread.id, call_id, self.answered, tuple(text_of(one, "id") for one in found))

    def answered(self, asked: Asked, result: Object) -> None:
        answers = object_of(result, "answers")
        lines = [_answer(object_of(answers, name)) for name in asked.questions]
        given = [line for line in lines if line]
        thread = self.threads.by_id.get(asked.thread)
        if thread is not None:
            thread.ran = True
        if given:
            self.tracker.answer_question(asked.ref, "\n".join(given), by="user")
        else:
            self.tracker.answer_question(asked.ref, status="withdrawn", by="user")

    def elicitation(self, request_id: RequestId, thread: Thread, params: Object) -> Asked:
        """An MCP server wants something of the user: a confirmation, or the fields of a form."""
        schema = object_of(params, "requestedSchema")
        fields = {name: object_of(schema, "properties", name) for name in object_of(schema, "properties")}
        ref = f"elicitation:{text_of(params, 'elicitationId') or request_id}"
        method, options = _dialog_of(fields)
        message = "\n".join(filter(None, (text_of(params, "message"), text_of(params, "url"))))
        self.tracker.open_dialog(ref, method, title=text_of(params, "serverName"), message=message, options=options)
        return Asked(ref, thread.id, "", self.elicited)

    def elicited(self, asked: Asked, result: Object) -> None:
        accepted = text_of(result, "action") == "accept"
        status = "answered" if accepted else "cancelled"
        self.tracker.close_dialog(asked.ref, result.get("content") if accepted else None, status, by="user")

    # --- only the status shows that a person is asked: this connection has not subscribed to the thread

    def on_flagged(self) -> None:
        thread = self.threads.own_thread()
        if thread is None or any(not gate.path for gate in self.tracker.gates.values()):
            return
        if APPROVAL in thread.flags:
            self.tracker.open_approval(f"{APPROVAL}:{thread.id}", "", title="Codex waits for an approval")
        elif QUESTION in thread.flags:
            self.tracker.open_question(f"{QUESTION}:{thread.id}", "Codex waits for an answer")


def _answer(found: Object) -> str:
    return ", ".join(one for one in list_of(found, "answers") if isinstance(one, str))


_Method: TypeAlias = Literal["select", "confirm", "input", "editor"]


def _dialog_of(fields: dict[str, Object]) -> tuple[_Method, tuple[Option, ...]]:
    """A form without fields is a confirmation, one with a choice is a choice; anything else is typed in."""
    if not fields:
        return "confirm", ()
    one = next(iter(fields.values()))
    choices = [name for name in list_of(one, "enum") if isinstance(name, str)]
    if len(fields) == 1 and choices:
        return "select", tuple(Option(id=name, label=name) for name in choices)
    if len(fields) == 1 and text_of(one, "type") == "boolean":
        return "confirm", ()
    return "input" if len(fields) == 1 else "editor", ()


#: Requests of the server by their method.
_READERS: dict[str, Callable[[Asks, RequestId, Thread, Object], Asked | None]] = {
    "item/commandExecution/requestApproval": Asks.command_approval,
    "item/fileChange/requestApproval": Asks.patch_approval,
    "item/permissions/requestApproval": Asks.permissions_approval,
    "item/tool/requestUserInput": Asks.user_input,
    "mcpServer/elicitation/request": Asks.elicitation,
    "execCommandApproval": Asks.command_approval,
    "applyPatchApproval": Asks.patch_approval,
}
