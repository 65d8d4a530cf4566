"""Hooks, and our answers to them. Alone they give 003's Claude diagram; beside the stream they add what it does not say.

One handler per event, named after it. `path` names the sub-agent that the hook came from: such hooks never move the
main agent. With the stream beside them, calls and texts are told by the stream and turns are closed by its results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, is_object, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.approvals import Asks
from quarterdeck.harness.claude.calls import readable
from quarterdeck.harness.claude.failing import kind_of, resets_in
from quarterdeck.harness.tracker import AgentPath

#: A checker learns nothing from a comparison with this, so it asks for no `cast`, which is a call at run time.
Handler: TypeAlias = Callable[["Hooks", Object, AgentPath], None]
_SUBMITS_KEPT = 64
#: Hooks of one event run side by side, so the same prompt may be told several times, but not long after each other.
_TWICE_S = 2.0
#: What a sub-agent's hooks may tell.
_AGENT_HOOKS = frozenset(
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


class Hooks(Asks):
    """All 33 hooks."""

    def new_process(self) -> None:
        Asks.new_process(self)
        self.shown = ""
        self.submits: dict[tuple[str, str], float] = {}
        self.display_index = -1

    def read_hook(self, data: Json) -> bool:
        """One hook, whichever way it came."""
        if not is_object(data):
            return False
        found: Object = data
        name = text_of(found, "hook_event_name")
        handler = _HOOKS.get(name)
        if handler is None and name not in tables.QUIET_HOOKS:
            return False
        if self.gone and name not in tables.REVIVING_HOOKS:
            return True
        if found.get("session_id") != self.session_id and not self.is_ours(found, name):
            return True
        self.hooked, self.gone = True, False
        if handler is None:
            return True
        agent_id = text_of(found, "agent_id") if "agent_id" in found else ""
        if not agent_id:
            mode = found.get("permission_mode")
            if mode and mode != self.mode_word:
                self.told_mode(text_of(found, "permission_mode"))
            if self.shown:
                self.settle_text(self.shown, name, found)
            handler(self, found, ())
        elif name in _AGENT_HOOKS and text_of(found, "agent_type"):
            # an agent without a type is Claude Code's own (compaction) and nobody's sub-agent
            handler(self, found, self.path_of(agent_id))
        self.watch_silence()
        return True

    def is_ours(self, found: Object, name: str) -> bool:
        """Whether a hook that does not name our session is ours all the same: it names none, or one that we now serve."""
        session_id = text_of(found, "session_id")
        return not session_id or self.binds(session_id, name, found)

    def is_told(self, prompt_id: str, text: str) -> bool:
        """Whether this very prompt was told a moment ago, by another hook or by a callback of the SDK."""
        submits, told = self.submits, (prompt_id, text)
        before = submits.get(told)
        submits[told] = self.now
        if len(submits) > _SUBMITS_KEPT:
            del submits[next(iter(submits))]
        if not prompt_id or before is None or self.now - before >= _TWICE_S:
            return False
        # it waits for all hooks of a prompt before it goes on, so nothing has happened since
        return not (self.tracker.has_running_calls() or self.tracker.gates or self.tracker.is_compacting)

    def wakes(self) -> None:
        """A sign of life outside a turn, which says nothing of one unless we know of nothing at all."""
        if self.tracker.has_exited or not self.tracker.is_ready:
            self.begin()

    # --- the session

    def on_hook_session_start(self, found: Object, _: AgentPath) -> None:
        source = text_of(found, "source")
        self.ready(text_of(found, "session_id"), text_of(found, "model"))
        if source == "compact":
            self.tracker.end_compaction()

    def on_hook_session_end(self, found: Object, _: AgentPath) -> None:
        reason = text_of(found, "reason")
        if self.tracker.has_exited:
            return
        if self.deferred:
            self.pause()
        elif reason == "clear" and self.stream:
            self.command_due = True
            self.finish()
        self.tracker.end_session(reason)

    def on_hook_user_prompt_submit(self, found: Object, _: AgentPath) -> None:
        text, prompt_id = text_of(found, "prompt"), text_of(found, "prompt_id")
        if self.is_told(prompt_id, text):
            return
        self.notified(text)
        if not self.is_other_turn(prompt_id):
            tracker = self.tracker
            if tracker.is_compacting:
                tracker.end_compaction(ok=False)
            if tracker.gates:
                self.moved_on(())
            if tracker.calls and not self.stream:
                self.close_calls()
        self.submitted(text, prompt_id)
        self.awaits("UserPromptSubmit", text)

    def close_calls(self) -> None:
        """The main agent reads a prompt, so no call of it runs, though its end was not told."""
        for call_id, call in list(self.tracker.calls.items()):
            if call.running and not call.path:
                self.call_over(call_id, ok=True, result=None)

    def on_hook_stop(self, found: Object, _: AgentPath) -> None:
        if "background_tasks" in found and (found["background_tasks"] or self.tracker.background):
            self.tasks_are(list_of(found, "background_tasks"))
        if not self.tracker.turn_id:
            self.ready()
        elif not self.stream:
            self.said_last(text_of(found, "last_assistant_message"))
            self.finish()
        elif self.tracker.background:
            # in text mode its result is printed only when the background work is done too
            self.ends_before_its_result()
        self.awaits("Stop", "")

    def said_last(self, text: str) -> None:
        """Where texts are not displayed to us, at least the last one is told."""
        if text and not self.displayed:
            self.tracker.add_text(self.named("message"), 0, text)

    def on_hook_stop_failure(self, found: Object, _: AgentPath) -> None:
        if self.stream or not (self.tracker.turn_id or self.held):
            return
        text = text_of(found, "last_assistant_message", "error_details", "error")
        kind = kind_of(text, 0, text_of(found, "error"))
        self.fail(kind, text, resets_in(text))

    def on_hook_interrupt(self, _found: Object, _: AgentPath) -> None:
        self.stop()
        self.ready()

    def on_hook_notification(self, found: Object, _: AgentPath) -> None:
        if self.stream:
            return
        kind = text_of(found, "notification_type")
        if kind == "permission_prompt":
            self.asks_vaguely(text_of(found, "message"))
        elif kind == "idle_prompt":
            # it waits for a prompt: the turn that we hold for open was interrupted
            self.stop()

    # --- texts, only where no stream tells them better

    def on_hook_message_display(self, found: Object, _: AgentPath) -> None:
        message_id, delta = text_of(found, "message_id"), text_of(found, "delta")
        if self.stream or self.held is not None or not message_id or self.is_shown(message_id, found.get("index")):
            return
        if self.tracker.turn_id or text_of(found, "prompt_id") != self.prompt_id:
            self.working()
            self.tracker.add_text(message_id, 0, delta)
        elif message_id != self.displayed:
            # the turn of this text is over already, so it opens none
            self.tracker.add_text_outside_turn(message_id, 0, delta)
        self.displayed = message_id
        if found.get("final") is True:
            self.shown = message_id

    def is_shown(self, message_id: str, index: Json) -> bool:
        """Whether this part of a text was displayed to us already."""
        if not isinstance(index, int):
            return False
        before = self.display_index if message_id == self.displayed else -1
        self.display_index = max(index, before)
        return index <= before

    def settle_text(self, shown: str, name: str, found: Object) -> None:
        """A text is whole once something follows it. The text of a failure is told as that, not as an answer."""
        if name == "MessageDisplay" and text_of(found, "message_id") == shown:
            return
        self.shown = ""
        if name == "StopFailure" and not self.stream:
            self.tracker.abort_message(shown)
        else:
            self.tracker.finish_message(shown)

    # --- calls

    def on_hook_pre_tool_use(self, found: Object, path: AgentPath) -> None:
        name, args = text_of(found, "tool_name"), found.get("tool_input")
        call_id = text_of(found, "tool_use_id") or self.named("call")
        if self.tracker.is_compacting and not path:
            self.tracker.end_compaction(ok=False)
        self.call_runs(call_id, name, args, path)
        self.awaits("PreToolUse", call_id)
        if name == tables.QUESTION_TOOL:
            self.asks(call_id, name, args, path)

    def call_in(self, found: Object, path: AgentPath) -> str:
        """The call that a hook is about."""
        call_id = text_of(found, "tool_use_id")
        if call_id in self.tracker.calls or call_id in self.over:
            return call_id
        return self.call_like(text_of(found, "tool_name"), found.get("tool_input"), path) or call_id

    def on_hook_post_tool_use(self, found: Object, path: AgentPath) -> None:
        response = found.get("tool_response")
        self.posts(found, path, True, readable(response), response)

    def on_hook_post_tool_use_failure(self, found: Object, path: AgentPath) -> None:
        self.posts(found, path, False, found.get("error"), None)

    def posts(self, found: Object, path: AgentPath, ok: bool, result: Json, response: Json) -> None:
        """A call ended. The stream tells it too, with the words that the model reads."""
        call_id = self.call_in(found, path)
        if not path:
            if not self.tracker.turn_id:
                self.wakes()
            if self.forms:
                self.forms_gone()
        if self.stream and not path:
            self.tracker.resolve_approval(call_id, "answered_elsewhere")
        elif call_id:
            self.call_over(call_id, ok, result, text_of(found, "tool_name"), path, response)

    def on_hook_post_tool_batch(self, found: Object, path: AgentPath) -> None:
        if not (path or self.tracker.turn_id):
            self.wakes()
        if path or not self.stream:
            for one in list_of(found, "tool_calls"):
                self.ends_in_batch(object_of(one), path)
        if self.tracker.gates:
            self.moved_on(path)

    def ends_in_batch(self, found: Object, path: AgentPath) -> None:
        """A call after which no hook of its own came was refused, or was no call that could run."""
        call_id, name = text_of(found, "tool_use_id"), text_of(found, "tool_name")
        if not call_id or call_id in self.over:
            return
        if call_id not in self.tracker.calls:
            self.call_announced(call_id, name, found.get("tool_input"), "", 0, path)
        self.call_over(call_id, False, found.get("tool_response"), name, path)

    def on_hook_permission_request(self, found: Object, path: AgentPath) -> None:
        name, args = text_of(found, "tool_name"), found.get("tool_input")
        call_id = text_of(found, "tool_use_id") or self.call_like(name, args, path) or self.named("call")
        self.asks(call_id, name, args, path, list_of(found, "permission_suggestions"))
        self.awaits("PermissionRequest", call_id)

    def on_hook_permission_denied(self, found: Object, path: AgentPath) -> None:
        if path or not self.stream:
            self.call_over(self.call_in(found, path), False, text_of(found, "reason"), path=path)

    def on_hook_permission_decision(self, found: Object, path: AgentPath) -> None:
        """The word of a forwarder that asked a reviewer: all but `ask_user` is a decision."""
        word = text_of(found, "decision")
        asked = [ref for ref, gate in self.tracker.gates.items() if gate.kind == "approval" and gate.path == path]
        ref = text_of(found, "tool_use_id") or (asked[0] if asked else "")
        if word not in ("", "ask", "ask_user"):
            denied = word in ("deny", "denied", "reject", "rejected", "block")
            self.decides(ref, "deny" if denied else "allow", text_of(found, "by") or "hook", text_of(found, "reason"))

    # --- sub-agents, compaction, the rest

    def on_hook_subagent_start(self, found: Object, _: AgentPath) -> None:
        agent_id = text_of(found, "agent_id")
        if agent_id:
            self.agent_begins(agent_id, text_of(found, "agent_type"))

    def on_hook_subagent_stop(self, found: Object, _: AgentPath) -> None:
        agent_id = text_of(found, "agent_id")
        if agent_id:
            self.agent_ends(agent_id, result=text_of(found, "last_assistant_message") or None)

    def on_hook_pre_compact(self, found: Object, _: AgentPath) -> None:
        self.compacts(text_of(found, "trigger"))
        self.awaits("PreCompact", "")

    def on_hook_post_compact(self, found: Object, _: AgentPath) -> None:
        self.tracker.end_compaction(summary=text_of(found, "compact_summary"))

    def on_hook_post_model_switch(self, found: Object, _: AgentPath) -> None:
        self.told_model(text_of(found, "to_model"))

    def on_hook_elicitation(self, found: Object, _: AgentPath) -> None:
        self.awaits("Elicitation", self.form_opens(found))

    def on_hook_elicitation_result(self, found: Object, _: AgentPath) -> None:
        server = text_of(found, "mcp_server_name")
        for ref in [ref for ref, (name, _) in self.forms.items() if name == server]:
            self.form_closes(ref, text_of(found, "action"), found.get("content"))

    def on_hook_task_created(self, found: Object, _: AgentPath) -> None:
        self.todo_is(text_of(found, "task_id"), text_of(found, "task_subject"))

    def on_hook_task_completed(self, found: Object, _: AgentPath) -> None:
        self.todo_is(text_of(found, "task_id"), text_of(found, "task_subject"), "completed")


#: event → the method that reads it
_HOOKS: dict[str, Handler] = {
    "SubagentStart": Hooks.on_hook_subagent_start,
    "SubagentStop": Hooks.on_hook_subagent_stop,
    "PreToolUse": Hooks.on_hook_pre_tool_use,
    "PostToolUse": Hooks.on_hook_post_tool_use,
    "PostToolUseFailure": Hooks.on_hook_post_tool_use_failure,
    "PostToolBatch": Hooks.on_hook_post_tool_batch,
    "PermissionRequest": Hooks.on_hook_permission_request,
    "PermissionDenied": Hooks.on_hook_permission_denied,
    "Elicitation": Hooks.on_hook_elicitation,
    "ElicitationResult": Hooks.on_hook_elicitation_result,
    "SessionStart": Hooks.on_hook_session_start,
    "SessionEnd": Hooks.on_hook_session_end,
    "UserPromptSubmit": Hooks.on_hook_user_prompt_submit,
    "Stop": Hooks.on_hook_stop,
    "StopFailure": Hooks.on_hook_stop_failure,
    "PreCompact": Hooks.on_hook_pre_compact,
    "PostCompact": Hooks.on_hook_post_compact,
    "PostModelSwitch": Hooks.on_hook_post_model_switch,
    "Notification": Hooks.on_hook_notification,
    "MessageDisplay": Hooks.on_hook_message_display,
    "TaskCreated": Hooks.on_hook_task_created,
    "TaskCompleted": Hooks.on_hook_task_completed,
    # not Claude Code's own: what a forwarder of ours saw besides
    "Interrupt": Hooks.on_hook_interrupt,
    "permission_decision": Hooks.on_hook_permission_decision,
}
