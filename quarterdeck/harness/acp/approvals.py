"""Track what the agent asks its client: permissions, forms, and the output of terminals that the client runs.

None of the recorded agents uses forms (elicitation) or client terminals; both follow the protocol's text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Option
from quarterdeck.harness.acp.calls import Calls
from quarterdeck.harness.acp.content import (
    ToolInfo,
    arguments,
    asking_tool_info,
    file_changes,
    form_questions,
    options_of,
    output_text,
    without_suffix,
)
from quarterdeck.harness.acp.prompts import Prompts
from quarterdeck.harness.acp.session import AcpSession, Id
from quarterdeck.harness.base import Object, object_of, text_of
from quarterdeck.harness.tracker import AgentPath
from quarterdeck.kernel.view import View
from quarterdeck.policy.titles import approval_title

BY_US = "user"
#: Prefixes of option ids that mean no, for agents that leave the kind of an option out.
_REFUSAL_PREFIXES = ("reject", "deny", "cancel", "no")

RequestKind: TypeAlias = Literal["permission", "elicitation", "terminal"]


class AgentRequest(Struct, frozen=True):
    """A request of the agent that we haven't answered yet."""

    kind: RequestKind
    #: Ref of the gate that it opened; '' if it opened none.
    ref: str = ""
    call_id: str = ""
    options: tuple[Option, ...] = ()
    path: AgentPath = ()
    #: The agent's id of the form or the terminal.
    native_id: str = ""


def request_id_of(message: Object) -> Id:
    """Return the JSON-RPC id of a message, or None if it has none."""
    request_id: Any = message.get("id")
    # A bool is an int in Python, but not an id.
    is_id = isinstance(request_id, int | float | str) and not isinstance(request_id, bool)
    return request_id if is_id else None


