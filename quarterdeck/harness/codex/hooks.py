"""Read Codex's hooks: what a Codex that the user started reports while it works, and what it asks.

With a stream of the agent itself (`session.leading_stream`) the stream decides, and hooks add only what it never reports:
that the session ended with a turn open, the prompt of `codex exec`, calls that the app-server shows no item for.

Alone, hooks report prompts, requests to the model, calls, approvals, compaction, sub-agents, interrupts and the normal
end. They don't report the user's answer to an approval (the end of the call, the next request or telemetry shows it), nor
that Codex gave up after errors: that is a request that failed and wasn't repeated. Hooks run asynchronously and arrive in
any order, so every hook begins the turn that it belongs to, and a hook of a turn that is over begins nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import FailureKind, Json, Option
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.session import SUPPRESSION_S, CodexSession, counts_in, remember
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.tracker import AgentPath

_HookReader: TypeAlias = Callable[[Object, AgentPath], None]

#: A question fails at once in default mode and waits in plan mode. No hook says which, but after a failure the next hook
#: arrives within this time.
QUESTION_S = 1.0
#: Codex retries within seconds. A failed request that nothing follows for this long was the last one.
GIVE_UP_S = 8.0
#: If the app-server reports nothing for this long after an interrupt, the hook alone counts.
UNANSWERED_S = 1.0

#: Hooks that bring back a session that said that it ended.
_BEGINNINGS = frozenset({"SessionStart", "UserPromptSubmit"})
#: Hooks that are read although their turn is over.
_LATE_HOOKS = frozenset({"PostToolUse", "SubagentStop"})
#: Hooks that don't show which thread the session serves now.
_UNBINDING_HOOKS = _LATE_HOOKS | {"SessionEnd"}
_OPTIONS = (
    Option(id="allow", label="Allow", kind="allow_once"),
    Option(id="deny", label="Decline", kind="reject_once"),
)


class _OpenApproval(Struct):
    """An approval that a hook reported."""

    ref: str
    #: The call that it is about; '' if unknown.
    call_id: str


class Hooks:
    """Reads hooks, with one reader for each event."""

    def __init__(self, session: CodexSession) -> None:
        self.session = session
        self.tracker = session.tracker
        #: Kind and message of the last failed request, until another request is made.
        self._failure: tuple[FailureKind, str] | None = None
        self._approvals: list[_OpenApproval] = []
        self._approval_count = 0
        #: Number of requests to the model in this turn.
        self._requests = 0
        #: Open calls and approvals, with the number of requests that came before each.
        self._request_of: dict[str, int] = {}
        #: Call id and arguments of a question that may wait for an answer.
        self._question: tuple[str, Object] | None = None
        #: Turns that are over.
        self._ended_turns: dict[str, None] = {}
        self._readers: dict[str, _HookReader] = {
            "SessionStart": self._read_session_start,
            "UserPromptSubmit": self._read_prompt,
            "PreModelRequest": self._read_request,
            "PostModelRequest": self._read_reply_done,
            "PreToolUse": self._read_call_start,
            "PostToolUse": self._read_call_end,
            "PermissionRequest": self._read_permission_request,
            "PreCompact": self._read_compaction_start,
            "PostCompact": self._read_compaction_end,
            "SubagentStart": self._read_subagent_start,
            "SubagentStop": self._read_subagent_stop,
            "Stop": self._read_stop,
            "Interrupt": self._read_interrupt,
            "SessionEnd": self._read_session_end,
        }
        #: What a hook adds to a stream of the agent itself, by stream and event.
        self._additions: dict[tuple[str, str], _HookReader] = {
            ("app", "PostToolUse"): self._record_finished_call,
            ("app", "Interrupt"): self._await_interrupt,
            ("app", "SessionEnd"): self._read_session_end,
            ("exec", "UserPromptSubmit"): self._add_prompt,
            ("exec", "Interrupt"): self._read_interrupt,
            ("exec", "SessionEnd"): self._read_session_end,
        }

    def reset(self) -> None:
        """Forget everything: another process runs."""
        self._clear_turn()
        self._ended_turns.clear()

    def _clear_turn(self) -> None:
        self._failure = self._question = None
        self.session.in_request = False
        self._approvals.clear()
        self._request_of.clear()
        self._requests = 0

    # --- reading

    def read(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return False
        hook = cast(Object, data)
        session = self.session
        event, thread_id = text_of(hook, "hook_event_name"), text_of(hook, "session_id")
        if event not in self._readers or not thread_id:
            return event in self._readers
        if session.leading_stream:
            addition = self._additions.get((session.leading_stream, event))
            if addition is not None and thread_id == session.thread_id:
                addition(hook, _agent_path(hook))
            return True
        is_ours = thread_id == (session.thread_id or thread_id)
        is_alive = thread_id not in session.ended_threads or event in _BEGINNINGS
        if is_ours and is_alive:
            self._read_hook(event, hook, thread_id)
        return True

    def _read_hook(self, event: str, hook: Object, thread_id: str) -> None:
        """Read a hook of our session, in the absence of a stream of the agent itself."""
        session = self.session
        session.hooks_seen, session.last_hook_at = True, session.now
        turn_id = text_of(hook, "turn_id")
        if event == "PreModelRequest":
            # Another request shows that the turn continues after all: a Stop hook may send the agent back to work.
            self._ended_turns.pop(turn_id, None)
        is_late = turn_id in self._ended_turns
        if not is_late and event not in _UNBINDING_HOOKS:
            session.bind(thread_id, text_of(hook, "model"))
            session.update_settings(mode=names.hook_mode(text_of(hook, "permission_mode")))
        if not is_late or event in _LATE_HOOKS:
            self.tracker.set_signal("live")
            self._readers[event](hook, _agent_path(hook))

    def _start_turn(self, hook: Object, path: AgentPath) -> None:
        """Begin the turn that this hook belongs to. If another turn is open, it ended without a report."""
        if path:
            self._start_child(path[0], text_of(hook, "agent_type"))
            return
        open_turn, turn_id = self.tracker.turn_id, text_of(hook, "turn_id")
        # Turns that telemetry opened have no id of Codex, but one of ours.
        has_codex_id = not open_turn.startswith("turn-")
        if open_turn and turn_id and open_turn != turn_id and has_codex_id:
            self._end_unfinished("superseded")
        self.tracker.start_turn(turn_id)

    def _end_unfinished(self, reason: str) -> None:
        """End a turn that Codex didn't report the end of: it failed after a failed request, else it was cut off."""
        remember(self._ended_turns, self.tracker.turn_id, None)
        if self._failure is not None:
            self.tracker.fail_turn(*self._failure)
        else:
            self.tracker.abort_turn(reason)
        self._clear_turn()

    # --- prompts and requests

    def _read_session_start(self, hook: Object, _path: AgentPath) -> None:
        """Read SessionStart, which comes with the first turn and after a compaction."""
        if text_of(hook, "source") == "compact":
            self.tracker.end_compaction()

    def _read_prompt(self, hook: Object, path: AgentPath) -> None:
        if path:
            return
        self._start_turn(hook, path)
        text = text_of(hook, "prompt")
        if self.session.claim_prompt("hook", text):
            self.tracker.record_prompt(text)

    def _add_prompt(self, hook: Object, _path: AgentPath) -> None:
        """Record the prompt of `codex exec`, whose stream doesn't report it."""
        text = text_of(hook, "prompt")
        if self.tracker.turn_id and self.session.claim_prompt("hook", text):
            self.tracker.record_prompt(text)

    def _read_request(self, hook: Object, path: AgentPath) -> None:
        self._start_turn(hook, path)
        if path:
            return
        self.session.hooks_lead = True
        self._failure = None
        self.session.clear_timers("give_up")
        self._requests += 1
        if self._request_of and self._requests <= max(self._request_of.values()):
            # This hook was overtaken by the call, or the approval, that its request led to.
            return
        self._end_calls()
        self._question = None
        self.session.clear_timers("question")
        if not self.session.in_request:
            self.session.in_request = True
            self.tracker.start_request(text_of(hook, "model"))

    def _end_calls(self) -> None:
        """End the open calls, because the model is asked again. One that asked was refused, another was left running."""
        asking = {gate.call_id for gate in self.tracker.gates.values()}
        for call_id, call in list(self.tracker.calls.items()):
            if call.path or call_id in self.tracker.background:
                continue
            if call_id in asking or call.name == names.ASK_USER:
                self.session.block_call(call_id, call.name, "not allowed")
            else:
                self.session.end_call(call_id, call.name)
        self._approvals.clear()
        self._request_of.clear()

    def _read_reply_done(self, hook: Object, path: AgentPath) -> None:
        """Read PostModelRequest: a request completed or failed."""
        status = text_of(hook, "status")
        self.session.hooks_lead = True
        if status == "completed":
            self.session.record_usage(counts_in(object_of(hook, "token_usage")), path)
        if path:
            return
        self.session.in_request = False
        if status == "failed":
            self._start_turn(hook, path)
            message = text_of(hook, "error")
            self._failure = (failure_kind(message), message)
            self.tracker.emit(ev.StreamError(reason=message, turn_id=self.tracker.turn_id))
            self.session.set_timer("give_up", GIVE_UP_S)

    # --- ends

    def _read_stop(self, hook: Object, path: AgentPath) -> None:
        """Read the normal end of a turn."""
        if path:
            return
        turn_id = text_of(hook, "turn_id")
        self.session.record_last_text(turn_id, text_of(hook, "last_assistant_message"))
        remember(self._ended_turns, turn_id or self.tracker.turn_id, None)
        self.tracker.end_turn()
        self._clear_turn()
        self.session.confirm_turn_end()

    def _read_interrupt(self, hook: Object, path: AgentPath) -> None:
        if path:
            return
        remember(self._ended_turns, text_of(hook, "turn_id") or self.tracker.turn_id, None)
        self.tracker.abort_turn("interrupted")
        self._clear_turn()
        self.session.confirm_turn_end(SUPPRESSION_S)

    def _await_interrupt(self, _hook: Object, path: AgentPath) -> None:
        """Give the app-server time to report the interrupt itself. It doesn't if it is being shut down."""
        if not path:
            self.session.set_timer("interrupted", UNANSWERED_S)

    def on_interrupted(self) -> None:
        """Abort the turn because the app-server didn't report the interrupt."""
        self.tracker.abort_turn("interrupted")

    def _read_session_end(self, hook: Object, path: AgentPath) -> None:
        if path:
            return
        session = self.session
        if self.tracker.turn_id:
            self._end_unfinished("session ended")
        self.tracker.end_session(text_of(hook, "reason"))
        self._clear_turn()
        session.confirm_turn_end()
        if not session.leading_stream:
            remember(session.ended_threads, text_of(hook, "session_id"), None)
            # The same process may continue with another session.
            session.thread_id = ""

    def on_give_up(self) -> None:
        """Fail the turn because the failed request wasn't repeated."""
        if self._failure is not None and self.tracker.turn_id:
            self._end_unfinished("given up")
            self.session.confirm_turn_end()

    # --- calls

    def _read_call_start(self, hook: Object, path: AgentPath) -> None:
        self._start_turn(hook, path)
        call_id, args = text_of(hook, "tool_use_id"), hook.get("tool_input")
        tool = names.hook_tool(text_of(hook, "tool_name"))
        self.session.start_call(call_id, tool, args, path)
        if path:
            return
        self._note_reply(call_id)
        if tool == names.ASK_USER:
            self._question = (call_id, object_of(args))
            self.session.set_timer("question", QUESTION_S)

    def _note_reply(self, call_or_gate_id: str) -> None:
        """Note that the model replied with a call, so the next sign of a request is about another one."""
        self.session.in_request = False
        self._request_of[call_or_gate_id] = max(self._requests, 1)

    def _read_call_end(self, hook: Object, path: AgentPath) -> None:
        call_id, tool = text_of(hook, "tool_use_id"), names.hook_tool(text_of(hook, "tool_name"))
        self._close_asked(call_id)
        if not path:
            self.tracker.tools_linger = False
        if call_id in self.tracker.calls:
            self.session.end_call(call_id, tool, True, hook.get("tool_response"), path)
        else:
            self._record_finished_call(hook, path)

    def _record_finished_call(self, hook: Object, path: AgentPath) -> None:
        """Record a call that wasn't seen to run."""
        tool, call_id = names.hook_tool(text_of(hook, "tool_name")), text_of(hook, "tool_use_id")
        if not path:
            result = hook.get("tool_response")
            self.session.record_finished_call(call_id, tool, hook.get("tool_input"), True, result)

    # --- approvals and questions

    def _read_permission_request(self, hook: Object, path: AgentPath) -> None:
        """Open an approval. The hook doesn't say which call it is about, so take the last open one of that tool."""
        self._start_turn(hook, path)
        tool, args = names.hook_tool(text_of(hook, "tool_name")), object_of(hook, "tool_input")
        self._approval_count += 1
        call_id = self._last_call_of(tool, path)
        ref = call_id or f"permission-{self._approval_count}"
        self._approvals.append(_OpenApproval(ref, call_id))
        if not path:
            self._note_reply(ref)
        is_command = tool == names.EXEC
        self.tracker.open_approval(
            ref,
            tool,
            args,
            call_id,
            ask="command" if is_command else "tool",
            hint=text_of(args, "description"),
            options=_OPTIONS,
            path=path,
        )

    def _last_call_of(self, tool: str, path: AgentPath) -> str:
        """Return the last open call of this tool that has no gate, or ''."""
        asking = {gate.call_id for gate in self.tracker.gates.values()}
        for call_id, call in reversed(list(self.tracker.calls.items())):
            if call.name == tool and call.path == path and call_id not in asking:
                return call_id
        return ""

    def read_reply(self, data: Json) -> bool:
        """Apply our answer to a hook. An answer without a decision leaves the approval to the prompt on the terminal."""
        reply = object_of(data)
        answer = object_of(reply, "answer") or reply
        decision = object_of(answer, "hookSpecificOutput", "decision")
        behavior = text_of(decision, "behavior")
        if behavior in ("allow", "deny") and self._approvals:
            self._decide(self._approvals.pop(0), behavior == "allow", text_of(decision, "message"))
        return True

    def _decide(self, approval: _OpenApproval, is_allowed: bool, reason: str, by: str = "user") -> None:
        """Record a decision. A refused call gets no other hook, so it ends here."""
        if is_allowed:
            self.tracker.approve_call(approval.ref, by)
            return
        self.tracker.reject_call(approval.ref, by, reason=reason)
        if approval.call_id:
            self.session.block_call(approval.call_id, "", reason or "denied")

    def apply_decision(self, call_id: str, is_allowed: bool, decision: str, by: str) -> bool:
        """Apply a decision that telemetry reports. Return whether a hook had reported the approval."""
        for approval in self._approvals:
            if approval.call_id in (call_id, ""):
                self._approvals.remove(approval)
                self._decide(approval, is_allowed, decision, by)
                return True
        return False

    def _close_asked(self, call_id: str) -> None:
        """Close what a call asked, because it ended."""
        self._approvals = [approval for approval in self._approvals if approval.call_id != call_id]
        self._request_of.pop(call_id, None)
        if self._question is not None and self._question[0] == call_id:
            self.tracker.answer_question(call_id, status="answered_elsewhere")
            self._question = None
            self.session.clear_timers("question")

    def on_question(self) -> None:
        """Open the question, because no hook followed it: it waits for an answer."""
        if self._question is None or not self.tracker.turn_id:
            return
        call_id, args = self._question
        questions = tuple(names.question_in(object_of(question)) for question in list_of(args, "questions"))
        if questions:
            self.tracker.open_question(call_id, questions[0].text, questions[0].options, questions, call_id)

    # --- compaction and sub-agents

    def _read_compaction_start(self, hook: Object, path: AgentPath) -> None:
        if not path:
            self.tracker.start_compaction("manual" if text_of(hook, "trigger") == "manual" else "auto")

    def _read_compaction_end(self, _hook: Object, path: AgentPath) -> None:
        if not path:
            self.tracker.end_compaction()

    def _start_child(self, agent_id: str, title: str) -> None:
        self.session.child_paths.setdefault(agent_id, (agent_id,))
        if agent_id not in self.tracker.background:
            self.tracker.emit(ev.SubagentStart(child_sid=agent_id, description=title))
            self.tracker.start_background("subagent", agent_id, title)

    def _read_subagent_start(self, hook: Object, path: AgentPath) -> None:
        self._start_turn(hook, path)

    def _read_subagent_stop(self, hook: Object, path: AgentPath) -> None:
        if path and path[0] in self.tracker.background:
            self.tracker.close_subagent(path)
            self.tracker.end_background(path[0], True)
            self.tracker.emit(ev.SubagentEnd(child_sid=path[0], result=text_of(hook, "last_assistant_message")))


def _agent_path(hook: Object) -> AgentPath:
    """Return the path of a hook. A sub-agent's hooks have its parent's session id and its own agent id."""
    agent_id = text_of(hook, "agent_id")
    return (agent_id,) if agent_id else ()
