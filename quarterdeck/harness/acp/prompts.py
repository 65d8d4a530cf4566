"""Track prompts, the turns that they open, and how those turns end.

A turn is open while a prompt of ours isn't answered, and at no other time. The exception is a side turn: an agent that
asks a person outside of a prompt gets a turn that ends with the answer (see `approvals.py`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import FailureKind, TokenUsage
from quarterdeck.harness.acp.calls import Calls
from quarterdeck.harness.acp.content import prompt_images, prompt_text
from quarterdeck.harness.acp.session import AcpSession, Id, Prompt, SentRequest
from quarterdeck.harness.base import Object, int_of, object_of, objects_of, text_of
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.lines import object_in

NO_TEXT = "The agent ended its turn without a text"
#: A replay without an end marker is complete when nothing arrived for this long.
QUIET_S = 0.25

# ----------------------------------------------------------------------------------------------------------------------
# Outcomes: what the answer to a prompt means
# ----------------------------------------------------------------------------------------------------------------------

TurnEnd: TypeAlias = Literal["completed", "aborted", "failed"]


class Outcome(Struct, frozen=True):
    """How a prompt ended."""

    end: TurnEnd
    kind: FailureKind = "api"
    message: str = ""


COMPLETED = Outcome("completed")
ABORTED = Outcome("aborted")

#: The protocol's stop reasons, and Cline's `error`. An unknown reason counts as completed.
_STOP_REASONS: dict[str, Outcome] = {
    "end_turn": COMPLETED,
    "cancelled": ABORTED,
    "refusal": Outcome("failed", "api", "The agent refused to go on"),
    "max_tokens": Outcome("failed", "api", "The answer was cut off: the token limit is reached"),
    "max_turn_requests": Outcome("failed", "turn_limit", "The limit of model requests in one turn is reached"),
    "error": Outcome("failed", "internal", "The agent reported an error"),
}
#: Error names of OpenCode and Kilo.
_ERROR_NAMES: dict[str, FailureKind] = {
    "ProviderAuthError": "auth",
    "ProviderModelNotFoundError": "invalid_model",
    "ModelNotFoundError": "invalid_model",
    "ContextOverflowError": "api",
    "MessageOutputLengthError": "api",
}
_ABORT_NAMES = frozenset({"MessageAbortedError", "AbortError"})
#: Codes of JSON-RPC and ACP that decide the kind of failure whatever the text says.
_AUTH_REQUIRED = -32000
_CANCELLED = -32800
_PROTOCOL_ERRORS = frozenset({-32700, -32600, -32601, -32602})


def outcome_of(result: Object, error: Object | None) -> Outcome:
    """Return how a prompt ended, from the answer to it."""
    if error is None:
        return _STOP_REASONS.get(text_of(result, "stopReason"), COMPLETED)
    if text_of(object_of(error, "data"), "errorName") in _ABORT_NAMES or int_of(error, "code") == _CANCELLED:
        return ABORTED
    return Outcome("failed", error_kind(error), error_text(error))


def error_text(error: Object) -> str:
    """Return the message of an error.

    Gemini passes on the provider's whole answer as JSON; Cline puts the reason into the details.
    """
    message = text_of(error, "message")
    inner = object_in(message) if message.startswith("{") else None
    if inner is not None:
        message = text_of(object_of(inner, "error"), "message") or text_of(inner, "message") or message
    return text_of(object_of(error, "data"), "details") or message or f"Error {int_of(error, 'code')}"


def error_kind(error: Object) -> FailureKind:
    """Return the kind of failure: by the code, by the error's name, by an HTTP status beside it, else by the text."""
    code, data = int_of(error, "code"), object_of(error, "data")
    if code == _AUTH_REQUIRED:
        return "auth"
    by_name = _ERROR_NAMES.get(text_of(data, "errorName"))
    if by_name is not None:
        return by_name
    status = code if 400 <= code < 600 else int_of(data, "statusCode", "status")
    kind = failure_kind(error_text(error), status if 400 <= status < 600 else 0)
    # Without a status or a name the error is the agent's own, not one of the model's service.
    is_internal = not status and (code in _PROTOCOL_ERRORS or "errorName" not in data)
    return "internal" if kind == "api" and is_internal else kind


# ----------------------------------------------------------------------------------------------------------------------
# Usage
# ----------------------------------------------------------------------------------------------------------------------


class ModelUsage(Struct, frozen=True):
    """Tokens of one model; `model` is '' if the agent doesn't name it."""

    model: str
    tokens: TokenUsage


def usage_of(result: Object) -> list[ModelUsage]:
    """Return the tokens that the answer to a prompt reports. Gemini reports them per model in `_meta.quota`."""
    usage = object_of(result, "usage")
    if usage:
        return _used([ModelUsage("", _standard_usage(usage))])
    quota = object_of(result, "_meta", "quota")
    by_model = [
        ModelUsage(text_of(item, "model"), _quota_usage(object_of(item, "token_count")))
        for item in objects_of(quota, "model_usage")
    ]
    return _used(by_model) or _used([ModelUsage("", _quota_usage(object_of(quota, "token_count")))])


