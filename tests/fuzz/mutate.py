"""Mutate recordings: drop, repeat, reorder and truncate lines; remove, retype, nest and enlarge fields.

`mutated(lines)` is a hypothesis strategy over whole recordings. `replayed(agent, lines)` replays one and passes every view
to a check. The envelope of a line (t, src) mostly stays intact, because Quarterdeck writes it; the rest came from an agent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from quarterdeck.events import Body
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay
from quarterdeck.kernel.view import View
from tests.fuzz.legal import unclosed, violations

TRACES = Path(__file__).parents[1] / "conformance" / "traces"
MOST_LINES = 120

_JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    "",
    "x" * 5000,
    "\x00\u2028",
    [],
    {},
    [[[[]]]],
    {"type": []},
    ["a", 1, None],
]
_OPERATIONS = ("drop", "double", "swap", "cut", "remove", "retype", "nest", "blow", "garbage")


@cache
def recordings(folder: str) -> list[Path]:
    """Return the committed recordings of an agent."""
    return sorted((TRACES / folder).rglob("*.jsonl"))


@cache
def lines_of(path: Path) -> list[bytes]:
    """Return the first lines of a recording. Whole recordings would make the search slow and find no more."""
    return path.read_bytes().splitlines(keepends=True)[:MOST_LINES]


@st.composite
def mutated(draw: st.DrawFn, lines: list[bytes]) -> list[bytes]:
    """Generate a recording with a few mutations."""
    result = list(lines)
    for _ in range(draw(st.integers(1, 8))):
        if not result:
            break
        at = draw(st.integers(0, len(result) - 1))
        _mutate(draw, result, at, draw(st.sampled_from(_OPERATIONS)))
    return result


def _mutate(draw: st.DrawFn, lines: list[bytes], at: int, operation: str) -> None:
    if operation == "drop":
        del lines[at : at + draw(st.integers(1, 4))]
    elif operation == "double":
        lines.insert(draw(st.integers(0, len(lines))), lines[at])
    elif operation == "swap":
        other = draw(st.integers(0, len(lines) - 1))
        lines[at], lines[other] = lines[other], lines[at]
    elif operation == "cut":
        lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    elif operation == "garbage":
        lines.insert(at, draw(st.binary(max_size=40)) + b"\n")
    else:
        lines[at] = _with_changed_field(draw, lines[at], operation)


def _with_changed_field(draw: st.DrawFn, line: bytes, operation: str) -> bytes:
    try:
        found = json.loads(line)
    except ValueError:
        return line
    holders = [holder for holder in _objects(found.get("data")) if holder] if isinstance(found, dict) else []
    if not holders:
        return line
    holder = holders[draw(st.integers(0, len(holders) - 1))]
    key = sorted(holder)[draw(st.integers(0, len(holder) - 1))]
    if operation == "remove":
        del holder[key]
    elif operation == "retype":
        holder[key] = draw(st.sampled_from(_JUNK))
    elif operation == "nest":
        holder[key] = {"type": holder[key], "content": [holder[key]]}
    else:
        holder[key] = [holder[key]] * 50 if not isinstance(holder[key], str) else holder[key] * 200
    return json.dumps(found).encode() + b"\n"


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(one for inner in value.values() for one in _objects(inner))]
    if isinstance(value, list):
        return [one for inner in value for one in _objects(inner)]
    return []


def replayed(agent: str, lines: list[bytes], check: Callable[[View], None] | None = None) -> Replay:
    """Replay a recording and check every view."""
    run = Replay(translator(agent), agent)
    said: list[Body] = []
    for row in run.rows(lines):
        broken = violations(row.view)
        assert not broken, f"line {row.line}: {broken} after {[type(body).__name__ for body in row.bodies]}"
        said.extend(row.bodies)
        if check is not None:
            check(row.view)
    assert not unclosed(said)
    return run
