"""Track requests to the model, and how turns begin and end.

A turn begins with a text of the user, or with a request that nothing announced. It ends with the text of the completion
(`ask:completion_result` only repeats it, and Cline 2 without a user never sends it), with an ask that means failure, or
with the offer to resume. After a cancel that offer makes the session stopped. Without any sign of a cancel the agent was
cut off, and the session is paused.
"""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import FailureKind, TokenUsage
from quarterdeck.harness.base import Object, int_of, price_of, text_of
from quarterdeck.harness.failures import failure_kind, failure_message
from quarterdeck.harness.lines import object_in
from quarterdeck.harness.sayask.calls import Calls
from quarterdeck.harness.sayask.message import Message, results_in
from quarterdeck.harness.sayask.session import Row, SayAskSession

#: Asks that mean failure, with the kind that they name. None: the text names the kind.
FAILED_ASKS: dict[str, FailureKind | None] = {
    "api_req_failed": None,
    "mistake_limit_reached": "turn_limit",
    "auto_approval_max_req_reached": "turn_limit",
    "payment_required_prompt": "payment",
    "payment_required": "payment",
    "invalid_model": "invalid_model",
}
#: Why a request was cut off if the user didn't cancel it.
_BROKEN_REASONS = ("streaming_failed", "retries_exhausted")
_USAGE_FIELDS = frozenset({"tokensIn", "tokensOut", "cacheReads", "cacheWrites", "cost"})
#: How Cline words the end of a task that runs without a user.
_GAVE_UP = "Task failed"


