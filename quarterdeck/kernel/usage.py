"""One ledger of tokens and cost: four exclusive buckets, each message counted once, sub-agents attributed.

A `usage` event restates the tokens of its message, so a message told again replaces what it said before. Messages are
remembered for the turn under way and the one before it, which is as far back as agents repeat themselves; a ledger that
remembered every message would grow for ever. What `agent_end` says of a turn is not added: it is the same tokens again.

Cost is unknown until someone says it. A ledger that holds both known and unknown costs says so (`partial`): a sum that
leaves something out must not look like the whole. A message that is told again without its cost keeps the one it had.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import TokenUsage, Usage


class Share(Struct, frozen=True, gc=False):
    """What one model, or one sub-agent, used."""

    name: str
    tokens: TokenUsage


class Counted(Struct, frozen=True, gc=False):
    """A message that is in the sums already."""

    message_id: str
    tokens: TokenUsage


class Ledger(Struct, frozen=True, gc=False):
    """All that a session used."""

    total: TokenUsage = TokenUsage()
    billing: str = "unknown"
    partial: bool = False
    by_model: tuple[Share, ...] = ()
    by_agent: tuple[Share, ...] = ()
    counted: tuple[Counted, ...] = ()
    counted_before: tuple[Counted, ...] = ()
    #: tokens whose cost nobody said
    unpriced: int = 0


def entered(ledger: Ledger, body: Usage) -> Ledger:
    """With the tokens of one message."""
    told = change = body.tokens
    unpriced, before = ledger.unpriced, _already(ledger, body.message_id)
    if before is not None:
        told = _with_known_cost(told, before)
        change = _difference(told, before)
        unpriced -= _unpriced(before)
    if told.cost_usd is None:
        unpriced += told.total_tokens
    total = _sum(ledger.total, change)
    return Ledger(
        total,
        ledger.billing if body.billing == "unknown" else body.billing,
        unpriced > 0 and total.cost_usd is not None,
        _shared(ledger.by_model, body.model, change) if body.model else ledger.by_model,
        _shared(ledger.by_agent, "/".join(body.agent_path), change) if body.agent_path else ledger.by_agent,
        _counted(ledger.counted, body.message_id, told) if body.message_id else ledger.counted,
        ledger.counted_before,
        unpriced,
    )


def next_turn(ledger: Ledger) -> Ledger:
    """A turn begins: what the last one counted is kept once more, what came before it is forgotten."""
    if not ledger.counted and not ledger.counted_before:
        return ledger
    return replace(ledger, counted=(), counted_before=ledger.counted)


def _already(ledger: Ledger, message_id: str) -> TokenUsage | None:
    """What the sums hold of this message; the last word on it stands last."""
    if message_id:
        for counted in (ledger.counted, ledger.counted_before):
            for one in reversed(counted):
                if one.message_id == message_id:
                    return one.tokens
    return None


def _counted(counted: tuple[Counted, ...], message_id: str, tokens: TokenUsage) -> tuple[Counted, ...]:
    if counted and counted[-1].message_id == message_id:
        counted = counted[:-1]
    return (*counted, Counted(message_id, tokens))


def _with_known_cost(told: TokenUsage, before: TokenUsage) -> TokenUsage:
    if told.cost_usd is not None or before.cost_usd is None:
        return told
    return replace(told, cost_usd=before.cost_usd)


def _unpriced(tokens: TokenUsage) -> int:
    return tokens.total_tokens if tokens.cost_usd is None else 0


def _shared(shares: tuple[Share, ...], name: str, change: TokenUsage) -> tuple[Share, ...]:
    for place, share in enumerate(shares):
        if share.name == name:
            return (*shares[:place], Share(name, _sum(share.tokens, change)), *shares[place + 1 :])
    return (*shares, Share(name, change))


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
