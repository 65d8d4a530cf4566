"""Read `codex exec --json`: one turn per process, complete items without deltas, and ids that only this process knows.

It never asks the user. It doesn't report the prompt (a hook or telemetry does, if there is one), and it reports nothing
when it is interrupted: the process just exits.
"""

from __future__ import annotations

from collections.abc import Callable

from quarterdeck import events as ev
from quarterdeck.events import Block, Plan
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.session import NO_TOKENS, CodexSession, Counts, counts_added, counts_in, remember
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.todos import todos_in
from quarterdeck.kernel.view import View

_RETRY_PREFIX = "Reconnecting"


class Exec:
    """Reads the lines, with one reader for each type of line and of item."""

    def __init__(self, session: CodexSession) -> None:
        self.session = session
        self.tracker = session.tracker
        #: Number of the process, which is part of the ids.
        self._process = 0
        self._is_resume = False
        #: Running totals of tokens by thread; None if the total began before we started to read.
        self._totals: dict[str, Counts | None] = {}
        #: A call ended, so the next text answers another request.
        self._request_due = False
        self._line_readers: dict[str, Callable[[Object], object]] = {
            "thread.started": self._read_thread_started,
            "turn.started": self._read_turn_started,
            "turn.completed": self._read_turn_completed,
            "turn.failed": self._read_turn_failed,
            "item.started": self._start_item,
            "item.updated": self._update_item,
            "item.completed": self._complete_item,
            "item.plan.delta": self._read_plan_delta,
            "error": self._read_error,
        }
        self._item_readers: dict[str, Callable[[str, Object], None]] = {
            "agent_message": self._read_message,
            "reasoning": self._read_reasoning,
            "plan": self._read_plan,
            "todo_list": self._read_todos,
            "error": self._read_warning,
        }

    def restore(self, view: View) -> None:
        """Continue ids and the total of tokens, which counts the whole thread when it is resumed."""
        self._process = view.index
        used = view.state.usage.total
        whole_input = used.input + used.cache_read + used.cache_write
        thread_id = view.state.profile.native_session_id
        self._totals[thread_id] = (whole_input, used.cache_read, used.cache_write, used.output)

    def start_process(self, fields: Object) -> None:
        """Note a new process. `codex exec resume` continues a thread that has used tokens already."""
        self._process += 1
        self._is_resume = "resume" in list_of(fields, "argv")

    def read(self, line: Object) -> bool:
        reader = self._line_readers.get(text_of(line, "type"))
        # Only the readers of items return False, for a type of item that they don't know.
        return reader is not None and reader(line) is not False

    def _item_id(self, item: Object) -> str:
        """Return an id that is unique in the session: `item_3` comes again in the next process."""
        return f"exec-{self._process}:{text_of(item, 'id')}"

    # --- lines

    def _read_thread_started(self, line: Object) -> None:
        thread_id = text_of(line, "thread_id")
        if thread_id not in self._totals:
            remember(self._totals, thread_id, None if self._is_resume else NO_TOKENS)
        self.session.bind(thread_id)

    def _read_turn_started(self, _line: Object) -> None:
        self.tracker.start_turn()
        self.tracker.start_request(self.session.model)
        self._request_due = False

    def _read_turn_completed(self, line: Object) -> None:
        total = counts_in(object_of(line, "usage"))
        before = self._totals.get(self.session.thread_id, NO_TOKENS)
        self._totals[self.session.thread_id] = total
        if before is not None:
            self.session.record_usage(counts_added(total, before) or total)
        self.tracker.end_turn()

    def _read_turn_failed(self, line: Object) -> None:
        message = text_of(object_of(line, "error"), "message")
        self.tracker.fail_turn(failure_kind(message), message)

    def _read_error(self, line: Object) -> None:
        """Record the retry of a failed request. The last failure is reported by the `turn.failed` that follows."""
        message = text_of(line, "message")
        if message.startswith(_RETRY_PREFIX):
            attempt, reason = names.retry_in(message)
            self.tracker.emit(ev.Retry(attempt=attempt, reason=reason, turn_id=self.tracker.turn_id or None))

    def _read_plan_delta(self, line: Object) -> None:
        item_id, delta = text_of(line, "item_id"), text_of(line, "delta")
        if item_id:
            self.tracker.add_text(self._item_id({"id": item_id}), 0, delta)

    # --- items

    def _start_item(self, line: Object) -> bool:
        item = object_of(line, "item")
        shape = names.CALLS.get(text_of(item, "type"))
        if shape is None:
            return self._update_item(line)
        self.session.start_call(self._item_id(item), names.call_name(item, shape), names.call_args(item, shape))
        return True

    def _update_item(self, line: Object) -> bool:
        """Read an update of a call or of the todo list. Other items are recorded when they are complete."""
        item = object_of(line, "item")
        kind = text_of(item, "type")
        shape = names.CALLS.get(kind)
        if kind == "todo_list":
            self._read_todos("", item)
        elif shape is not None:
            output = names.call_result(item, shape)
            self.tracker.update_output(self._item_id(item), output if isinstance(output, str) else "")
        return shape is not None or kind in self._item_readers

    def _complete_item(self, line: Object) -> bool:
        item = object_of(line, "item")
        kind = text_of(item, "type")
        shape = names.CALLS.get(kind)
        if shape is not None:
            self._complete_call(item, shape)
            return True
        reader = self._item_readers.get(kind)
        if reader is not None:
            reader(self._item_id(item), item)
        return reader is not None

    def _complete_call(self, item: Object, shape: names.Shape) -> None:
        call_id, tool = self._item_id(item), names.call_name(item, shape)
        self._request_due = True
        if text_of(item, "status") == names.DECLINED:
            self.session.block_call(call_id, tool, names.DECLINED)
            return
        if call_id not in self.tracker.calls and self.tracker.turn_id:
            self.session.start_call(call_id, tool, names.call_args(item, shape))
        self.session.end_call(call_id, tool, names.call_ok(item), names.call_result(item, shape))

    def _note_reply(self) -> None:
        """Note that the model speaks. After calls that means that it was asked again."""
        if self._request_due and self.tracker.turn_id:
            self._request_due = False
            self.tracker.start_request(self.session.model)

    def _read_message(self, item_id: str, item: Object) -> None:
        self._note_reply()
        text = text_of(item, "text")
        if self.tracker.turn_id:
            self.tracker.add_text(item_id, 0, text)
        self.tracker.finish_message(item_id, (Block(text=text),))

    def _read_reasoning(self, item_id: str, item: Object) -> None:
        self._note_reply()
        text = text_of(item, "text")
        if self.tracker.turn_id:
            self.tracker.add_thinking(item_id, 0, text)
        self.tracker.finish_message(item_id, (Block(kind="thinking", text=text),))

    def _read_plan(self, item_id: str, item: Object) -> None:
        self._read_message(item_id, item)
        self.tracker.emit(ev.PlanGenerated(plan=Plan(text=text_of(item, "text"))))

    def _read_todos(self, _item_id: str, item: Object) -> None:
        entries = [object_of(entry) for entry in list_of(item, "items")]
        todos = [
            {"text": text_of(entry, "text"), "status": "done" if entry.get("completed") is True else ""}
            for entry in entries
        ]
        self.tracker.emit(ev.TodoChange(todos=todos_in(todos) or (), turn_id=self.tracker.turn_id or None))

    def _read_warning(self, _item_id: str, item: Object) -> None:
        """Show an error that stops nothing."""
        self.session.add_notice_once(text_of(item, "message"))
