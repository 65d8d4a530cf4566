"""Record tokens and cost of a Claude Code session, each counted once.

While a message is streamed only part of its tokens is known: the input at its start, the output at its end, and without
partial messages only the first. `result` then restates everything per model, with the cost, sub-agents and compaction
included. Therefore usage is recorded as a running sum per model and agent, from one result to the next, under one id.
The result replaces the sums, also when they shrink: a reply that was cut off isn't counted and costs nothing.

Telemetry is late and batched, so it is only read where no stream is.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck.events import Json, TokenUsage
from quarterdeck.harness.base import Object, int_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.session import ClaudeSession
from quarterdeck.harness.tracker import AgentPath
from quarterdeck.kernel.usage import Ledger

#: A sum's model and agent.
_Key: TypeAlias = tuple[str, AgentPath]
_NO_TOKENS = TokenUsage()
_ID_PREFIX = "usage"
#: Separates the parts of a sum's id. No model or agent has it in its name.
_SEPARATOR = "|"


class Usage:
    """The sums since the last result."""

    def __init__(self, session: ClaudeSession) -> None:
        self.session = session
        self.tracker = session.tracker
        #: Counts the results, so that sums of different results have different ids. The first ones have number 2, as in
        #: logs of earlier releases.
        self._round = 1
        self._total_cost = 0.0
        self._start_round()

    def reset(self) -> None:
        """Start new sums for a new process. Ids continue, so nothing is taken for a restatement."""
        self._total_cost = 0.0
        self._start_round()

    def _start_round(self) -> None:
        self._round += 1
        self._messages: dict[str, tuple[_Key, TokenUsage]] = {}
        self._sums: dict[_Key, TokenUsage] = {}

    def restore(self, ledger: Ledger) -> None:
        """Continue the sums that no result has closed."""
        for counted in (*ledger.counted_before, *ledger.counted):
            prefix, number, model, *path = counted.message_id.split(_SEPARATOR)
            if prefix != _ID_PREFIX or not number.isdecimal() or int(number) < self._round:
                continue
            if int(number) > self._round:
                self._sums.clear()
            self._round = int(number)
            self._sums[model, tuple(path)] = counted.tokens
        if any(tokens.cost_usd is not None for tokens in self._sums.values()):
            # Only a result knows the cost, so it has closed these sums.
            self._start_round()

    def add_message(self, message_id: str, usage: Object, model: str, path: AgentPath) -> None:
        """Record the tokens of one message as far as they are known. Later calls for it replace earlier ones."""
        key, before = self._messages.get(message_id, ((model, path), _NO_TOKENS))
        tokens = _largest(before, tokens_of(usage))
        if tokens == before:
            return
        self._messages[message_id] = (key, tokens)
        self._sums[key] = _add(self._sums.get(key, _NO_TOKENS), _subtract(tokens, before))
        self._record(key)

    def apply_result(self, result: Object) -> None:
        """Replace all sums by what a result says, with the cost, and start new ones."""
        if isinstance(result.get("model_usage_since_last_result"), dict):
            by_model = {
                model: (_camel_case_tokens(object_of(usage)), _price(object_of(usage).get("costUSD")))
                for model, usage in object_of(result, "model_usage_since_last_result").items()
            }
        else:
            by_model = self._older_usage(result)
        main_tokens = tokens_of(object_of(result, "usage"))
        for model in dict.fromkeys((*by_model, *(key[0] for key in self._sums))):
            tokens, cost = by_model.get(model, (_NO_TOKENS, 0.0))
            keys = self._distribute(model, tokens, main_tokens)
            self._record_cost(keys, tokens.total_tokens, cost)
        self._start_round()

    def _older_usage(self, result: Object) -> dict[str, tuple[TokenUsage, float | None]]:
        """Return usage by model from a result of an older release.

        It has the main agent's tokens, and the cost of the whole process so far. A cost that shrank is a new sum.
        """
        main = next((key for key in reversed(self._sums) if not key[1]), ("", ()))
        self._sums[main] = _largest(self._sums.get(main, _NO_TOKENS), tokens_of(object_of(result, "usage")))
        by_model: dict[str, TokenUsage] = {}
        for (model, _), tokens in self._sums.items():
            by_model[model] = _add(by_model.get(model, _NO_TOKENS), tokens)
        total = _price(result.get("total_cost_usd"))
        cost = None if total is None else total - self._total_cost if total >= self._total_cost else total
        self._total_cost = total or 0.0
        return {model: (tokens, cost if model == main[0] else None) for model, tokens in by_model.items()}

    def _distribute(self, model: str, tokens: TokenUsage, main_tokens: TokenUsage) -> list[_Key]:
        """Split a model's tokens among its agents, and return the agents' keys, the main agent's first.

        The result says how much the main agent used. The rest was used by sub-agents, if there were any.
        """
        main: _Key = (model, ())
        subagents = [key for key in self._sums if key[0] == model and key[1]]
        if not subagents:
            self._sums[main] = tokens
            return [main]
        counted = self._sums.get(main, _NO_TOKENS)
        own = _smallest(tokens, _largest(counted, main_tokens) if main in self._sums else counted)
        left = _subtract(tokens, own)
        for key in subagents[:-1]:
            self._sums[key] = _smallest(left, self._sums[key])
            left = _subtract(left, self._sums[key])
        self._sums |= {main: own, subagents[-1]: left}
        return [main, *subagents]

    def _record_cost(self, keys: list[_Key], total_tokens: int, cost: float | None) -> None:
        """Record the sums of one model. Its cost is split by the tokens that each agent used."""
        for key in keys:
            tokens = self._sums[key]
            part = tokens.total_tokens / total_tokens if total_tokens else float(key is keys[0])
            self._sums[key] = replace(tokens, cost_usd=None if cost is None else cost * part)
            self._record(key)

    def _record(self, key: _Key) -> None:
        model, path = key
        usage_id = _SEPARATOR.join((_ID_PREFIX, str(self._round), model, *path))
        self.tracker.record_usage(self._sums[key], usage_id, model, self.session.billing, path)

    # --- telemetry

    def read_telemetry(self, data: Json) -> bool:
        """Read a log record: each `api_request` has the tokens and the cost of one request."""
        record = object_of(data)
        attributes = object_of(record, "attributes")
        name = text_of(attributes, "event.name") or text_of(record, "body")
        if self.session.has_stream or name.removeprefix(tables.OTLP_PREFIX) != tables.OTLP_USAGE:
            return bool(name)
        session_id = text_of(attributes, "session.id")
        if not session_id or not self.session.session_id or session_id == self.session.session_id:
            tokens = replace(tokens_of(attributes), cost_usd=_telemetry_price(attributes.get("cost_usd")))
            request_id = text_of(attributes, "request_id") or self.session.new_id("request")
            self.tracker.record_usage(tokens, request_id, text_of(attributes, "model"), self.session.billing)
        return True


def tokens_of(usage: Object) -> TokenUsage:
    """Return the tokens of a usage object. Its input excludes cached tokens, so the four counts never overlap."""
    return TokenUsage(
        input=max(0, int_of(usage, "input_tokens")),
        output=max(0, int_of(usage, "output_tokens")),
        cache_read=max(0, int_of(usage, "cache_read_input_tokens", "cache_read_tokens")),
        cache_write=max(0, int_of(usage, "cache_creation_input_tokens", "cache_creation_tokens")),
    )


def _camel_case_tokens(usage: Object) -> TokenUsage:
    return TokenUsage(
        input=max(0, int_of(usage, "inputTokens")),
        output=max(0, int_of(usage, "outputTokens")),
        cache_read=max(0, int_of(usage, "cacheReadInputTokens")),
        cache_write=max(0, int_of(usage, "cacheCreationInputTokens")),
    )


def _price(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def _telemetry_price(value: Json) -> float | None:
    """Return a price that may be written as text, as attributes of telemetry often are."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    price = _price(value)
    return price if price is not None and price < 1e9 else None


def _largest(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    """Return the larger of each count: a later count is only smaller if the agent lost some."""
    return TokenUsage(
        input=max(a.input, b.input),
        output=max(a.output, b.output),
        cache_read=max(a.cache_read, b.cache_read),
        cache_write=max(a.cache_write, b.cache_write),
    )


def _smallest(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    return TokenUsage(
        input=min(a.input, b.input),
        output=min(a.output, b.output),
        cache_read=min(a.cache_read, b.cache_read),
        cache_write=min(a.cache_write, b.cache_write),
    )


def _add(a: TokenUsage, b: TokenUsage, sign: int = 1) -> TokenUsage:
    return TokenUsage(
        input=a.input + sign * b.input,
        output=a.output + sign * b.output,
        cache_read=a.cache_read + sign * b.cache_read,
        cache_write=a.cache_write + sign * b.cache_write,
    )


def _subtract(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    return _add(a, b, -1)
