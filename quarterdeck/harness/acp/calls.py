"""Track the tool calls of an ACP agent, from whichever message mentions them first to their end."""

from __future__ import annotations

from typing import Literal

from quarterdeck import events as ev
from quarterdeck.harness.acp.content import ToolInfo, arguments, output_text, result_of, tool_info
from quarterdeck.harness.acp.session import AcpSession
from quarterdeck.harness.base import Object, objects_of, text_of
from quarterdeck.harness.todos import todos_in
from quarterdeck.harness.tracker import GateKind
from quarterdeck.kernel.view import View

REFUSED = "refused"
_NEVER_RUN = "The turn ended before the call ran"
_TURN_FAILED = "The turn failed"


class Calls:
    """The tool calls of one session, by id."""

    def __init__(self, session: AcpSession) -> None:
        self.session = session
        self.tracker = session.tracker
        #: Calls that aren't over.
        self.open: dict[str, ToolInfo] = {}
        #: The call that each terminal belongs to.
        self.terminals: dict[str, str] = {}
        #: Calls that ended in this turn, and in the turn before it.
        self._ended: set[str] = set()
        self._ended_before: set[str] = set()
        #: Refused calls whose end wasn't reported yet.
        self._refused: set[str] = set()
        self._has_refusal = False

    def restore(self, view: View) -> None:
        del view
        self.open = {call_id: ToolInfo(call.name, call.name, "") for call_id, call in self.tracker.calls.items()}

    def clear(self) -> None:
        """Forget all calls: the process is new or gone."""
        self.open.clear()
        self.terminals.clear()

    # --- updates

    def has_ended(self, call_id: str) -> bool:
        """Return whether the call ended in this turn."""
        return call_id in self._ended

    def is_late(self, call_id: str) -> bool:
        """Return whether an update of this call is about a call that ended in this turn or the one before it.

        The last update of a call that was interrupted may arrive when the next turn has begun.
        """
        return call_id in self._ended or call_id in self._ended_before

    def update(self, call_id: str, update: Object, is_first: bool) -> None:
        """Apply a `tool_call` (first) or `tool_call_update` of this turn."""
        info = self.open.get(call_id)
        if info is None:
            info = self.announce(call_id, tool_info(self.session.profile, call_id, update))
        else:
            self._restate(call_id, info, update)
        for item in objects_of(update, "content"):
            if item.get("type") == "terminal":
                self.terminals[text_of(item, "terminalId")] = call_id
        status = update.get("status")
        if status == "in_progress":
            self._run(call_id, info, "" if is_first else output_text(update))
        elif status in ("completed", "failed"):
            self._end(call_id, status == "completed", result_of(update) or info.output or None)

    def announce(self, call_id: str, info: ToolInfo) -> ToolInfo:
        """Record a call that is new."""
        self.session.texts.finish()
        self.end_unreported()
        self.open[call_id] = info
        self.session.texts.called_since_text = True
        self.tracker.open_call(call_id, info.name, info.args)
        self._record_todos(info)
        return info

    def _restate(self, call_id: str, info: ToolInfo, update: Object) -> None:
        """Announce a known call again if the update brings its real name or other arguments."""
        profile = self.session.profile
        args = arguments(profile, update) if "rawInput" in update else None
        is_named = info.provisional and update.get("sessionUpdate") == "tool_call"
        if is_named:
            info.name, info.provisional = tool_info(profile, call_id, update).name, False
        if is_named or (args and _differ(args, info.args)):
            info.args = args or info.args
            self.tracker.open_call(call_id, info.name, info.args)
            self._record_todos(info)

    def _record_todos(self, info: ToolInfo) -> None:
        """Record the agent's todo list if this call writes it. Such a call repeats the whole list."""
        args: Object = info.args or {}
        todos = todos_in(args["todos"]) if "todos" in args else None
        if todos is not None:
            self.tracker.emit(ev.TodoChange(todos=todos))

    def _run(self, call_id: str, info: ToolInfo, output: str) -> None:
        """Mark the call as running.

        `in_progress` arrives before or after the permission request for the same call, so only output shows that the
        call doesn't wait for a decision any more.
        """
        gates = self.tracker.gates.values()
        is_asking = any(gate.call_id == call_id and gate.kind == "approval" for gate in gates)
        if is_asking and not output:
            return
        if is_asking:
            self._close_gates(call_id, "answered_elsewhere", "approval")
        self.tracker.start_call(call_id, info.name, info.args)
        if output:
            self.add_output(call_id, info, output)

    def add_output(self, call_id: str, info: ToolInfo, output: str) -> None:
        """Record output of a running call. The agent repeats all of it each time."""
        info.output = output
        self.tracker.update_output(call_id, output)

    # --- ends

    def _end(self, call_id: str, ok: bool, result: object) -> None:
        info = self._remove(call_id)
        if self.session.is_cancelled:
            self._close_gates(call_id, "withdrawn", "approval", "question")
        # The tracker closes an approval of a call that ended, but not a question.
        self._close_gates(call_id, "answered_elsewhere", "question")
        self.tracker.end_call(call_id, ok, result, info.name if info is not None else "")
        self.start_next_request()

    def _remove(self, call_id: str) -> ToolInfo | None:
        self._ended.add(call_id)
        self._refused.discard(call_id)
        return self.open.pop(call_id, None)

    def _close_gates(self, call_id: str, status: Literal["answered_elsewhere", "withdrawn"], *kinds: GateKind) -> None:
        for ref, gate in list(self.tracker.gates.items()):
            if gate.call_id == call_id and gate.kind in kinds:
                self.tracker.close_gate(ref, status)

    def start_next_request(self) -> None:
        """Record the next request to the model, unless a call or gate is open or the turn is about to end."""
        tracker = self.tracker
        if not tracker.turn_id or tracker.calls or tracker.gates:
            return
        if self._has_refusal and self.session.profile.deny_ends:
            return
        if not self.session.is_cancelled:
            tracker.start_request()

    def end_unreported(self) -> None:
        """End the running calls of an agent that never reports ends. Cline runs one call after the other."""
        if not self.session.profile.unreported_ends:
            return
        for call_id, call in list(self.tracker.calls.items()):
            if call.running and call_id in self.open and call_id not in self._refused:
                info = self.open.pop(call_id)
                self._ended.add(call_id)
                self.tracker.end_call(call_id, True, info.output or None, info.name)

    # --- refusals

    def refuse(self, call_id: str) -> None:
        """Note that a call was refused. Some agents report its end later, others never mention it again."""
        self._has_refusal = True
        self._refused.add(call_id)
        if self.session.profile.silent_deny:
            self._block(call_id, REFUSED)
            self.start_next_request()

    def block_refused(self) -> None:
        """Close the refused calls: the model speaks again, so the agent won't report their ends."""
        for call_id in list(self._refused):
            self._block(call_id, REFUSED)

    def _block(self, call_id: str, reason: str) -> None:
        self._remove(call_id)
        self.tracker.block_call(call_id, reason)

    # --- turns

    def start_turn(self) -> None:
        self._ended_before, self._ended = self._ended, set()
        self._refused.clear()
        self._has_refusal = False

    def end_turn(self, outcome: Literal["completed", "aborted", "failed"]) -> None:
        """Close the calls that the turn leaves open. The tracker kills those of an aborted turn."""
        if outcome == "completed":
            self.end_unreported()
        for call_id, call in list(self.tracker.calls.items()):
            if outcome == "aborted" or call.path:
                continue
            if call_id in self._refused or not call.running:
                self._block(call_id, REFUSED if call_id in self._refused else _NEVER_RUN)
            elif outcome == "failed":
                self._ended.add(call_id)
                self.tracker.end_call(call_id, False, _TURN_FAILED)
        # A call that continues in the background will be mentioned again.
        self.open = {call_id: info for call_id, info in self.open.items() if call_id in self.tracker.calls}
        if outcome == "aborted":
            self._ended.update(self.open)
            self.open.clear()


def _differ(first: object, second: object) -> bool:
    """Return whether two JSON values differ. Values that are nested too deep to compare do."""
    try:
        return first != second
    except RecursionError:
        return True
