"""A run of pi: what it says, calls and how it ends.

pi's words and ours: its `agent_start … agent_end` is one try, its `turn_start … turn_end` one request. A turn of ours is
everything until the agent is settled: the tries of a retry, the compaction after a try, the follow-ups in it.

When is it settled? From 0.87 on pi says so (`agent_settled`). 0.73 does not: there the turn is over when, after
`agent_end`, nothing begins again at once: a retry and a compaction announce themselves within a millisecond, so a short
pause decides. The two are told apart by `willRetry`, which `agent_end` has since pi settles. A prompt that is accepted
in the pause shows that the agent was idle, so it ends the pause.

A try that fails says its text, then fails, and the retry says it all again: so the text of a failed try is held until it
is known whether a retry follows, and taken back then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.failures import failure_kind, told
from quarterdeck.harness.pi.content import (
    blocks_of,
    images_of,
    message_id,
    model_name,
    result_of,
    usage_of,
    words_of,
)
from quarterdeck.harness.pi.queue import Queues

#: How long after the end of a try something must begin for the turn to go on, where pi does not say that it is settled.
SETTLE_S = 0.2
#: How pi words an abort in a message that ended with an error.
_ABORTED = frozenset(
    {"this operation was aborted", "operation aborted", "request was aborted", "request aborted", "retry cancelled"}
)


class Reply(Struct, gc=False):
    """How the last reply of the model ended."""

    stop: str = ""
    error: str = ""

    @property
    def aborted(self) -> bool:
        return self.stop == "aborted" or self.error.strip(". ").lower() in _ABORTED


class Run(Queues):
    """The events of a run."""

    def __init__(self) -> None:
        super().__init__()
        #: The reply that is being streamed.
        self.speaking = ""
        #: A reply that failed; its text may be taken back.
        self.broken = ""
        self.last = Reply()
        #: Between agent_start and agent_end.
        self.running = False
        #: pi says when it is settled.
        self.settles = False
        #: We asked for an abort.
        self.aborting = False
        self.limit = 0
        #: The id of the prompt that pi accepted, until its message comes.
        self.accepted = ""
        self._replies = 0

    # --- tries and their ends

    def agent_start(self, found: Object) -> None:
        del found
        self.clear_timer("settle")
        self.running = True
        self.last = Reply()
        self.tracker.start_turn()

    def turn_start(self, found: Object) -> None:
        del found
        self.tracker.start_request()

    def agent_end(self, found: Object) -> None:
        self.running = False
        self.settles = self.settles or "willRetry" in found
        if not self.settles:
            self.pause()

    def agent_settled(self, found: Object) -> None:
        self.settles = True
        aborted = found.get("aborted")
        self.settle(aborted if isinstance(aborted, bool) else None)

    def pause(self) -> None:
        """Nothing goes on, unless something begins at once. After an abort nothing does."""
        if not self.settles and not self.running and self.tracker.turn_id:
            if self.was_aborted():
                self.settle()
            else:
                self.set_timer("settle", SETTLE_S)

    def on_settle(self) -> None:
        self.settle()

    def settle(self, aborted: bool | None = None) -> None:
        """The turn is over: aborted, failed or done."""
        self.clear_timer("settle")
        self.drop_leaving()
        reply, failed = self.last, bool(self.last.error)
        # a retry that was called off counts as aborted too, though pi does not say so
        aborted = self.was_aborted() if aborted is None else aborted or reply.aborted
        self.running = self.aborting = False
        self.speaking = self.broken = self.accepted = ""
        self.last = Reply()
        if aborted:
            self.tracker.abort_turn("aborted")
        elif failed:
            self._end_calls()
            kind = failure_kind(reply.error)
            self.tracker.fail_turn(kind, told(kind, reply.error))
        else:
            self._end_calls()
            self.tracker.end_turn("completed")

    def was_aborted(self) -> bool:
        """Whether the last reply was cut off by a person. One that was whole before the abort came was not."""
        return self.last.aborted or (self.aborting and self.last.stop != "stop")

    def _end_calls(self) -> None:
        """pi's tools do not outlive their run: an end that we missed is an end."""
        for call_id in [name for name, call in self.tracker.calls.items() if not call.path]:
            self.tracker.end_call(call_id, ok=False, result="no result")

    # --- replies

    def message_start(self, found: Object) -> None:
        message = object_of(found, "message")
        handler = _STARTS.get(text_of(message, "role"))
        if handler is not None:
            handler(self, message)

    def message_end(self, found: Object) -> None:
        message = object_of(found, "message")
        handler = _ENDS.get(text_of(message, "role"))
        if handler is not None:
            handler(self, message)

    def message_update(self, found: Object) -> None:
        event = found.get("assistantMessageEvent")
        if isinstance(event, dict):
            piece = cast(Object, event)
            handler = _UPDATES.get(text_of(piece, "type"))
            if handler is not None:
                handler(self, piece, int_of(piece, "contentIndex"), found)

    def text_delta(self, piece: Object, block: int, found: Object) -> None:
        self.tracker.add_text(self.speaking or self._name_reply(found), block, text_of(piece, "delta"))

    def thinking_delta(self, piece: Object, block: int, found: Object) -> None:
        self.tracker.add_thinking(self.speaking or self._name_reply(found), block, text_of(piece, "delta"))

    def toolcall_start(self, piece: Object, block: int, found: Object) -> None:
        """0.73 names the call in the message that it repeats, later versions in the piece itself."""
        content = list_of(object_of(found, "message"), "content")
        part = content[block] if 0 <= block < len(content) else None
        named = cast(Object, part) if isinstance(part, dict) else {}
        call_id = text_of(piece, "id") or text_of(named, "id")
        if call_id:
            name = text_of(piece, "toolName") or text_of(named, "name")
            self.tracker.open_call(call_id, name, None, self.speaking, block, partial=True)

    def toolcall_end(self, piece: Object, block: int, found: Object) -> None:
        del found
        call = object_of(piece, "toolCall")
        call_id = text_of(call, "id")
        if call_id:
            self.tracker.open_call(call_id, text_of(call, "name"), call.get("arguments"), self.speaking, block)

    def reply_begins(self, message: Object) -> None:
        self.speaking = message_id("reply", message) or self._new_name("reply")
        self.tracker.start_turn()

    def _name_reply(self, found: Object) -> str:
        """The beginning of this reply was never seen."""
        self.speaking = message_id("reply", object_of(found, "message")) or self._new_name("reply")
        return self.speaking

    def reply_ends(self, message: Object) -> None:
        name = self.speaking or message_id("reply", message) or self._new_name("reply")
        self.speaking = ""
        self.last = Reply(text_of(message, "stopReason"), text_of(message, "errorMessage"))
        self._use(message, name)
        if self.last.stop == "error":
            self.broken = name
            if not self.last.aborted:
                self.tracker.emit(ev.StreamError(reason=self.last.error, turn_id=self.tracker.turn_id or None))
        elif self.last.stop == "aborted":
            self.tracker.abort_message(name, keep=True)
        else:
            self.last.error = ""
            self.tracker.finish_message(name, blocks_of(message.get("content")), self.last.stop)

    def _use(self, message: Object, name: str) -> None:
        tokens = usage_of(object_of(message, "usage"))
        if tokens is None:
            return
        self.tracker.record_usage(tokens, name, model_name(message))
        total = tokens.total_tokens
        percent = 100 * total / self.limit if self.limit else None
        self.tracker.emit(ev.ContextUsage(tokens=total, limit=self.limit or None, percent=percent))

    def user_message(self, message: Object) -> None:
        """A person's words, told once, under the id that we gave them if we sent them."""
        content = message.get("content")
        text, images = words_of(content), images_of(content)
        ref = self._sent_as(text)
        if ref or not self.deliver(text, images):
            self.tracker.record_prompt(text, ref or message_id("user", message), images=images)

    def _sent_as(self, text: str) -> str:
        """The prompt of ours that this is: by its text, else the one that was accepted last (pi rewrites some)."""
        ref = next((name for name, sent in self.prompts.items() if sent == text), "")
        if not ref and not self.leaving:
            ref = self.accepted
        self.accepted = ""
        self.prompts.pop(ref, None)
        return ref

    def custom_message(self, message: Object) -> None:
        """An extension's own message, if it is to be shown."""
        if message.get("display") is True:
            self.tracker.add_notice(words_of(message.get("content")), source=text_of(message, "customType"))

    def _new_name(self, kind: str) -> str:
        self._replies += 1
        return f"{kind}-{self._replies}"

    # --- calls

    def tool_execution_start(self, found: Object) -> None:
        call_id, name = text_of(found, "toolCallId"), text_of(found, "toolName")
        known = self.tracker.calls.get(call_id)
        self.tracker.start_call(call_id, name, found.get("args") if known is None else None)

    def tool_execution_update(self, found: Object) -> None:
        text = words_of(object_of(found, "partialResult").get("content"))
        if text:
            self.tracker.update_output(text_of(found, "toolCallId"), text)

    def tool_execution_end(self, found: Object) -> None:
        ok = found.get("isError") is not True
        result = result_of(object_of(found, "result"))
        self.tracker.end_call(text_of(found, "toolCallId"), ok, result, text_of(found, "toolName"))

    def result_message(self, message: Object) -> None:
        """The result as the model reads it. It tells the time, and the end of a call if that was missed."""
        call_id, name = text_of(message, "toolCallId"), text_of(message, "toolName")
        if call_id in self.tracker.calls:
            self.tracker.end_call(call_id, message.get("isError") is not True, result_of(message))
        took, ended = int_of(message, "durationMs"), int_of(message, "timestamp")
        if took and ended:
            self.tracker.emit(
                ev.ToolExecutionMetrics(
                    name=name, call_id=call_id, started_at_ms=ended - took, ended_at_ms=ended, duration_ms=took
                )
            )

    # --- retries and compaction

    def auto_retry_start(self, found: Object) -> None:
        """The try failed and is made again: what it said is taken back."""
        self.clear_timer("settle")
        self._take_back()
        self.tracker.start_turn()
        self.tracker.emit(
            ev.Retry(
                attempt=int_of(found, "attempt"),
                delay_ms=int_of(found, "delayMs"),
                reason=text_of(found, "errorMessage"),
                turn_id=self.tracker.turn_id,
            )
        )

    def auto_retry_end(self, found: Object) -> None:
        """After the last try, or when the wait for the next one was cut off, nothing follows."""
        if found.get("success") is True:
            return
        error = text_of(found, "finalError")
        if error.strip(". ").lower() in _ABORTED:
            self.last = Reply("aborted", error)
        self.pause()

    def _take_back(self) -> None:
        if self.broken:
            for call_id in [name for name, call in self.tracker.calls.items() if not call.running and not call.path]:
                self.tracker.block_call(call_id, "the reply was cut off")
            self.tracker.abort_message(self.broken, keep=False)
            self.broken = ""

    def compaction_start(self, found: Object) -> None:
        reason = text_of(found, "reason")
        if reason == "manual" and "settle" in self.timers:
            # a person compacts between turns
            self.settle()
        self.clear_timer("settle")
        if reason == "overflow":
            self._take_back()
            self.tracker.emit(ev.ContextOverflow(reason=self.last.error, turn_id=self.tracker.turn_id or None))
        self.tracker.start_compaction("manual" if reason == "manual" else "auto")

    def compaction_end(self, found: Object) -> None:
        """One that could not even begin has an end alone, and says why the turn fails."""
        result, error = object_of(found, "result"), text_of(found, "errorMessage")
        ok = not error and found.get("aborted") is not True
        if error and self.last.error:
            self.last.error = error
        tokens = usage_of(object_of(result, "usage"))
        if tokens is not None:
            self.tracker.record_usage(tokens, f"compaction-{text_of(result, 'firstKeptEntryId')}")
        self.tracker.end_compaction(ok=ok, summary=text_of(result, "summary"))
        self.pause()

    def summarization_retry_scheduled(self, found: Object) -> None:
        if self.tracker.turn_id:
            delay = int_of(found, "delayMs")
            reason = text_of(found, "errorMessage")
            self.tracker.emit(
                ev.Retry(attempt=int_of(found, "attempt"), delay_ms=delay, reason=reason, turn_id=self.tracker.turn_id)
            )


#: Pieces of a reply, by their type.
_UPDATES: dict[str, Callable[[Run, Object, int, Object], None]] = {
    "text_delta": Run.text_delta,
    "thinking_delta": Run.thinking_delta,
    "toolcall_start": Run.toolcall_start,
    "toolcall_end": Run.toolcall_end,
}


#: Messages that begin, by their role.
_STARTS: dict[str, Callable[[Run, Object], None]] = {
    "user": Run.user_message,
    "assistant": Run.reply_begins,
}


#: Messages that are whole, by their role.
_ENDS: dict[str, Callable[[Run, Object], None]] = {
    "assistant": Run.reply_ends,
    "toolResult": Run.result_message,
    "custom": Run.custom_message,
}
