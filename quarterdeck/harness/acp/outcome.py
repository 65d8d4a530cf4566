"""How a prompt ended, and what it cost."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.events import FailureKind, TokenUsage
from quarterdeck.harness.base import Object, int_of, object_of, objects_of, part_of, text_of
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.lines import object_in

End: TypeAlias = Literal["completed", "aborted", "failed"]


class Outcome(Struct, frozen=True):
    """What became of a prompt."""

    end: End
    kind: FailureKind = "api"
    message: str = ""


COMPLETED = Outcome("completed")
ABORTED = Outcome("aborted")

#: The protocol's stop reasons, and Cline's `error`. A reason that nobody knows is an end like any other.
_STOPS: dict[str, Outcome] = {
    "end_turn": COMPLETED,
    "cancelled": ABORTED,
    "refusal": Outcome("failed", "api", "The agent refused to go on"),
    "max_tokens": Outcome("failed", "api", "The answer was cut off: the token limit is reached"),
    "max_turn_requests": Outcome("failed", "turn_limit", "The limit of model requests in one turn is reached"),
    "error": Outcome("failed", "internal", "The agent reported an error"),
}
#: OpenCode's and Kilo's names of errors.
_NAMED: dict[str, FailureKind] = {
    "ProviderAuthError": "auth",
    "ProviderModelNotFoundError": "invalid_model",
    "ModelNotFoundError": "invalid_model",
    "ContextOverflowError": "api",
    "MessageOutputLengthError": "api",
}
_ABORTS = frozenset({"MessageAbortedError", "AbortError"})
#: Codes of JSON-RPC and of ACP that say what is wrong whatever the text says.
_AUTH_REQUIRED = -32000
_CANCELLED = -32800
_PROTOCOL = frozenset({-32700, -32600, -32601, -32602})


def outcome_of(result: Object, error: Object | None) -> Outcome:
    """The end that an answer to a prompt means."""
    if error is None:
        return _STOPS.get(text_of(result, "stopReason"), COMPLETED)
    if text_of(part_of(error, "data"), "errorName") in _ABORTS or int_of(error, "code") == _CANCELLED:
        return ABORTED
    return Outcome("failed", error_kind(error), error_text(error))


def error_text(error: Object) -> str:
    """What an error says. Gemini passes the provider's whole answer on; Cline hides the reason in the details."""
    message = text_of(error, "message")
    inner = object_in(message) if message.startswith("{") else None
    if inner is not None:
        message = text_of(object_of(inner, "error"), "message") or text_of(inner, "message") or message
    return text_of(part_of(error, "data"), "details") or message or f"Error {int_of(error, 'code')}"


def error_kind(error: Object) -> FailureKind:
    """The kind of failure: by the code, by the error's name, by a status beside it, else by the text."""
    code, data = int_of(error, "code"), part_of(error, "data")
    if code == _AUTH_REQUIRED:
        return "auth"
    named = _NAMED.get(text_of(data, "errorName"))
    if named is not None:
        return named
    status = code if 400 <= code < 600 else int_of(data, "statusCode", "status")
    kind = failure_kind(error_text(error), status if 400 <= status < 600 else 0)
    return "internal" if kind == "api" and _is_internal(code, data, status) else kind


def _is_internal(code: int, data: Object, status: int) -> bool:
    """An error of the agent itself, not of the model's service."""
    return not status and (code in _PROTOCOL or "errorName" not in data)


# --- usage


class Spent(Struct, frozen=True):
    """Tokens of one model."""

    model: str
    tokens: TokenUsage


def spent(result: Object) -> list[Spent]:
    """The tokens that an answer names; nothing when it names none."""
    usage = part_of(result, "usage")
    if usage:
        return _told([Spent("", _standard(usage))])
    quota = object_of(result, "_meta", "quota") if "_meta" in result else {}
    if not quota:
        return []
    by_model = [
        Spent(text_of(one, "model"), _quota(part_of(one, "token_count"))) for one in objects_of(quota, "model_usage")
    ]
    return _told(by_model) or _told([Spent("", _quota(part_of(quota, "token_count")))])


def _told(found: list[Spent]) -> list[Spent]:
    return [one for one in found if one.tokens.total_tokens]


def _quota(count: Object) -> TokenUsage:
    return TokenUsage(input=_count(count, "input_tokens"), output=_count(count, "output_tokens"))


def _standard(usage: Object) -> TokenUsage:
    """ACP's usage in exclusive buckets. Agents differ in what they include where; the total tells."""
    told_in, told_out = _count(usage, "inputTokens"), _count(usage, "outputTokens")
    read, write = _count(usage, "cachedReadTokens"), _count(usage, "cachedWriteTokens")
    thought = _count(usage, "thoughtTokens")
    beside = _count(usage, "totalTokens") - told_in - told_out
    cached = read + write
    if cached and beside in (0, thought) and cached <= told_in:
        told_in -= cached
        beside += cached
    if thought and beside >= cached + thought:
        told_out += thought
    return TokenUsage(input=told_in, output=told_out, cache_read=read, cache_write=write)


def _count(found: Object, name: str) -> int:
    return max(0, int_of(found, name))


def cost_of(update: Object) -> float:
    """What the session has cost so far, in dollars; 0 when nobody knows: OpenCode says 0 for a model without a price."""
    cost = part_of(update, "cost")
    amount = cost.get("amount")
    if text_of(cost, "currency") != "USD" or isinstance(amount, bool) or not isinstance(amount, int | float):
        return 0.0
    return float(amount) if 0 < amount < 1e9 else 0.0
