"""Count tokens and cost: four exclusive buckets, each message counted once, sub-agents attributed.

A `usage` event restates the tokens of its message, so a second event for the same message replaces the first. Messages
are remembered for the current turn and the previous one, which is as far back as agents repeat themselves. Remembering
all of them would make the ledger grow without limit. The usage in `agent_end` isn't added: it restates the same tokens.

Cost is unknown until an event contains it. If only some costs are known, the ledger is `partial`, so that an incomplete
sum isn't shown as the total. A message that is repeated without its cost keeps the cost it had.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import TokenUsage, Usage


class Share(Struct, frozen=True, gc=False):
    """The tokens of one model, or of one sub-agent."""

    name: str
    tokens: TokenUsage


class Counted(Struct, frozen=True, gc=False):
    """A message that is already in the sums."""

    message_id: str
    tokens: TokenUsage


class Ledger(Struct, frozen=True, gc=False):
    """The total usage of a session."""

    total: TokenUsage = TokenUsage()
    billing: str = "unknown"
    #: Some costs are known and some aren't.
    partial: bool = False
    by_model: tuple[Share, ...] = ()
    by_agent: tuple[Share, ...] = ()
    #: Messages counted in the current turn, and in the previous one.
    counted: tuple[Counted, ...] = ()
    counted_before: tuple[Counted, ...] = ()
    #: Tokens of unknown cost.
    unpriced: int = 0


def entered(ledger: Ledger, body: Usage) -> Ledger:
    """Count the tokens of one message."""
    tokens = change = body.tokens
    unpriced, previous = ledger.unpriced, _counted_tokens(ledger, body.message_id)
    if previous is not None:
        tokens = _with_known_cost(tokens, previous)
        change = _difference(tokens, previous)
        unpriced -= _unpriced_tokens(previous)
    unpriced += _unpriced_tokens(tokens)
    total = _sum(ledger.total, change)
    return Ledger(
        total,
        ledger.billing if body.billing == "unknown" else body.billing,
        unpriced > 0 and total.cost_usd is not None,
        _with_share(ledger.by_model, body.model, change) if body.model else ledger.by_model,
        _with_share(ledger.by_agent, "/".join(body.agent_path), change) if body.agent_path else ledger.by_agent,
        _with_counted(ledger.counted, body.message_id, tokens) if body.message_id else ledger.counted,
        ledger.counted_before,
        unpriced,
    )


def next_turn(ledger: Ledger) -> Ledger:
    """Start a turn: remember the messages of the last turn, and forget those of the turn before it."""
    if not ledger.counted and not ledger.counted_before:
        return ledger
    return replace(ledger, counted=(), counted_before=ledger.counted)


def _counted_tokens(ledger: Ledger, message_id: str) -> TokenUsage | None:
    """Return what the sums contain of this message. A message may be listed twice; its last entry is valid."""
    if not message_id:
        return None
    for entry in (*reversed(ledger.counted), *reversed(ledger.counted_before)):
        if entry.message_id == message_id:
            return entry.tokens
    return None


def _with_counted(counted: tuple[Counted, ...], message_id: str, tokens: TokenUsage) -> tuple[Counted, ...]:
    if counted and counted[-1].message_id == message_id:
        counted = counted[:-1]
    return (*counted, Counted(message_id, tokens))


def _with_known_cost(tokens: TokenUsage, previous: TokenUsage) -> TokenUsage:
    return replace(tokens, cost_usd=previous.cost_usd) if tokens.cost_usd is None else tokens


def _unpriced_tokens(tokens: TokenUsage) -> int:
    return tokens.total_tokens if tokens.cost_usd is None else 0


def _with_share(shares: tuple[Share, ...], name: str, change: TokenUsage) -> tuple[Share, ...]:
    if not any(share.name == name for share in shares):
        return (*shares, Share(name, change))
    return tuple(Share(name, _sum(share.tokens, change)) if share.name == name else share for share in shares)


def _sum(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    return TokenUsage(
        input=a.input + b.input,
        output=a.output + b.output,
        cache_read=a.cache_read + b.cache_read,
        cache_write=a.cache_write + b.cache_write,
        cost_usd=a.cost_usd if b.cost_usd is None else (a.cost_usd or 0.0) + b.cost_usd,
    )


def _difference(a: TokenUsage, b: TokenUsage) -> TokenUsage:
    return TokenUsage(
        input=a.input - b.input,
        output=a.output - b.output,
        cache_read=a.cache_read - b.cache_read,
        cache_write=a.cache_write - b.cache_write,
        cost_usd=a.cost_usd if b.cost_usd is None else (a.cost_usd or 0.0) - b.cost_usd,
    )