def _used(usages: list[ModelUsage]) -> list[ModelUsage]:
    return [usage for usage in usages if usage.tokens.total_tokens]


def _quota_usage(count: Object) -> TokenUsage:
    return TokenUsage(input=_count(count, "input_tokens"), output=_count(count, "output_tokens"))


def _standard_usage(usage: Object) -> TokenUsage:
    """Return ACP's usage in exclusive buckets.

    Agents differ in whether cached tokens are part of the input and thoughts part of the output. The total shows it.
    """
    input_tokens, output_tokens = _count(usage, "inputTokens"), _count(usage, "outputTokens")
    cache_read, cache_write = _count(usage, "cachedReadTokens"), _count(usage, "cachedWriteTokens")
    thoughts = _count(usage, "thoughtTokens")
    beside = _count(usage, "totalTokens") - input_tokens - output_tokens
    cached = cache_read + cache_write
    if cached and beside in (0, thoughts) and cached <= input_tokens:
        input_tokens -= cached
        beside += cached
    if thoughts and beside >= cached + thoughts:
        output_tokens += thoughts
    return TokenUsage(input=input_tokens, output=output_tokens, cache_read=cache_read, cache_write=cache_write)


def _count(counts: Object, name: str) -> int:
    return max(0, int_of(counts, name))


def cost_of(update: Object) -> float:
    """Return what the session cost so far in dollars, or 0 if unknown. OpenCode reports 0 for a model without a price."""
    cost = object_of(update, "cost")
    amount = cost.get("amount")
    if text_of(cost, "currency") != "USD" or isinstance(amount, bool) or not isinstance(amount, int | float):
        return 0.0
    return float(amount) if 0 < amount < 1e9 else 0.0


# ----------------------------------------------------------------------------------------------------------------------
# Prompts and turns
# ----------------------------------------------------------------------------------------------------------------------


