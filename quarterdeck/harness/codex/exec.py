"""`codex exec --json`: one turn a process, whole items without deltas, and no ids that outlive the process.

It never asks anybody. It says nothing of the prompt (a hook or telemetry does, where there is one), and nothing at all
when it is interrupted: then the process just leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Block, Plan
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.app import retry_in
from quarterdeck.harness.codex.session import NOTHING, Counts, Desk, counts_in, difference, remember
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.todos import todos_in
from quarterdeck.kernel.view import View

_Reader: TypeAlias = Callable[["Exec", str, Object], None]
_RETRY = "Reconnecting"


class Exec:
    """One reader for each type of line, and for each type of item."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tracker = desk.tracker
        self._process = 0
        self._resumes = False
        #: running sums of tokens by thread; None when the sum began before we looked
        self._totals: dict[str, Counts | None] = {}
        self._request_due = False

    def restore(self, view: View) -> None:
        """Ids go on from where they are, and the sum of tokens too: on resume it counts the whole thread."""
        self._process = view.index
        used = view.state.usage.total
        whole = used.input + used.cache_read + used.cache_write
        thread = view.state.profile.native_session_id
        self._totals[thread] = (whole, used.cache_read, used.cache_write, used.output)

    def started(self, data: Object) -> None:
        """Another process; `codex exec resume` goes on with a thread that has used tokens already."""
        self._process += 1
        self._resumes = "resume" in list_of(data, "argv")

    def read(self, found: Object) -> bool:
        reader = _LINES.get(text_of(found, "type"))
        return reader is not None and reader(self, found) is not False

    def _name(self, item_id: str) -> str:
        """`item_3` comes again in the next process."""
        return f"exec-{self._process}:{item_id}"

    # --- lines

    def thread_started(self, found: Object) -> None:
        thread = text_of(found, "thread_id")
        if thread not in self._totals:
            remember(self._totals, thread, None if self._resumes else NOTHING)
        self.desk.bind(thread)

    def turn_started(self, _found: Object) -> None:
        self.tracker.start_turn()
        self.tracker.start_request(self.desk.model)
        self._request_due = False

    def turn_completed(self, found: Object) -> None:
        total = counts_in(object_of(found, "usage"))
        before = self._totals.get(self.desk.own, NOTHING)
        self._totals[self.desk.own] = total
        if before is not None:
            self.desk.count(difference(total, before) or total)
        self.tracker.end_turn()

    def turn_failed(self, found: Object) -> None:
        message = text_of(object_of(found, "error"), "message")
        self.tracker.fail_turn(failure_kind(message), message)

    def error(self, found: Object) -> None:
        """A broken request that is tried again; the last one is told by turn.failed, which follows."""
        message = text_of(found, "message")
        if message.startswith(_RETRY):
            attempt, reason = retry_in(message)
            self.tracker.emit(ev.Retry(attempt=attempt, reason=reason, turn_id=self.tracker.turn_id or None))

    def plan_delta(self, found: Object) -> None:
        name, delta = text_of(found, "item_id"), text_of(found, "delta")
        if name:
            self.tracker.add_text(self._name(name), 0, delta)

    # --- items

    def item_started(self, found: Object) -> bool:
        item = object_of(found, "item")
        name, shape = text_of(item, "id"), names.CALLS.get(text_of(item, "type"))
        if shape is None:
            return self.item_updated(found)
        self.desk.start_call(self._name(name), names.call_name(item, shape), names.call_args(item, shape))
        return True

    def item_updated(self, found: Object) -> bool:
        """What is not a call is told when it is whole, but for the list of what is to do."""
        item = object_of(found, "item")
        kind, shape = text_of(item, "type"), names.CALLS.get(text_of(item, "type"))
        if kind == "todo_list":
            self.todo_list("", item)
        elif shape is not None:
            output = names.call_result(item, shape)
            self.tracker.update_output(self._name(text_of(item, "id")), output if isinstance(output, str) else "")
        return shape is not None or kind in _ITEMS

    def item_completed(self, found: Object) -> bool:
        item = object_of(found, "item")
        kind = text_of(item, "type")
        name, shape = self._name(text_of(item, "id")), names.CALLS.get(kind)
        if shape is not None:
            self._call_completed(name, item, shape)
            return True
        reader = _ITEMS.get(kind)
        if reader is not None:
            reader(self, name, item)
        return reader is not None

    def _call_completed(self, name: str, item: Object, shape: names.Shape) -> None:
        tool = names.call_name(item, shape)
        self._request_due = True
        if text_of(item, "status") == names.DECLINED:
            self.desk.block_call(name, tool, names.DECLINED)
            return
        if name not in self.tracker.calls and self.tracker.turn_id:
            self.desk.start_call(name, tool, names.call_args(item, shape))
        self.desk.end_call(name, tool, names.call_ok(item), names.call_result(item, shape))

    def _speaks(self) -> None:
        """Words after calls: the model was asked again."""
        if self._request_due and self.tracker.turn_id:
            self._request_due = False
            self.tracker.start_request(self.desk.model)

    def message(self, name: str, item: Object) -> None:
        self._speaks()
        text = text_of(item, "text")
        if self.tracker.turn_id:
            self.tracker.add_text(name, 0, text)
        self.tracker.finish_message(name, (Block(text=text),))

    def reasoning(self, name: str, item: Object) -> None:
        self._speaks()
        text = text_of(item, "text")
        if self.tracker.turn_id:
            self.tracker.add_thinking(name, 0, text)
        self.tracker.finish_message(name, (Block(kind="thinking", text=text),))

    def plan(self, name: str, item: Object) -> None:
        self.message(name, item)
        self.tracker.emit(ev.PlanGenerated(plan=Plan(text=text_of(item, "text"))))

    def todo_list(self, _name: str, item: Object) -> None:
        lines = [object_of(one) for one in list_of(item, "items")]
        found = [
            {"text": text_of(one, "text"), "status": "done" if one.get("completed") is True else ""} for one in lines
        ]
        self.tracker.emit(ev.TodoChange(todos=todos_in(found) or (), turn_id=self.tracker.turn_id or None))

    def warning(self, _name: str, item: Object) -> None:
        """An error that stops nothing."""
        self.desk.notice_once(text_of(item, "message"))


#: Lines by their type.
_LINES: dict[str, Callable[[Exec, Object], bool | None]] = {
    "thread.started": Exec.thread_started,
    "turn.started": Exec.turn_started,
    "turn.completed": Exec.turn_completed,
    "turn.failed": Exec.turn_failed,
    "item.started": Exec.item_started,
    "item.updated": Exec.item_updated,
    "item.completed": Exec.item_completed,
    "item.plan.delta": Exec.plan_delta,
    "error": Exec.error,
}


#: Items by their type.
_ITEMS: dict[str, _Reader] = {
    "agent_message": Exec.message,
    "reasoning": Exec.reasoning,
    "plan": Exec.plan,
    "todo_list": Exec.todo_list,
    "error": Exec.warning,
}