class Turns:
    """The turn that is open, and the requests in it."""

    def __init__(self, session: SayAskSession, calls: Calls) -> None:
        self.session = session
        self.tracker = session.tracker
        self.calls = calls
        #: A request was made in this task. A text before the first request is the echo of the prompt.
        self.has_requested = False
        #: Texts that we sent and recorded. Their echo isn't recorded again.
        self.sent_texts: list[str] = []
        #: We asked the agent to cancel the turn.
        self.is_cancelling = False
        #: The agent offers to resume. An exit with code 0 then means neither success nor failure.
        self.offers_resume = False
        #: Time of the last request.
        self._request_ts = ""
        #: Id of the completion's text while it is streamed. The complete text arrives under another time.
        self._completion_id = ""
        #: Kind of the last failure, until a request follows.
        self._failure: FailureKind | None = None

    def start_task(self) -> None:
        """Forget the last task: what follows belongs to another one."""
        self.has_requested = self.session.is_halted = self.is_cancelling = self.offers_resume = False
        self._failure = None

    # --- prompts and texts

    def read_task(self, message: Message, row: Row) -> None:
        """Read the prompt, which the agent repeats."""
        if row.is_completed_by(message):
            self.record_prompt(message.text, message.ts)

    def read_text(self, message: Message, row: Row) -> None:
        if self.has_requested:
            self.calls.close_older_gates(message)
            self.session.add_text(message, row, "text")
        else:
            self.read_task(message, row)

    def read_reasoning(self, message: Message, row: Row) -> None:
        self.calls.close_older_gates(message)
        self.session.add_text(message, row, "thinking")

    def read_user_feedback(self, message: Message, row: Row) -> None:
        """Read a text of the user: the answer to a question, a comment instead of a yes, or the next prompt."""
        if not row.is_completed_by(message):
            return
        question = self.calls.open_gate("question")
        if question and message.text not in self.sent_texts:
            self.tracker.answer_question(question, message.text, message_id=message.ts)
        else:
            self.calls.close_older_gates(message)
            self.record_prompt(message.text, message.ts)

    def read_user_edit(self, _message: Message, _row: Row) -> None:
        """Note that the user edited a file while allowing the change."""
        approval = self.calls.open_gate("approval")
        if approval:
            self.calls.allow(self.tracker.gates[approval].call_id)

    def record_prompt(self, text: str, message_id: str) -> None:
        """Record a prompt. It begins a turn unless one is open."""
        self.session.is_halted = self.is_cancelling = self.offers_resume = False
        if text in self.sent_texts:
            self.sent_texts.remove(text)
            self.tracker.start_turn()
        else:
            self.tracker.record_prompt(text, message_id)

    # --- requests

    def read_request(self, message: Message, row: Row) -> None:
        """Read a request. When it arrives again, it has its usage or the reason why it was cut off."""
        data = message.data()
        has_usage = not _USAGE_FIELDS.isdisjoint(data)
        if row.is_new and ("request" in data or not has_usage):
            self._start_request(message, text_of(data, "request"))
        if has_usage:
            self._record_usage(data, message.ts if "request" in data else self._request_ts)
        reason = data.get("cancelReason")
        if reason == "user_cancelled" and message.ts == self._request_ts:
            self.cancel()
        elif reason in _BROKEN_REASONS and not row.is_recorded:
            row.is_recorded = True
            self.tracker.emit(ev.StreamError(reason=text_of(data, "streamingFailedMessage") or reason))

    def _start_request(self, message: Message, request: str) -> None:
        self.calls.end_all(results_in(request) if self.calls.pending else [])
        self.has_requested = True
        self.session.is_halted = self.offers_resume = False
        self._failure = None
        self._request_ts = message.ts
        self._completion_id = ""
        self.calls.close_older_gates(message)
        self.tracker.start_request()

    def read_request_retried(self, _message: Message, row: Row) -> None:
        """Record that the same request is sent again."""
        if row.is_new:
            self.session.is_halted = False
            self._failure = None
            self.tracker.start_request()

    def _record_usage(self, data: Object, request_ts: str) -> None:
        tokens = TokenUsage(
            input=max(0, int_of(data, "tokensIn")),
            output=max(0, int_of(data, "tokensOut")),
            cache_read=max(0, int_of(data, "cacheReads")),
            cache_write=max(0, int_of(data, "cacheWrites")),
            cost_usd=price_of(data.get("cost")),
        )
        if tokens.total_tokens or tokens.cost_usd is not None:
            self.tracker.record_usage(tokens, f"request-{request_ts}", self.session.model)

    def read_error_retry(self, message: Message, row: Row) -> None:
        """Record a failed request and its retry. The last of these messages says that there won't be another one."""
        if not row.is_new or self.session.is_halted:
            return
        data = message.data()
        error = text_of(data, "errorMessage")
        # The error is often JSON with a message of its own.
        reason = text_of(object_in(error) or {}, "message") or error or message.text
        turn_id = self.tracker.turn_id or None
        self.tracker.emit(ev.StreamError(reason=reason, turn_id=turn_id))
        if data.get("failed") is not True:
            delay_ms = int_of(data, "delaySeconds") * 1000
            attempt = int_of(data, "attempt")
            self.tracker.emit(ev.Retry(attempt=attempt, delay_ms=delay_ms, reason=reason, turn_id=turn_id))

    def read_retry_delayed(self, message: Message, row: Row) -> None:
        """Record a retry of Roo or Kilo, whose message is a text that counts down."""
        if row.is_new and not self.session.is_halted:
            reason = message.text.partition("\n")[0]
            self.tracker.emit(ev.Retry(attempt=1, reason=reason, turn_id=self.tracker.turn_id or None))

    # --- compaction

    def read_condense(self, message: Message, row: Row) -> None:
        """Record that the conversation is shortened. The message is partial while that lasts."""
        if self.session.is_halted or not row.is_partial:
            return
        self.tracker.start_compaction("auto")
        if not message.partial:
            self.tracker.end_compaction()

    def read_condense_error(self, message: Message, _row: Row) -> None:
        self.tracker.end_compaction(ok=False)
        self.tracker.add_notice(message.text, "warning")

    # --- ends

    def read_completion(self, message: Message, row: Row) -> None:
        """Read the last text of a turn. While it is streamed it has another time than when it is complete."""
        if self.session.is_halted or not row.is_partial:
            return
        self.calls.close_older_gates(message)
        if not row.message_id and self._completion_id:
            row.message_id = self._completion_id
        self._completion_id = row.message_id or message.message_id
        self.session.add_text(message, row, "text")
        if not message.partial:
            self.finish()

    def read_completion_ask(self, message: Message, row: Row) -> None:
        """End the turn. This ask has no text of its own."""
        if row.is_completed_by(message) and not self.session.is_halted:
            self.calls.close_older_gates(message)
            self.finish()

    def finish(self) -> None:
        """End the turn as completed."""
        self.calls.end_all([])
        self._completion_id = ""
        self.is_cancelling = False
        self.tracker.end_turn("completed")

    def cancel(self) -> None:
        """Abort the turn because the user cancelled it. What follows repeats the past."""
        self.calls.clear()
        self.tracker.abort_turn("cancelled")
        self.session.is_halted = True
        self.is_cancelling = False

    def read_failed_ask(self, message: Message, row: Row) -> None:
        if not row.is_completed_by(message) or self.session.is_halted:
            return
        data = message.data()
        text = text_of(data, "message", "title") or message.text
        kind = FAILED_ASKS[message.subtype] or failure_kind(text, int_of(data, "status", "code"))
        self.fail(kind, text)

    def read_error(self, message: Message, row: Row) -> None:
        """Read an error: without a user to ask, Cline gives the task up with one; any other error is a call's."""
        if _GAVE_UP in message.text and row.is_completed_by(message) and not self.session.is_halted:
            self.fail("turn_limit" if "mistake" in message.text else failure_kind(message.text), message.text)
        else:
            self.calls.read_error(message, row)

    def fail(self, kind: FailureKind, text: str) -> None:
        """Fail the turn. A failure that is reported twice is recorded once."""
        if not self.tracker.turn_id and self._failure == kind:
            return
        self.calls.end_all([], ok=False)
        self._failure = kind
        self.tracker.fail_turn(kind, failure_message(kind, text))

    def read_resume_offer(self, message: Message, row: Row) -> None:
        """Read the offer to resume: the user cancelled, or the agent was cut off."""
        if not row.is_new or message.partial:
            return
        self.offers_resume = True
        self.session.clear_timer("question")
        was_cancelled = self.is_cancelling or self.tracker.stop_requested or self.calls.is_asking()
        if self.tracker.turn_id and was_cancelled:
            self.cancel()
        elif self.tracker.turn_id:
            self.calls.clear()
            self.tracker.leave_turn_unfinished()
        elif self._failure is not None:
            # Only a cancel leads from a failed request to this offer.
            self._failure = None
            self.tracker.emit(ev.AgentAbort(reason="cancelled"))
