"""Codex hooks: what a Codex that the user started tells us on the way, and what it asks.

With a stream of the agent itself (`desk.lead`) the stream decides, and hooks add only what it never says: that the
session ended with a turn open, the prompt of `codex exec`, calls that the app-server shows no item for.

Alone, hooks show prompts, requests to the model, calls, approvals, compaction, sub-agents, interrupts and the normal end.
They do not show the user's answer to an approval (the call's end, the next request or telemetry does), nor that Codex
gave up after errors: that is a request that failed and was not repeated. Hooks that run asynchronously come in any order,
so every event begins what it belongs to, and an event of a turn that is over begins nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import FailureKind, Json, Option
from quarterdeck.harness.base import Object, is_object, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.session import SUPPRESSION_S, Desk, counts_in, remember
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.tracker import AgentPath

#: A checker learns nothing from a comparison with this, so it asks for no `cast`, which is a call at run time.
_Reader: TypeAlias = Callable[["Hooks", Object, AgentPath], None]

#: A question in default mode fails at once; in plan mode it waits. No hook says which, but the next one comes soon.
QUESTION_S = 1.0
#: Codex tries again within seconds. A failed request that nothing follows for so long was the last one.
GIVE_UP_S = 8.0
#: Where the app-server says nothing more after an interrupt, the hook's word counts.
UNANSWERED_S = 1.0

#: What brings a session back that said it is over.
_BEGINNINGS = frozenset({"SessionStart", "UserPromptSubmit"})
OPTIONS = (Option(id="allow", label="Allow", kind="allow_once"), Option(id="deny", label="Decline", kind="reject_once"))


class Asking(Struct):
    """An approval that a hook told of."""

    ref: str
    call_id: str


class Hooks:
    """One reader for each hook, named after it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tracker = desk.tracker
        self.failure: tuple[FailureKind, str] | None = None
        self._asking: list[Asking] = []
        self._approvals = 0
        self._requests = 0
        self._replies = 0
        #: open calls, with the number of requests to the model that came before each
        self._since: dict[str, int] = {}
        self._question: tuple[str, Object] | None = None
        #: turns that are over, and whether all their requests were seen to end
        self._over: dict[str, bool] = {}

    def reset(self) -> None:
        """Another process."""
        self._forget_turn()
        self._over.clear()

    def _forget_turn(self) -> None:
        self.failure, self._question, self.desk.in_request = None, None, False
        self._asking.clear()
        self._since.clear()
        self._requests = self._replies = 0

    # --- reading

    def read(self, data: Json) -> bool:
        if not is_object(data):
            return False
        found: Object = data
        name = text_of(found, "hook_event_name")
        reader = _READERS.get(name)
        session = text_of(found, "session_id")
        if reader is None or not session:
            return reader is not None
        desk = self.desk
        if desk.lead:
            addition = _ADDITIONS.get((desk.lead, name))
            if addition is not None and session == desk.own:
                addition(self, found, self._path(found))
        elif session == (desk.own or session) and (session not in desk.over or name in _BEGINNINGS):
            self._read(reader, found, session)
        return True

    def _read(self, reader: _Reader, found: Object, session: str) -> None:
        desk, tracker, over = self.desk, self.tracker, self._over
        desk.hooks_seen, desk.told_at = True, desk.now
        late = False
        if over:
            turn = text_of(found, "turn_id")
            goes_on = reader is Hooks.pre_model_request and over.pop(turn, False)
            late = turn in over and not goes_on
        if not late and reader not in _UNBINDING:
            if (
                session != desk.own
                or found.get("model") != desk.set_model
                or tracker.has_exited
                or not tracker.is_ready
            ):
                desk.bind(session, text_of(found, "model"))
            mode = names.hook_mode(text_of(found, "permission_mode")) if "permission_mode" in found else None
            if mode and mode != desk.mode:
                desk.note_settings(mode)
        if not late or reader in _LATE:
            if tracker.signal != "live":
                tracker.set_signal("live")
            reader(self, found, self._path(found) if "agent_id" in found else ())

    def _path(self, found: Object) -> AgentPath:
        """A sub-agent's hooks carry its parent's session and its own agent id."""
        agent = text_of(found, "agent_id")
        return (agent,) if agent else ()

    def _begin(self, found: Object, path: AgentPath) -> None:
        """The turn that this hook belongs to runs. One that was open under another id ended without a word."""
        if path:
            self._child(path[0], text_of(found, "agent_type"))
            return
        before, turn = self.tracker.turn_id, text_of(found, "turn_id")
        if before and turn and before != turn and self._by_hook(before):
            self._unfinished("superseded")
        self.tracker.start_turn(turn)

    def _by_hook(self, turn: str) -> bool:
        """Whether the open turn has a name that Codex gave it; telemetry's turns have none."""
        return not turn.startswith("turn-")

    def _unfinished(self, reason: str) -> None:
        """The turn is over and nobody said how: given up after a failed request, else cut off."""
        remember(self._over, self.tracker.turn_id, False)
        if self.failure is not None:
            self.tracker.fail_turn(*self.failure)
        else:
            self.tracker.abort_turn(reason)
        self._forget_turn()

    # --- the turn

    def session_start(self, found: Object, _path: AgentPath) -> None:
        """Comes with the first turn, and after a compaction. That the session is there is told already."""
        if text_of(found, "source") == "compact":
            self.tracker.end_compaction()

    def user_prompt_submit(self, found: Object, path: AgentPath) -> None:
        if path:
            return
        self._begin(found, path)
        text = text_of(found, "prompt")
        if self.desk.is_new_prompt("hook", text):
            self.tracker.record_prompt(text)

    def add_prompt(self, found: Object, _path: AgentPath) -> None:
        """`codex exec` never repeats its prompt."""
        text = text_of(found, "prompt")
        if self.tracker.turn_id and self.desk.is_new_prompt("hook", text):
            self.tracker.record_prompt(text)

    def pre_model_request(self, found: Object, path: AgentPath) -> None:
        self._begin(found, path)
        if path:
            return
        self.desk.hooks_lead = True
        self.failure = None
        self.desk.clear_timer("give_up")
        self._requests += 1
        if self._since and self._requests <= max(self._since.values()):
            return  # an asynchronous hook that comes after the call, or the approval, that it was before
        self._calls_over()
        self._question = None
        self.desk.clear_timer("question")
        if not self.desk.in_request:
            self.desk.in_request = True
            self.tracker.start_request(text_of(found, "model"))

    def _calls_over(self) -> None:
        """The model is asked again, so no call is waited for. One without an end was refused, or left running behind."""
        asked = {gate.call_id for gate in self.tracker.gates.values()} if self.tracker.gates else ()
        for name, call in list(self.tracker.calls.items()) if self.tracker.calls else ():
            if call.path or name in self.tracker.background:
                continue
            if name in asked or call.name == names.ASK_USER:
                self.desk.block_call(name, call.name, "not allowed")
            else:
                self.desk.end_call(name, call.name)
        self._asking.clear()
        self._since.clear()

    def post_model_request(self, found: Object, path: AgentPath) -> None:
        status = text_of(found, "status")
        self.desk.hooks_lead = True
        if status == "completed":
            self.desk.count(counts_in(object_of(found, "token_usage")), path)
        if path:
            return
        self._replies += 1
        self.desk.in_request = False
        if status == "failed":
            self._begin(found, path)
            message = text_of(found, "error")
            self.failure = (failure_kind(message), message)
            self.tracker.emit(ev.StreamError(reason=message, turn_id=self.tracker.turn_id))
            self.desk.set_timer("give_up", GIVE_UP_S)

    def stop(self, found: Object, path: AgentPath) -> None:
        """The normal end."""
        if path:
            return
        turn = text_of(found, "turn_id")
        self.desk.last_text(turn, text_of(found, "last_assistant_message"))
        remember(self._over, turn or self.tracker.turn_id, 0 < self._requests == self._replies)
        self.tracker.end_turn()
        self._forget_turn()
        self.desk.turn_over()

    def interrupt(self, found: Object, path: AgentPath) -> None:
        if path:
            return
        remember(self._over, text_of(found, "turn_id") or self.tracker.turn_id, False)
        self.tracker.abort_turn("interrupted")
        self._forget_turn()
        self.desk.turn_over(SUPPRESSION_S)

    def interrupt_unanswered(self, _found: Object, path: AgentPath) -> None:
        """The app-server says so itself a moment later, unless it is being shut down."""
        if not path:
            self.desk.set_timer("interrupted", UNANSWERED_S)

    def on_interrupted(self) -> None:
        self.tracker.abort_turn("interrupted")

    def session_end(self, found: Object, path: AgentPath) -> None:
        if path:
            return
        if self.tracker.turn_id:
            self._unfinished("session ended")
        self.tracker.end_session(text_of(found, "reason"))
        self._forget_turn()
        self.desk.turn_over()
        if not self.desk.lead:
            remember(self.desk.over, text_of(found, "session_id"), None)
            self.desk.own = ""  # the same process may go on with another session

    def on_give_up(self) -> None:
        """The failed request was the last one."""
        if self.failure is not None and self.tracker.turn_id:
            self._unfinished("given up")
            self.desk.turn_over()

    # --- calls

    def pre_tool_use(self, found: Object, path: AgentPath) -> None:
        self._begin(found, path)
        self._replied(path)
        call_id, args = text_of(found, "tool_use_id"), found.get("tool_input")
        tool = names.hook_tool(text_of(found, "tool_name"))
        self.desk.start_call(call_id, tool, args, path)
        if not path:
            self._since[call_id] = max(self._requests, 1)
        if tool == names.ASK_USER and not path:
            self._question = (call_id, object_of(args))
            self.desk.set_timer("question", QUESTION_S)

    def post_tool_use(self, found: Object, path: AgentPath) -> None:
        call_id, tool = text_of(found, "tool_use_id"), names.hook_tool(text_of(found, "tool_name"))
        self._answered(call_id)
        if not path:
            self.tracker.tools_linger = False
        if call_id in self.tracker.calls:
            self.desk.end_call(call_id, tool, True, found.get("tool_response"), path)
        else:
            self.add_call(found, path)

    def _replied(self, path: AgentPath) -> None:
        """A call: the model's reply is there, so the next sign of a request is of another one."""
        if not path:
            self.desk.in_request = False

    def add_call(self, found: Object, path: AgentPath) -> None:
        """A call that was not seen to run."""
        tool, call_id = names.hook_tool(text_of(found, "tool_name")), text_of(found, "tool_use_id")
        if not path:
            self.desk.add_call(call_id, tool, found.get("tool_input"), True, found.get("tool_response"))

    # --- approvals and questions

    def permission_request(self, found: Object, path: AgentPath) -> None:
        """Codex is about to ask. The hook does not say which call it is about; the last one of that tool is."""
        self._begin(found, path)
        self._replied(path)
        tool, args = names.hook_tool(text_of(found, "tool_name")), object_of(found, "tool_input")
        self._approvals += 1
        call_id = self._waiting_call(tool, path)
        ref = call_id or f"permission-{self._approvals}"
        self._asking.append(Asking(ref, call_id))
        if not path:
            self._since[ref] = max(self._requests, 1)
        is_command = tool == names.EXEC
        self.tracker.open_approval(
            ref,
            tool,
            args,
            call_id,
            ask="command" if is_command else "tool",
            title=text_of(args, "command") if is_command else tool,
            hint=text_of(args, "description"),
            options=OPTIONS,
            path=path,
        )

    def _waiting_call(self, tool: str, path: AgentPath) -> str:
        asked = {gate.call_id for gate in self.tracker.gates.values()}
        calls = [name for name, call in self.tracker.calls.items() if call.name == tool and call.path == path]
        return next((name for name in reversed(calls) if name not in asked), "")

    def read_reply(self, data: Json) -> bool:
        """Our own answer to the hook. An answer without a decision leaves the question to the person."""
        found = object_of(data)
        answer = object_of(found, "answer") or found
        decision = object_of(answer, "hookSpecificOutput", "decision")
        behavior = text_of(decision, "behavior")
        if behavior in ("allow", "deny") and self._asking:
            self.decided(self._asking.pop(0), behavior == "allow", text_of(decision, "message"))
        return True

    def decided(self, asked: Asking, allowed: bool, reason: str, by: str = "user") -> None:
        """Somebody answered. A call that was refused gets no other hook."""
        if allowed:
            self.tracker.approve_call(asked.ref, by)
            return
        self.tracker.reject_call(asked.ref, by, reason=reason)
        if asked.call_id:
            self.desk.block_call(asked.call_id, "", reason or "denied")

    def decision_of(self, call_id: str, allowed: bool, decision: str, by: str) -> bool:
        """Telemetry tells how the user answered; whether a hook had told of the question."""
        asked = next((one for one in self._asking if one.call_id in (call_id, "")), None)
        if asked is None:
            return False
        self._asking.remove(asked)
        self.decided(asked, allowed, decision, by)
        return True

    def _answered(self, call_id: str) -> None:
        self._asking = [one for one in self._asking if one.call_id != call_id]
        self._since.pop(call_id, None)
        if self._question is not None and self._question[0] == call_id:
            self.tracker.answer_question(call_id, status="answered_elsewhere")
            self._question = None
            self.desk.clear_timer("question")

    def on_question(self) -> None:
        """Nothing followed the question, so it waits for an answer."""
        if self._question is None or not self.tracker.turn_id:
            return
        call_id, args = self._question
        questions = tuple(names.question_in(object_of(one)) for one in list_of(args, "questions"))
        if questions:
            self.tracker.open_question(call_id, questions[0].text, questions[0].options, questions, call_id)

    # --- compaction and sub-agents

    def pre_compact(self, found: Object, path: AgentPath) -> None:
        if not path:
            self.tracker.start_compaction("manual" if text_of(found, "trigger") == "manual" else "auto")

    def post_compact(self, _found: Object, path: AgentPath) -> None:
        if not path:
            self.tracker.end_compaction()

    def _child(self, agent: str, title: str) -> None:
        if agent not in self.desk.children:
            self.desk.children[agent] = (agent,)
        if agent not in self.tracker.background:
            self.tracker.emit(ev.SubagentStart(child_sid=agent, description=title))
            self.tracker.start_background("subagent", agent, title)

    def subagent_start(self, found: Object, path: AgentPath) -> None:
        self._begin(found, path)

    def subagent_stop(self, found: Object, path: AgentPath) -> None:
        if path and path[0] in self.tracker.background:
            self.tracker.close_subagent(path)
            self.tracker.end_background(path[0], True)
            self.tracker.emit(ev.SubagentEnd(child_sid=path[0], result=text_of(found, "last_assistant_message")))


