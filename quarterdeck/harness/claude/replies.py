"""Our answers to hooks, and hooks whose connection Claude Code closed. An answer is evidence: it decides what was asked."""

from __future__ import annotations

from collections.abc import Callable

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.claude.hooks import Hooks


class Replies(Hooks):
    """What was answered, by the event that was answered."""

    def read_reply(self, data: Json) -> bool:
        found = object_of(data)
        answer = object_of(found, "answer")
        event = text_of(found, "event") or text_of(object_of(answer, "hookSpecificOutput"), "hookEventName")
        if event and not self.gone:
            self.replied(event, self.awaited(event, found), answer)
        return bool(event)

    def replied(self, event: str, ref: str, answer: Object) -> None:
        """We answered a hook. Most answers only let the agent go on."""
        title = text_of(object_of(answer, "hookSpecificOutput"), "sessionTitle")
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))
        reader = _REPLIES.get(event)
        if reader is not None:
            reader(self, ref, answer)

    def reply_permission_request(self, call_id: str, answer: Object) -> None:
        decision = object_of(answer, "hookSpecificOutput", "decision")
        self.decision(call_id, decision)
        if decision.get("behavior") == "deny" and decision.get("interrupt") is True and not self.stream:
            self.stop()

    def decision(self, call_id: str, found: Object) -> None:
        """{behavior: allow | deny, …}, the same in a hook's answer and in can_use_tool's; anything else decides nothing."""
        behaviour = text_of(found, "behavior")
        if behaviour == "allow":
            tool = self.name_of(call_id)
            is_open = call_id in self.tracker.gates
            self.decides(call_id, "allow", "user", answers=object_of(found, "updatedInput").get("answers"))
            if is_open:
                self.allowed_always(tool, list_of(found, "updatedPermissions"))
                self.changes_args(call_id, object_of(found, "updatedInput"))
        elif behaviour == "deny":
            self.decides(call_id, "deny", "user", text_of(found, "message"))

    def reply_pre_tool_use(self, call_id: str, answer: Object) -> None:
        told = object_of(answer, "hookSpecificOutput")
        decision = text_of(told, "permissionDecision") or {"block": "deny", "approve": "allow"}.get(
            text_of(answer, "decision"), ""
        )
        if decision == "defer":
            self.deferred = call_id
        elif decision == "deny":
            reason = text_of(told, "permissionDecisionReason") or text_of(answer, "reason")
            self.kept_from_running(call_id, reason)
        elif decision == "allow":
            changed = object_of(told, "updatedInput")
            if changed.get("answers"):
                self.decides(call_id, "allow", "user", answers=changed["answers"])
            self.changes_args(call_id, changed)

    def kept_from_running(self, call_id: str, reason: str) -> None:
        """A hook refused the call before anybody was asked."""
        self.withdraws(call_id)
        if call_id in self.tracker.calls:
            self.mark_over(call_id)
            self.args.pop(call_id, None)
            self.tracker.block_call(call_id, reason)

    def reply_elicitation(self, ref: str, answer: Object) -> None:
        told = object_of(answer, "hookSpecificOutput")
        if text_of(told, "action"):
            self.form_closes(ref, text_of(told, "action"), told.get("content"))

    def reply_stop(self, _: str, answer: Object) -> None:
        if text_of(answer, "decision") == "block":
            self.goes_on()

    def reply_user_prompt_submit(self, text: str, answer: Object) -> None:
        if text_of(answer, "decision") == "block" and not self.stream:
            self.refused(text, text_of(answer, "reason"))
            self.finish()
            self.command_due = True

    def refused(self, text: str, reason: str) -> None:
        """A prompt that a hook did not let through; the model never saw it."""
        self.tracker.emit(ev.PromptRejected(reason=reason or "blocked by a hook", text=text))

    def reply_pre_compact(self, _: str, answer: Object) -> None:
        if text_of(answer, "decision") == "block":
            self.tracker.end_compaction(ok=False)

    def read_disconnect(self, data: Json) -> bool:
        """Claude Code closed a hook's connection: an interrupt, or it waited too long. Nobody reads our answer."""
        found = object_of(data)
        event = text_of(found, "event")
        if event and not self.gone:
            ref = self.awaited(event, found)
            if event in ("PermissionRequest", "Elicitation") and ref not in self.requests.values():
                self.withdraws(ref)
                self.may_be_interrupted()
        return bool(event)


#: What we answered, by the event.
_REPLIES: dict[str, Callable[[Replies, str, Object], None]] = {
    "PermissionRequest": Replies.reply_permission_request,
    "PreToolUse": Replies.reply_pre_tool_use,
    "Elicitation": Replies.reply_elicitation,
    "Stop": Replies.reply_stop,
    "UserPromptSubmit": Replies.reply_user_prompt_submit,
    "PreCompact": Replies.reply_pre_compact,
}
