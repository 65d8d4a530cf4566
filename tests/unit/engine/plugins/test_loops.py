"""Test LoopDetection: repeated calls and repeated writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.plugins.base import Abort, Intervene, InvalidPluginOption
from quarterdeck.engine.plugins.loops import LoopDetection, repeated_length
from quarterdeck.events import LoopDetected
from tests.support.small_context import SmallContext, ask, events_of, others_of, restarted


@pytest.fixture
def context(tmp_path: Path) -> SmallContext:
    return SmallContext(tmp_path)


def called(plugin: Any, context: SmallContext, name: str, **args: Any) -> list[Any]:
    return ask(plugin, "before_tool", name, args, "c1", context)


class TestPeriod:
    @given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(2, 4), st.integers(1, 4))
    def test_is_the_shortest_sequence_that_stands_so_often_at_the_end(
        self, calls: list[str], times: int, longest: int
    ) -> None:
        found = repeated_length(calls, times, longest)
        plain = [
            n for n in range(1, longest + 1) if n * times <= len(calls) and calls[-n * times :] == calls[-n:] * times
        ]
        assert found == (min(plain) if plain else 0)

    @given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), st.lists(st.sampled_from("xyz")))
    def test_is_found_whatever_came_before(self, sequence: list[str], before: list[str]) -> None:
        assert 0 < repeated_length([*before, *sequence * 3], 3, 4) <= len(sequence)


class TestRepeatedCalls:
    def test_the_third_time_the_same_is_a_pattern(self, context: SmallContext) -> None:
        plugin = LoopDetection()
        assert called(plugin, context, "grep", pattern="x") == []
        assert called(plugin, context, "grep", pattern="x") == []
        [event] = events_of(called(plugin, context, "grep", pattern="x"))
        assert event == LoopDetected(loop="repeat_pattern", detail={"tool": "grep", "calls": 1, "times": 3})
        [said] = ask(plugin, "after_tool_batch", [], context)
        assert isinstance(said, Intervene)
        assert ask(plugin, "after_tool_batch", [], context) == []

    def test_so_is_a_sequence_of_calls(self, context: SmallContext) -> None:
        plugin = LoopDetection()
        found = [events_of(called(plugin, context, name)) for name in ("ls", "grep", "glob") * 3]
        assert found[:-1] == [[]] * 8
        assert found[-1][0].detail == {"tool": "glob", "calls": 3, "times": 3}  # type: ignore[attr-defined]

    def test_other_arguments_are_another_call(self, context: SmallContext) -> None:
        plugin = LoopDetection()
        assert [called(plugin, context, "read_file", path="a", offset=n) for n in range(20)] == [[]] * 20

    def test_the_order_of_arguments_means_nothing(self, context: SmallContext) -> None:
        plugin = LoopDetection(repeats=2)
        called(plugin, context, "grep", a=1, b=2)
        assert events_of(called(plugin, context, "grep", b=2, a=1))

    def test_after_it_was_told_counting_begins_again(self, context: SmallContext) -> None:
        plugin = LoopDetection()
        found = [bool(called(plugin, context, "ls")) for _ in range(7)]
        assert found == [False, False, True, False, False, True, False]

    def test_a_prompt_begins_again_and_that_of_a_sub_agent_does_not(self, context: SmallContext) -> None:
        plugin = LoopDetection()
        called(plugin, context, "ls")
        called(plugin, context, "ls")
        context.agent_path = ("child",)
        ask(plugin, "before_prompt", "go", context)
        context.agent_path = ()
        assert called(plugin, context, "ls")
        called(plugin, context, "ls")
        called(plugin, context, "ls")
        ask(plugin, "before_prompt", "go", context)
        assert not called(plugin, context, "ls")

    def test_sub_agents_that_do_the_same_are_no_loop(self, context: SmallContext) -> None:
        plugin = LoopDetection()
        for child in "abcdef":
            context.agent_path = (child,)
            assert called(plugin, context, "ls") == []

    def test_it_outlives_a_restart(self, context: SmallContext) -> None:
        plugin = LoopDetection()
        called(plugin, context, "ls")
        called(plugin, context, "ls")
        assert called(restarted(plugin, LoopDetection()), context, "ls")

    def test_0_is_off(self, context: SmallContext) -> None:
        plugin = LoopDetection(repeats=0)
        assert [called(plugin, context, "ls") for _ in range(9)] == [[]] * 9
        assert plugin.state.calls == ()


class TestTheSameFile:
    def written(self, plugin: LoopDetection, context: SmallContext, number: int, path: str = "a.py") -> list[Any]:
        return called(plugin, context, "edit_file", path=path, old=str(number))

    def test_is_warned_about_and_then_ends_the_turn(self, context: SmallContext) -> None:
        plugin = LoopDetection(file_warn=3, file_abort=5)
        answers = [self.written(plugin, context, number) for number in range(5)]
        assert answers[:2] == [[], []]
        path = str((context.cwd / "a.py").resolve())
        assert answers[2][0].event == LoopDetected(loop="file_loop_warn", detail={"path": path, "count": 3})
        assert others_of(answers[2]) == []
        assert answers[3] == []
        assert answers[4][0].event == LoopDetected(loop="file_loop_abort", detail={"path": path, "count": 5})
        [ends] = others_of(answers[4])
        assert isinstance(ends, Abort)
        assert path in ends.reason

    def test_the_agent_is_told_after_the_batch(self, context: SmallContext) -> None:
        plugin = LoopDetection(file_warn=1, file_abort=9)
        self.written(plugin, context, 1)
        [said] = ask(plugin, "after_tool_batch", [], context)
        assert isinstance(said, Intervene)
        assert "a.py" in said.prompt

    def test_by_any_of_its_names(self, context: SmallContext) -> None:
        plugin = LoopDetection(file_warn=3, file_abort=9)
        (context.cwd / "link.py").symlink_to("a.py")
        for number, path in enumerate(["a.py", "./src/../a.py"]):
            assert self.written(plugin, context, number, path) == []
        assert self.written(plugin, context, 3, "link.py")

    def test_reading_and_other_files_do_not_count(self, context: SmallContext) -> None:
        plugin = LoopDetection(file_warn=2, file_abort=3)
        for number in range(9):
            assert self.written(plugin, context, number, f"{number}.py") == []
            assert called(plugin, context, "read_file", path="a.py", offset=number) == []

    def test_what_is_remembered_has_a_bound_and_a_loop_among_many_files_is_found(self, context: SmallContext) -> None:
        plugin = LoopDetection(file_warn=3, file_abort=9)
        for number in range(300):
            self.written(plugin, context, number, f"{number}.py")
        assert len(plugin.state.files) == 200
        found: list[Any] = []
        for number in range(3):
            found += self.written(plugin, context, number, "again.py")
            self.written(plugin, context, number, f"other{number}.py")
        assert len(found) == 1

    def test_every_abort_limit_that_was_passed_ends_every_further_call(self, context: SmallContext) -> None:
        plugin = LoopDetection(file_warn=1, file_abort=2)
        found = [others_of(self.written(plugin, context, number)) for number in range(4)]
        assert [len(one) for one in found] == [0, 1, 1, 1]

    @given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 15))
    def test_once_a_warning_and_from_the_limit_on_an_end(
        self, tmp_path_factory: pytest.TempPathFactory, warn: int, more: int, calls: int
    ) -> None:
        context = SmallContext(tmp_path_factory.getbasetemp())
        plugin = LoopDetection(file_warn=warn, file_abort=warn + more)
        kinds = [event.loop for n in range(calls) for event in events_of(self.written(plugin, context, n))]  # type: ignore[attr-defined]
        assert kinds.count("file_loop_warn") == (1 if calls >= warn else 0)
        assert kinds.count("file_loop_abort") == max(0, calls - (warn + more) + 1)


@pytest.mark.parametrize(
    "options", [{"repeats": 1}, {"repeats": -1}, {"longest": 0}, {"file_warn": 5, "file_abort": 5}]
)
def test_limits_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises(InvalidPluginOption):
        LoopDetection(**options)
