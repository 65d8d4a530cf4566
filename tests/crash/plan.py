"""Choose the kills of a voyage. Over many voyages every victim dies at every point; the rest is random."""

from __future__ import annotations

import random

from tests.crash import points

#: The minimum number of kills per voyage.
KILLS = 11
_NAMED, _RANDOM, _SMALL = 5, 2, 4
#: The maximum number of times that a point is passed before the kill.
_HITS = {"streaming": 200, "before_append": 25, "in_transaction": 25, "committed": 25, "published": 25}
_HITS |= {"wal_torn": 80, "wal_written": 25, "wal_synced": 25}
#: These points are passed only once per run, or the first pass is the interesting one.
_ONCE = (*points.AT_CLOSE, *points.AT_REPAIR, *points.AT_MIGRATION)
#: At these points at least one session is active.
_BUSY = ("approval_open", "streaming", "after_sending", "before_ready")
_NEEDS_WORK = ("repair_in_transaction", "repair_committed")


class Plan:
    """How one run of a deck ends. For the victims `agent` and `child`, `hit` is the number of kills."""

    def __init__(self, point: str, victim: str, hit: int = 1) -> None:
        self.point = point
        self.victim = victim
        self.hit = hit

    def __repr__(self) -> str:
        return f"{self.victim} at {self.point} ({self.hit})"


def _all_named() -> list[tuple[str, str]]:
    every = (*points.AT_WORK, *points.AT_CLOSE, *points.AT_REPAIR, *points.AT_MIGRATION)
    return [(point, victim) for victim in ("deck", "both", "keeper", "deck") for point in every]


def plans(seed: int) -> list[Plan]:
    """Return the kills of this voyage: the next named points, random moments, and agents or tool processes."""
    chance = random.Random(f"plan {seed}")
    named = _all_named()
    groups = [_at(*named[(seed * _NAMED + place) % len(named)], chance) for place in range(_NAMED)]
    groups += [[Plan("random", chance.choices(["deck", "keeper", "both"], [5, 2, 3])[0])] for _ in range(_RANDOM)]
    groups.append([Plan("random", "agent" if seed % 2 else "child", _SMALL)])
    chance.shuffle(groups)
    return [plan for group in groups for plan in group]


def _at(point: str, victim: str, chance: random.Random) -> list[Plan]:
    hit = 1 if point in _ONCE else chance.randint(1, _HITS.get(point, 4))
    if point in _NEEDS_WORK:
        return [Plan(chance.choice(_BUSY), chance.choice(["deck", "both"])), Plan(point, victim)]
    return [Plan(point, victim, hit)]
