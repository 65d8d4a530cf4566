"""What a person is asked: approvals, questions and forms.

One approval may be asked at three places at once: by a PermissionRequest hook, by can_use_tool on the stream, and by the
terminal's own dialog; whoever answers first wins. So an approval is named after its call, however it comes, and is decided
once. The hook's payload has no tool_use_id: it is matched to the open call of the same agent, tool and arguments.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Json, Option, Question
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.calls import Calls
from quarterdeck.harness.tracker import AgentPath

Decision: TypeAlias = Literal["allow", "deny"]
_OPTIONS = (Option(id="allow", label="Allow", kind="allow_once"), Option(id="deny", label="Deny", kind="reject_once"))
#: An approval of which only the fact is known, from a notification or the session file.
VAGUE = "terminal-dialog"
_PENDING_KEPT = 64
#: How well a reply's delay must fit the moment of its hook.
_FIT_S = 0.5


class Pending(Struct):
    """A hook that may be answered. `ref` is the call, or the form, that it is about."""

    event: str
    at: float
    ref: str


class Asks(Calls):
    """Gates of Claude Code, opened and closed by whoever tells first."""

    def new_process(self) -> None:
        Calls.new_process(self)
        self.decided: dict[str, None] = {}
        #: approvals that wait for a can_use_tool answer, by request id
        self.requests: dict[str, str] = {}
        self.forms: dict[str, tuple[str, str]] = {}
        self.form_requests: dict[str, str] = {}
        self.pending: list[Pending] = []

    # --- approvals and questions

    def asks(
        self,
        call_id: str,
        tool: str,
        args: Json,
        path: AgentPath,
        suggestions: list[Any] | None = None,
        hint: str = "",
    ) -> None:
        """A person is asked about a call. What was decided already is not asked again."""
        if call_id in self.decided or call_id in self.over or call_id in self.tracker.gates:
            return
        if not path:
            self.working()
            self.unask_vague()
        if tool == tables.QUESTION_TOOL:
            self.asks_questions(call_id, args, path)
            return
        if call_id not in self.tracker.calls:
            self.tracker.open_call(call_id, tool, args, path=path)
            self.args[call_id] = args
        ask = "command" if tool in tables.SHELL_TOOLS else "mcp" if tool.startswith("mcp__") else "tool"
        options = (_OPTIONS[0], *suggested(suggestions or []), _OPTIONS[1])
        self.tracker.open_approval(call_id, tool, args, call_id, ask, hint=hint, options=options, path=path)

    def call_like(self, name: str, args: Json, path: AgentPath) -> str:
        """The open call that an ask without an id is about: same agent, same tool, best with the same arguments.

        Calls that need a permission run one after the other, so it is the oldest that nobody decided yet.
        """
        found = [call_id for call_id, call in self.tracker.calls.items() if call.path == path and call.name == name]
        same = [call_id for call_id in found if args is not None and self.args.get(call_id) == args] or found
        undecided = [call_id for call_id in same if call_id not in self.decided]
        return (undecided or same or [""])[0]

    def asks_questions(self, call_id: str, args: Json, path: AgentPath) -> None:
        """The model asks; the call waits for the answers."""
        questions = questions_in(args)
        first = questions[0] if questions else Question(text=tables.QUESTION_TOOL)
        self.call_runs(call_id, tables.QUESTION_TOOL, args, path)
        self.tracker.open_question(call_id, first.text, first.options, questions, call_id, path=path)

    def decides(self, call_id: str, decision: Decision, by: str, reason: str = "", answers: Json = None) -> None:
        """An approval or a question is decided. A refused call ends at once: it never ran."""
        gate = self.tracker.gates.get(call_id)
        if gate is None:
            return
        self.decided[call_id] = None
        if gate.kind == "question":
            self.answered(call_id, decision, by, answers)
        elif decision == "allow":
            self.tracker.approve_call(call_id, by)
        else:
            self.tracker.reject_call(call_id, by, reason=reason)
        if decision == "deny":
            self.call_over(call_id, ok=False, result=reason or "denied", path=gate.path)

    def answered(self, call_id: str, decision: Decision, by: str, answers: Json) -> None:
        """A question is answered, or refused."""
        if decision == "deny":
            self.tracker.answer_question(call_id, status="withdrawn", by=by)
        else:
            self.tracker.answer_question(call_id, answer_in(answers), by=by)

    def withdraws(self, call_id: str) -> None:
        """Nobody waits for this answer any more."""
        if call_id not in self.tracker.gates:
            return
        self.decided[call_id] = None
        self.tracker.close_gate(call_id, "withdrawn")

    def call_over(
        self, call_id: str, ok: bool, result: Json, name: str = "", path: AgentPath = (), response: Json = None
    ) -> None:
        """A call that ended waits for nobody: its question was answered somewhere, perhaps with these words."""
        gate = self.tracker.gates.get(call_id)
        if gate is not None and gate.kind == "question":
            answers = object_of(response).get("answers")
            status = "answered" if ok and answers else "answered_elsewhere"
            self.tracker.answer_question(call_id, answer_in(answers) if ok else None, status)
        self.decided.pop(call_id, None)
        Calls.call_over(self, call_id, ok, result, name, path, response)

    def moved_on(self, path: AgentPath) -> None:
        """An agent went on: whatever it asked was answered, here or in the terminal."""
        self.tracker.close_gates("answered_elsewhere", "approval", "question", path=path)

    def asks_vaguely(self, title: str) -> None:
        """Somebody says that a dialog is open, and nothing else is known of it: where a sub-agent asks, it is that one's."""
        if self.tracker.turn_id and not self.tracker.gates:
            running = [name for name, call in self.tracker.calls.items() if call.running and not call.path]
            call_id = running[-1] if running else ""
            tool = self.name_of(call_id)
            self.tracker.open_approval(VAGUE, tool, self.args.get(call_id), call_id, title=title)

    def unask_vague(self) -> None:
        """The dialog is known by its name now, or gone."""
        if self.tracker.gates:
            self.tracker.resolve_approval(VAGUE, "answered_elsewhere")

    def allowed_always(self, tool: str, permissions: list[Any]) -> None:
        """Rules that came with an answer."""
        for one in permissions:
            found = object_of(one)
            if text_of(found, "type") == "addRules" and text_of(found, "behavior") == "allow":
                scope = tables.SCOPES.get(text_of(found, "destination"), "session")
                self.tracker.emit(ev.ToolApprovedAlways(tool=tool, scope=scope, rule=rules_of(found)))

    # --- forms of MCP servers

    def form_opens(self, found: Object, request_id: str = "") -> str:
        """A server wants something of a person. The hook and the stream tell the same form; its name is the first one."""
        key = (text_of(found, "mcp_server_name"), text_of(found, "message"))
        for ref, known in self.forms.items():
            if known == key and ref in self.tracker.gates:
                return ref
        ref = request_id or self.named("form")
        self.forms[ref] = key
        method, options = shape_of(object_of(found, "requested_schema"), text_of(found, "mode"))
        self.tracker.open_dialog(ref, method, title=key[0], message=key[1] or text_of(found, "url"), options=options)
        return ref

    def form_closes(self, ref: str, action: str, content: Json) -> None:
        """The form was filled in, or not."""
        self.forms.pop(ref, None)
        self.tracker.close_dialog(ref, content, "answered" if action == "accept" else "cancelled")

    def forms_gone(self) -> None:
        """The call that wanted a form is over."""
        for ref in list(self.forms):
            self.forms.pop(ref)
            self.tracker.close_dialog(ref, status="answered_elsewhere")

    # --- hooks that we may answer

    def awaits(self, event: str, ref: str) -> None:
        """A hook waits for our answer."""
        self.pending.append(Pending(event, self.now, ref))
        if len(self.pending) > _PENDING_KEPT:
            del self.pending[0]

    def awaited(self, event: str, found: Object) -> str:
        """What an answer of ours is about: by its name, by the time that it took, else the oldest that is still open."""
        ref = text_of(found, "tool_use_id", "ref")
        mine = [one for one in self.pending if one.event == event]
        if ref or not mine:
            return ref
        after = found.get("after_s")
        if isinstance(after, int | float) and not isinstance(after, bool):
            best = min(mine, key=lambda one: abs(self.now - after - one.at))
            chosen = best if abs(self.now - after - best.at) <= _FIT_S else None
        else:
            chosen = next((one for one in mine if one.ref in self.tracker.gates), mine[-1])
        if chosen is None:
            return ""
        self.pending.remove(chosen)
        return chosen.ref


