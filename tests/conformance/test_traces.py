"""Replay real recordings and compare the results with the expectations in tests/conformance/traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay, Row, end_json, row_json

TRACES = Path(__file__).parent / "traces"
EXPECTATIONS = sorted(TRACES.rglob("*.expect.json"))


def recording_of(expectation: Path) -> Path:
    """Return the recording `NAME.jsonl` for `NAME.expect.json` or `NAME.variant.expect.json`."""
    name = expectation.name.removesuffix(".expect.json")
    while not (expectation.parent / f"{name}.jsonl").exists():
        name, _, variant = name.rpartition(".")
        assert variant, f"{expectation} has no recording"
    return expectation.parent / f"{name}.jsonl"


def replayed(expectation: Path, expected: dict[str, Any]) -> tuple[Replay, list[Row]]:
    run = Replay(translator(expected["agent"]), expected["agent"], tuple(expected.get("only", ())))
    with recording_of(expectation).open("rb") as lines:
        return run, list(run.rows(lines))


def without_repetitions(values: list[str]) -> list[str]:
    return [value for before, value in zip([None, *values], values, strict=False) if value != before]


def states_at(rows: list[Row], t: float) -> dict[str, Any]:
    return row_json([row for row in rows if row.t <= t][-1])


def named_kinds(messages: list[dict[str, str]], expected: list[dict[str, str]]) -> list[dict[str, str]]:
    kinds = {message["kind"] for message in expected}
    return [message for message in messages if message["kind"] in kinds]


def test_there_are_expectations() -> None:
    assert EXPECTATIONS


@pytest.mark.parametrize("expectation", EXPECTATIONS, ids=lambda path: str(path.relative_to(TRACES)))
def test_recording_shows_what_it_must(expectation: Path) -> None:
    expected = json.loads(expectation.read_text())
    assert expected["note"].strip()
    run, rows = replayed(expectation, expected)
    end = end_json(run)
    if "phases" in expected:
        assert without_repetitions([row.view.state.phase.value for row in rows]) == expected["phases"]
    if "activities" in expected:
        assert without_repetitions([row.view.state.activity.value for row in rows]) == expected["activities"]
    for moment in expected.get("at", ()):
        shown = states_at(rows, moment["t"])
        assert {name: shown[name] for name in moment if name != "t"} == {
            name: value for name, value in moment.items() if name != "t"
        }, f"at {moment['t']} s"
    final = row_json(rows[-1])
    assert {name: final[name] for name in expected.get("final", {})} == expected.get("final", {})
    if "gates_opened" in expected:
        assert end["gates_opened"] == expected["gates_opened"]
    if "tools" in expected:
        assert end["tools"] == expected["tools"]
    if "messages" in expected:
        assert named_kinds(end["messages"], expected["messages"]) == expected["messages"]
    total = run.view.state.usage.total
    for name, value in expected.get("usage", {}).items():
        assert getattr(total, name) == pytest.approx(value), f"usage {name}"
    assert end["unknown"] == expected.get("unknown", 0)
