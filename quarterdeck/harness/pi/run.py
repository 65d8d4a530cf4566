"""Track a run of pi: its replies, its calls and how it ends.

pi's words and ours: its `agent_start … agent_end` is one attempt, its `turn_start … turn_end` one request to the model. A
turn of ours lasts until the agent is settled: it includes the attempts of a retry, the compaction after an attempt, and
the follow-ups.

When is the agent settled? From 0.87 on pi says so (`agent_settled`). 0.73 doesn't: there the turn is over when nothing
begins at once after `agent_end`. A retry and a compaction announce themselves within a millisecond, so a short pause
decides. `agent_end` has the field `willRetry` in exactly the versions that send `agent_settled`, so the field shows which
rule applies. A prompt that is accepted during the pause shows that the agent was idle, so it ends the pause.

A failed attempt streams its text, then fails, and the retry streams everything again. So the text of a failed attempt is
held until it is known whether a retry follows, and then taken back.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.failures import failure_kind, failure_message
from quarterdeck.harness.pi.content import (
    blocks_of,
    content_text,
    images_of,
    message_id,
    model_name,
    result_of,
    usage_of,
)
from quarterdeck.harness.pi.dialogs import Dialogs
from quarterdeck.harness.pi.session import PiSession, Queues
from quarterdeck.kernel.view import View

#: How soon after the end of an attempt something must begin for the turn to continue, if pi doesn't say that it settled.
SETTLE_S = 0.2
#: How pi words an abort in a message that ended with an error.
_ABORT_TEXTS = frozenset(
    {"this operation was aborted", "operation aborted", "request was aborted", "request aborted", "retry cancelled"}
)


def _is_abort(error: str) -> bool:
    return error.strip(". ").lower() in _ABORT_TEXTS


class _Reply(Struct):
    """How a reply of the model ended."""

    stop_reason: str = ""
    error: str = ""

    @property
    def is_aborted(self) -> bool:
        return self.stop_reason == "aborted" or _is_abort(self.error)


class Run:
    """The current run: the reply that streams, the calls, and the end of the turn."""

    def __init__(self, session: PiSession, queues: Queues, dialogs: Dialogs) -> None:
        self.session = session
        self.tracker = session.tracker
        self.queues = queues
        self.dialogs = dialogs
        #: Between agent_start and agent_end.
        self.is_running = False
        #: We asked for an abort.
        self.is_aborting = False
        #: This version of pi says when it is settled.
        self._reports_settled = False
        #: Id of the reply that is being streamed.
        self._reply_id = ""
        #: Id of a reply that failed. Its text is taken back if a retry follows.
        self._failed_reply_id = ""
        self._last_reply = _Reply()
        self._last_id = 0
        self._message_starts: dict[str, Callable[[Object], None]] = {
            "user": self._read_user_message,
            "assistant": self._start_reply,
        }
        self._message_ends: dict[str, Callable[[Object], None]] = {
            "assistant": self._end_reply,
            "toolResult": self._read_result_message,
            "custom": self._read_custom_message,
        }
        self._reply_parts: dict[str, Callable[[Object, int, Object], None]] = {
            "text_delta": self._add_text,
            "thinking_delta": self._add_thinking,
            "toolcall_start": self._announce_call,
            "toolcall_end": self._complete_call,
        }

    def restore(self, view: View) -> None:
        self.is_running = bool(self.tracker.turn_id)
        self._last_id = view.index

    def exit(self) -> None:
        """End the turn if only the pause was missing. Another process may be of another version of pi."""
        self.settle_if_paused()
        self.is_running = self.is_aborting = self._reports_settled = False

    def abandon(self) -> None:
        """Forget the run: pi switched to another session."""
        self.is_running = self.is_aborting = False

    # --- attempts and the end of the turn

    def start(self, _message: Object) -> None:
        self.session.clear_timer("settle")
        self.is_running = True
        self._last_reply = _Reply()
        self.tracker.start_turn()

    def start_request(self, _message: Object) -> None:
        self.tracker.start_request()

    def end(self, message: Object) -> None:
        """Read `agent_end`: an attempt is over."""
        self.is_running = False
        self._reports_settled = self._reports_settled or "willRetry" in message
        if not self._reports_settled:
            self._pause()

    def read_settled(self, message: Object) -> None:
        self._reports_settled = True
        aborted = message.get("aborted")
        self.settle(aborted if isinstance(aborted, bool) else None)

    def _pause(self) -> None:
        """Settle soon, unless something begins at once. After an abort nothing does."""
        if self._reports_settled or self.is_running or not self.tracker.turn_id:
            return
        if self._was_aborted():
            self.settle()
        else:
            self.session.set_timer("settle", SETTLE_S)

    def settle_if_paused(self) -> None:
        """Settle now if the pause after an attempt is running."""
        if self.session.has_timer("settle"):
            self.settle()

    def settle(self, aborted: bool | None = None) -> None:
        """End the turn: aborted, failed or completed. `aborted` is pi's own word on it, if it gave one."""
        self.session.clear_timer("settle")
        self.queues.drop_leaving()
        reply = self._last_reply
        # A retry that the user called off counts as aborted too, although pi doesn't say so.
        aborted = self._was_aborted() if aborted is None else aborted or reply.is_aborted
        self.is_running = self.is_aborting = False
        self._reply_id = self._failed_reply_id = self.session.accepted_id = ""
        self._last_reply = _Reply()
        if aborted:
            self.tracker.abort_turn("aborted")
        elif reply.error:
            self._end_open_calls()
            kind = failure_kind(reply.error)
            self.tracker.fail_turn(kind, failure_message(kind, reply.error))
        else:
            self._end_open_calls()
            self.tracker.end_turn("completed")
        self.dialogs.forget_closed()

    def _was_aborted(self) -> bool:
        """Return whether the user cut off the last reply. A reply that was complete before the abort wasn't cut off."""
        return self._last_reply.is_aborted or (self.is_aborting and self._last_reply.stop_reason != "stop")

    def _end_open_calls(self) -> None:
        """End the calls whose end was missed: pi's tools don't outlive their run."""
        for call_id in [call_id for call_id, call in self.tracker.calls.items() if not call.path]:
            self.tracker.end_call(call_id, ok=False, result="no result")

    # --- messages

    def start_message(self, event: Object) -> None:
        message = object_of(event, "message")
        reader = self._message_starts.get(text_of(message, "role"))
        if reader is not None:
            reader(message)

    def end_message(self, event: Object) -> None:
        message = object_of(event, "message")
        reader = self._message_ends.get(text_of(message, "role"))
        if reader is not None:
            reader(message)

    def update_message(self, event: Object) -> None:
        part = object_of(event, "assistantMessageEvent")
        reader = self._reply_parts.get(text_of(part, "type"))
        if reader is not None:
            reader(part, int_of(part, "contentIndex"), event)

    def _add_text(self, part: Object, block: int, event: Object) -> None:
        self.tracker.add_text(
            self._reply_id or self._name_reply(object_of(event, "message")), block, text_of(part, "delta")
        )

    def _add_thinking(self, part: Object, block: int, event: Object) -> None:
        reply_id = self._reply_id or self._name_reply(object_of(event, "message"))
        self.tracker.add_thinking(reply_id, block, text_of(part, "delta"))

    def _announce_call(self, part: Object, block: int, event: Object) -> None:
        """Announce a call. 0.73 names it in the message that it repeats, later versions in the part itself."""
        content = list_of(object_of(event, "message"), "content")
        repeated = object_of(content[block]) if 0 <= block < len(content) else {}
        call_id = text_of(part, "id") or text_of(repeated, "id")
        if call_id:
            name = text_of(part, "toolName") or text_of(repeated, "name")
            self.tracker.open_call(call_id, name, None, self._reply_id, block, partial=True)

    def _complete_call(self, part: Object, block: int, _event: Object) -> None:
        call = object_of(part, "toolCall")
        call_id = text_of(call, "id")
        if call_id:
            self.tracker.open_call(call_id, text_of(call, "name"), call.get("arguments"), self._reply_id, block)

    def _start_reply(self, message: Object) -> None:
        self._name_reply(message)
        self.tracker.start_turn()

    def _name_reply(self, message: Object) -> str:
        """Choose the id of the reply that streams now. The start of the reply may have been missed."""
        self._reply_id = message_id("reply", message) or self._new_id("reply")
        return self._reply_id

    def _end_reply(self, message: Object) -> None:
        reply_id = self._reply_id or message_id("reply", message) or self._new_id("reply")
        self._reply_id = ""
        reply = self._last_reply = _Reply(text_of(message, "stopReason"), text_of(message, "errorMessage"))
        self._record_usage(message, reply_id)
        if reply.stop_reason == "error":
            self._failed_reply_id = reply_id
            if not reply.is_aborted:
                self.tracker.emit(ev.StreamError(reason=reply.error, turn_id=self.tracker.turn_id or None))
        elif reply.stop_reason == "aborted":
            self.tracker.abort_message(reply_id, keep=True)
        else:
            reply.error = ""
            self.tracker.finish_message(reply_id, blocks_of(message.get("content")), reply.stop_reason)

    def _record_usage(self, message: Object, reply_id: str) -> None:
        tokens = usage_of(object_of(message, "usage"))
        if tokens is None:
            return
        self.tracker.record_usage(tokens, reply_id, model_name(message))
        total, limit = tokens.total_tokens, self.session.context_limit
        percent = 100 * total / limit if limit else None
        self.tracker.emit(ev.ContextUsage(tokens=total, limit=limit or None, percent=percent))

    def _read_user_message(self, message: Object) -> None:
        """Record a user's message once, under the id that we gave it if we sent it."""
        content = message.get("content")
        text, images = content_text(content), images_of(content)
        sent_id = self._take_sent_id(text)
        if sent_id or not self.queues.deliver(text, images):
            self.tracker.record_prompt(text, sent_id or message_id("user", message), images=images)

    def _take_sent_id(self, text: str) -> str:
        """Return the id of the prompt of ours that this is, or ''.

        Match by the text, else take the prompt that was accepted last, because pi rewrites some texts.
        """
        session = self.session
        sent_id = next((sent_id for sent_id, sent_text in session.prompts.items() if sent_text == text), "")
        if not sent_id and not self.queues.leaving:
            sent_id = session.accepted_id
        session.accepted_id = ""
        session.prompts.pop(sent_id, None)
        return sent_id

    def _read_custom_message(self, message: Object) -> None:
        """Show an extension's own message if it asks to be shown."""
        if message.get("display") is True:
            self.tracker.add_notice(content_text(message.get("content")), source=text_of(message, "customType"))

    def _new_id(self, prefix: str) -> str:
        self._last_id += 1
        return f"{prefix}-{self._last_id}"

    # --- calls

    def start_call(self, event: Object) -> None:
        call_id, name = text_of(event, "toolCallId"), text_of(event, "toolName")
        is_announced = call_id in self.tracker.calls
        self.tracker.start_call(call_id, name, None if is_announced else event.get("args"))

    def update_call(self, event: Object) -> None:
        call_id = text_of(event, "toolCallId")
        self.dialogs.call_continued(call_id)
        output = content_text(object_of(event, "partialResult").get("content"))
        if output:
            self.tracker.update_output(call_id, output)

    def end_call(self, event: Object) -> None:
        call_id = text_of(event, "toolCallId")
        self.dialogs.call_continued(call_id)
        ok = event.get("isError") is not True
        self.tracker.end_call(call_id, ok, result_of(object_of(event, "result")), text_of(event, "toolName"))

    def _read_result_message(self, message: Object) -> None:
        """Read a result as the model gets it. It has the call's duration, and ends the call if its end was missed."""
        call_id, name = text_of(message, "toolCallId"), text_of(message, "toolName")
        if call_id in self.tracker.calls:
            self.tracker.end_call(call_id, message.get("isError") is not True, result_of(message))
        duration, ended_at = int_of(message, "durationMs"), int_of(message, "timestamp")
        if duration and ended_at:
            self.tracker.emit(
                ev.ToolExecutionMetrics(
                    name=name,
                    call_id=call_id,
                    started_at_ms=ended_at - duration,
                    ended_at_ms=ended_at,
                    duration_ms=duration,
                )
            )

    # --- retries and compaction

    def start_retry(self, event: Object) -> None:
        """Take back the text of the attempt that failed and record the retry."""
        self.session.clear_timer("settle")
        self._take_back_reply()
        self.tracker.start_turn()
        self._record_retry(event)

    def end_retry(self, event: Object) -> None:
        """Read `auto_retry_end`. After the last attempt, or if the wait for the next was called off, nothing follows."""
        if event.get("success") is True:
            return
        error = text_of(event, "finalError")
        if _is_abort(error):
            self._last_reply = _Reply("aborted", error)
        self._pause()

    def _take_back_reply(self) -> None:
        if self._failed_reply_id:
            for call_id, call in list(self.tracker.calls.items()):
                if not call.running and not call.path:
                    self.tracker.block_call(call_id, "the reply was cut off")
            self.tracker.abort_message(self._failed_reply_id, keep=False)
            self._failed_reply_id = ""

    def schedule_summary_retry(self, event: Object) -> None:
        if self.tracker.turn_id:
            self._record_retry(event)

    def _record_retry(self, event: Object) -> None:
        self.tracker.emit(
            ev.Retry(
                attempt=int_of(event, "attempt"),
                delay_ms=int_of(event, "delayMs"),
                reason=text_of(event, "errorMessage"),
                turn_id=self.tracker.turn_id,
            )
        )

    def start_compaction(self, event: Object) -> None:
        reason = text_of(event, "reason")
        if reason == "manual":
            # The user compacts between turns, so the last turn is over.
            self.settle_if_paused()
        self.session.clear_timer("settle")
        if reason == "overflow":
            self._take_back_reply()
            self.tracker.emit(ev.ContextOverflow(reason=self._last_reply.error, turn_id=self.tracker.turn_id or None))
        self.tracker.start_compaction("manual" if reason == "manual" else "auto")

    def end_compaction(self, event: Object) -> None:
        """Read `compaction_end`. A compaction that couldn't begin has only an end, which says why the turn fails."""
        result, error = object_of(event, "result"), text_of(event, "errorMessage")
        ok = not error and event.get("aborted") is not True
        if error and self._last_reply.error:
            self._last_reply.error = error
        tokens = usage_of(object_of(result, "usage"))
        if tokens is not None:
            self.tracker.record_usage(tokens, f"compaction-{text_of(result, 'firstKeptEntryId')}")
        self.tracker.end_compaction(ok=ok, summary=text_of(result, "summary"))
        self._pause()
