"""Tool calls, keyed by tool_use_id, whichever source tells them first; and the lists of what is to do."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Json, Plan, Todo
from quarterdeck.harness.base import Object, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.agents import Agents
from quarterdeck.harness.todos import todos_in
from quarterdeck.harness.tracker import AgentPath

_OVER_KEPT = 256


class Calls(Agents):
    """Calls that are announced, run and end once, though several sources say so."""

    def __init__(self) -> None:
        #: what open calls were called with
        self.args: dict[str, Json] = {}
        #: calls that are over, so that a second source does not tell them again
        self.over: dict[str, None] = {}
        self.todos: dict[str, Todo] = {}
        Agents.__init__(self)

    def call_announced(self, call_id: str, name: str, args: Json, message_id: str, block: int, path: AgentPath) -> None:
        """The model wants this call; no arguments while they are still streamed."""
        if not call_id or call_id in self.over:
            return
        if not path:
            self.working()
        self.tracker.open_call(call_id, name, args, message_id, block, partial=args is None, path=path)
        if args is not None:
            self.args[call_id] = args

    def call_runs(self, call_id: str, name: str, args: Json, path: AgentPath) -> None:
        """The call runs."""
        if call_id in self.over:
            return
        if not path:
            self.working()
        self.args[call_id] = args
        if name in tables.AGENT_TOOLS:
            self.spawns(call_id, path)
        elif name == tables.PLAN_TOOL and text_of(object_of(args), "plan") and not self.is_running(call_id):
            plan = Plan(text=text_of(object_of(args), "plan"))
            self.tracker.emit(ev.PlanGenerated(plan=plan, turn_id=self.tracker.turn_id or None, agent_path=path))
        self.tracker.start_call(call_id, name, args, path)

    def changes_args(self, call_id: str, args: Object) -> None:
        """Whoever allowed a call may have changed what it is called with."""
        call = self.tracker.calls.get(call_id)
        if args and call is not None and call.name != tables.QUESTION_TOOL and args != self.args.get(call_id):
            self.args[call_id] = args
            self.tracker.open_call(call_id, call.name, args, path=call.path)

    def is_running(self, call_id: str) -> bool:
        call = self.tracker.calls.get(call_id)
        return call is not None and call.running

    def call_over(
        self, call_id: str, ok: bool, result: Json, name: str = "", path: AgentPath = (), response: Json = None
    ) -> None:
        """The call ended; `response` is what the tool itself gave back. A second end is not told."""
        if call_id in self.over:
            return
        args = self.args.pop(call_id, None)
        self.mark_over(call_id)
        if ok:
            if response is not None:
                self.launched(args, response)
            name_now = name or self.name_of(call_id)
            if name_now in tables.LISTING_TOOLS:
                self.todos_changed(name_now, args, response)
        self.tracker.end_call(call_id, ok, result, name, path)
        self.spawning.pop(call_id, None)

    def mark_over(self, call_id: str) -> None:
        self.over[call_id] = None
        if len(self.over) > _OVER_KEPT:
            del self.over[next(iter(self.over))]

    def name_of(self, call_id: str) -> str:
        call = self.tracker.calls.get(call_id)
        return call.name if call is not None else ""

    def close_work(self, ok: bool | None = None) -> None:
        for call_id, call in self.tracker.calls.items() if self.tracker.calls else ():
            if not call.path:
                self.mark_over(call_id)
        Agents.close_work(self, ok)

    # --- what is to do

    def todos_changed(self, name: str, args: Json, response: Json) -> None:
        """A list of its own, whole, or one line of it."""
        found = object_of(args)
        if name == tables.TODO_TOOL:
            self.told_todos({todo.id: todo for todo in todos_in(found.get("todos")) or ()})
        elif name == "TaskCreate":
            self.todo_is(text_of(object_of(response, "task"), "id"), text_of(found, "subject"))
        elif name == "TaskUpdate":
            self.todo_is(text_of(found, "taskId"), text_of(found, "subject"), text_of(found, "status"))

    def todo_is(self, todo_id: str, content: str = "", status: str = "") -> None:
        """One line of the list."""
        if not todo_id:
            return
        if status == "deleted":
            self.told_todos({name: todo for name, todo in self.todos.items() if name != todo_id})
            return
        known = self.todos.get(todo_id) or Todo(id=todo_id, content=todo_id)
        line = {"id": todo_id, "content": content or known.content, "status": status or known.status}
        self.told_todos({**self.todos, **{todo.id: todo for todo in todos_in([line]) or ()}})

    def told_todos(self, todos: dict[str, Todo]) -> None:
        if todos != self.todos:
            self.todos = todos
            self.tracker.emit(ev.TodoChange(todos=tuple(todos.values()), turn_id=self.tracker.turn_id or None))


def readable(response: Json) -> Json:
    """What a tool gave back, as a person would see it: a shell's output, else the thing itself."""
    found = object_of(response)
    out, err = found.get("stdout"), found.get("stderr")
    if isinstance(out, str):
        return "\n".join(part for part in (out, err) if isinstance(part, str) and part)
    return response
