"""Search every reachable world breadth first, checking each once, so that the path to a broken rule is the shortest.

Worlds are equal if they differ only in names, indexes and times (`key`). Of a searched world only its predecessor and
its moves are retained. Each world is carried along twice, with the folded state and with a state that was stored and
decoded: both must continue equally, and the search continues from the stored one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel import lifecycle
from quarterdeck.kernel.log_invariants import in_order
from quarterdeck.kernel.state import State
from quarterdeck.kernel.view import View, fold
from tests.model import agent, children, deck, person
from tests.model.invariants import RULES, RULES_OF_NAMES, Rule
from tests.model.reach import LIVENESS, Edge, Node, stuck
from tests.model.truth import Bounds, Move, Truth, World, shape, told
from tests.support.state_table import Shown, shown_by

#: Stop after this many broken rules, because later ones are mostly consequences.
ENOUGH = 5
_decode_state = msgspec.json.Decoder(State).decode


class Violation(NamedTuple):
    """A broken rule, and the shortest path to it."""

    rule: str
    what: str
    way: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(self.way, 1))
        return f"{self.rule}: {self.what}\n{steps}"


class Report(NamedTuple):
    """The result of a search."""

    nodes: list[Node]
    transitions: int
    combinations: set[Shown]
    violations: list[Violation]

    @property
    def is_complete(self) -> bool:
        """Whether everything was searched."""
        return all(node.is_searched for node in self.nodes)

    def __str__(self) -> str:
        depth = max(node.depth for node in self.nodes)
        lines = [
            f"{len(self.nodes)} states, {self.transitions} transitions, {len(self.combinations)} combinations",
            f"{'all there is' if self.is_complete else 'cut off'}, at most {depth} batches deep",
            f"{len(self.violations)} violations",
            *map(str, self.violations),
        ]
        return "\n".join(lines)


def moves(world: World, bounds: Bounds) -> Iterator[Move]:
    """Return everything that may happen next."""
    for actor in (person, deck, agent, children):
        yield from actor.moves(world, bounds)


def key(world: World) -> tuple[object, ...]:
    """Return the world without names, indexes and times."""
    state, truth = world.view.state, world.truth
    base_phase = state.base_phase
    is_resuming = truth.lifecycle == "suspended" or truth.promise == "restore"
    return (
        shape(truth),
        shown_by(world.view),
        base_phase.ask,
        # The two signals that a start waits for have no meaning later.
        base_phase.value == "creating" and (base_phase.created, base_phase.requested),
        tuple(sorted([(gate.kind, len(gate.path)) for gate in state.gates.open])),
        (state.turn.is_open, len(state.turn.calls)),
        tuple(sorted([item.kind for item in state.queue])),
        tuple(sorted([task.kind for task in state.background])),
        state.profile.can_resume,
        # An interrupted approval is requested again while the session is loaded, and dropped afterwards.
        is_resuming and any(gate.kind == "approval" and not gate.path for gate in state.gates.stale),
    )


# --- one step


class Broken(Exception):
    """A rule about the step itself is broken."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(what)
        self.rule = rule


def stepped(world: World, move: Move) -> World:
    """Return the world after this move: its batch passes the log invariants and is folded event by event."""
    view = world.view
    written = in_order(view, (*move.bodies, *told(world.truth, move.truth)))
    _judge_turns(written, world.truth, move.truth)
    for body in written:
        before, view = view, fold(view, Event("s1", view.index + 1, view.index + 1, "engine", body))
        _judge_lifecycle(before, view)
    found = view.state.base_phase.value
    if move.base_phase and found != move.base_phase:
        raise Broken("a move ends in its phase", f"{found} is the base phase, expected {move.base_phase}")
    return World(move.truth, view)


def _judge_turns(written: Iterable[Body], before: Truth, after: Truth) -> None:
    """Check on the log alone that each agent_start is closed by one agent_end or agent_abort before the next (X-024)."""
    is_open = bool(before.step)
    for body in written:
        if body.agent_path or not isinstance(body, ev.AgentStart | ev.AgentEnd | ev.AgentAbort):
            continue
        starts = isinstance(body, ev.AgentStart)
        # An abort is also written when no turn was open, so that observers can reconcile.
        if is_open == starts and (is_open or not isinstance(body, ev.AgentAbort)):
            state = "open" if is_open else "closed"
            raise Broken("every turn is closed once", f"{ev.type_of(body)} while the turn is {state}")
        is_open = starts
    if is_open != bool(after.step):
        raise Broken("every turn is closed once", f"the log leaves the turn {'open' if is_open else 'closed'}")


