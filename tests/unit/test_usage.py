"""Test the ledger: four exclusive buckets, each message counted once, and no invented cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.events import TokenUsage, Usage
from quarterdeck.kernel.usage import Ledger, Share, entered, next_turn
from tests.support.tape import tape

# Quarters are exact in binary, so sums of them can be compared.
_costs = st.none() | st.integers(0, 40).map(lambda quarters: quarters / 4)
_counts = st.integers(0, 1_000)
tokens = st.builds(TokenUsage, input=_counts, output=_counts, cache_read=_counts, cache_write=_counts, cost_usd=_costs)


def used(message_id: str = "", **counts: Any) -> Usage:
    return Usage(message_id=message_id, tokens=TokenUsage(**counts))


def ledger_of(*told: Usage) -> Ledger:
    ledger = Ledger()
    for body in told:
        ledger = entered(ledger, body)
    return ledger


class TestBuckets:
    @given(st.lists(tokens, max_size=8))
    def test_each_bucket_is_its_own_sum_and_the_total_is_all_four(self, told: list[TokenUsage]) -> None:
        total = ledger_of(*(Usage(tokens=one) for one in told)).total
        for bucket in ("input", "output", "cache_read", "cache_write"):
            assert getattr(total, bucket) == sum(getattr(one, bucket) for one in told)
        assert total.total_tokens == sum(one.total_tokens for one in told)

    def test_the_total_counts_every_bucket_once(self) -> None:
        assert ledger_of(used(input=1, output=2, cache_read=4, cache_write=8)).total.total_tokens == 15


class TestMessages:
    @given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), tokens), max_size=12), st.sets(st.integers(0, 11)))
    def test_a_message_that_is_told_again_counts_with_its_last_word(
        self, told: list[tuple[str, TokenUsage]], turns: set[int]
    ) -> None:
        """This holds within two turns. Agents don't repeat older messages."""
        ledger = Ledger()
        for place, (name, one) in enumerate(told):
            if place in turns and not ledger.counted_before:
                ledger = next_turn(ledger)
            ledger = entered(ledger, Usage(message_id=name, tokens=one))
        last = dict(told)
        assert ledger.total.total_tokens == sum(one.total_tokens for one in last.values())
        costs = {name: one.cost_usd for name, one in told if one.cost_usd is not None}
        assert (ledger.total.cost_usd or 0) == sum(costs.values())
        assert ledger.partial == (bool(costs) and any(last[name].total_tokens for name in last.keys() - costs.keys()))

    def test_messages_without_an_id_are_all_counted(self) -> None:
        ledger = ledger_of(used(input=1), used(input=1))
        assert ledger.total.input == 2
        assert ledger.counted == ()

    def test_a_message_is_remembered_for_one_more_turn(self) -> None:
        ledger = next_turn(ledger_of(used("a", input=5)))
        assert entered(ledger, used("a", input=7)).total.input == 7
        forgotten = next_turn(next_turn(ledger))
        assert (forgotten.counted, forgotten.counted_before) == ((), ())
        assert entered(forgotten, used("a", input=7)).total.input == 12

    def test_the_last_word_of_the_turn_before_is_the_one_that_counts(self) -> None:
        ledger = next_turn(ledger_of(used("a", input=1), used("b", input=1), used("a", input=5)))
        assert entered(ledger, used("a", input=6)).total.input == 7

    def test_what_is_remembered_does_not_grow_with_what_is_repeated(self) -> None:
        assert len(ledger_of(*(used("a", output=count) for count in range(100))).counted) == 1

    def test_a_ledger_without_memories_is_the_same_in_the_next_turn(self) -> None:
        ledger = ledger_of(used(input=1))
        assert next_turn(ledger) is ledger


