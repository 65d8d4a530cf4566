"""Kill decks, keepers, agents and tools two hundred times: no acknowledged command is lost or executed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.plan import KILLS, plans
from tests.crash.voyage import Voyage

VOYAGES = 20
assert VOYAGES * KILLS >= 200


@pytest.mark.parametrize("seed", range(VOYAGES))
def test_nothing_is_lost(tmp_path: Path, seed: int, record_property: pytest.RecordProperty) -> None:
    voyage = Voyage(tmp_path, seed)
    try:
        voyage.run(plans(seed))
    finally:
        record_property("kills", [[*where, count] for where, count in voyage.kills.items()])
    assert sum(voyage.kills.values()) >= KILLS