def questions_in(args: Json) -> tuple[Question, ...]:
    """The questions of an AskUserQuestion call."""
    found = (object_of(one) for one in list_of(object_of(args), "questions"))
    return tuple(
        Question(
            text=text_of(one, "question", "header"),
            options=tuple(choice(option) for option in list_of(one, "options")),
            multiple=one.get("multiSelect") is True,
            header=text_of(one, "header"),
        )
        for one in found
        if text_of(one, "question", "header")
    )


def choice(option: Any) -> Option:
    """An answer is given by its label, so the label is its name."""
    found = object_of(option)
    label = text_of(found, "label") or (option if isinstance(option, str) else "")
    return Option(id=label, label=text_of(found, "description") or label)


def answer_in(answers: Json) -> Json:
    """The answers by question; one alone needs no question beside it."""
    found = object_of(answers)
    if len(found) == 1:
        return next(iter(found.values()))
    return found or None


def suggested(suggestions: list[Any]) -> tuple[Option, ...]:
    """The wider permissions that Claude Code offers beside yes and no."""
    found = ((place, object_of(one)) for place, one in enumerate(suggestions))
    return tuple(
        Option(id=f"suggestion:{place}", label=label, kind="allow_always")
        for place, one in found
        if (label := _label(one))
    )


def _label(suggestion: Object) -> str:
    kind = text_of(suggestion, "type")
    if kind == "addRules":
        return f"Always allow {rules_of(suggestion)}"
    if kind == "setMode":
        return f"Allow, and switch to {tables.MODES.get(text_of(suggestion, 'mode'), text_of(suggestion, 'mode'))}"
    directories = [one for one in list_of(suggestion, "directories") if isinstance(one, str)]
    return f"Allow, and add {', '.join(directories)}" if kind == "addDirectories" and directories else ""


def rules_of(suggestion: Object) -> str:
    """Rules as they are written in its settings: Tool(pattern)."""
    found = (object_of(one) for one in list_of(suggestion, "rules"))
    return ", ".join(
        f"{text_of(one, 'toolName')}({text_of(one, 'ruleContent')})"
        if text_of(one, "ruleContent")
        else text_of(one, "toolName")
        for one in found
    )


def shape_of(schema: Object, mode: str) -> tuple[Literal["select", "confirm", "input", "editor"], tuple[Option, ...]]:
    """How a form is shown: one field that is yes or no, or a choice, has a shape of its own."""
    fields = [object_of(one) for one in object_of(schema, "properties").values()]
    if mode == "url":
        return "confirm", ()
    if len(fields) == 1 and text_of(fields[0], "type") == "boolean":
        return "confirm", ()
    choices = [one for one in list_of(fields[0], "enum") if isinstance(one, str)] if len(fields) == 1 else []
    if choices:
        return "select", tuple(Option(id=one, label=one) for one in choices)
    return "input", ()
