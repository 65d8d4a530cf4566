"""Tokens and cost, each counted once.

A message's tokens are known in part while it is streamed (input at its beginning, output at its end, and without partial
messages only the first), and `result` says them all again, with the cost, per model, sub-agents and compaction included. So
what is told is a running sum per model and agent, from one result to the next, under one name: the result restates the
sum as it was, also when that is less (a reply that was cut off is not counted, and costs nothing).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import TokenUsage
from quarterdeck.harness.base import Object, int_of, object_of
from quarterdeck.harness.tracker import AgentPath
from quarterdeck.kernel.usage import Ledger

_Key: TypeAlias = tuple[str, AgentPath]
_NOTHING = TokenUsage()
_KIND = "usage"
#: Between the parts of a sum's name; no model and no agent has it in its own.
_BETWEEN = "|"


class Share(Struct, frozen=True):
    """What one model used for one agent since the last result."""

    name: str
    model: str
    path: AgentPath
    tokens: TokenUsage


class Spending:
    """The sums since the last result."""

    def __init__(self) -> None:
        self._round = 0
        self._cost = 0.0
        self._start()

    def _start(self) -> None:
        self._round += 1
        self._messages: dict[str, tuple[_Key, TokenUsage]] = {}
        self._sums: dict[_Key, TokenUsage] = {}

    def new_process(self) -> None:
        """Another process begins its own sums; names go on, so that nothing is taken for a restatement."""
        self._cost = 0.0
        self._start()

    def restore(self, ledger: Ledger) -> None:
        """The sums that no result has closed yet go on."""
        for one in (*ledger.counted_before, *ledger.counted):
            kind, number, model, *path = one.message_id.split(_BETWEEN)
            if kind != _KIND or not number.isdecimal() or int(number) < self._round:
                continue
            if int(number) > self._round:
                self._sums.clear()
            self._round = int(number)
            self._sums[(model, tuple(path))] = one.tokens
        if any(tokens.cost_usd is not None for tokens in self._sums.values()):
            self._start()

    def message(self, message_id: str, usage: Object, model: str, path: AgentPath) -> Iterator[Share]:
        """Tokens of one message, as far as they are known; told again, they replace what was told before."""
        (key, before) = self._messages.get(message_id, ((model, path), _NOTHING))
        now = _more(before, tokens_of(usage))
        if now == before:
            return
        self._messages[message_id] = (key, now)
        self._sums[key] = _plus(self._sums.get(key, _NOTHING), _minus(now, before))
        yield self._share(key)

    def result(self, found: Object) -> Iterator[Share]:
        """All that was used since the last result, with its cost: the last word on every sum."""
        told = self._by_model(found)
        own = tokens_of(object_of(found, "usage"))
        for model in dict.fromkeys((*told, *(key[0] for key in self._sums))):
            tokens, cost = told.get(model, (_NOTHING, 0.0))
            yield from self._settled(model, tokens, cost, own)
        self._start()

    def _settled(self, model: str, tokens: TokenUsage, cost: float | None, own: TokenUsage) -> Iterator[Share]:
        """What the main agent did not use (its own share is told besides) was a sub-agent's, if one was at work."""
        paths = [key for key in self._sums if key[0] == model and key[1]]
        main = (model, ())
        mine = self._sums.get(main, _NOTHING)
        if paths:
            mine = _less(tokens, mine if main not in self._sums else _more(mine, own))
        else:
            mine = tokens
        left = _minus(tokens, mine)
        for key in paths[:-1]:
            self._sums[key] = _less(left, self._sums[key])
            left = _minus(left, self._sums[key])
        self._sums |= {main: mine, **dict.fromkeys(paths[-1:], left)}
        yield from self._priced([main, *paths], tokens.total_tokens, cost)

    def _priced(self, keys: list[_Key], whole: int, cost: float | None) -> Iterator[Share]:
        """The cost is told per model; each agent bears what it used of it."""
        for key in keys:
            tokens = self._sums[key]
            part = tokens.total_tokens / whole if whole else float(key is keys[0])
            self._sums[key] = replace(tokens, cost_usd=None if cost is None else cost * part)
            yield self._share(key)

    def _share(self, key: _Key) -> Share:
        model, path = key
        name = _BETWEEN.join((_KIND, str(self._round), model, *path))
        return Share(name, model, path, self._sums[key])

    def _by_model(self, found: Object) -> dict[str, tuple[TokenUsage, float | None]]:
        if isinstance(found.get("model_usage_since_last_result"), dict):
            since = object_of(found, "model_usage_since_last_result")
            told = {model: object_of(one) for model, one in since.items()}
            return {model: (_camel(one), _number(one.get("costUSD"))) for model, one in told.items()}
        return self._by_difference(found)

    def _by_difference(self, found: Object) -> dict[str, tuple[TokenUsage, float | None]]:
        """Older releases say the main agent's tokens, and the cost of the whole process; a sum that fell is a new one."""
        main = next((key for key in reversed(self._sums) if not key[1]), ("", ()))
        self._sums[main] = _more(self._sums.get(main, _NOTHING), tokens_of(object_of(found, "usage")))
        counted: dict[str, TokenUsage] = {}
        for (model, _), tokens in self._sums.items():
            counted[model] = _plus(counted.get(model, _NOTHING), tokens)
        total = _number(found.get("total_cost_usd"))
        cost = None if total is None else total - self._cost if total >= self._cost else total
        self._cost = total or 0.0
        return {model: (tokens, cost if model == main[0] else None) for model, tokens in counted.items()}


def tokens_of(usage: Object) -> TokenUsage:
    """Its input excludes what the cache gave or took, so the four never overlap."""
    return TokenUsage(
        input=max(0, int_of(usage, "input_tokens")),
        output=max(0, int_of(usage, "output_tokens")),
        cache_read=max(0, int_of(usage, "cache_read_input_tokens", "cache_read_tokens")),
        cache_write=max(0, int_of(usage, "cache_creation_input_tokens", "cache_creation_tokens")),
    )


def _camel(usage: Object) -> TokenUsage:
    return TokenUsage(
        input=max(0, int_of(usage, "inputTokens")),
        output=max(0, int_of(usage, "outputTokens")),
        cache_read=max(0, int_of(usage, "cacheReadInputTokens")),
        cache_write=max(0, int_of(usage, "cacheCreationInputTokens")),
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def _more(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    """The larger of each: a later count is never smaller, unless the agent lost some."""
    return TokenUsage(
        input=max(a.input, b.input),
        output=max(a.output, b.output),
        cache_read=max(a.cache_read, b.cache_read),
        cache_write=max(a.cache_write, b.cache_write),
    )


def _less(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    """The smaller of each."""
    return TokenUsage(
        input=min(a.input, b.input),
        output=min(a.output, b.output),
        cache_read=min(a.cache_read, b.cache_read),
        cache_write=min(a.cache_write, b.cache_write),
    )


def _plus(a: TokenUsage, b: TokenUsage, sign: int = 1) -> TokenUsage:
    return TokenUsage(
        input=a.input + sign * b.input,
        output=a.output + sign * b.output,
        cache_read=a.cache_read + sign * b.cache_read,
        cache_write=a.cache_write + sign * b.cache_write,
    )


def _minus(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    return _plus(a, b, -1)
