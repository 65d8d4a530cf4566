"""Format the result of the crash suite: the kills by point and victim, and the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

VICTIMS = ("deck", "keeper", "both", "agent", "child")


def lines(kills: Counter[tuple[str, str]], failures: Iterable[str]) -> list[str]:
    """Return a table of the kills by point and victim, then the failures."""
    failed = list(failures)
    named = sorted({point for point, _ in kills})
    width = max((len(one) for one in named), default=0)
    head = f"{'point':<{width}}  " + "  ".join(f"{one:>6}" for one in VICTIMS)
    body = [f"{point:<{width}}  " + "  ".join(f"{kills[point, one] or '':>6}" for one in VICTIMS) for point in named]
    sums = [sum(count for (_, one), count in kills.items() if one == victim) for victim in VICTIMS]
    foot = f"{'all':<{width}}  " + "  ".join(f"{one:>6}" for one in sums)
    total = f"{sum(kills.values())} kills, losses = {len(failed)}"
    return [head, *body, foot, total, *failed]
