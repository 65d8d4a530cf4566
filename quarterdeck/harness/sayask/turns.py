"""Requests, and how turns begin and end.

A turn begins with a text of a person, or with a request that nobody announced; it is over with the completion's text
(`ask:completion_result` only repeats it, and a run of Cline 2 without a person never sends it), with an ask that means
failure, or with the offer to resume. That offer comes after a cancel, which makes the session stopped; without a word
of a cancel the agent was cut off, and it is paused.
"""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import FailureKind, TokenUsage
from quarterdeck.harness.base import Object, int_of, price_of, text_of
from quarterdeck.harness.failures import failure_kind, told
from quarterdeck.harness.lines import object_in
from quarterdeck.harness.sayask.calls import Calls
from quarterdeck.harness.sayask.message import Message, results_in
from quarterdeck.harness.sayask.rows import Row

#: Asks that mean failure, by the kind that they name; those that name none say it in their text.
FAILED_ASKS: dict[str, FailureKind | None] = {
    "api_req_failed": None,
    "mistake_limit_reached": "turn_limit",
    "auto_approval_max_req_reached": "turn_limit",
    "payment_required_prompt": "payment",
    "payment_required": "payment",
    "invalid_model": "invalid_model",
}
#: Why a request was cut off, when it was not a person.
_BROKEN = ("streaming_failed", "retries_exhausted")
_TOKENS = ("tokensIn", "tokensOut", "cacheReads", "cacheWrites")
_USAGE = frozenset({*_TOKENS, "cost"})


