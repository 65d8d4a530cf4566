"""Show X-028 with every recording: after each signal, for any choice of sources, the owners match a row of the table."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay
from tests.conformance.marks import case
from tests.support.state_table import legal, shown_by

TRACES = Path(__file__).parent / "traces"
RECORDINGS = sorted(TRACES.rglob("*.jsonl"))
#: Recordings are also replayed with the generic translator of their protocol, which is used for unknown agents.
GENERIC = {"gemini": "acp", "opencode": "acp", "kilo": "acp", "cline/2.18.0-acp": "acp", "cline": "sayask"}


def agents_of(path: Path) -> list[str]:
    folder = path.parent.relative_to(TRACES)
    generic = GENERIC.get(folder.as_posix()) or GENERIC.get(folder.parts[0])
    return [folder.parts[0], generic] if generic else [folder.parts[0]]


def selections(lines: list[bytes]) -> list[tuple[str, ...]]:
    """Return every choice of the available sources: all, each alone, all but one, and everything between."""
    sources = sorted({json.loads(line)["src"].partition(".")[0] for line in lines})
    return [chosen for size in range(1, len(sources) + 1) for chosen in combinations(sources, size)]


@case("X-028")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.relative_to(TRACES).as_posix())
def test_no_recording_shows_an_impossible_combination(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    for agent in agents_of(path):
        for only in selections(lines):
            for row in Replay(translator(agent), agent, only).rows(lines):
                assert legal(row.view), f"{agent} by {only}, line {row.line}: {shown_by(row.view)}"


def test_there_are_recordings_of_every_agent() -> None:
    assert len(RECORDINGS) > 250
    assert {agent for path in RECORDINGS for agent in agents_of(path)} >= {"claude", "codex", "pi", "acp", "sayask"}