def _judge_lifecycle(before: View, after: View) -> None:
    old, new = before.state.lifecycle.value, after.state.lifecycle.value
    if old != new and (old, new) != ("none", "active") and not lifecycle.may_move(old, new):
        raise Broken("the lifecycle moves by its rows", f"{old} → {new}")


# --- all steps


class Search:
    """The worlds found so far. `run` continues until nothing new is found."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.nodes: list[Node] = []
        self.seen: dict[tuple[object, ...], int] = {}
        #: (index of the node, the world with its decoded state, the same world as it was folded)
        self.frontier: deque[tuple[int, World, World]] = deque()
        self.transitions = 0
        self.combinations: set[Shown] = set()
        self.violations: list[Violation] = []

    def run(self) -> Report:
        start = World(Truth(), View())
        self._take_in(start, start, -1, "")
        while self.frontier and len(self.violations) < ENOUGH:
            place, stored, live = self.frontier.popleft()
            if self.bounds.depth is None or self.nodes[place].depth < self.bounds.depth:
                self._expand(place, stored, live)
        for rule in LIVENESS:
            for place in stuck(self.nodes, rule)[:1]:
                self._broken(rule.name, f"impossible in {self.nodes[place].phase}", place)
        return Report(self.nodes, self.transitions, self.combinations, self.violations)

    def _expand(self, place: int, stored: World, live: World) -> None:
        node = self.nodes[place]
        node.is_searched = True
        for move in moves(stored, self.bounds):
            self.transitions += 1
            try:
                after = stepped(stored, move)
                _judge(RULES_OF_NAMES, after, self.bounds)
            except Broken as broken:
                self._broken(broken.rule, str(broken), place, _described(move))
                continue
            found = self.seen.get(key(after))
            if found is None:
                found = self._take_in(after, stepped(live, move), place, _described(move))
            node.edges.add(Edge(move.by, found))

    def _take_in(self, world: World, live: World, parent: int, step: str) -> int:
        """Check a new world, and queue it unless it breaks a rule."""
        place = self.seen[key(world)] = len(self.nodes)
        depth = self.nodes[parent].depth + 1 if parent >= 0 else 0
        shown = shown_by(world.view)
        self.nodes.append(Node(parent, step, depth, shown.lifecycle, shown.phase))
        self.combinations.add(shown)
        try:
            _judge(RULES, world, self.bounds)
            self.frontier.append((place, World(world.truth, _stored(world.view, live.view)), live))
        except Broken as broken:
            self._broken(broken.rule, str(broken), place)
        return place

    def _broken(self, rule: str, what: str, place: int, *last: str) -> None:
        way = (*self._way_to(place), *last)
        known = any((one.rule, one.way[-1:]) == (rule, way[-1:]) for one in self.violations)
        if not known and len(self.violations) < ENOUGH:
            self.violations.append(Violation(rule, what, way))

    def _way_to(self, place: int) -> list[str]:
        way: list[str] = []
        while self.nodes[place].parent >= 0:
            way.append(self.nodes[place].step)
            place = self.nodes[place].parent
        return way[::-1]


def _judge(rules: dict[str, Rule], world: World, bounds: Bounds) -> None:
    for name, rule in rules.items():
        what = rule(world, bounds)
        if what is not None:
            raise Broken(name, what)


def _stored(view: View, live: View) -> View:
    """Store and decode the view's state, and check that nothing is lost."""
    stored = msgspec.json.encode(view.state)
    state = _decode_state(stored)
    if msgspec.json.encode(state) != stored:
        raise Broken("a state is stored without loss", "read back it is another one")
    if msgspec.json.encode(live.state) != stored:
        raise Broken("a stored state goes on like the live one", "they differ")
    return View(view.index, view.at, state, view.timeline)


def _described(move: Move) -> str:
    return f"{move.label} [{', '.join(map(_said, move.bodies))}]"


def _said(body: Body) -> str:
    return ev.type_of(body) + (f"@{'/'.join(body.agent_path)}" if body.agent_path else "")


def explore(bounds: Bounds) -> Report:
    """Search the product within these bounds."""
    return Search(bounds).run()