class Approvals:
    """The open requests of the agent, by JSON-RPC id.

    Ids of our requests and of the agent's overlap, so both directions have a table of their own.
    """

    def __init__(self, session: AcpSession, prompts: Prompts, calls: Calls) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.calls = calls
        self._requests: dict[Id, AgentRequest] = {}
        self._reply_readers: dict[RequestKind, Callable[[AgentRequest, Object, Object | None], None]] = {
            "permission": self._apply_decision,
            "elicitation": self._apply_form_answer,
            "terminal": self._apply_terminal_output,
        }

    def restore(self, view: View) -> None:
        for gate in view.state.gates.open:
            request_id = int(gate.ref) if gate.ref.isdecimal() and len(gate.ref) < 16 else gate.ref
            kind: RequestKind = "permission" if gate.kind == "approval" else "elicitation"
            self._requests[request_id] = AgentRequest(kind, gate.ref, gate.call_id, gate.options, gate.path)

    def clear(self) -> None:
        """Forget all requests: the process is new or gone."""
        self._requests.clear()

    def read_reply(self, request_id: Id, result: Object, error: Object | None) -> None:
        """Apply our answer to a request of the agent."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._reply_readers[request.kind](request, result, error)

    def withdraw(self, params: Object, _request_id: Id) -> bool:
        """Close a request that the agent doesn't want answered any more."""
        request = self._requests.pop(request_id_of({"id": params.get("requestId")}), None)
        if request is not None:
            self.tracker.close_gate(request.ref, "withdrawn")
            self._end_side_turn()
        return True

    # --- side turns

    def _start_side_turn(self) -> None:
        """Open a turn for a question that the agent asks outside of a prompt. Only its answer will end the turn."""
        if not self.prompts.ensure_turn():
            self.session.is_side_turn = True
            self.prompts.start_turn()
            self.tracker.start_turn()

    def _end_side_turn(self) -> None:
        if self.session.is_side_turn and not self.tracker.gates:
            self.session.is_side_turn = False
            self.prompts.end_turn("completed")
            self.tracker.end_turn()

    # --- permissions

    def read_permission(self, params: Object, request_id: Id) -> bool:
        """Open an approval for a `session/request_permission`."""
        path = self.session.agent_path(text_of(params, "sessionId"))
        if path is None:
            return True
        self.prompts.finish_loading()
        profile = self.session.profile
        call = object_of(params, "toolCall")
        call_id = text_of(call, "toolCallId")
        info = self._asking_call(call_id, call, path)
        args = arguments(profile, call) or info.args
        changes = file_changes(call)
        options = options_of(params)
        ref = str(request_id)
        self.tracker.open_approval(
            ref,
            info.name,
            {**args, "changes": changes} if changes and isinstance(args, dict) else args,
            call_id,
            _ask_kind(info, call),
            title=approval_title(info.name, args, without_suffix(profile, text_of(call, "title")) or info.title),
            hint="" if changes else output_text(call),
            options=options,
            path=path,
        )
        self._requests[request_id] = AgentRequest("permission", ref, call_id, options, path)
        return True

    def _asking_call(self, call_id: str, call: Object, path: AgentPath) -> ToolInfo:
        """Return the call that asks, announcing it if it is new: Gemini mentions it here for the first time."""
        profile = self.session.profile
        if path or not call_id or self.calls.has_ended(call_id):
            return asking_tool_info(profile, call_id, call)
        self._start_side_turn()
        info = self.calls.open.get(call_id)
        return info or self.calls.announce(call_id, asking_tool_info(profile, call_id, call))

    def _apply_decision(self, request: AgentRequest, result: Object, error: Object | None) -> None:
        self.session.texts.finish()
        outcome = object_of(result, "outcome")
        option_id = text_of(outcome, "optionId") if error is None and outcome.get("outcome") == "selected" else ""
        option = next((option for option in request.options if option.id == option_id), None)
        if option_id and not _is_refusal(option_id, option):
            self._allow(request, option)
        elif not option_id and self.session.is_cancelled:
            self.tracker.resolve_approval(request.ref, "withdrawn", BY_US)
        else:
            self._refuse(request)
        self._end_side_turn()

    def _allow(self, request: AgentRequest, option: Option | None) -> None:
        self.tracker.approve_call(request.ref, BY_US)
        info = self.calls.open.get(request.call_id)
        if info is not None and option is not None and option.kind == "allow_always":
            scope = self.session.profile.always_scope
            turn_id = self.tracker.turn_id or None
            self.tracker.emit(ev.ToolApprovedAlways(tool=info.name, scope=scope, turn_id=turn_id))

    def _refuse(self, request: AgentRequest) -> None:
        if request.ref not in self.tracker.gates:
            return
        self.tracker.reject_call(request.ref, BY_US)
        if not request.path and request.call_id in self.calls.open:
            self.calls.refuse(request.call_id)

    # --- forms

    def read_elicitation(self, params: Object, request_id: Id) -> bool:
        """Open a question for an `elicitation/create`. A form with several fields is several questions in one gate."""
        session_id = text_of(params, "sessionId")
        path = self.session.agent_path(session_id) if session_id else ()
        if path is None:
            return True
        if not path:
            self._start_side_turn()
        ref = str(request_id)
        text = "\n".join(filter(None, (text_of(params, "message"), text_of(params, "url"))))
        fields = form_questions(object_of(params, "requestedSchema"))
        options, questions = (fields[0].options, ()) if len(fields) == 1 else ((), fields)
        self.tracker.open_question(ref, text, options, questions, text_of(params, "toolCallId"), path=path)
        native_id = text_of(params, "elicitationId")
        self._requests[request_id] = AgentRequest("elicitation", ref, native_id=native_id)
        return True

    def read_elicitation_complete(self, params: Object, _request_id: Id) -> bool:
        """Close a question that the user answered on a page that the agent opened."""
        native_id = text_of(params, "elicitationId")
        for request in self._requests.values():
            if request.kind == "elicitation" and native_id and request.native_id == native_id:
                self.tracker.answer_question(request.ref, status="answered_elsewhere")
        return True

    def _apply_form_answer(self, request: AgentRequest, result: Object, error: Object | None) -> None:
        if error is None and text_of(result, "action") == "accept":
            self.tracker.answer_question(request.ref, result.get("content"), by=BY_US)
        else:
            self.tracker.answer_question(request.ref, status="withdrawn", by=BY_US)
        self._end_side_turn()

    # --- terminals

    def read_terminal_output(self, params: Object, request_id: Id) -> bool:
        self._requests[request_id] = AgentRequest("terminal", native_id=text_of(params, "terminalId"))
        return True

    def _apply_terminal_output(self, request: AgentRequest, result: Object, error: Object | None) -> None:
        """Record what a command that we run for the agent printed so far."""
        call_id = self.calls.terminals.get(request.native_id, "") if request.native_id else ""
        info = self.calls.open.get(call_id)
        output = text_of(result, "output")
        if info is not None and output and error is None:
            self.calls.add_output(call_id, info, output)


def _is_refusal(option_id: str, option: Option | None) -> bool:
    if option is not None and option.kind:
        return option.kind.startswith("reject")
    return option_id.lower().startswith(_REFUSAL_PREFIXES)


def _ask_kind(info: ToolInfo, call: Object) -> Literal["tool", "command", "browser", "mcp"]:
    """Return what kind of thing is asked. Cline uses the kind `execute` for commands, browsers and MCP servers alike."""
    raw = object_of(call, "rawInput")
    if "serverName" in raw:
        return "mcp"
    if info.kind != "execute":
        return "tool"
    return "browser" if "url" in raw and "command" not in raw else "command"