class Prompts:
    """Decides which prompt the agent serves, which wait, and how they end."""

    def __init__(self, session: AcpSession, calls: Calls) -> None:
        self.session = session
        self.tracker = session.tracker
        self.calls = calls
        #: Cost of the session so far, and how much of it was recorded.
        self._cost = self._recorded_cost = 0.0

    def restore(self) -> None:
        """Continue the turn that is open, whose prompt another translator saw."""
        if self.tracker.turn_id:
            self.session.prompts = [Prompt(started=True)]

    def clear(self) -> None:
        """Forget the cost: a new process counts from zero."""
        self._cost = self._recorded_cost = 0.0

    # --- what we send

    def send(self, params: Object, request_id: Id) -> bool:
        """Record a prompt that we send. Return whether it is for our session; the first prompted session is ours."""
        session = self.session
        session_id = text_of(params, "sessionId")
        if session.process_exited:
            return False
        if not session.session_id:
            session.session_id = session_id
        if session_id != session.session_id:
            return False
        message_id = text_of(params, "messageId") or text_of(object_of(params, "_meta"), "messageId")
        message_id = message_id or session.new_id("prompt")
        prompt = Prompt(request_id, message_id, prompt_text(params), prompt_images(params))
        session.prompts.append(prompt)
        session.is_loaded = False
        history = session.history
        if history is not None:
            # What follows may still be history. If so, the prompt starts when the replay is complete.
            if history.answered and (history.marked or session.profile.replay == "before"):
                self.finish_loading()
        elif len(session.prompts) == 1:
            self._start(prompt)
        else:
            self._queue(prompt)
        return True

    def cancel(self, params: Object, _request_id: Id) -> bool:
        """Mark all prompts as cancelled: whatever the agent answers to them, they were stopped."""
        is_ours = self.session.claim(params.get("sessionId"))
        for prompt in self.session.prompts if is_ours else ():
            prompt.cancelled = True
        return is_ours

    def cancel_request(self, params: Object, _request_id: Id) -> bool:
        """Mark the prompt that one request sent as cancelled."""
        for prompt in self.session.prompts:
            if prompt.request_id is not None and prompt.request_id == params.get("requestId"):
                prompt.cancelled = True
        return True

    # --- beginning

    def _start(self, prompt: Prompt) -> None:
        """Record that the agent works on this prompt from here on."""
        prompt.started = True
        self.session.is_side_turn = False
        if not self.tracker.turn_id:
            self.start_turn()
        self.tracker.record_prompt(prompt.text, prompt.message_id, images=prompt.images)
        if not self.tracker.turn_id or not (self.tracker.gates or self.tracker.has_running_calls()):
            self.tracker.start_request()

    def _queue(self, prompt: Prompt) -> None:
        self.tracker.emit(ev.PromptQueued(text=prompt.text, message_id=prompt.message_id, images=prompt.images))
        if self.session.profile.second_prompt == "cancels":
            self.session.prompts[0].cancelled = True

    def ensure_turn(self) -> bool:
        """Return whether what the agent sends now belongs to a turn, starting a waiting prompt if there is one.

        Outside of a prompt it doesn't, because no answer would ever end such a turn. Only if what we send isn't
        recorded is the agent's message alone enough to open one.
        """
        if self.tracker.turn_id:
            return True
        waiting = self.session.waiting_prompt()
        if waiting is not None:
            self._start(waiting)
        elif not self.session.stdin_seen and not self.session.process_exited:
            self.session.prompts.append(Prompt(started=True))
            self.start_turn()
            self.tracker.start_request()
        return bool(self.tracker.turn_id)

    def start_joined(self, native_id: str) -> None:
        """Start the waiting prompt of an agent that answers all prompts at the very end.

        A text that follows another text, with no call between them, answers the next prompt.
        """
        session = self.session
        waiting = session.waiting_prompt() if session.profile.second_prompt == "joins" else None
        follows_text = session.texts.last_native_id not in ("", native_id) and not session.texts.called_since_text
        if waiting is not None and native_id and follows_text:
            self._start(waiting)

    def start_turn(self) -> None:
        """Forget what belonged to the last turn."""
        self.session.texts.start_turn()
        self.calls.start_turn()

    # --- ending

    def read_answer(self, request: SentRequest, result: Object, error: Object | None) -> None:
        """Apply the agent's answer to a prompt."""
        prompt = self._sent_by(request.request_id)
        if prompt is None:
            return
        self.finish_loading()
        if not prompt.started and error is not None:
            self.session.prompts.remove(prompt)
            reason = error_text(error)
            self.tracker.emit(ev.PromptRejected(reason=reason, text=prompt.text, message_id=prompt.message_id))
        else:
            self._end(prompt, result, error)

    def read_unmatched_answer(self, result: Object, error: Object | None) -> bool:
        """Apply an answer whose request wasn't seen, as after a restart. Return whether it ended a prompt.

        Only the answer to a prompt has a stop reason.
        """
        prompt = self._sent_by(None)
        is_answer = "stopReason" in result or (error is not None and not self.session.stdin_seen)
        if prompt is None or not is_answer:
            return False
        self._end(prompt, result, error)
        return True

    def _sent_by(self, request_id: Id) -> Prompt | None:
        return next((prompt for prompt in self.session.prompts if prompt.request_id == request_id), None)

    def _end(self, prompt: Prompt, result: Object, error: Object | None) -> None:
        session = self.session
        if not prompt.started:
            self._start(prompt)
        session.prompts.remove(prompt)
        self._record_usage(prompt, result)
        outcome = ABORTED if prompt.cancelled else outcome_of(result, error)
        waiting = session.waiting_prompt()
        if any(other.started for other in session.prompts):
            # Another prompt is served in the same turn. The turn ends with the answer to that one.
            self.tracker.add_notice(outcome.message, "error")
        elif waiting is not None and session.profile.second_prompt == "joins" and outcome.end == "completed":
            self._start(waiting)
        else:
            self._close_turn(outcome)
            if waiting is not None and not waiting.cancelled:
                self._start(waiting)

    def _close_turn(self, outcome: Outcome) -> None:
        self.end_turn(outcome.end)
        if outcome.end == "aborted":
            self.tracker.abort_turn("cancelled")
        elif outcome.end == "failed":
            self.tracker.fail_turn(outcome.kind, outcome.message)
        else:
            self.tracker.add_notice("" if self.session.texts.has_spoken else NO_TEXT)
            self.tracker.end_turn()

    def end_turn(self, outcome: TurnEnd) -> None:
        """Close the texts and calls that are still open in the turn."""
        self.session.texts.finish()
        self.calls.end_turn(outcome)

    # --- loading an earlier conversation

    def finish_loading(self) -> None:
        """Record the replay as history, then start the prompt that waited for it."""
        session = self.session
        history, session.history = session.history, None
        session.clear_timer("replay")
        if history is None or self.tracker.turn_id:
            return
        self.tracker.record_history(history.is_finished, history.messages())
        waiting = session.waiting_prompt()
        if waiting is not None:
            self._start(waiting)

    # --- cost

    def read_usage(self, update: Object) -> None:
        """Record how full the context is, and remember the cost so far. OpenCode reports 0 tokens after a failure."""
        used, size = int_of(update, "used"), int_of(update, "size")
        if used > 0:
            self.tracker.emit(ev.ContextUsage(tokens=used, limit=size if size > 0 else None))
        self._cost = max(self._cost, cost_of(update))

    def _record_usage(self, prompt: Prompt, result: Object) -> None:
        """Record the tokens of a prompt. Its cost goes to the first model, because it isn't reported per model."""
        cost, self._recorded_cost = self._cost - self._recorded_cost, self._cost
        for index, usage in enumerate(usage_of(result)):
            tokens = replace(usage.tokens, cost_usd=cost) if cost > 0 and index == 0 else usage.tokens
            message_id = f"{prompt.message_id}:{usage.model}" if usage.model else prompt.message_id
            self.tracker.record_usage(
                tokens, message_id or self.session.new_id("prompt"), usage.model or self.session.model
            )
