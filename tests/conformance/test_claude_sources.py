"""Compare Claude Code's sources: hooks alone and the stream alone must show the same session."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.events import Event
from quarterdeck.harness.base import origin_of
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay, end_json
from quarterdeck.kernel.view import View, fold

TRACES = Path(__file__).parent / "traces" / "claude"
HOOKS = ("hook", "proc")
STREAM = ("stdout", "stdin", "proc")
#: Recordings whose sources differ, and why one of them can't know what the other reports.
DIFFERENCES = {
    "23i_Stop_block_and_UserPromptSubmit_block": "Stop means idle for hooks; for the stream only the result ends a turn",
    "24b_misc_events": "no hook tells local commands",
    "24e_elicitation": "a form that a hook fills in at once is not on the stream",
}


def has_both(path: Path) -> bool:
    content = path.read_text()
    return '"src": "hook"' in content and '"src": "stdout"' in content


BOTH = [path for path in sorted(TRACES.rglob("*.jsonl")) if has_both(path)]


def replayed(path: Path, only: tuple[str, ...]) -> tuple[Replay, list[str]]:
    """Return the replay and the sequence of phases, checked after each event."""
    run = Replay(translator("claude"), "claude", only)
    view, phases = View(), ["idle"]
    with path.open("rb") as lines:
        for row in run.rows(lines):
            for body in row.bodies:
                view = fold(view, Event("s", view.index + 1, int(row.t * 1000), origin_of("stdout"), body))
                if view.state.phase.value != phases[-1]:
                    phases.append(view.state.phase.value)
    return run, phases


def test_there_are_recordings_with_both() -> None:
    assert len(BOTH) > 40


@pytest.mark.parametrize("path", BOTH, ids=lambda path: path.stem)
def test_hooks_alone_and_the_stream_alone_agree(path: Path) -> None:
    (hooks, by_hooks), (stream, by_stream) = replayed(path, HOOKS), replayed(path, STREAM)
    assert hooks.view.state.phase.value == stream.view.state.phase.value
    assert end_json(hooks)["tools"] == end_json(stream)["tools"]
    if path.stem in DIFFERENCES:
        assert by_hooks != by_stream, "the difference is gone: take it off the list"
    else:
        assert by_hooks == by_stream
        assert hooks.gates_opened == stream.gates_opened


@pytest.mark.parametrize("path", BOTH, ids=lambda path: path.stem)
def test_both_together_count_nothing_twice(path: Path) -> None:
    (stream, _), (together, _) = replayed(path, STREAM), replayed(path, ())
    assert end_json(together)["tools"] == end_json(stream)["tools"]
    assert together.view.state.usage.total == stream.view.state.usage.total
    assert together.gates_opened >= stream.gates_opened
    texts = [message for message in end_json(together)["messages"] if message["kind"] in ("assistant", "thinking")]
    alone = [message for message in end_json(stream)["messages"] if message["kind"] in ("assistant", "thinking")]
    assert texts == alone
    assert together.unknown == 0
