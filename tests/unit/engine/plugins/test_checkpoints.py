"""Test AutoCheckpoint: when checkpoints are saved, and how many ids are remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.plugins.base import InvalidPluginOption
from quarterdeck.engine.plugins.checkpoints import AutoCheckpoint
from tests.support.small_context import SmallContext, ask, restarted


@pytest.fixture
def context(tmp_path: Path) -> SmallContext:
    return SmallContext(tmp_path)


def turn(plugin: Any, context: SmallContext) -> None:
    ask(plugin, "after_turn", {}, context)


def batch(plugin: Any, context: SmallContext, calls: int) -> None:
    ask(plugin, "after_tool_batch", [object()] * calls, context)


def test_after_every_turn_by_default(context: SmallContext) -> None:
    plugin = AutoCheckpoint()
    turn(plugin, context)
    batch(plugin, context, 3)
    turn(plugin, context)
    assert context.saved == ["c1", "c2"]


def test_by_turns(context: SmallContext) -> None:
    plugin = AutoCheckpoint(turns=3)
    for _ in range(7):
        turn(plugin, context)
    assert context.checkpoint_count == 2


def test_by_tools(context: SmallContext) -> None:
    plugin = AutoCheckpoint(turns=0, tools=5)
    made: list[int] = []
    for calls in (2, 2, 2, 4, 5, 1):
        batch(plugin, context, calls)
        turn(plugin, context)
        made.append(context.checkpoint_count)
    assert made == [0, 0, 1, 1, 2, 2]


def test_by_events(context: SmallContext) -> None:
    plugin = AutoCheckpoint(turns=0, events=100)
    made: list[int] = []
    for context.events in (50, 99, 100, 150, 250, 251):
        turn(plugin, context)
        made.append(context.checkpoint_count)
    assert made == [0, 0, 1, 1, 2, 2]


def test_whichever_comes_first(context: SmallContext) -> None:
    plugin = AutoCheckpoint(turns=3, tools=2)
    turn(plugin, context)
    batch(plugin, context, 2)
    turn(plugin, context)
    turn(plugin, context)
    assert context.checkpoint_count == 1
    turn(plugin, context)
    assert context.checkpoint_count == 2


@given(st.integers(1, 4), st.integers(0, 9))
def test_the_last_ones_are_kept(tmp_path_factory: pytest.TempPathFactory, keep: int, turns: int) -> None:
    context = SmallContext(tmp_path_factory.getbasetemp())
    plugin = AutoCheckpoint(keep=keep)
    for _ in range(turns):
        turn(plugin, context)
    assert list(plugin.state.saved) == context.saved[-keep:]
    assert context.checkpoint_count == turns


def test_counting_outlives_a_restart(context: SmallContext) -> None:
    plugin = AutoCheckpoint(turns=2, keep=1)
    for _ in range(3):
        turn(plugin, context)
        plugin = restarted(plugin, AutoCheckpoint(turns=2, keep=1))
    assert plugin.state.saved == ("c1",)
    turn(plugin, context)
    assert plugin.state.saved == ("c2",)


def test_a_sub_agents_turn_does_not_count(context: SmallContext) -> None:
    context.agent_path = ("child",)
    turn(AutoCheckpoint(), context)
    assert context.checkpoint_count == 0


@pytest.mark.parametrize("options", [{"turns": 0}, {"turns": -1, "tools": 3}, {"keep": 0}])
def test_limits_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises(InvalidPluginOption):
        AutoCheckpoint(**options)
