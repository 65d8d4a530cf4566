"""Search the product model within small bounds: nothing that can happen breaks a rule."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from quarterdeck import events as ev
from quarterdeck.kernel.view import View, fold
from tests.conformance.marks import case
from tests.model import search
from tests.model.reach import LIVENESS, Edge, Liveness, Node, stuck
from tests.model.search import explore
from tests.model.truth import Bounds
from tests.support.state_table import ROWS, fits

#: One search of everything takes minutes (`python -m tests.model --calls 3 --subs 2`), so each raises another bound.
SEARCHES = {
    "two calls, every gate, a sub-agent": Bounds(shells=False),
    "two sub-agents and a shell": Bounds(calls=1, subs=2, texts=0, dialogs=False),
    "three waiting texts": Bounds(calls=1, subs=0, texts=3, dialogs=False, shells=False),
}


@pytest.fixture
def untraced() -> Iterator[None]:
    """Disable coverage during a search: it executes the same few lines a million times, which takes minutes to trace."""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)


@case("X-024", "X-028", "X-040")
@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("bounds", SEARCHES.values(), ids=SEARCHES.keys())
def test_nothing_that_can_happen_breaks_a_rule(bounds: Bounds) -> None:
    report = explore(bounds)
    assert not report.violations, str(report)
    assert report.is_complete
    assert len(report.nodes) > 500


def test_every_row_of_the_table_is_needed() -> None:
    shown = explore(Bounds(depth=4)).combinations
    assert [row.name for row in ROWS if not any(fits(one, row) for one in shown)] == []


class TestTheSearchItself:
    """Check that the search finds faults that are there."""

    def test_it_finds_a_turn_that_never_ends_and_the_shortest_way_to_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def deaf(view: View, event: ev.Event) -> View:
            heard = not isinstance(event.body, ev.AgentEnd)
            return fold(view, event) if heard else View(event.index, event.at, view.state, view.timeline)

        monkeypatch.setattr(search, "fold", deaf)
        found = explore(Bounds(depth=4)).violations[0]
        assert len(found.way) == 3
        assert str(found).splitlines()[-1] == "   3. the turn ends [agent_end]"

    def test_it_is_cut_off_where_it_is_told_to_and_says_so(self) -> None:
        report = explore(Bounds(depth=2))
        assert not report.is_complete
        assert "cut off, at most 2 batches deep" in str(report)

    @pytest.mark.parametrize("rule", LIVENESS, ids=lambda rule: rule.name)
    def test_it_finds_a_world_that_nothing_leads_out_of(self, rule: Liveness) -> None:
        nodes = [
            Node(-1, "", 0, "active", phase, is_searched=True) for phase in ("streaming", "waiting_input", "error")
        ]
        for node in nodes:
            node.edges |= {Edge("death", place) for place in range(len(nodes))}
        expected = [place for place, node in enumerate(nodes) if rule.these(node) and not rule.those(node)]
        assert stuck(nodes, rule) == expected != []

    def test_it_follows_a_way_out_however_long_it_is(self) -> None:
        nodes = [Node(-1, "", 0, "active", "streaming", {Edge("agent", place + 1)}, True) for place in range(9)]
        nodes.append(Node(-1, "", 0, "active", "completed", is_searched=True))
        assert stuck(nodes, LIVENESS[0]) == []
