"""Tool calls, and what a person is asked about them."""

from __future__ import annotations

from typing import Literal

from quarterdeck import events as ev
from quarterdeck.harness.acp.connection import Asked, Id, key_of
from quarterdeck.harness.acp.content import (
    ToolInfo,
    arguments,
    asking_info,
    cleaned,
    diffs,
    fields_of,
    options_of,
    output_text,
    plan_of,
    result_of,
    tool_info,
)
from quarterdeck.harness.acp.outcome import End
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.acp.speech import Speech
from quarterdeck.harness.base import Object, is_object, list_of, object_of, text_of
from quarterdeck.harness.todos import todos_in
from quarterdeck.harness.tracker import AgentPath, GateKind
from quarterdeck.kernel.view import View

BY_US = "user"
_NEVER_RUN = "The turn ended before the call ran"
_UNTOLD = "The turn failed"
#: Option ids that mean no, for agents that leave the kind out.
_REFUSALS = ("reject", "deny", "cancel", "no")


class Tools(Speech):
    """Calls by their ids, from whichever message they are first seen in."""

    def __init__(self, profile: Profile) -> None:
        Speech.__init__(self, profile)
        self.calls: dict[str, ToolInfo] = {}
        self._done: set[str] = set()
        self._done_before: set[str] = set()
        self._refused: set[str] = set()
        self._refusals = 0
        self._terminals: dict[str, str] = {}

    # --- calls

    def read_tool_call(self, update: Object) -> None:
        self._call(update, is_first=True)

    def read_tool_call_update(self, update: Object) -> None:
        self._call(update, is_first=False)

    def _call(self, update: Object, is_first: bool) -> None:
        call_id = text_of(update, "toolCallId")
        if not call_id or call_id in self._done or (not is_first and call_id in self._done_before):
            return
        info = self._known(call_id, update)
        if info is None:
            return
        for one in list_of(update, "content") if "content" in update else ():
            if is_object(one) and one.get("type") == "terminal":
                self._terminals[text_of(one, "terminalId")] = call_id
        status = update.get("status")
        if status == "in_progress":
            self._runs(call_id, info, "" if is_first else output_text(update))
        elif status in ("completed", "failed"):
            self._ended(call_id, status == "completed", result_of(update) or info.output or None)

    def _known(self, call_id: str, update: Object) -> ToolInfo | None:
        """The call, announced if it is new; None for one that begins outside of a turn."""
        info = self.calls.get(call_id)
        if info is None:
            return self._announced(call_id, tool_info(self.profile, call_id, update)) if self.live() else None
        args = arguments(self.profile, update) if "rawInput" in update else None
        is_named = info.provisional and update.get("sessionUpdate") == "tool_call"
        if is_named:
            info.name, info.provisional = tool_info(self.profile, call_id, update).name, False
        if is_named or (args and _differ(args, info.args)):
            info.args = args or info.args
            self.tracker.open_call(call_id, info.name, info.args)
            self._read_todos(info)
        return info

    def _announced(self, call_id: str, info: ToolInfo) -> ToolInfo:
        self.break_run()
        self._end_untold()
        self.calls[call_id] = info
        self.called = True
        self.tracker.open_call(call_id, info.name, info.args)
        self._read_todos(info)
        return info

    def _read_todos(self, info: ToolInfo) -> None:
        """A tool that writes the agent's own list says the whole list."""
        args: Object = info.args or {}
        todos = todos_in(args["todos"]) if "todos" in args else None
        if todos is not None:
            self.tracker.emit(ev.TodoChange(todos=todos))

    def read_plan(self, update: Object) -> None:
        self.tracker.emit(ev.PlanGenerated(plan=plan_of(update)))

    def _runs(self, call_id: str, info: ToolInfo, output: str) -> None:
        """`in_progress` comes before or after the question about it; only output shows that nobody waits any more."""
        gates = self.tracker.gates.values()
        asks = bool(gates) and any(gate.call_id == call_id and gate.kind == "approval" for gate in gates)
        if asks and not output:
            return
        if asks:
            self._close_gates_of(call_id, "answered_elsewhere", "approval")
        self.tracker.start_call(call_id, info.name, info.args)
        if output:
            info.output = output
            self.tracker.update_output(call_id, output)

    def _close_gates_of(
        self, call_id: str, status: Literal["answered_elsewhere", "withdrawn"], *kinds: GateKind
    ) -> None:
        for ref, gate in list(self.tracker.gates.items()):
            if gate.call_id == call_id and gate.kind in kinds:
                self.tracker.close_gate(ref, status)

    def _ended(self, call_id: str, ok: bool, result: object = None) -> None:
        info = self.calls.pop(call_id)
        self._done.add(call_id)
        self._refused.discard(call_id)
        if self.tracker.gates:
            if self.is_cancelled():
                self._close_gates_of(call_id, "withdrawn", "approval", "question")
            # a call that is over asks nothing any more; its approval the tracker closes
            self._close_gates_of(call_id, "answered_elsewhere", "question")
        self.tracker.end_call(call_id, ok, result, info.name)
        self._ask_model()

    def _ask_model(self) -> None:
        """After the last call the model is asked again, unless the turn is about to end."""
        tracker = self.tracker
        if not tracker.turn_id or tracker.calls or tracker.gates or (self._refusals and self.profile.deny_ends):
            return
        if not self.is_cancelled():
            tracker.start_request()

    def _end_untold(self) -> None:
        """Cline runs one call after the other and does not say when one is over."""
        if self.profile.untold_ends and self.tracker.calls:
            for call_id, call in list(self.tracker.calls.items()):
                if call.running and call_id in self.calls and call_id not in self._refused:
                    info = self.calls.pop(call_id)
                    self._done.add(call_id)
                    self.tracker.end_call(call_id, True, info.output or None, info.name)

    def _block(self, call_id: str, reason: str) -> None:
        self.calls.pop(call_id, None)
        self._done.add(call_id)
        self._refused.discard(call_id)
        self.tracker.block_call(call_id, reason)

    def agent_speaks(self) -> None:
        """Of a refused call that is not mentioned any more nothing will be heard."""
        for call_id in list(self._refused) if self._refused else ():
            self._block(call_id, "refused")

    def turn_begins(self) -> None:
        Speech.turn_begins(self)
        # the last word on a call that was cut off may come when the next turn has begun
        self._done_before, self._done = self._done, set()
        self._refused.clear()
        self._refusals = 0

    def turn_ends(self, end: End) -> None:
        Speech.turn_ends(self, end)
        if end == "completed":
            self._end_untold()
        for call_id, call in list(self.tracker.calls.items()) if self.tracker.calls else ():
            if end == "aborted" or call.path:
                continue
            if call_id in self._refused or not call.running:
                self._block(call_id, "refused" if call_id in self._refused else _NEVER_RUN)
            elif end == "failed":
                self._done.add(call_id)
                self.tracker.end_call(call_id, False, _UNTOLD)
        # a call that goes on in the background is heard of again
        if self.calls:
            self.calls = {call_id: info for call_id, info in self.calls.items() if call_id in self.tracker.calls}
        if end == "aborted":
            self._done.update(self.calls)
            self.calls.clear()

    def restore(self, view: View) -> None:
        super().restore(view)
        self.calls = {call_id: ToolInfo(call.name, call.name, "") for call_id, call in self.tracker.calls.items()}
        for gate in view.state.gates.open:
            key = int(gate.ref) if gate.ref.isdecimal() and len(gate.ref) < 16 else gate.ref
            kind = "permission" if gate.kind == "approval" else "elicitation"
            self.asked[key] = Asked(kind, gate.ref, gate.call_id, gate.options, gate.path)

    def forget_connection(self) -> None:
        Speech.forget_connection(self)
        self.calls.clear()
        self._terminals.clear()

    # --- permission

    def read_permission(self, params: Object, key: Id) -> bool:
        path = self.path_of(text_of(params, "sessionId"))
        if path is None:
            return True
        self.finish_loading()
        call = object_of(params, "toolCall")
        call_id = text_of(call, "toolCallId")
        info = self._asking(call_id, call, path)
        options = options_of(params)
        changes = diffs(call)
        args = arguments(self.profile, call) or info.args
        ref = str(key)
        self.tracker.open_approval(
            ref,
            info.name,
            {**args, "changes": changes} if changes and isinstance(args, dict) else args,
            call_id,
            _ask_kind(info, call),
            title=cleaned(self.profile, text_of(call, "title")) or info.title,
            hint="" if changes else output_text(call),
            options=options,
            path=path,
        )
        self.asked[key] = Asked("permission", ref, call_id, options, path)
        return True

    def path_of(self, session: str) -> AgentPath | None:
        """Who asks: our session, a sub-agent of it that nobody opened, or (None) somebody else's session."""
        raise NotImplementedError

    def _asking(self, call_id: str, call: Object, path: AgentPath) -> ToolInfo:
        """The call that asks. Gemini speaks of it here first."""
        if path or not call_id or call_id in self._done:
            return asking_info(self.profile, call_id, call)
        self._begin_side_turn()
        return self.calls.get(call_id) or self._announced(call_id, asking_info(self.profile, call_id, call))

    def replied_permission(self, asked: Asked, result: Object, error: Object | None) -> None:
        self.break_run()
        outcome = object_of(result, "outcome")
        chosen = text_of(outcome, "optionId") if error is None and outcome.get("outcome") == "selected" else ""
        option = next((one for one in asked.options if one.id == chosen), None)
        if chosen and not _refuses(chosen, option):
            self._allowed(asked, option)
        elif not chosen and self.is_cancelled():
            self.tracker.resolve_approval(asked.ref, "withdrawn", BY_US)
        else:
            self._denied(asked)
        self._end_side_turn()

    def _begin_side_turn(self) -> None:
        """A question outside of a prompt: nothing but the answer will end the turn that it is asked in."""
        if not self.live():
            self.side_turn = True
            self.turn_begins()
            self.tracker.start_turn()

    def _end_side_turn(self) -> None:
        """A turn that was opened for a question alone is over with the answer."""
        if self.side_turn and not self.tracker.gates:
            self.side_turn = False
            self.turn_ends("completed")
            self.tracker.end_turn()

    def _allowed(self, asked: Asked, option: ev.Option | None) -> None:
        self.tracker.approve_call(asked.ref, BY_US)
        info = self.calls.get(asked.call_id)
        if info is not None and option is not None and option.kind == "allow_always":
            scope = self.profile.always_scope
            self.tracker.emit(ev.ToolApprovedAlways(tool=info.name, scope=scope, turn_id=self.tracker.turn_id or None))

    def _denied(self, asked: Asked) -> None:
        if asked.ref not in self.tracker.gates:
            return
        self.tracker.reject_call(asked.ref, BY_US)
        if asked.path or asked.call_id not in self.calls:
            return
        self._refusals += 1
        self._refused.add(asked.call_id)
        if self.profile.silent_deny:
            self._block(asked.call_id, "refused")
            self._ask_model()

    # --- questions and terminals, which none of the recorded agents uses

    def read_elicitation(self, params: Object, key: Id) -> bool:
        session = text_of(params, "sessionId")
        path = self.path_of(session) if session else ()
        if path is not None:
            if not path:
                self._begin_side_turn()
            ref = str(key)
            words = "\n".join(filter(None, (text_of(params, "message"), text_of(params, "url"))))
            fields = fields_of(object_of(params, "requestedSchema"))
            options, questions = (fields[0].options, ()) if len(fields) == 1 else ((), fields)
            self.tracker.open_question(ref, words, options, questions, text_of(params, "toolCallId"), path=path)
            self.asked[key] = Asked("elicitation", ref, terminal=text_of(params, "elicitationId"))
        return True

    def replied_elicitation(self, asked: Asked, result: Object, error: Object | None) -> None:
        if error is None and text_of(result, "action") == "accept":
            self.tracker.answer_question(asked.ref, result.get("content"), by=BY_US)
        else:
            self.tracker.answer_question(asked.ref, status="withdrawn", by=BY_US)
        self._end_side_turn()

    def read_elicitation_complete(self, params: Object, _key: Id) -> bool:
        """What a person did elsewhere, on a page that the agent had opened."""
        name = text_of(params, "elicitationId")
        for asked in self.asked.values():
            if asked.kind == "elicitation" and name and asked.terminal == name:
                self.tracker.answer_question(asked.ref, status="answered_elsewhere")
        return True

    def read_cancel_request(self, params: Object, _key: Id) -> bool:
        """The agent does not want an answer any more."""
        asked = self.asked.pop(key_of({"id": params.get("requestId")}), None)
        if asked is not None:
            self.tracker.close_gate(asked.ref, "withdrawn")
            self._end_side_turn()
        return True

    def read_terminal_output(self, params: Object, key: Id) -> bool:
        self.asked[key] = Asked("terminal", terminal=text_of(params, "terminalId"))
        return True

    def replied_terminal_output(self, asked: Asked, result: Object, error: Object | None) -> None:
        """What a command that we run for the agent printed so far."""
        call_id = self._terminals.get(asked.terminal, "") if asked.terminal else ""
        info = self.calls.get(call_id)
        output = text_of(result, "output")
        if info is not None and output and error is None:
            info.output = output
            self.tracker.update_output(call_id, output)


def _differ(a: object, b: object) -> bool:
    """Whether two JSON values differ; what is too deep to compare does."""
    try:
        return a != b
    except RecursionError:
        return True


def _refuses(chosen: str, option: ev.Option | None) -> bool:
    if option is not None and option.kind:
        return option.kind.startswith("reject")
    return chosen.lower().startswith(_REFUSALS)


def _ask_kind(info: ToolInfo, call: Object) -> Literal["tool", "command", "browser", "mcp"]:
    """What kind of thing is asked. Cline asks for commands, browsers and MCP servers alike."""
    raw = object_of(call, "rawInput")
    if "serverName" in raw:
        return "mcp"
    if info.kind != "execute":
        return "tool"
    return "browser" if "url" in raw and "command" not in raw else "command"
