"""Track calls and what the user is asked about them.

A call is one row or two: `ask:tool` while it is streamed may become `say:tool` under another time if it needs no approval.
A partial ask isn't a question yet. No message reports how a call ended: the next request passes its result to the model,
and it is read there.
"""

from __future__ import annotations

from typing import Any, Literal

from quarterdeck import events as ev
from quarterdeck.events import Option
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.sayask.message import CallResult, Message, call_args, call_name
from quarterdeck.harness.sayask.session import Row, SayAskSession
from quarterdeck.harness.todos import todos_in
from quarterdeck.kernel.view import View

#: A partial question that didn't grow for this long is complete: some agents never send the complete one.
QUESTION_GRACE_S = 5.0
#: Output may arrive this long after the message that the command is over.
OUTPUT_GRACE_S = 0.5

_ASK_KINDS: dict[str, Literal["tool", "command", "browser", "mcp"]] = {
    "command": "command",
    "browser_action_launch": "browser",
    "use_mcp_server": "mcp",
}


class Calls:
    """Calls that aren't over, and the questions of the agent."""

    def __init__(self, session: SayAskSession) -> None:
        self.session = session
        self.tracker = session.tracker
        #: Ids of calls whose end isn't known, in the order of their beginning.
        self.pending: list[str] = []
        #: The call that is still being streamed.
        self._draft_id = ""
        #: The call that output belongs to, and what it printed so far.
        self._command_id = ""
        self._printed: list[str] = []
        #: The question that is still being streamed.
        self._partial_question: tuple[Message, Row] | None = None

    def restore(self, _view: View) -> None:
        self.pending = [call_id for call_id, call in self.tracker.calls.items() if not call.path]
        self._command_id = self.pending[-1] if self.pending else ""

    # --- calls that are announced

    def read_asked_call(self, message: Message, row: Row) -> None:
        """Read a call that the user must allow. It asks when it is complete."""
        self._announce(message, row)
        if message.partial or self.session.is_halted or not row.call_id:
            return
        if message.is_answered:
            self.allow(row.call_id)
        elif not row.is_recorded:
            row.is_recorded = True
            self._open_approval(message, row)
        if message.raw.get("commandCompleted") is True:
            self.session.set_timer("output", OUTPUT_GRACE_S)

    def read_said_call(self, message: Message, row: Row) -> None:
        """Read a call that needs no approval. It runs as soon as it is complete."""
        self._announce(message, row)
        if not message.partial and row.call_id and not self.session.is_halted:
            self.tracker.start_call(row.call_id)

    def _announce(self, message: Message, row: Row) -> None:
        """Announce the call of this row when it begins and when it is complete."""
        if self.session.is_halted:
            return
        self._record_todos(message.data().get("todos"))
        if not row.call_id:
            self.close_older_gates(message)
            row.call_id = self._draft_id or f"call-{message.ts or self.session.new_id()}"
            if row.call_id not in self.pending:
                self.pending.append(row.call_id)
        elif not row.is_completed_by(message):
            return
        args = call_args(message)
        self.tracker.open_call(row.call_id, call_name(message), args, message.ts, partial=message.partial)
        self._draft_id = row.call_id if message.partial else ""
        if message.subtype == "command":
            self._command_id, self._printed = row.call_id, []

    def _open_approval(self, message: Message, row: Row) -> None:
        self.close_older_gates(message)
        name, args = call_name(message), call_args(message)
        self.tracker.open_approval(
            message.ts or row.call_id,
            name,
            args,
            row.call_id,
            _ASK_KINDS.get(message.subtype, "tool"),
        )

    def read_task_progress(self, message: Message, _row: Row) -> None:
        if not message.partial:
            self._record_todos(message.text)

    def _record_todos(self, value: Any) -> None:
        todos = todos_in(value)
        if todos is not None:
            self.tracker.emit(ev.TodoChange(todos=todos))

    # --- calls that run

    def read_output(self, message: Message, row: Row) -> None:
        """Read output of a command. It is never a question, although some agents send it as an ask.

        Each row adds to what the command printed.
        """
        call_id = row.call_id = row.call_id or self._command_id
        call = self.tracker.calls.get(call_id)
        if not call_id or call is None:
            return
        if self.tracker.gates or not call.running:
            self.allow(call_id)
        data = message.data()
        # A command may print JSON of its own. Only a report on an execution has its output in a field.
        text = text_of(data, "output", "text") if "executionId" in data else message.text
        delta = text[len(row.output) :] if text.startswith(row.output) else ""
        if delta and not row.output and self._printed and not self._printed[-1].endswith("\n"):
            delta = "\n" + delta
        row.output = text
        if delta:
            self._printed.append(delta)
            self.tracker.add_output(call_id, delta)

    def end_command(self) -> None:
        """End the command that is over, after the time in which it may still print."""
        self.end(self._command_id, True, "".join(self._printed) or None)

    def read_answer(self, message: Message, row: Row) -> None:
        """Read the answer of an MCP server or a browser. It ends the last call."""
        if row.is_completed_by(message) and self.pending:
            self.end(self.pending[-1], True, message.text or None)

    def read_request_sent(self, _message: Message, _row: Row) -> None:
        """Note that a request went out to an MCP server, so the call was allowed."""
        if self.pending:
            self.allow(self.pending[-1])

    def read_error(self, message: Message, row: Row) -> None:
        """Read an error. It ends the last call; without a call it is a notice."""
        if not row.is_completed_by(message) or not message.text:
            return
        if self.pending:
            self.end(self.pending[-1], False, message.text)
        else:
            self.tracker.add_notice(message.text, "error")

    # --- decisions and ends

    def allow(self, call_id: str, by: str = "") -> None:
        """Record that the call runs, so it was allowed."""
        self.tracker.approve_call(self._approval_of(call_id), by)
        self.tracker.start_call(call_id)

    def refuse(self, call_id: str, by: str = "", reason: str = "") -> None:
        """Record that the call won't run. No message will report its end, so it is recorded here."""
        self.tracker.reject_call(self._approval_of(call_id), by, reason=reason)
        if call_id in self.pending:
            self.pending.remove(call_id)
            self.tracker.block_call(call_id, reason or "denied")

    def _approval_of(self, call_id: str) -> str:
        """Return the ref of the call's open approval, or ''."""
        gates = self.tracker.gates.items()
        return next((ref for ref, gate in gates if gate.call_id == call_id and gate.kind == "approval"), "")

    def end(self, call_id: str, ok: bool, result: str | None) -> None:
        """End a pending call. If its approval is open, it was given."""
        if call_id not in self.pending:
            return
        self.pending.remove(call_id)
        if call_id == self._draft_id:
            self._draft_id = ""
        self.tracker.approve_call(self._approval_of(call_id))
        self.tracker.end_call(call_id, ok, result)

    def end_all(self, results: list[CallResult], ok: bool = True) -> None:
        """End all calls with the results that the next request reports; a call without a result ended as `ok` says.

        A request may report the results of the last calls only.
        """
        missing = len(self.pending) - len(results)
        known: list[CallResult | None] = [None] * missing + list(results[-len(self.pending) :])
        for call_id, result in zip(list(self.pending), known, strict=False):
            if result is not None and result.denied:
                self.refuse(call_id, reason=result.text)
            elif result is not None:
                self.end(call_id, result.ok, result.text or None)
            elif call_id == self._draft_id:
                self.refuse(call_id, reason="not run")
            else:
                printed = "".join(self._printed) if call_id == self._command_id else ""
                self.end(call_id, ok, printed or None)
        self.clear()

    def clear(self) -> None:
        """Forget all calls: the turn or the process is over, and the tracker closes what is open."""
        self.session.clear_timer("output")
        self.pending.clear()
        self._printed.clear()
        self._draft_id = self._command_id = ""

    # --- questions

    def read_question(self, message: Message, row: Row) -> None:
        """Ask a question when it is complete or didn't grow for a while."""
        if self.session.is_halted:
            return
        if message.partial:
            self._partial_question = (message, row)
            self.session.set_timer("question", QUESTION_GRACE_S)
            return
        self.drop_partial_question()
        selected = text_of(message.data(), "selected")
        if selected or message.is_answered:
            self.tracker.answer_question(message.ts, selected or None)
        elif not row.is_recorded or message.ts in self.tracker.gates:
            self._open_question(message, row)

    def ask_partial_question(self) -> None:
        """Ask the question that stopped growing."""
        if self._partial_question is not None:
            message, row = self._partial_question
            self._partial_question = None
            self._open_question(message, row)

    def drop_partial_question(self) -> None:
        """Stop waiting for the rest of a question: it is complete, or the agent gave it up."""
        if self._partial_question is not None:
            self._partial_question = None
            self.session.clear_timer("question")

    def _open_question(self, message: Message, row: Row) -> None:
        """Open a question. One that was asked before and has grown since replaces the gate that is open."""
        self.close_older_gates(message)
        row.is_recorded = True
        self.tracker.gates.pop(message.ts, None)
        data = message.data()
        text = text_of(data, "question", "response") or message.text
        self.tracker.open_question(message.ts or self.session.new_id(), text, _options_of(data))

    # --- gates

    def close_older_gates(self, message: Message) -> None:
        """Close what the agent asked before this message: it continues, so it has an answer from elsewhere."""
        self.drop_partial_question()
        for ref, gate in list(self.tracker.gates.items()):
            if not gate.path and ref.isdecimal() and len(ref) < 20 and int(ref) < message.time:
                self.tracker.close_gate(ref, "answered_elsewhere")

    def is_asking(self) -> bool:
        """Return whether the user is asked something now."""
        return bool(self.open_gate("approval") or self.open_gate("question"))

    def open_gate(self, kind: str) -> str:
        """Return the ref of the oldest open gate of this kind, or ''."""
        return next((ref for ref, gate in self.tracker.gates.items() if gate.kind == kind), "")


def _options_of(data: Object) -> tuple[Option, ...]:
    """Return the answers that a question offers: plain texts, or objects with one."""
    choices = list_of(data, "options") or list_of(data, "suggest")
    labels = [
        choice if isinstance(choice, str) else text_of(object_of(choice), "answer", "label", "text")
        for choice in choices
    ]
    return tuple(Option(id=label, label=label) for label in labels if label)
