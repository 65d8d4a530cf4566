"""What we send to pi, and what it answers. Commands carry an id of ours, and the response repeats it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.failures import failure_kind, told
from quarterdeck.harness.pi.content import entries_messages, history_of, is_finished, level_of, model_name
from quarterdeck.harness.pi.dialogs import Dialogs
from quarterdeck.kernel.view import View

#: pi takes text while it works.
CAPABILITIES = ("steer",)
#: How `streamingBehavior` calls the two lists.
_BEHAVIOURS = {"steer": "steering", "followUp": "followUp"}


class Commands(Dialogs):
    """Commands and responses."""

    def __init__(self) -> None:
        super().__init__()
        self.session = ""
        self.model: str = ""
        self.thinking = ""
        #: The past is read back once, before anything new happens.
        self.fresh = True
        #: The person's own shell commands that run, by id.
        self.bashes: dict[str, str] = {}
        self._sent: dict[str, Object] = {}

    def restore(self, view: View) -> None:
        super().restore(view)
        self.restore_queue(view)
        profile = view.state.profile
        self.session, self.model, self.thinking = profile.native_session_id, profile.model, profile.thinking or ""
        self.limit = (profile.context.limit or 0) if profile.context is not None else 0
        self.running = bool(self.tracker.turn_id)
        self.fresh = not len(view.timeline.entries)
        self._replies = view.index

    # --- what we send

    def read_stdin(self, data: Json) -> bool:
        """Anything may be sent; what pi does not understand it answers with an error."""
        if isinstance(data, dict):
            found = cast(Object, data)
            ref = text_of(found, "id")
            handler = _COMMANDS.get(text_of(found, "type"))
            if ref and handler != self.extension_ui_response:
                self._sent[ref] = found
            if handler is not None:
                handler(self, found)
        return True

    def prompt(self, found: Object) -> None:
        ref, text = text_of(found, "id"), text_of(found, "message")
        behaviour = _BEHAVIOURS.get(text_of(found, "streamingBehavior"))
        if ref and text:
            self.prompts[ref] = text
        if behaviour is not None:
            self.offer(ref, text, behaviour)

    def steer(self, found: Object) -> None:
        self.offer(text_of(found, "id"), text_of(found, "message"), "steering")

    def follow_up(self, found: Object) -> None:
        self.offer(text_of(found, "id"), text_of(found, "message"), "followUp")

    def abort(self, found: Object) -> None:
        del found
        self.aborting = bool(self.tracker.turn_id)

    def bash(self, found: Object) -> None:
        ref, command = text_of(found, "id"), text_of(found, "command")
        if ref:
            self.bashes[ref] = command
            self.tracker.emit(ev.BashStart(bash_id=ref, command=command))

    # --- what pi answers

    def response(self, found: Object) -> None:
        ref, command = text_of(found, "id"), text_of(found, "command")
        sent = self._sent.pop(ref, {})
        if found.get("success") is False:
            self._refused(ref, command, text_of(found, "error"))
            return
        handler = _ANSWERS.get(command)
        if handler is not None:
            handler(self, object_of(found, "data"), {"id": ref, **sent})

    def _refused(self, ref: str, command: str, error: str) -> None:
        """A command was refused. A prompt that nothing else comes of is a turn that failed."""
        self.tracker.emit(ev.CommandFailed(command_id=ref, message=error))
        self.offered = [one for one in self.offered if one.ref != ref]
        text = self.prompts.pop(ref, "")
        if command == "bash":
            self._end_bash(ref, "", None)
        elif text and not self.tracker.turn_id:
            kind = failure_kind(error)
            self.tracker.fail_turn(kind, told(kind, error))

    def prompt_accepted(self, data: Object, sent: Object) -> None:
        """Accepted at once means that the agent was idle; `handled` that an extension's command did it all."""
        ref = text_of(sent, "id")
        how = text_of(data, "disposition")
        if how == "handled":
            self.prompts.pop(ref, None)
            self.close_dialogs()
        elif how == "queued" or any(one.ref == ref for one in self.queued):
            self.prompts.pop(ref, None)
        else:
            if "settle" in self.timers:
                self.settle()
            self.offered = [one for one in self.offered if one.ref != ref]
            self.prompts = {ref: self.prompts[ref]} if ref in self.prompts else {}
            self.accepted = ref

    def aborted(self, data: Object, sent: Object) -> None:
        """Answered when all is over. A version that settles has said so before."""
        del data, sent
        if self.tracker.turn_id and not self.running:
            self.settle()
        elif not self.tracker.turn_id:
            self.aborting = False  # it met a compaction: the next turn is not aborted

    def state_told(self, data: Object, sent: Object) -> None:
        del sent
        session, model = text_of(data, "sessionId"), object_of(data, "model")
        self.limit = int_of(model, "contextWindow") or self.limit
        name = model_name(model)
        if session != self.session or (name and name != self.model):
            self.session, self.model = session, name or self.model
            self.tracker.report_ready(
                session, name, capabilities=CAPABILITIES, resumable=bool(text_of(data, "sessionFile"))
            )
        self.thinking_told(data, {})
        self._reconcile(data)

    def _reconcile(self, data: Object) -> None:
        """What pi says of itself outweighs what we made of its events."""
        if data.get("isCompacting") is True:
            self.tracker.start_compaction("auto")
        elif data.get("isStreaming") is True:
            self.tracker.start_turn()
        elif data.get("isStreaming") is False and "settle" in self.timers:
            self.settle()

    def messages_told(self, data: Object, sent: Object) -> None:
        del sent
        self._restored(list_of(data, "messages"))

    def entries_told(self, data: Object, sent: Object) -> None:
        if not text_of(sent, "since"):
            self._restored(entries_messages(list_of(data, "entries")))

    def _restored(self, messages: list[Any]) -> None:
        """The past of a session that was resumed. What we saw happen ourselves is not told again."""
        history = history_of(messages)
        if self.fresh and history:
            self.fresh = False
            self.tracker.record_history(is_finished(messages), history)

    def stats_told(self, data: Object, sent: Object) -> None:
        self.context_told(object_of(data, "contextUsage"), sent)

    def context_told(self, data: Object, sent: Object) -> None:
        del sent
        tokens, limit, percent = data.get("tokens"), int_of(data, "contextWindow"), data.get("percent")
        if limit:
            self.limit = limit
            known = isinstance(percent, int | float) and not isinstance(percent, bool)
            self.tracker.emit(
                ev.ContextUsage(
                    tokens=tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None,
                    limit=limit,
                    percent=float(percent) if known and percent is not None else None,
                )
            )

    def queue_cleared(self, data: Object, sent: Object) -> None:
        del data, sent
        self.drop_leaving()

    def model_set(self, data: Object, sent: Object) -> None:
        del sent
        name = model_name(data)
        self.limit = int_of(data, "contextWindow") or self.limit
        if name and name != self.model:
            self.tracker.emit(ev.ModelSwitched(to=name, from_=self.model))
            self.model = name

    def model_cycled(self, data: Object, sent: Object) -> None:
        self.model_set(object_of(data, "model"), sent)
        self.thinking_told(data, sent)

    def thinking_told(self, data: Object, sent: Object) -> None:
        del sent
        self.thinking_level_changed(data)

    def thinking_level_changed(self, found: Object) -> None:
        level = level_of(found)
        if level and level != self.thinking:
            self.thinking = level
            self.tracker.emit(ev.SettingChanged(thinking=level))

    def session_left(self, data: Object, sent: Object) -> None:
        """Another session is bound; its id comes with the next get_state, or stands in the file's name."""
        if data.get("cancelled") is True:
            return
        if self.tracker.turn_id:
            self.tracker.abort_turn("another session was opened")
        self.clear_queue()
        stem = text_of(sent, "sessionPath").rpartition("/")[2].removesuffix(".jsonl")
        self.session = stem.rpartition("_")[2]
        self.fresh = True
        self.running = self.aborting = False
        self.tracker.report_ready(self.session, capabilities=CAPABILITIES)

    # --- the person's own commands

    def bash_execution_update(self, found: Object) -> None:
        ref, delta = text_of(found, "id"), text_of(found, "delta")
        if ref in self.bashes and delta:
            self.tracker.emit(ev.BashOutput(bash_id=ref, delta=delta))

    def bash_ended(self, data: Object, sent: Object) -> None:
        code = data.get("exitCode")
        exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
        self._end_bash(text_of(sent, "id"), text_of(data, "output"), exit_code)

    def _end_bash(self, ref: str, output: str, exit_code: int | None) -> None:
        command = self.bashes.pop(ref, None)
        if command is not None:
            self.tracker.emit(ev.BashEnd(bash_id=ref, exit_code=exit_code, output=output, command=command))

    def end_bashes(self) -> None:
        """The process is gone, and what it ran for the person with it."""
        for ref in list(self.bashes):
            self._end_bash(ref, "", None)


#: What we send.
_COMMANDS: dict[str, Callable[[Commands, Object], None]] = {
    "prompt": Commands.prompt,
    "steer": Commands.steer,
    "follow_up": Commands.follow_up,
    "abort": Commands.abort,
    "bash": Commands.bash,
    "extension_ui_response": Commands.extension_ui_response,
}


#: What pi answers, by the command.
_ANSWERS: dict[str, Callable[[Commands, Object, Object], None]] = {
    "prompt": Commands.prompt_accepted,
    "get_state": Commands.state_told,
    "get_messages": Commands.messages_told,
    "get_entries": Commands.entries_told,
    "get_session_stats": Commands.stats_told,
    "get_context_usage": Commands.context_told,
    "clear_queue": Commands.queue_cleared,
    "abort": Commands.aborted,
    "bash": Commands.bash_ended,
    "set_model": Commands.model_set,
    "cycle_model": Commands.model_cycled,
    "cycle_thinking_level": Commands.thinking_told,
    "switch_session": Commands.session_left,
    "new_session": Commands.session_left,
    "fork": Commands.session_left,
    "clone": Commands.session_left,
}
