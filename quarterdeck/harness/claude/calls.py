"""Track tool calls by their tool_use_id, whichever source reports them first, and the agent's todo list."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Json, Plan, Todo
from quarterdeck.harness.base import Object, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.claude.subagents import Subagents
from quarterdeck.harness.todos import todos_in
from quarterdeck.harness.tracker import AgentPath

#: How many ended calls are remembered, so that a second source doesn't report them again.
_ENDED_LIMIT = 256


class Calls:
    """The tool calls of one session. Each is opened, started and ended once."""

    def __init__(self, session: ClaudeSession, prompts: Prompts, subagents: Subagents) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.subagents = subagents
        #: Arguments of open calls.
        self.args: dict[str, Json] = {}
        self._ended: dict[str, None] = {}
        self._todos: dict[str, Todo] = {}
        self.reset()

    def reset(self) -> None:
        #: Calls whose approval or question was decided, so that another source doesn't ask again.
        self.decided: set[str] = set()

    def open(self, call_id: str, name: str, args: Json, message_id: str, block: int, path: AgentPath) -> None:
        """Record that the model wants a call. `args` is None while they are still streamed."""
        if not call_id or self.has_ended(call_id):
            return
        if not path:
            self.prompts.note_work()
        self.tracker.open_call(call_id, name, args, message_id, block, partial=args is None, path=path)
        if args is not None:
            self.args[call_id] = args

    def start(self, call_id: str, name: str, args: Json, path: AgentPath) -> None:
        """Record that a call runs."""
        if self.has_ended(call_id):
            return
        if not path:
            self.prompts.note_work()
        self.args[call_id] = args
        plan = text_of(object_of(args), "plan") if name == tables.PLAN_TOOL else ""
        if name in tables.AGENT_TOOLS:
            self.subagents.note_spawn(call_id, path)
        elif plan and not self._is_running(call_id):
            turn_id = self.tracker.turn_id or None
            self.tracker.emit(ev.PlanGenerated(plan=Plan(text=plan), turn_id=turn_id, agent_path=path))
        self.tracker.start_call(call_id, name, args, path)

    def change_args(self, call_id: str, args: Object) -> None:
        """Record arguments that were changed together with an approval."""
        call = self.tracker.calls.get(call_id)
        if args and call is not None and call.name != tables.QUESTION_TOOL and args != self.args.get(call_id):
            self.args[call_id] = args
            self.tracker.open_call(call_id, call.name, args, path=call.path)

    def end(
        self, call_id: str, ok: bool, result: Json, name: str = "", path: AgentPath = (), response: Json = None
    ) -> None:
        """Record the end of a call, unless it was recorded before.

        `result` is what the model reads, `response` the structured value that the tool returned.
        """
        # A second source may report the end of a question that the first one left open, so look at the gate first.
        self._close_question(call_id, ok, response)
        self.decided.discard(call_id)
        if self.has_ended(call_id):
            return
        args = self.args.pop(call_id, None)
        self.mark_ended(call_id)
        if ok:
            if response is not None:
                self.subagents.read_response(args, response)
            tool = name or self.name_of(call_id)
            if tool in tables.LISTING_TOOLS:
                self._read_todos(tool, args, response)
        self.tracker.end_call(call_id, ok, result, name, path)
        self.subagents.forget_spawn(call_id)

    def _close_question(self, call_id: str, ok: bool, response: Json) -> None:
        """Close the open question of a call that ended. Its response may contain the answers."""
        gate = self.tracker.gates.get(call_id)
        if gate is not None and gate.kind == "question":
            answers = object_of(response).get("answers")
            status = "answered" if ok and answers else "answered_elsewhere"
            self.tracker.answer_question(call_id, plain_answer(answers) if ok else None, status)

    def block(self, call_id: str, reason: str) -> None:
        """Record that a hook prevented a call from running, before a person was asked."""
        if call_id in self.tracker.calls:
            self.mark_ended(call_id)
            self.args.pop(call_id, None)
            self.tracker.block_call(call_id, reason)

    def end_running(self, ok: bool = True) -> None:
        """End the main agent's running calls, because it has moved on without reporting their ends."""
        for call_id, call in list(self.tracker.calls.items()):
            if call.running and not call.path:
                self.end(call_id, ok, result=None)

    def mark_main_ended(self) -> None:
        """Remember all calls of the main agent as ended, because its turn is over."""
        for call_id, call in self.tracker.calls.items():
            if not call.path:
                self.mark_ended(call_id)

    def mark_ended(self, call_id: str) -> None:
        self._ended[call_id] = None
        if len(self._ended) > _ENDED_LIMIT:
            del self._ended[next(iter(self._ended))]

    def has_ended(self, call_id: str) -> bool:
        return call_id in self._ended

    def name_of(self, call_id: str) -> str:
        call = self.tracker.calls.get(call_id)
        return call.name if call is not None else ""

    def _is_running(self, call_id: str) -> bool:
        call = self.tracker.calls.get(call_id)
        return call is not None and call.running

    def find(self, name: str, args: Json, path: AgentPath) -> str:
        """Return the open call that an approval without an id is about, or "".

        It has the same agent and tool, and preferably the same arguments. Calls that need a permission run one after the
        other, so among several it is the oldest that isn't decided.
        """
        same_tool = [call_id for call_id, call in self.tracker.calls.items() if call.path == path and call.name == name]
        same_args = [call_id for call_id in same_tool if args is not None and self.args.get(call_id) == args]
        candidates = same_args or same_tool
        undecided = [call_id for call_id in candidates if call_id not in self.decided]
        return (undecided or candidates or [""])[0]

    # --- the todo list

    def _read_todos(self, tool: str, args: Json, response: Json) -> None:
        """Apply a call that wrote the whole list or one item of it."""
        fields = object_of(args)
        if tool == tables.TODO_TOOL:
            self._set_todos({todo.id: todo for todo in todos_in(fields.get("todos")) or ()})
        elif tool == "TaskCreate":
            self.set_todo(text_of(object_of(response, "task"), "id"), text_of(fields, "subject"))
        elif tool == "TaskUpdate":
            self.set_todo(text_of(fields, "taskId"), text_of(fields, "subject"), text_of(fields, "status"))

    def set_todo(self, todo_id: str, content: str = "", status: str = "") -> None:
        """Add, change or delete one item of the list. Empty fields keep their value."""
        if not todo_id:
            return
        if status == "deleted":
            self._set_todos({item_id: todo for item_id, todo in self._todos.items() if item_id != todo_id})
            return
        known = self._todos.get(todo_id) or Todo(id=todo_id, content=todo_id)
        item = {"id": todo_id, "content": content or known.content, "status": status or known.status}
        self._set_todos({**self._todos, **{todo.id: todo for todo in todos_in([item]) or ()}})

    def _set_todos(self, todos: dict[str, Todo]) -> None:
        if todos != self._todos:
            self._todos = todos
            self.tracker.emit(ev.TodoChange(todos=tuple(todos.values()), turn_id=self.tracker.turn_id or None))


def readable(response: Json) -> Json:
    """Return a tool's response as a person would see it: a shell's output as text, anything else unchanged."""
    fields = object_of(response)
    out, err = fields.get("stdout"), fields.get("stderr")
    if isinstance(out, str):
        return "\n".join(part for part in (out, err) if isinstance(part, str) and part)
    return response


def plain_answer(answers: Json) -> Json:
    """Return the answers by question, or the answer itself if there was only one question."""
    fields = object_of(answers)
    if len(fields) == 1:
        return next(iter(fields.values()))
    return fields or None
