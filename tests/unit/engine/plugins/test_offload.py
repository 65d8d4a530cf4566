"""Test LargeResultOffload: the whole result on disk, its beginning and end in the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quarterdeck.engine.plugins.base import Emit, InvalidPluginOption, ReplaceToolResult
from quarterdeck.engine.plugins.offload import EXCLUDED, LargeResultOffload
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.events import LargeResultOffloaded, Notice
from tests.support.small_context import SmallContext, ask, events_of, others_of

BIG = "".join(f"line {number}\n" for number in range(10_000))


@pytest.fixture
def context(tmp_path: Path) -> SmallContext:
    return SmallContext(tmp_path)


def given(
    plugin: LargeResultOffload, context: SmallContext, text: str, tool: str = "shell", call: str = "c1"
) -> list[Any]:
    return ask(plugin, "after_tool", tool, call, Outcome(text), context)


def test_a_big_result_is_stored_whole_and_shown_by_its_ends(context: SmallContext) -> None:
    answers = given(LargeResultOffload(), context, BIG, call="call_7")
    assert events_of(answers) == [
        LargeResultOffloaded(tool="shell", call_id="call_7", path="large_tool_results/call_7", bytes=len(BIG))
    ]
    assert (context.store / "large_tool_results/call_7").read_text() == BIG
    [replaced] = others_of(answers)
    assert isinstance(replaced, ReplaceToolResult)
    text = replaced.outcome.text
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 9998\nline 9999\n")
    assert "large_tool_results/call_7" in text
    assert len(text) < 5_000
    assert replaced.outcome.path == "large_tool_results/call_7"


def test_the_limit_is_20_000_tokens_of_four_bytes(context: SmallContext) -> None:
    assert given(LargeResultOffload(), context, "x" * 80_000) == []
    assert given(LargeResultOffload(), context, "x" * 80_001) != []


def test_bytes_are_counted_not_characters(context: SmallContext) -> None:
    assert given(LargeResultOffload(), context, "€" * 26_666) == []
    [event] = events_of(given(LargeResultOffload(), context, "€" * 26_667))
    assert isinstance(event, LargeResultOffloaded)
    assert event.bytes == 80_001


@pytest.mark.parametrize("tool", EXCLUDED)
def test_tools_that_page_by_themselves_are_left_alone(context: SmallContext, tool: str) -> None:
    assert given(LargeResultOffload(), context, BIG, tool) == []


def test_what_is_excluded_can_be_chosen(context: SmallContext) -> None:
    plugin = LargeResultOffload(excluded=["shell"])
    assert given(plugin, context, BIG, "shell") == []
    assert given(plugin, context, BIG, "grep") != []


def test_a_failed_outcome_stays_failed(context: SmallContext) -> None:
    answers = ask(LargeResultOffload(), "after_tool", "shell", "c1", Outcome(BIG, ok=False, value={"code": 2}), context)
    [replaced] = others_of(answers)
    assert isinstance(replaced, ReplaceToolResult)
    assert not replaced.outcome.ok
    assert replaced.outcome.value == {"code": 2}


@pytest.mark.parametrize("call", ["../../x", "/etc/x", "..", ".", "", "a/b", "x" * 300, "a\0b", "\ud800", ".hidden"])
def test_an_id_that_is_no_plain_name_stays_in_the_folder(context: SmallContext, call: str) -> None:
    [event] = events_of(given(LargeResultOffload(), context, BIG, call=call))
    assert isinstance(event, LargeResultOffloaded)
    [stored] = (context.store / "large_tool_results").iterdir()
    assert stored == context.store / event.path
    assert stored.read_text() == BIG


def test_nobody_else_may_read_it(context: SmallContext) -> None:
    given(LargeResultOffload(), context, BIG)
    stored = context.store / "large_tool_results/c1"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert stored.parent.stat().st_mode & 0o777 == 0o700


def test_lone_surrogates_can_be_stored(context: SmallContext) -> None:
    text = BIG + "\ud800"
    given(LargeResultOffload(), context, text)
    assert (context.store / "large_tool_results/c1").read_bytes().decode("utf-8", "surrogatepass") == text


def test_a_store_that_cannot_be_written_is_a_warning_and_changes_nothing(context: SmallContext) -> None:
    context.store.write_text("a file, where a folder should be")
    answers = given(LargeResultOffload(), context, BIG)
    assert others_of(answers) == []
    [told] = events_of(answers)
    assert isinstance(told, Notice)
    assert told.level == "warning"


def test_a_result_that_its_tool_stored_is_told_of_and_left_as_it_is(context: SmallContext) -> None:
    stored = context.store / "large_tool_results/x"
    stored.parent.mkdir(parents=True)
    stored.write_text("the whole of it")
    outcome = Outcome("the … it", path="large_tool_results/x")
    assert ask(LargeResultOffload(), "after_tool", "shell", "c1", outcome, context) == [
        Emit(LargeResultOffloaded(tool="shell", call_id="c1", path="large_tool_results/x", bytes=15))
    ]


@pytest.mark.parametrize("path", ["large_tool_results/none", "/etc/hostname", "large_tool_results/a\0b"])
def test_a_path_that_is_nothing_stored_is_not_told_of(context: SmallContext, path: str) -> None:
    assert ask(LargeResultOffload(), "after_tool", "shell", "c1", Outcome("x", path=path), context) == []


@pytest.mark.parametrize("options", [{"limit": 0}, {"preview": -1}, {"limit": 10, "preview": 100}])
def test_limits_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises(InvalidPluginOption):
        LargeResultOffload(**options)
