"""Calls, and what a person is asked about them.

A call is one row or two: `ask:tool` while it is streamed may become `say:tool` under another time when it needs no
yes. An ask that is partial is not a question yet. How a call ended nobody says to us: the next request tells it to the
model, and that is where it is read.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from quarterdeck import events as ev
from quarterdeck.events import Option
from quarterdeck.harness.base import Object, list_of, text_of
from quarterdeck.harness.sayask.message import Message, Result, call_args, call_name
from quarterdeck.harness.sayask.rows import Row, Rows
from quarterdeck.harness.todos import todos_in

#: A question that is still partial and did not grow for so long is whole: some agents never send the whole one.
QUESTION_GRACE_S = 5.0
#: Output may come a moment after the word that the command is over.
OUTPUT_GRACE_S = 0.5

_ASKS: dict[str, Literal["tool", "command", "browser", "mcp"]] = {
    "command": "command",
    "browser_action_launch": "browser",
    "use_mcp_server": "mcp",
}


class Calls(Rows):
    """Calls by id, with the gate that each waits on."""

    def __init__(self) -> None:
        Rows.__init__(self)
        #: Calls whose end nobody told, in the order of their beginning.
        self.pending: list[str] = []
        #: The call that is still being streamed.
        self.draft = ""
        #: The call that output belongs to, and what it printed so far.
        self.command = ""
        self.printed: list[str] = []
        #: The question that is still being streamed.
        self.asking: tuple[Message, Row] | None = None

    # --- what is called

    def ask_call(self, message: Message, row: Row) -> None:
        """A call that a person must allow, once it is whole."""
        data = message.data()
        self._call(message, row, data)
        if message.partial or self.halted or not row.call:
            return
        if message.answered:
            self.allow(row.call)
        elif not row.told:
            row.told = True
            self._ask(message, row, data)
        if message.raw.get("commandCompleted") is True:
            self.set_timer("output", OUTPUT_GRACE_S)

    def say_call(self, message: Message, row: Row) -> None:
        """A call that needs no yes: it runs."""
        self._call(message, row, message.data())
        if not message.partial and row.call and not self.halted:
            self.tracker.start_call(row.call)

    def _call(self, message: Message, row: Row, data: Object) -> None:
        """Announces the call of this row, in pieces or whole."""
        if self.halted:
            return
        self._todos(data)
        if not row.call:
            self.moved_on(message)
            row.call = self.draft or f"call-{message.ts or self.new_name()}"
            if row.call not in self.pending:
                self.pending.append(row.call)
        elif message.partial or not row.partial:
            return
        self._announce(message, row, data)

    def _announce(self, message: Message, row: Row, data: Object) -> None:
        args = call_args(message, data)
        self.tracker.open_call(row.call, call_name(message, data), args, message.ts, partial=message.partial)
        self.draft = row.call if message.partial else ""
        if message.what == "command":
            self.command, self.printed = row.call, []

    def _ask(self, message: Message, row: Row, data: Object) -> None:
        self.moved_on(message)
        name = call_name(message, data)
        args = call_args(message, data)
        target = text_of(cast(Object, args), "command", "path", "uri", "text") if isinstance(args, dict) else ""
        self.tracker.open_approval(
            message.ts or row.call,
            name,
            args,
            row.call,
            _ASKS.get(message.what, "tool"),
            title=f"{name}: {target}" if target else name,
        )

    def _todos(self, data: Object) -> None:
        if "todos" in data and (todos := todos_in(data["todos"])) is not None:
            self.tracker.emit(ev.TodoChange(todos=todos))

    def say_task_progress(self, message: Message, row: Row) -> None:
        del row
        todos = todos_in(message.text)
        if todos is not None and not message.partial:
            self.tracker.emit(ev.TodoChange(todos=todos))

    # --- how it goes

    def command_output(self, message: Message, row: Row) -> None:
        """Never a question, though some agents call it an ask. Each row adds to what the command printed."""
        call = row.call = row.call or self.command
        open_call = self.tracker.calls.get(call)
        if not call or open_call is None:
            return
        if self.tracker.gates or not open_call.running:
            self.allow(call)
        data = message.data()
        # a command may print JSON of its own: only a report on an execution is to be looked into
        text = text_of(data, "output", "text") if "executionId" in data else message.text
        fresh = text[len(row.said) :] if text.startswith(row.said) else ""
        if fresh and not row.said and self.printed and not self.printed[-1].endswith("\n"):
            fresh = "\n" + fresh
        row.said = text
        if fresh:
            self.printed.append(fresh)
            self.tracker.add_output(call, fresh)

    def on_output(self) -> None:
        """The command is over, and nothing more was printed."""
        self.end_pending(self.command, True, "".join(self.printed) or None)

    def say_done(self, message: Message, row: Row) -> None:
        """The answer of a server or of a browser."""
        if row.partial and not message.partial and self.pending:
            self.end_pending(self.pending[-1], True, message.text or None)

    def say_runs(self, message: Message, row: Row) -> None:
        """A request to a server went out: whoever was asked said yes."""
        del message, row
        if self.pending:
            self.allow(self.pending[-1])

    def say_call_error(self, message: Message, row: Row) -> None:
        """The call did not work; without a call it is a line for people."""
        if message.partial or not row.partial or not message.text:
            return
        if self.pending:
            self.end_pending(self.pending[-1], False, message.text)
        else:
            self.tracker.add_notice(message.text, "error")

    def allow(self, call: str, by: str = "") -> None:
        """The call runs, so it was allowed."""
        self.tracker.approve_call(self.gate_of(call), by)
        self.tracker.start_call(call)

    def refuse(self, call: str, by: str = "", reason: str = "") -> None:
        """The call will not run. Nobody will tell its end, so it is told here."""
        self.tracker.reject_call(self.gate_of(call), by, reason=reason)
        if call in self.pending:
            self.pending.remove(call)
            self.tracker.block_call(call, reason or "denied")

    def gate_of(self, call: str) -> str:
        """The open gate of a call; '' when there is none."""
        for ref, gate in self.tracker.gates.items():
            if gate.call_id == call and gate.kind == "approval":
                return ref
        return ""

    def end_pending(self, call: str, ok: bool, result: str | None) -> None:
        """The call ended; an open approval of it was given."""
        if call not in self.pending:
            return
        self.pending.remove(call)
        if call == self.draft:
            self.draft = ""
        self.tracker.approve_call(self.gate_of(call))
        self.tracker.end_call(call, ok, result)

    def settle_calls(self, results: list[Result], ok: bool = True) -> None:
        """No call of the past goes on: each ended as the request says, or as `ok` when it says nothing."""
        if self.pending:
            self._end_all(results, ok)
        self.calls_over()

    def _end_all(self, results: list[Result], ok: bool) -> None:
        known: list[Result | None] = [None] * (len(self.pending) - len(results)) + list(results[-len(self.pending) :])
        for call, result in zip(list(self.pending), known, strict=False):
            if result is not None and result.denied:
                self.refuse(call, reason=result.text)
            elif result is None and call == self.draft:
                self.refuse(call, reason="not run")
            else:
                text = result.text if result is not None else "".join(self.printed) if call == self.command else ""
                self.end_pending(call, ok if result is None else result.ok, text or None)

    def calls_over(self) -> None:
        """Nothing is called any more."""
        if self.timers:
            self.clear_timer("output")
        self.pending.clear()
        self.printed.clear()
        self.draft = self.command = ""

    # --- what is asked

    def ask_question(self, message: Message, row: Row) -> None:
        """A question, once it is whole or has not grown for a while."""
        if self.halted:
            return
        data = message.data()
        if message.partial:
            self.asking = (message, row)
            self.set_timer("question", QUESTION_GRACE_S)
            return
        self._whole_question()
        chosen = text_of(data, "selected")
        if chosen or message.answered:
            self.tracker.answer_question(message.ts, chosen or None)
        elif not row.told or message.ts in self.tracker.gates:
            self._question(message, row, data)

    def on_question(self) -> None:
        if self.asking is not None:
            message, row = self.asking
            self.asking = None
            self._question(message, row, message.data())

    def _whole_question(self) -> None:
        """What was being asked is whole, or given up; only then is there a timer for it."""
        if self.asking is not None:
            self.asking = None
            self.clear_timer("question")

    def _question(self, message: Message, row: Row, data: Object) -> None:
        """Asked again because there is more of it, it takes the place of what was asked."""
        self.moved_on(message)
        row.told = True
        self.tracker.gates.pop(message.ts, None)
        text = text_of(data, "question", "response") or message.text
        self.tracker.open_question(message.ts or self.new_name(), text, options_of(data))

    def moved_on(self, message: Message) -> None:
        """The agent says something new: what it asked before is answered, whoever answered it."""
        if self.asking is not None:
            self._whole_question()
        for ref, gate in list(self.tracker.gates.items()) if self.tracker.gates else ():
            if not gate.path and ref.isdecimal() and len(ref) < 20 and int(ref) < message.age:
                self.tracker.close_gate(ref, "answered_elsewhere")

    def is_asking(self) -> bool:
        """Whether a person is asked something now."""
        return bool(self.tracker.gates) and bool(self.open_gate("approval") or self.open_gate("question"))

    def open_gate(self, kind: str) -> str:
        """The oldest open gate of this kind; '' when there is none."""
        for ref, gate in self.tracker.gates.items():
            if gate.kind == kind:
                return ref
        return ""


def options_of(data: Object) -> tuple[Option, ...]:
    """The answers that a question offers: plain texts, or objects with one."""
    found: list[Any] = list_of(data, "options") or list_of(data, "suggest")
    labels = [one if isinstance(one, str) else _label(one) for one in found]
    return tuple(Option(id=label, label=label) for label in labels if label)


def _label(one: Any) -> str:
    return text_of(cast(Object, one), "answer", "label", "text") if isinstance(one, dict) else ""
