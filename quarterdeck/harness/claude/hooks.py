"""Read Claude Code's hooks and our answers to them.

Hooks alone give seed 003's Claude diagram. Beside the stream they add what the stream doesn't say: calls and texts are
then reported by the stream, and turns are closed by its results.

One method per hook, named after it. Its `path` is the sub-agent that the hook came from, () for the main agent. Hooks of
sub-agents never move the main agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, is_object, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.approvals import Approvals
from quarterdeck.harness.claude.calls import Calls, readable
from quarterdeck.harness.claude.failures import failure_kind_of, reset_time_in
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.claude.subagents import Subagents
from quarterdeck.harness.claude.turns import Turns
from quarterdeck.harness.tracker import AgentPath

_HookReader: TypeAlias = Callable[[Object, AgentPath], None]

#: The session file follows a hook within a tenth of a second. A hook that says more comes before this.
FILE_LAG_S = 0.3
#: Hooks don't report interrupts. After this long without a hook, "thinking" is only the last thing we knew.
SILENCE_S = 60.0
#: Hooks of one event run side by side, so one prompt may be reported several times, but only within this time.
_REPEAT_S = 2.0
_SUBMITS_LIMIT = 64
_PENDING_LIMIT = 64
#: How closely the delay of a reply must match the time of its hook.
_MATCH_S = 0.5
#: Hooks of sub-agents that are read.
_SUBAGENT_HOOKS = frozenset(
    {
        "SubagentStart",
        "SubagentStop",
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "PostToolBatch",
        "PermissionRequest",
        "PermissionDenied",
        "Elicitation",
        "ElicitationResult",
    }
)


class PendingHook(Struct):
    """A hook that we may answer."""

    event: str
    received_at: float
    #: What it is about: a call, a form, or the text of a prompt.
    ref: str


class Hooks:
    """Reads the hooks of one session."""

    def __init__(
        self,
        session: ClaudeSession,
        prompts: Prompts,
        turns: Turns,
        calls: Calls,
        approvals: Approvals,
        subagents: Subagents,
    ) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.turns = turns
        self.calls = calls
        self.approvals = approvals
        self.subagents = subagents
        self._readers: dict[str, _HookReader] = {
            "SessionStart": self._session_start,
            "SessionEnd": self._session_end,
            "UserPromptSubmit": self._user_prompt_submit,
            "Stop": self._stop,
            "StopFailure": self._stop_failure,
            "Notification": self._notification,
            "MessageDisplay": self._message_display,
            "PreToolUse": self._pre_tool_use,
            "PostToolUse": self._post_tool_use,
            "PostToolUseFailure": self._post_tool_use_failure,
            "PostToolBatch": self._post_tool_batch,
            "PermissionRequest": self._permission_request,
            "PermissionDenied": self._permission_denied,
            "SubagentStart": self._subagent_start,
            "SubagentStop": self._subagent_stop,
            "PreCompact": self._pre_compact,
            "PostCompact": self._post_compact,
            "PostModelSwitch": self._post_model_switch,
            "Elicitation": self._elicitation,
            "ElicitationResult": self._elicitation_result,
            "TaskCreated": self._task_created,
            "TaskCompleted": self._task_completed,
            # These two aren't Claude Code's own: a forwarder adds what it saw besides.
            "Interrupt": self._interrupt,
            "permission_decision": self._permission_decision,
        }
        self.reset()

    def reset(self) -> None:
        #: The message that was displayed to its end and not recorded as complete yet.
        self._shown_message_id = ""
        #: The highest part of the displayed message.
        self._display_index = -1
        #: Recent prompts (prompt id, text) → when they were reported.
        self._submits: dict[tuple[str, str], float] = {}
        #: Hooks that wait for our answer, oldest first.
        self.pending: list[PendingHook] = []

    def read(self, data: Json) -> bool:
        """Read one hook, whichever way it arrived."""
        if not is_object(data):
            return False
        event = text_of(data, "hook_event_name")
        reader = self._readers.get(event)
        if reader is None and event not in tables.QUIET_HOOKS:
            return False
        if self.session.has_exited and event not in tables.REVIVING_HOOKS:
            return True
        if not self._is_ours(data, event):
            return True
        self.session.has_hooks, self.session.has_exited = True, False
        if reader is None:
            return True
        agent_id = text_of(data, "agent_id")
        if not agent_id:
            self.session.set_mode(text_of(data, "permission_mode"))
            self._finish_shown_message(event, data)
            reader(data, ())
        elif event in _SUBAGENT_HOOKS and text_of(data, "agent_type"):
            # An agent without a type is Claude Code's own helper (compaction), not a sub-agent.
            reader(data, self.subagents.path_of(agent_id))
        self._watch_silence()
        return True

    def _is_ours(self, hook: Object, event: str) -> bool:
        session_id = text_of(hook, "session_id")
        if not session_id or session_id == self.session.session_id:
            return True
        return self.session.adopts(session_id, event, hook)

    def _await_answer(self, event: str, ref: str) -> None:
        """Remember a hook that we may answer."""
        self.pending.append(PendingHook(event, self.session.now, ref))
        if len(self.pending) > _PENDING_LIMIT:
            del self.pending[0]

    # ------------------------------------------------------------------------------------------------------------------
    # Silence: with hooks alone, an interrupt shows only in that no hook follows
    # ------------------------------------------------------------------------------------------------------------------

    def _watch_silence(self) -> None:
        """Restart the timer after which a thinking agent may have been interrupted.

        Where the session file is read it reports the interrupt instead, so only its own timer is prolonged: hooks say
        more than the file while they arrive.
        """
        tracker = self.tracker
        if self.session.file_status:
            if self.session.has_timer("settled"):
                self.session.set_timer("settled", FILE_LAG_S)
        elif self.session.turn_is_open and not (
            self.session.has_stream or tracker.gates or tracker.is_compacting or tracker.has_running_calls()
        ):
            self.session.set_timer("silence", SILENCE_S)
        else:
            self.session.clear_timer("silence")

    def _watch_interrupt(self) -> None:
        """Start the timer after an approval was withdrawn: the turn was interrupted, or the terminal's dialog is left."""
        if self.session.turn_is_open and not (self.session.has_stream or self.session.file_status):
            self.session.set_timer("silence", SILENCE_S)

    def on_silence(self) -> None:
        self.tracker.set_signal("stale", "no hook for a while, and hooks don't report interrupts")

    # ------------------------------------------------------------------------------------------------------------------
    # The session and its turns
    # ------------------------------------------------------------------------------------------------------------------

    def _session_start(self, hook: Object, _: AgentPath) -> None:
        self.session.report_ready(text_of(hook, "session_id"), text_of(hook, "model"))
        if text_of(hook, "source") == "compact":
            self.tracker.end_compaction()

    def _session_end(self, hook: Object, _: AgentPath) -> None:
        reason = text_of(hook, "reason")
        if self.tracker.has_exited:
            return
        if self.session.deferred_call_id:
            self.turns.defer()
        elif reason == "clear" and self.session.has_stream:
            self.session.command_result_due = True
            self.turns.finish()
        self.tracker.end_session(reason)

    def _user_prompt_submit(self, hook: Object, _: AgentPath) -> None:
        text, prompt_id = text_of(hook, "prompt"), text_of(hook, "prompt_id")
        if self._is_repeated(prompt_id, text):
            return
        self.subagents.read_notification(text)
        if self.turns.is_other_turn(prompt_id):
            self.turns.close_previous()
        else:
            self.tracker.end_compaction(ok=False)
            self.approvals.close_answered_elsewhere(())
            if not self.session.has_stream:
                # The main agent reads a prompt, so none of its calls runs, although their ends weren't reported.
                self.calls.end_running()
        self.prompts.submit(text, prompt_id)
        self._await_answer("UserPromptSubmit", text)

    def _is_repeated(self, prompt_id: str, text: str) -> bool:
        """Return whether another hook, or a callback of the SDK, reported this prompt a moment ago."""
        now = self.session.now
        before = self._submits.get((prompt_id, text))
        self._submits[prompt_id, text] = now
        if len(self._submits) > _SUBMITS_LIMIT:
            del self._submits[next(iter(self._submits))]
        if not prompt_id or before is None or now - before >= _REPEAT_S:
            return False
        # Claude Code waits for all hooks of a prompt, so if something happened since, this is a new prompt.
        return not (self.tracker.has_running_calls() or self.tracker.gates or self.tracker.is_compacting)

    def _stop(self, hook: Object, _: AgentPath) -> None:
        if "background_tasks" in hook:
            self.subagents.sync_tasks(list_of(hook, "background_tasks"))
        if not self.session.turn_is_open:
            self.session.report_ready()
        elif not self.session.has_stream:
            self._add_last_text(text_of(hook, "last_assistant_message"))
            self.turns.finish()
        elif self.tracker.background:
            # In text mode the result is printed only after the background work is done too.
            self.turns.finish_before_result()
        self._await_answer("Stop", "")

    def _add_last_text(self, text: str) -> None:
        """Record at least the last text of a turn whose texts weren't displayed to us."""
        if text and not self.session.displayed_message_id:
            self.tracker.add_text(self.session.new_id("message"), 0, text)

    def _stop_failure(self, hook: Object, _: AgentPath) -> None:
        if self.session.has_stream or not (self.session.turn_is_open or self.prompts.is_holding):
            return
        text = text_of(hook, "last_assistant_message", "error_details", "error")
        self.turns.fail(failure_kind_of(text, 0, text_of(hook, "error")), text, reset_time_in(text))

    def _interrupt(self, _hook: Object, _: AgentPath) -> None:
        self.turns.interrupt()
        self.session.report_ready()

    def _notification(self, hook: Object, _: AgentPath) -> None:
        if self.session.has_stream:
            return
        kind = text_of(hook, "notification_type")
        if kind == "permission_prompt":
            self.approvals.open_terminal_dialog(text_of(hook, "message"))
        elif kind == "idle_prompt":
            # The agent waits for a prompt, so a turn that is still open was interrupted.
            self.turns.interrupt()

    def _pre_compact(self, hook: Object, _: AgentPath) -> None:
        self.turns.start_compaction(text_of(hook, "trigger"))
        self._await_answer("PreCompact", "")

    def _post_compact(self, hook: Object, _: AgentPath) -> None:
        self.tracker.end_compaction(summary=text_of(hook, "compact_summary"))

    def _post_model_switch(self, hook: Object, _: AgentPath) -> None:
        self.session.set_model(text_of(hook, "to_model"))

    # ------------------------------------------------------------------------------------------------------------------
    # Texts, where no stream reports them better
    # ------------------------------------------------------------------------------------------------------------------

    def _message_display(self, hook: Object, _: AgentPath) -> None:
        message_id, delta = text_of(hook, "message_id"), text_of(hook, "delta")
        if self.session.has_stream or self.prompts.is_holding or not message_id:
            return
        if self._was_displayed(message_id, hook.get("index")):
            return
        if self.session.turn_is_open or text_of(hook, "prompt_id") != self.session.prompt_id:
            self.prompts.note_work()
            self.tracker.add_text(message_id, 0, delta)
        elif message_id != self.session.displayed_message_id:
            # The turn of this text is over, so the text doesn't start another one.
            self.tracker.add_text_outside_turn(message_id, 0, delta)
        self.session.displayed_message_id = message_id
        if hook.get("final") is True:
            self._shown_message_id = message_id

    def _was_displayed(self, message_id: str, index: Json) -> bool:
        """Return whether this part of a message was reported before."""
        if not isinstance(index, int):
            return False
        before = self._display_index if message_id == self.session.displayed_message_id else -1
        self._display_index = max(index, before)
        return index <= before

    def _finish_shown_message(self, event: str, hook: Object) -> None:
        """Complete the displayed message once another hook follows it.

        The text of a failure is removed instead: StopFailure reports it as the reason of the failure.
        """
        message_id = self._shown_message_id
        if not message_id or (event == "MessageDisplay" and text_of(hook, "message_id") == message_id):
            return
        self._shown_message_id = ""
        if event == "StopFailure" and not self.session.has_stream:
            self.tracker.abort_message(message_id)
        else:
            self.tracker.finish_message(message_id)

    # ------------------------------------------------------------------------------------------------------------------
    # Calls and permissions
    # ------------------------------------------------------------------------------------------------------------------

    def _pre_tool_use(self, hook: Object, path: AgentPath) -> None:
        tool, args = text_of(hook, "tool_name"), hook.get("tool_input")
        call_id = text_of(hook, "tool_use_id") or self.session.new_id("call")
        if not path:
            self.tracker.end_compaction(ok=False)
        self.calls.start(call_id, tool, args, path)
        self._await_answer("PreToolUse", call_id)
        if tool == tables.QUESTION_TOOL:
            self.approvals.open(call_id, tool, args, path)

    def _call_of(self, hook: Object, path: AgentPath) -> str:
        """Return the call that a hook is about."""
        call_id = text_of(hook, "tool_use_id")
        if call_id in self.tracker.calls or self.calls.has_ended(call_id):
            return call_id
        return self.calls.find(text_of(hook, "tool_name"), hook.get("tool_input"), path) or call_id

    def _post_tool_use(self, hook: Object, path: AgentPath) -> None:
        response = hook.get("tool_response")
        self._end_call(hook, path, True, readable(response), response)

    def _post_tool_use_failure(self, hook: Object, path: AgentPath) -> None:
        self._end_call(hook, path, False, hook.get("error"), None)

    def _end_call(self, hook: Object, path: AgentPath, ok: bool, result: Json, response: Json) -> None:
        call_id = self._call_of(hook, path)
        if not path:
            self._ensure_known()
            self.approvals.close_forms()
        if self.session.has_stream and not path:
            # The stream reports the end too, with the words that the model reads.
            self.tracker.resolve_approval(call_id, "answered_elsewhere")
        elif call_id:
            self.calls.end(call_id, ok, result, text_of(hook, "tool_name"), path, response)

    def _ensure_known(self) -> None:
        """Start a turn at a sign of life from an agent of which nothing is known yet.

        Outside a turn the end of a call says nothing about a turn otherwise.
        """
        if not self.session.turn_is_open and self.session.is_dormant:
            self.prompts.ensure_turn()

    def _post_tool_batch(self, hook: Object, path: AgentPath) -> None:
        if not path:
            self._ensure_known()
        if path or not self.session.has_stream:
            for call in map(object_of, list_of(hook, "tool_calls")):
                self._end_call_of_batch(call, path)
        self.approvals.close_answered_elsewhere(path)

    def _end_call_of_batch(self, call: Object, path: AgentPath) -> None:
        """End a call that had no hook of its own: it was refused, or its tool doesn't exist."""
        call_id, tool = text_of(call, "tool_use_id"), text_of(call, "tool_name")
        if not call_id or self.calls.has_ended(call_id):
            return
        if call_id not in self.tracker.calls:
            self.calls.open(call_id, tool, call.get("tool_input"), "", 0, path)
        self.calls.end(call_id, False, call.get("tool_response"), tool, path)

    def _permission_request(self, hook: Object, path: AgentPath) -> None:
        tool, args = text_of(hook, "tool_name"), hook.get("tool_input")
        call_id = text_of(hook, "tool_use_id") or self.calls.find(tool, args, path) or self.session.new_id("call")
        self.approvals.open(call_id, tool, args, path, list_of(hook, "permission_suggestions"))
        self._await_answer("PermissionRequest", call_id)

    def _permission_denied(self, hook: Object, path: AgentPath) -> None:
        if path or not self.session.has_stream:
            self.calls.end(self._call_of(hook, path), False, text_of(hook, "reason"), path=path)

    def _permission_decision(self, hook: Object, path: AgentPath) -> None:
        """Apply the decision of a forwarder that asked a reviewer. `ask_user` decides nothing."""
        decision = text_of(hook, "decision")
        refs = [ref for ref, gate in self.tracker.gates.items() if gate.kind == "approval" and gate.path == path]
        ref = text_of(hook, "tool_use_id") or (refs[0] if refs else "")
        if decision not in ("", "ask", "ask_user"):
            is_denied = decision in ("deny", "denied", "reject", "rejected", "block")
            by = text_of(hook, "by") or "hook"
            self.approvals.decide(ref, "deny" if is_denied else "allow", by, text_of(hook, "reason"))

    # ------------------------------------------------------------------------------------------------------------------
    # Sub-agents, forms, todos
    # ------------------------------------------------------------------------------------------------------------------

    def _subagent_start(self, hook: Object, _: AgentPath) -> None:
        agent_id = text_of(hook, "agent_id")
        if agent_id:
            self.subagents.start(agent_id, text_of(hook, "agent_type"))

    def _subagent_stop(self, hook: Object, _: AgentPath) -> None:
        agent_id = text_of(hook, "agent_id")
        if agent_id:
            self.subagents.end(agent_id, result=text_of(hook, "last_assistant_message") or None)

    def _elicitation(self, hook: Object, _: AgentPath) -> None:
        self._await_answer("Elicitation", self.approvals.open_form(hook))

    def _elicitation_result(self, hook: Object, _: AgentPath) -> None:
        server = text_of(hook, "mcp_server_name")
        self.approvals.close_server_forms(server, text_of(hook, "action"), hook.get("content"))

    def _task_created(self, hook: Object, _: AgentPath) -> None:
        self.calls.set_todo(text_of(hook, "task_id"), text_of(hook, "task_subject"))

    def _task_completed(self, hook: Object, _: AgentPath) -> None:
        self.calls.set_todo(text_of(hook, "task_id"), text_of(hook, "task_subject"), "completed")

    # ------------------------------------------------------------------------------------------------------------------
    # Our answers. An answer is evidence: it decides what was asked.
    # ------------------------------------------------------------------------------------------------------------------

    def read_reply(self, data: Json) -> bool:
        """Read an answer that we gave to a hook."""
        reply = object_of(data)
        answer = object_of(reply, "answer")
        event = text_of(reply, "event") or text_of(object_of(answer, "hookSpecificOutput"), "hookEventName")
        if event and not self.session.has_exited:
            self.apply_answer(event, self._take_pending(event, reply), answer)
        return bool(event)

    def read_disconnect(self, data: Json) -> bool:
        """Read that Claude Code closed a hook's connection: it was interrupted, or waited too long for our answer."""
        reply = object_of(data)
        event = text_of(reply, "event")
        if event and not self.session.has_exited:
            ref = self._take_pending(event, reply)
            if event in ("PermissionRequest", "Elicitation") and ref not in self.approvals.requests.values():
                self.approvals.withdraw(ref)
                self._watch_interrupt()
        return bool(event)

    def _take_pending(self, event: str, reply: Object) -> str:
        """Return what a reply is about: by the reference that it names, by its delay, else the oldest that is open."""
        ref = text_of(reply, "tool_use_id", "ref")
        candidates = [hook for hook in self.pending if hook.event == event]
        if ref or not candidates:
            return ref
        delay = reply.get("after_s")
        if isinstance(delay, int | float) and not isinstance(delay, bool):
            received_at = self.session.now - delay
            hook = min(candidates, key=lambda hook: abs(received_at - hook.received_at))
            if abs(received_at - hook.received_at) > _MATCH_S:
                return ""
        else:
            hook = next((hook for hook in candidates if hook.ref in self.tracker.gates), candidates[-1])
        self.pending.remove(hook)
        return hook.ref

    def apply_answer(self, event: str, ref: str, answer: Object) -> None:
        """Apply our answer to a hook. Most answers only let the agent continue."""
        output = object_of(answer, "hookSpecificOutput")
        self.session.set_title(text_of(output, "sessionTitle"))
        if event == "PermissionRequest":
            self._apply_permission(ref, object_of(output, "decision"))
        elif event == "PreToolUse":
            self._apply_pre_tool_use(ref, answer, output)
        elif event == "Elicitation":
            if text_of(output, "action"):
                self.approvals.close_form(ref, text_of(output, "action"), output.get("content"))
        elif text_of(answer, "decision") == "block":
            self._apply_block(event, ref, text_of(answer, "reason"))

    def _apply_permission(self, call_id: str, decision: Object) -> None:
        self.approvals.apply_decision(call_id, decision)
        is_interrupt = decision.get("behavior") == "deny" and decision.get("interrupt") is True
        if is_interrupt and not self.session.has_stream:
            self.turns.interrupt()

    def _apply_pre_tool_use(self, call_id: str, answer: Object, output: Object) -> None:
        # `block` and `approve` are the older form of the answer.
        older = {"block": "deny", "approve": "allow"}.get(text_of(answer, "decision"), "")
        decision = text_of(output, "permissionDecision") or older
        if decision == "defer":
            self.session.deferred_call_id = call_id
        elif decision == "deny":
            self.approvals.block(call_id, text_of(output, "permissionDecisionReason") or text_of(answer, "reason"))
        elif decision == "allow":
            updated = object_of(output, "updatedInput")
            if updated.get("answers"):
                self.approvals.decide(call_id, "allow", "user", answers=updated["answers"])
            self.calls.change_args(call_id, updated)

    def _apply_block(self, event: str, ref: str, reason: str) -> None:
        """Apply an answer that keeps the agent from what its hook announced."""
        if event == "Stop":
            self.turns.reopen()
        elif event == "UserPromptSubmit" and not self.session.has_stream:
            self.prompts.reject(ref, reason)
            self.turns.finish()
            self.session.command_result_due = True
        elif event == "PreCompact":
            self.tracker.end_compaction(ok=False)