class TestCost:
    def test_a_cost_that_nobody_said_is_unknown(self) -> None:
        ledger = ledger_of(used("a", input=5))
        assert (ledger.total.cost_usd, ledger.partial) == (None, False)

    def test_known_costs_add_up(self) -> None:
        ledger = ledger_of(used("a", input=5, cost_usd=0.5), used("b", input=5, cost_usd=0.25))
        assert (ledger.total.cost_usd, ledger.partial) == (0.75, False)

    @pytest.mark.parametrize("known_first", [True, False])
    def test_a_sum_that_leaves_something_out_says_so(self, known_first: bool) -> None:
        known, unknown = used("a", input=5, cost_usd=0.5), used("b", input=5)
        ledger = ledger_of(*((known, unknown) if known_first else (unknown, known)))
        assert (ledger.total.cost_usd, ledger.partial) == (0.5, True)

    def test_a_cost_that_is_told_later_makes_the_sum_whole(self) -> None:
        ledger = ledger_of(used("a", input=5), used("b", input=5, cost_usd=0.25), used("a", input=5, cost_usd=0.5))
        assert (ledger.total.cost_usd, ledger.partial) == (0.75, False)

    def test_a_message_that_is_told_again_without_its_cost_keeps_the_one_it_had(self) -> None:
        ledger = ledger_of(used("a", input=5, cost_usd=0.5), used("a", input=6))
        assert (ledger.total.cost_usd, ledger.total.input) == (0.5, 6)
        assert entered(ledger, used("a", input=6, cost_usd=0.75)).total.cost_usd == 0.75

    def test_nothing_used_costs_nothing_and_hides_nothing(self) -> None:
        assert not ledger_of(used("a"), used("b", input=1, cost_usd=0.5)).partial

    @pytest.mark.parametrize(
        ("told", "billing"),
        [
            ([], "unknown"),
            (["unknown"], "unknown"),
            (["plan"], "plan"),
            (["plan", "unknown"], "plan"),
            (["plan", "metered"], "metered"),
        ],
    )
    def test_billing_is_what_was_said_last(self, told: list[Any], billing: str) -> None:
        assert ledger_of(*(Usage(tokens=TokenUsage(), billing=one) for one in told)).billing == billing


class TestShares:
    def test_tokens_are_attributed_to_models_and_to_sub_agents(self) -> None:
        ledger = ledger_of(
            Usage(tokens=TokenUsage(input=1), model="opus"),
            Usage(tokens=TokenUsage(input=2), model="haiku", agent_path=("search",)),
            Usage(tokens=TokenUsage(input=4), model="haiku", agent_path=("search", "read")),
            Usage(tokens=TokenUsage(input=8), model="opus", agent_path=("search",)),
        )
        assert ledger.total.input == 15
        assert ledger.by_model == (Share("opus", TokenUsage(input=9)), Share("haiku", TokenUsage(input=6)))
        assert ledger.by_agent == (Share("search", TokenUsage(input=10)), Share("search/read", TokenUsage(input=4)))

    def test_a_message_that_is_told_again_is_restated_in_the_shares_too(self) -> None:
        first = Usage(message_id="a", tokens=TokenUsage(output=3), model="opus", agent_path=("k",))
        again = Usage(message_id="a", tokens=TokenUsage(output=9), model="opus", agent_path=("k",))
        ledger = ledger_of(first, again)
        assert ledger.by_model == (Share("opus", TokenUsage(output=9)),)
        assert ledger.by_agent == (Share("k", TokenUsage(output=9)),)

    def test_what_no_model_is_named_for_is_in_the_total_only(self) -> None:
        ledger = ledger_of(used(input=3))
        assert (ledger.by_model, ledger.by_agent) == ((), ())


class TestEvents:
    def test_usage_of_sub_agents_and_of_sessions_at_rest_counts(self) -> None:
        played = tape(
            used("a", input=1),
            Usage(message_id="b", tokens=TokenUsage(input=2), agent_path=("k",)),
            ev.SessionArchived(),
            used("c", input=4),
        )
        assert played.state.usage.total.input == 7

    def test_what_the_end_of_a_turn_says_is_not_added(self) -> None:
        played = tape(ev.AgentStart(), used("a", input=5), ev.AgentEnd(usage=TokenUsage(input=5)))
        assert played.state.usage.total.input == 5

    def test_a_turn_forgets_the_messages_of_the_turn_before_the_last(self) -> None:
        played = tape(ev.AgentStart(), used("a", input=5), ev.AgentEnd(), ev.AgentStart(), used("a", input=6))
        assert played.state.usage.total.input == 6
        played.add(ev.AgentEnd(), ev.AgentStart(), ev.AgentEnd(), ev.AgentStart(), used("a", input=6))
        assert played.state.usage.total.input == 12