#: Hooks by their event.
_READERS: dict[str, _Reader] = {
    "SessionStart": Hooks.session_start,
    "UserPromptSubmit": Hooks.user_prompt_submit,
    "PreModelRequest": Hooks.pre_model_request,
    "PostModelRequest": Hooks.post_model_request,
    "PreToolUse": Hooks.pre_tool_use,
    "PostToolUse": Hooks.post_tool_use,
    "PermissionRequest": Hooks.permission_request,
    "PreCompact": Hooks.pre_compact,
    "PostCompact": Hooks.post_compact,
    "SubagentStart": Hooks.subagent_start,
    "SubagentStop": Hooks.subagent_stop,
    "Stop": Hooks.stop,
    "Interrupt": Hooks.interrupt,
    "SessionEnd": Hooks.session_end,
}


#: What a hook adds to a stream of the agent itself.
_ADDITIONS: dict[tuple[str, str], _Reader] = {
    ("app", "PostToolUse"): Hooks.add_call,
    ("app", "Interrupt"): Hooks.interrupt_unanswered,
    ("app", "SessionEnd"): Hooks.session_end,
    ("exec", "UserPromptSubmit"): Hooks.add_prompt,
    ("exec", "Interrupt"): Hooks.interrupt,
    ("exec", "SessionEnd"): Hooks.session_end,
}

#: Hooks that are read though their turn is over.
_LATE = frozenset({Hooks.post_tool_use, Hooks.subagent_stop})
#: Hooks that do not say whose session this is.
_UNBINDING = _LATE | {Hooks.session_end}