class Turns(Calls):
    """The beginning and the end of everything else."""

    __slots__ = ("cancelling", "failed", "finishing", "offered", "request", "requested", "sent")

    def __init__(self) -> None:
        Calls.__init__(self)
        #: A text before the first request is the echo of the prompt.
        self.requested = False
        self.request = ""
        #: Texts that we sent, told already: their echo is not told again.
        self.sent: list[str] = []
        #: The completion's text while it is streamed: whole it comes under another time.
        self.finishing = ""
        self.failed: tuple[FailureKind, str] | None = None
        self.cancelling = False
        #: The agent offers to resume: an exit with code zero then means neither success nor failure.
        self.offered = False

    # --- prompts

    def say_task(self, message: Message, row: Row) -> None:
        """The prompt as the agent repeats it."""
        if not message.partial and row.partial:
            self.prompted(message.text, message.ts)

    def say_text(self, message: Message, row: Row) -> None:
        if self.requested:
            self.moved_on(message)
            self.speak(message, row, "text")
        else:
            self.say_task(message, row)

    def say_reasoning(self, message: Message, row: Row) -> None:
        self.moved_on(message)
        self.speak(message, row, "thinking")

    def say_user_feedback(self, message: Message, row: Row) -> None:
        """A person's words: the answer to a question, what is said instead of a yes, or the next prompt."""
        if message.partial or not row.partial:
            return
        question = self.open_gate("question")
        if question and message.text not in self.sent:
            self.book.answer(question, message.text, message_id=message.ts)
        else:
            self.moved_on(message)
            self.prompted(message.text, message.ts)

    def say_user_feedback_diff(self, message: Message, row: Row) -> None:
        """A person changed the file while allowing it."""
        del message, row
        ref = self.open_gate("approval")
        if ref:
            self.allow(self.book.gates[ref].call_id)

    def prompted(self, text: str, message_id: str) -> None:
        """A turn begins with this text, unless one is under way."""
        self.halted = self.cancelling = self.offered = False
        if text in self.sent:
            self.sent.remove(text)
            self.book.begin()
        else:
            self.book.prompt(text, message_id)

    # --- requests

    def say_api_req_started(self, message: Message, row: Row) -> None:
        """A request; told again it says what it used, or why it was cut off."""
        data = message.data()
        has_usage = not _USAGE.isdisjoint(data)
        if row.fresh and ("request" in data or not has_usage):
            self._begin_request(message, text_of(data, "request"))
        if has_usage:
            self._use(data, message.ts if "request" in data else self.request)
        reason = data.get("cancelReason")
        if reason is None:
            return
        if reason == "user_cancelled" and message.ts == self.request:
            self.cancelled()
        elif reason in _BROKEN and not row.told:
            row.told = True
            self.book.write(ev.StreamError(reason=text_of(data, "streamingFailedMessage") or reason))

    def _begin_request(self, message: Message, request: str) -> None:
        self.settle_calls(results_in(request) if self.pending else [])
        self.requested = True
        self.halted = self.offered = False
        self.failed = None
        self.request = message.ts
        self.finishing = ""
        self.moved_on(message)
        self.book.request()

    def say_api_req_retried(self, message: Message, row: Row) -> None:
        """The same request goes out again."""
        del message
        if row.fresh:
            self.halted = False
            self.failed = None
            self.book.request()

    def _use(self, data: Object, request: str) -> None:
        taken, given, read, written = [_count(data, name) for name in _TOKENS]
        cost = price_of(data.get("cost"))
        if taken or given or read or written or cost is not None:
            tokens = TokenUsage(input=taken, output=given, cache_read=read, cache_write=written, cost_usd=cost)
            self.book.usage(tokens, f"request-{request}", self.model)

    def say_error_retry(self, message: Message, row: Row) -> None:
        """The request failed and is tried again after a pause; the last of these says that it is not."""
        if not row.fresh or self.halted:
            return
        data = message.data()
        reason = _words(text_of(data, "errorMessage")) or message.text
        self.book.write(ev.StreamError(reason=reason, turn_id=self.book.turn or None))
        if data.get("failed") is not True:
            delay = int_of(data, "delaySeconds") * 1000
            attempt = int_of(data, "attempt")
            self.book.write(ev.Retry(attempt=attempt, delay_ms=delay, reason=reason, turn_id=self.book.turn or None))

    def say_api_req_retry_delayed(self, message: Message, row: Row) -> None:
        """Roo's and Kilo's word for it: a text that counts down."""
        if row.fresh and not self.halted:
            self.book.write(ev.Retry(attempt=1, reason=message.text.partition("\n")[0], turn_id=self.book.turn or None))

    def say_condense_context(self, message: Message, row: Row) -> None:
        """The conversation is shortened: while it lasts the message is partial."""
        if self.halted or not row.partial:
            return
        self.book.compact_start("auto")
        if not message.partial:
            self.book.compact_end()

    def say_condense_context_error(self, message: Message, row: Row) -> None:
        del row
        self.book.compact_end(ok=False)
        self.book.notice(message.text, "warning")

    # --- ends

    def say_completion_result(self, message: Message, row: Row) -> None:
        """The last word of a turn. While it is streamed it stands under another time than when it is whole."""
        if self.halted or not row.partial:
            return
        self.moved_on(message)
        if not row.said and self.finishing:
            row.said = self.finishing
        self.finishing = row.said or message.name
        self.speak(message, row, "text")
        if not message.partial:
            self.finish()

    def ask_completion_result(self, message: Message, row: Row) -> None:
        """The turn is over; it says nothing of its own."""
        if not message.partial and row.partial and not self.halted:
            self.moved_on(message)
            self.finish()

    def finish(self) -> None:
        """The turn is done."""
        self.settle_calls([])
        self.finishing = ""
        self.cancelling = False
        self.book.end("completed")

    def cancelled(self) -> None:
        """A person cancelled the turn. What comes after it restates what was."""
        self.calls_over()
        self.book.abort("cancelled")
        self.halted = True
        self.cancelling = False

    def ask_failed(self, message: Message, row: Row) -> None:
        """The turn cannot go on; the same failure told twice is told once."""
        if message.partial or not row.partial or self.halted:
            return
        data = message.data()
        words = text_of(data, "message", "title") or message.text
        named = FAILED_ASKS[message.what]
        self.fail(named or failure_kind(words, int_of(data, "status", "code")), words)

    def fail(self, kind: FailureKind, words: str) -> None:
        """The turn failed."""
        if not self.book.turn and self.failed is not None and self.failed[0] == kind:
            return
        self.settle_calls([], ok=False)
        self.failed = (kind, words)
        self.book.fail(kind, told(kind, words))

    def ask_resume(self, message: Message, row: Row) -> None:
        """The agent was cut off, or a person cancelled, and it offers to go on."""
        if not row.fresh or message.partial:
            return
        self.offered = True
        self.clear_timer("question")
        if self.book.turn and (self.cancelling or self.book.stop_asked or self.is_asking()):
            self.cancelled()
        elif self.book.turn:
            self.calls_over()
            self.book.interrupted()
        elif self.failed is not None:
            # only a cancel leads from a failed request here
            self.failed = None
            self.book.write(ev.AgentAbort(reason="cancelled"))


def _count(data: Object, name: str) -> int:
    return max(0, int_of(data, name)) if name in data else 0


def _words(text: str) -> str:
    """An error's message: texts are often JSON with one."""
    return text_of(object_in(text) or {}, "message") or text
