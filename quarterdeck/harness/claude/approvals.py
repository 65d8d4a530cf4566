"""Track what Claude Code asks a person: approvals, questions and forms.

One approval may be asked in three places at once: by a PermissionRequest hook, by can_use_tool on the stream, and by the
terminal's own dialog. The first answer wins. So an approval is identified by its call, whichever way it arrives, and
is decided once. The hook's payload has no tool_use_id: `Calls.find` matches it to an open call.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Json, Option, Question
from quarterdeck.harness.base import Object, list_of, object_of, objects_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.calls import Calls, plain_answer
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.tracker import AgentPath

Verdict: TypeAlias = Literal["allow", "deny"]

_ALLOW = Option(id="allow", label="Allow", kind="allow_once")
_DENY = Option(id="deny", label="Deny", kind="reject_once")
#: Reference of a dialog in the terminal of which nothing but its existence is known.
TERMINAL_DIALOG = "terminal-dialog"


class Approvals:
    """The gates of one session, opened and closed by the source that reports first."""

    def __init__(self, session: ClaudeSession, prompts: Prompts, calls: Calls) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.calls = calls
        self.reset()

    def reset(self) -> None:
        #: can_use_tool requests that wait for our answer → the call.
        self.requests: dict[str, str] = {}
        #: elicitation requests that wait for our answer → the form.
        self.form_requests: dict[str, str] = {}
        #: Open forms → (MCP server, message).
        self._forms: dict[str, tuple[str, str]] = {}

    # --- approvals and questions

    def open(
        self,
        call_id: str,
        tool: str,
        args: Json,
        path: AgentPath,
        suggestions: list[Any] | None = None,
        hint: str = "",
    ) -> None:
        """Record that a person is asked about a call, unless that was asked or decided before."""
        if call_id in self.calls.decided or self.calls.has_ended(call_id) or call_id in self.tracker.gates:
            return
        if not path:
            self.prompts.note_work()
            self.close_terminal_dialog()
        if tool == tables.QUESTION_TOOL:
            self._open_question(call_id, args, path)
            return
        if call_id not in self.tracker.calls:
            self.tracker.open_call(call_id, tool, args, path=path)
            self.calls.args[call_id] = args
        ask = "command" if tool in tables.SHELL_TOOLS else "mcp" if tool.startswith("mcp__") else "tool"
        options = (_ALLOW, *_suggested_options(suggestions or []), _DENY)
        self.tracker.open_approval(call_id, tool, args, call_id, ask, hint=hint, options=options, path=path)

    def _open_question(self, call_id: str, args: Json, path: AgentPath) -> None:
        """Record the model's questions. Their call runs and waits for the answers."""
        questions = _questions_in(args)
        first = questions[0] if questions else Question(text=tables.QUESTION_TOOL)
        self.calls.start(call_id, tables.QUESTION_TOOL, args, path)
        self.tracker.open_question(call_id, first.text, first.options, questions, call_id, path=path)

    def apply_decision(self, call_id: str, decision: Object) -> None:
        """Apply `{behavior: allow | deny, …}`, which hooks and can_use_tool share. Anything else decides nothing."""
        behavior = text_of(decision, "behavior")
        if behavior == "allow":
            tool = self.calls.name_of(call_id)
            was_open = call_id in self.tracker.gates
            updated = object_of(decision, "updatedInput")
            self.decide(call_id, "allow", "user", answers=updated.get("answers"))
            if was_open:
                self._record_rules(tool, list_of(decision, "updatedPermissions"))
                self.calls.change_args(call_id, updated)
        elif behavior == "deny":
            self.decide(call_id, "deny", "user", text_of(decision, "message"))

    def decide(self, call_id: str, verdict: Verdict, by: str, reason: str = "", answers: Json = None) -> None:
        """Record the decision on an approval or a question. A denied call ends at once: it never ran."""
        gate = self.tracker.gates.get(call_id)
        if gate is None:
            return
        self.calls.decided.add(call_id)
        if gate.kind == "question" and verdict == "deny":
            self.tracker.answer_question(call_id, status="withdrawn", by=by)
        elif gate.kind == "question":
            self.tracker.answer_question(call_id, plain_answer(answers), by=by)
        elif verdict == "allow":
            self.tracker.approve_call(call_id, by)
        else:
            self.tracker.reject_call(call_id, by, reason=reason)
        if verdict == "deny":
            self.calls.end(call_id, ok=False, result=reason or "denied", path=gate.path)

    def withdraw(self, ref: str) -> None:
        """Close a gate whose answer Claude Code no longer waits for."""
        if ref in self.tracker.gates:
            self.calls.decided.add(ref)
            self.tracker.close_gate(ref, "withdrawn")

    def block(self, call_id: str, reason: str) -> None:
        """Record that a hook refused a call before a person was asked."""
        self.withdraw(call_id)
        self.calls.block(call_id, reason)

    def close_answered_elsewhere(self, path: AgentPath) -> None:
        """Close the gates of an agent that went on: they were answered here or in the terminal."""
        self.tracker.close_gates("answered_elsewhere", "approval", "question", path=path)

    def open_terminal_dialog(self, title: str) -> None:
        """Record a dialog in the terminal that has no hook. If a gate is open, it is that one's dialog."""
        if self.session.turn_is_open and not self.tracker.gates:
            running = [call_id for call_id, call in self.tracker.calls.items() if call.running and not call.path]
            call_id = running[-1] if running else ""
            tool = self.calls.name_of(call_id)
            self.tracker.open_approval(TERMINAL_DIALOG, tool, self.calls.args.get(call_id), call_id, title=title)

    def close_terminal_dialog(self) -> None:
        """Close the unidentified dialog: it is gone, or known by its call now."""
        self.tracker.resolve_approval(TERMINAL_DIALOG, "answered_elsewhere")

    def _record_rules(self, tool: str, permissions: list[Any]) -> None:
        """Record the permanent permissions that came with an answer."""
        for permission in map(object_of, permissions):
            if text_of(permission, "type") == "addRules" and text_of(permission, "behavior") == "allow":
                scope = tables.SCOPES.get(text_of(permission, "destination"), "session")
                self.tracker.emit(ev.ToolApprovedAlways(tool=tool, scope=scope, rule=_rules_text(permission)))

    # --- forms of MCP servers

    def open_form(self, form: Object, request_id: str = "") -> str:
        """Record a form and return its reference. The hook and the stream report the same form; the first one names it."""
        server, message = text_of(form, "mcp_server_name"), text_of(form, "message")
        for ref, known in self._forms.items():
            if known == (server, message) and ref in self.tracker.gates:
                return ref
        ref = request_id or self.session.new_id("form")
        self._forms[ref] = (server, message)
        method, options = _form_method(object_of(form, "requested_schema"), text_of(form, "mode"))
        self.tracker.open_dialog(ref, method, title=server, message=message or text_of(form, "url"), options=options)
        return ref

    def close_form(self, ref: str, action: str, content: Json) -> None:
        """Record that a form was filled in or dismissed."""
        self._forms.pop(ref, None)
        self.tracker.close_dialog(ref, content, "answered" if action == "accept" else "cancelled")

    def close_server_forms(self, server: str, action: str, content: Json) -> None:
        """Close the open forms of one MCP server."""
        for ref in [ref for ref, (owner, _) in self._forms.items() if owner == server]:
            self.close_form(ref, action, content)

    def close_forms(self) -> None:
        """Close all forms, because the call that wanted them ended."""
        for ref in list(self._forms):
            del self._forms[ref]
            self.tracker.close_dialog(ref, status="answered_elsewhere")


