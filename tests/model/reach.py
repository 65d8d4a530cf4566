"""Check what must always be possible, on the graph of all worlds and moves.

A rule names the worlds that it applies to, the worlds that must be reachable from them, and whose moves may be used. If
a rule could use every move, killing the process would satisfy it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct, field

from quarterdeck.kernel.phase import FLAGS, WAITING


class Edge(NamedTuple):
    """A move: its actor, and the world that it led to."""

    by: str
    to: int


class Node(Struct):
    """The part of a world that the search retains."""

    parent: int
    step: str
    depth: int
    lifecycle: str
    phase: str
    edges: set[Edge] = field(default_factory=set)
    is_searched: bool = False

    @property
    def is_active(self) -> bool:
        return self.lifecycle == "active"

    @property
    def spins(self) -> bool:
        return self.phase in FLAGS["showSpinner"]

    @property
    def waits(self) -> bool:
        return self.phase in WAITING

    @property
    def is_settled(self) -> bool:
        return self.is_active and not self.spins and not self.waits


class Liveness(NamedTuple):
    """From each of `these` worlds, one of `those` is reachable by moves of `by`, in one step if `at_once`."""

    name: str
    these: Callable[[Node], bool]
    those: Callable[[Node], bool]
    by: frozenset[str]
    at_once: bool = False


_BY_ITSELF = frozenset({"agent", "deck"})
_WITH_ANSWERS = _BY_ITSELF | {"decision"}
_WITH_A_PERSON = _WITH_ANSWERS | {"person"}

LIVENESS = (
    Liveness(
        "a spinner ends by itself",
        lambda node: node.is_active and node.spins,
        lambda node: node.is_active and not node.spins,
        _BY_ITSELF,
    ),
    Liveness(
        "what is asked can be decided, and then nothing waits",
        lambda node: node.waits,
        lambda node: node.is_active and not node.waits,
        frozenset({"decision"}),
    ),
    Liveness(
        "a turn comes to its end when a person answers",
        lambda node: node.is_active,
        lambda node: node.is_settled,
        _WITH_ANSWERS,
    ),
    Liveness(
        "one stop ends everything that spins or waits",
        lambda node: node.spins or node.waits,
        lambda node: node.is_settled,
        frozenset({"stop"}),
        at_once=True,
    ),
    Liveness(
        "an active session can always be used",
        lambda node: node.is_active,
        lambda node: node.is_active and node.phase == "streaming",
        _WITH_A_PERSON,
    ),
)


def stuck(nodes: list[Node], rule: Liveness) -> list[int]:
    """Return the worlds that break the rule, nearest first. Worlds that weren't searched don't count."""
    reaching = {place for place, node in enumerate(nodes) if rule.those(node) or not node.is_searched}
    if rule.at_once:
        ends = [place for place, node in enumerate(nodes) if _leads(node, rule, reaching)]
        reaching.update(ends)
    else:
        _spread(nodes, rule, reaching)
    return [place for place, node in enumerate(nodes) if rule.these(node) and place not in reaching]


def _leads(node: Node, rule: Liveness, reaching: set[int]) -> bool:
    return any(edge.by in rule.by and edge.to in reaching for edge in node.edges)


def _spread(nodes: list[Node], rule: Liveness, reaching: set[int]) -> None:
    """Add every world from which one in the set can be reached."""
    sources: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        for edge in node.edges:
            if edge.by in rule.by:
                sources.setdefault(edge.to, []).append(place)
    ahead = list(reaching)
    while ahead:
        for place in sources.get(ahead.pop(), ()):
            if place not in reaching:
                reaching.add(place)
                ahead.append(place)