def _questions_in(args: Json) -> tuple[Question, ...]:
    """Return the questions of an AskUserQuestion call."""
    return tuple(
        Question(
            text=text_of(question, "question", "header"),
            options=tuple(_choice(option) for option in list_of(question, "options")),
            multiple=question.get("multiSelect") is True,
            header=text_of(question, "header"),
        )
        for question in objects_of(object_of(args), "questions")
        if text_of(question, "question", "header")
    )


def _choice(option: Any) -> Option:
    """Return a choice of a question. Claude Code expects an answer to be its label, so the label is its id."""
    fields = object_of(option)
    label = text_of(fields, "label") or (option if isinstance(option, str) else "")
    return Option(id=label, label=text_of(fields, "description") or label)


def _suggested_options(suggestions: list[Any]) -> tuple[Option, ...]:
    """Return the wider permissions that Claude Code offers besides allow and deny."""
    return tuple(
        Option(id=f"suggestion:{number}", label=label, kind="allow_always")
        for number, suggestion in enumerate(suggestions)
        if (label := _suggestion_label(object_of(suggestion)))
    )


def _suggestion_label(suggestion: Object) -> str:
    kind = text_of(suggestion, "type")
    if kind == "addRules":
        return f"Always allow {_rules_text(suggestion)}"
    if kind == "setMode":
        mode = text_of(suggestion, "mode")
        return f"Allow, and switch to {tables.MODES.get(mode, mode)}"
    directories = [name for name in list_of(suggestion, "directories") if isinstance(name, str)]
    return f"Allow, and add {', '.join(directories)}" if kind == "addDirectories" and directories else ""


def _rules_text(permission: Object) -> str:
    """Return rules as Claude Code's settings write them: Tool(pattern)."""
    return ", ".join(
        f"{text_of(rule, 'toolName')}({text_of(rule, 'ruleContent')})"
        if text_of(rule, "ruleContent")
        else text_of(rule, "toolName")
        for rule in map(object_of, list_of(permission, "rules"))
    )


def _form_method(
    schema: Object, mode: str
) -> tuple[Literal["select", "confirm", "input", "editor"], tuple[Option, ...]]:
    """Return how to show a form. A single yes/no field or choice has a control of its own."""
    fields = [object_of(field) for field in object_of(schema, "properties").values()]
    if mode == "url":
        return "confirm", ()
    if len(fields) == 1 and text_of(fields[0], "type") == "boolean":
        return "confirm", ()
    choices = [value for value in list_of(fields[0], "enum") if isinstance(value, str)] if len(fields) == 1 else []
    if choices:
        return "select", tuple(Option(id=value, label=value) for value in choices)
    return "input", ()
