"""Test the timeline: fixed positions, growing blocks, windows and previews."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.gate import Decision
from quarterdeck.kernel.timeline import (
    ARGS_PREVIEW,
    EMPTY,
    RESULT_PREVIEW,
    BashResult,
    Card,
    Entry,
    Timeline,
    ToolStep,
    appended,
    args_preview,
    begun,
    changed,
    cut_off,
    entry_id,
    find,
    finished,
    interrupted,
    json_text,
    line_id,
    own_id,
    result_preview,
    shells,
    turns,
    undecided,
    window,
    with_blocks_completed,
    with_card,
    with_line,
    with_piece,
    with_unfinished,
    with_whole,
    withdrawn,
)
from tests.support.event_bodies import json_values


def said(name: str, text: str = "", **fields: Any) -> Entry:
    return Entry(name, "assistant", text, **fields)


def tool(name: str, phase: tl.ToolPhase = "running") -> Entry:
    return Entry(name, "tool", "shell", ToolStep("shell", "{}", phase))


def shell(name: str) -> Entry:
    return Entry(name, "bash", "ls", bash_result=BashResult("ls", "", running=True))


def holding(*entries: Entry) -> Timeline:
    timeline = EMPTY
    for entry in entries:
        timeline = appended(timeline, entry)
    return timeline


def growing(*blocks: tuple[str, int]) -> Timeline:
    """Start a block for each message and number."""
    timeline = EMPTY
    for message_id, block in blocks:
        timeline = begun(timeline, said(entry_id(message_id, block)), message_id, block)
    return timeline


def piece(timeline: Timeline, message_id: str, block: int, text: str) -> Timeline:
    more = with_piece(timeline, message_id, block, text)
    assert more is not None
    return more


def shown(timeline: Timeline) -> list[tuple[str, str]]:
    return [(entry.id, entry.text) for entry in window(timeline)]


class TestEntries:
    def test_an_entry_is_found_by_its_id(self) -> None:
        timeline = holding(said("a", "1"), said("b", "2"))
        assert find(timeline, "b") == said("b", "2")
        assert find(timeline, "c") is None

    def test_an_id_that_is_there_adds_nothing(self) -> None:
        timeline = holding(said("a", "1"))
        assert appended(timeline, said("a", "2")) is timeline

    def test_an_entry_is_changed_in_its_place_or_added(self) -> None:
        timeline = changed(holding(said("a", "1"), said("b", "2")), said("a", "3"))
        assert shown(timeline) == [("a", "3"), ("b", "2")]
        assert shown(changed(timeline, said("c", "4")))[-1] == ("c", "4")

    def test_what_is_passing_gives_its_place_to_the_next_entry(self) -> None:
        timeline = holding(said("a"), said("retry 1", "1", passing=True), said("retry 2", "2", passing=True))
        assert shown(timeline) == [("a", ""), ("retry 2", "2")]
        timeline = appended(timeline, said("b", "3"))
        assert shown(timeline) == [("a", ""), ("b", "3")]
        assert dict(timeline.positions) == {"a": 0, "b": 1}

    def test_what_is_passing_goes_on_showing_while_nothing_follows(self) -> None:
        assert shown(holding(said("retry", "1", passing=True))) == [("retry", "1")]

    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=20))
    def test_places_and_entries_always_agree(self, steps: list[tuple[str, bool]]) -> None:
        timeline = EMPTY
        for name, passing in steps:
            timeline = appended(timeline, said(name, passing=passing))
        assert {entry.id: place for place, entry in enumerate(timeline.entries)} == dict(timeline.positions)

    def test_an_older_timeline_stays_as_it_was(self) -> None:
        older = holding(said("a", "1"))
        changed(appended(older, said("b")), said("a", "2"))
        assert shown(older) == [("a", "1")]


class TestLines:
    def test_a_line_is_shown_and_has_no_place_of_its_own(self) -> None:
        timeline = with_line(holding(said("a")), said("e2", "Compacted"))
        assert shown(timeline) == [("a", ""), ("e2", "Compacted")]
        assert dict(timeline.positions) == {"a": 0}

    def test_a_passing_line_gives_its_place_to_a_line_and_to_an_entry(self) -> None:
        timeline = with_line(with_line(EMPTY, said("e1", "1", passing=True)), said("e2", "2", passing=True))
        assert shown(timeline) == [("e2", "2")]
        assert shown(appended(timeline, said("a"))) == [("a", "")]
        assert shown(with_line(holding(said("a", passing=True)), said("e2"))) == [("e2", "")]

    @given(st.integers(0, 10**20), st.sampled_from(["", "0", " ", ":0", "x", "-"]))
    def test_no_name_of_an_agent_is_that_of_a_line(self, index: int, more: str) -> None:
        line = line_id(index)
        assert own_id(line) != line
        assert own_id(line) == own_id(own_id(line))
        assert {own_id(name) for name in (line + more, more + line)}.isdisjoint(
            {line_id(n) for n in (index, index * 10)}
        )

    def test_any_other_name_stays_as_it_is(self) -> None:
        for name in ("call-1", "entry", "entry-", "entry-7:0", "gate:entry-7", "e7", "7", "ENTRY-7"):
            assert own_id(name) == name


class TestBlocksThatGrow:
    def test_pieces_show_before_the_block_is_whole(self) -> None:
        timeline = piece(piece(growing(("m", 0)), "m", 0, "He"), "m", 0, "llo")
        assert shown(timeline) == [("m:0", "Hello")]
        assert find(timeline, "m:0") == said("m:0")

    def test_a_whole_block_holds_its_text_itself(self) -> None:
        timeline = piece(growing(("m", 0)), "m", 0, "Hello")
        timeline = with_whole(timeline, "m", timeline.entries, {})
        assert find(timeline, "m:0") == said("m:0", "Hello")
        assert timeline.open == ()

    def test_blocks_of_several_messages_grow_side_by_side(self) -> None:
        timeline = growing(("m", 0), ("m", 1), ("n", 0))
        for message_id, block, text in (("m", 1, "b"), ("n", 0, "c"), ("m", 0, "a"), ("m", 1, "B")):
            timeline = piece(timeline, message_id, block, text)
        assert shown(timeline) == [("m:0", "a"), ("m:1", "bB"), ("n:0", "c")]
        timeline = with_whole(timeline, "m", timeline.entries, {})
        assert [one.message_id for one in timeline.open] == ["n"]
        assert shown(timeline) == [("m:0", "a"), ("m:1", "bB"), ("n:0", "c")]

    def test_a_block_that_is_begun_twice_is_begun_once(self) -> None:
        timeline = growing(("m", 0))
        assert begun(timeline, said("m:0"), "m", 0) is timeline

    def test_a_piece_of_a_block_that_is_not_open_is_nobodys(self) -> None:
        assert with_piece(growing(("m", 0)), "m", 1, "x") is None
        assert with_piece(EMPTY, "m", 0, "x") is None

    def test_a_block_that_stayed_empty_leaves_no_entry(self) -> None:
        assert shown(with_blocks_completed(growing(("m", 0)), streaming=False)) == []
        assert shown(with_blocks_completed(piece(growing(("m", 0)), "m", 0, ""), streaming=False)) == []

    def test_a_whole_block_that_is_begun_again_and_does_not_grow_keeps_its_text(self) -> None:
        timeline = begun(holding(said("m:0", "Hello")), said("m:0"), "m", 0)
        assert shown(with_blocks_completed(timeline, streaming=False)) == [("m:0", "Hello")]

    def test_a_step_without_output_stays(self) -> None:
        timeline = begun(with_unfinished(EMPTY, tool("c")), tool("c"), "c", -1)
        assert window(with_blocks_completed(timeline, streaming=False)) == [tool("c")]

    def test_nothing_is_settled_where_nothing_is_open(self) -> None:
        timeline = holding(said("a"))
        assert with_whole(timeline, "a", timeline.entries, {}) == timeline

    @pytest.mark.parametrize("streaming", [True, False])
    def test_the_beginning_and_the_end_of_a_turn_settle_everything(self, streaming: bool) -> None:
        timeline = with_blocks_completed(piece(growing(("m", 0), ("n", 0)), "n", 0, "x"), streaming)
        assert (timeline.open, timeline.streaming) == ((), streaming)
        assert shown(timeline) == [("n:0", "x")]
        assert with_blocks_completed(EMPTY, streaming).streaming is streaming

    def test_a_message_that_is_withdrawn_is_gone_and_its_places_are_kept(self) -> None:
        timeline = piece(growing(("m", 0), ("n", 0)), "n", 0, "x")
        timeline = withdrawn(with_blocks_completed(timeline, streaming=True), "n")
        assert shown(timeline) == []
        assert len(timeline.entries) == 2
        kept = withdrawn(holding(said("m:0", "a"), tool("n:0"), Entry("n:1", "user", "b")), "n")
        assert [entry.id for entry in window(kept)] == ["m:0", "n:0", "n:1"]

    def test_all_of_a_message_is_withdrawn_whichever_of_its_blocks_came_first(self) -> None:
        timeline = growing(("n", 0), ("m", 2), ("m", 0), ("m", 7))
        timeline = withdrawn(with_whole(timeline, "m", timeline.entries, {"m:9": said("m:9", "x")}), "m")
        assert [entry.id for entry in window(timeline)] == ["n:0"]
        assert withdrawn(timeline, "never told") is timeline

    def test_output_grows_in_a_step_and_in_a_command(self) -> None:
        timeline = with_unfinished(with_unfinished(EMPTY, tool("c")), shell("b"))
        timeline = begun(begun(timeline, tool("c"), "c", -1), shell("b"), "b", -1)
        timeline = piece(piece(timeline, "c", -1, "one"), "b", -1, "two")
        step, command = window(timeline)
        assert step.tool_step == ToolStep("shell", "{}", "running", "one")
        assert command.bash_result == BashResult("ls", "two", running=True)


class TestWhatEnds:
    def test_a_step_that_ends_takes_its_output_along(self) -> None:
        timeline = begun(with_unfinished(EMPTY, tool("c")), tool("c"), "c", -1)
        timeline = begun(with_unfinished(timeline, tool("d")), tool("d"), "d", -1)
        timeline = finished(piece(timeline, "c", -1, "half"), tool("c", "done"))
        assert timeline.unfinished == ("d",)
        assert [one.message_id for one in timeline.open] == ["d"]
        assert window(timeline)[0] == tool("c", "done")

    def test_an_end_without_a_beginning_is_told(self) -> None:
        assert window(finished(EMPTY, tool("c", "done"))) == [tool("c", "done")]

    def test_an_end_leaves_what_grows_elsewhere_alone(self) -> None:
        timeline = finished(with_unfinished(growing(("m", 0)), tool("c")), tool("c", "done"))
        assert [one.message_id for one in timeline.open] == ["m"]

    def test_what_was_cut_off_and_is_told_again_runs_again(self) -> None:
        timeline = cut_off(with_unfinished(EMPTY, tool("c")))
        assert find(timeline, "c") != tool("c")
        assert window(with_unfinished(timeline, tool("c"))) == [tool("c")]

    def test_what_is_cut_off_was_interrupted(self) -> None:
        timeline = with_unfinished(with_unfinished(growing(("m", 0)), tool("c")), shell("b"))
        timeline = piece(begun(timeline, shell("b"), "b", -1), "b", -1, "a.py\n")
        timeline = cut_off(timeline)
        step, command = window(timeline)
        assert step.tool_step == ToolStep("shell", "{}", "error", "interrupted")
        assert command.bash_result == BashResult("ls", "a.py\n")
        assert (timeline.open, timeline.unfinished, timeline.streaming) == ((), (), False)

    def test_what_outlives_the_turn_goes_on(self) -> None:
        timeline = with_unfinished(with_unfinished(EMPTY, tool("c")), shell("b"))
        assert shells(timeline) == ("b",)
        timeline = interrupted(timeline, ("c",))
        assert timeline.unfinished == ("c", "b")
        assert window(timeline) == [tool("c"), shell("b")]

    def test_cutting_off_nothing_changes_nothing(self) -> None:
        timeline = holding(said("a", "x"))
        assert cut_off(timeline) == timeline


class TestWindows:
    LONG = holding(*(said(str(number), f"text {number}") for number in range(10)))

    def test_the_last_ones_ahead_of_a_place(self) -> None:
        assert [entry.id for entry in window(self.LONG, limit=3)] == ["7", "8", "9"]
        assert [entry.id for entry in window(self.LONG, limit=3, before=5)] == ["2", "3", "4"]
        assert [entry.id for entry in window(self.LONG, before=2)] == ["0", "1"]

    @pytest.mark.parametrize(("limit", "before", "count"), [(0, None, 0), (99, None, 10), (None, 99, 10), (3, -1, 0)])
    def test_what_is_not_there_is_not_shown(self, limit: int | None, before: int | None, count: int) -> None:
        assert len(window(self.LONG, limit, before)) == count

    def test_what_is_gone_does_not_count(self) -> None:
        timeline = changed(self.LONG, said("8", gone=True))
        assert [entry.id for entry in window(timeline, limit=3)] == ["6", "7", "9"]

    @given(st.integers(1, 4), st.sets(st.integers(0, 9)))
    def test_page_by_page_everything_is_met_once(self, limit: int, gone: set[int]) -> None:
        timeline = self.LONG
        for number in gone:
            timeline = changed(timeline, said(str(number), gone=True))
        pages: list[str] = []
        before = len(timeline.entries)
        while shown_now := window(timeline, limit, before):
            pages = [entry.id for entry in shown_now] + pages
            before = timeline.positions[shown_now[0].id]
        assert pages == [entry.id for entry in window(timeline)]

    def test_a_card_stands_on_its_entry(self) -> None:
        timeline = with_card(self.LONG, "3", Card("g1", "approval"))
        assert [entry.card for entry in window(timeline)][2:5] == [None, Card("g1", "approval"), None]
        decided = timeline.decided.set("g1", Decision("g1", "", "approved", "", "", 9))
        timeline = replace(timeline, decided=decided)
        assert window(timeline)[3].card == Card("g1", "approval", "approved")
        assert window(undecided(timeline, "g1"))[3].card == Card("g1", "approval")
        assert undecided(timeline, "g2") is timeline


def test_entries_before_the_first_user_entry_are_a_group_of_their_own() -> None:
    system, user, answer = Entry("s", "system", ""), Entry("u", "user", ""), said("a")
    assert turns([system, user, answer, user]) == [[system], [user, answer], [user]]
    assert turns([]) == []


class Stubborn:
    """An object that is neither JSON nor printable."""

    def __repr__(self) -> str:
        raise ValueError


class TestPreviews:
    @pytest.mark.parametrize(
        ("args", "shown"),
        [
            (None, ""),
            ("ls -l", "ls -l"),
            ({"path": "a.py", "line": 3}, '{"path":"a.py","line":3}'),
            (["a", 1], '["a",1]'),
            ({"set": {1}, "bad": "\ud800"}, "{'set': {1}, 'bad': '\\ud800'}"),
            ({"line": 3, "content": "x" * 10_000}, '{"line":3,"content":"' + "x" * 178 + "…"),
        ],
        ids=["none", "text", "object", "list", "no json", "a whole file"],
    )
    def test_arguments_in_one_line(self, args: object, shown: str) -> None:
        assert args_preview(args) == shown

    @given(json_values)
    def test_no_preview_is_longer_than_it_may_be(self, value: object) -> None:
        assert len(args_preview(value)) <= ARGS_PREVIEW
        assert len(result_preview(value) or "") <= RESULT_PREVIEW

    @pytest.mark.parametrize("size", [ARGS_PREVIEW - 1, ARGS_PREVIEW, ARGS_PREVIEW + 1])
    def test_arguments_are_cut_at_the_limit_and_not_before(self, size: int) -> None:
        preview = args_preview("x" * size)
        assert len(preview) == min(size, ARGS_PREVIEW)
        assert preview.endswith("…") == (size > ARGS_PREVIEW)

    @pytest.mark.parametrize("size", [RESULT_PREVIEW, RESULT_PREVIEW + 1])
    def test_results_are_cut_at_the_limit_and_not_before(self, size: int) -> None:
        preview = result_preview("x" * size)
        assert preview is not None
        assert len(preview) == RESULT_PREVIEW
        assert preview.endswith("…") == (size > RESULT_PREVIEW)

    @pytest.mark.parametrize(
        ("result", "shown"),
        [
            (None, None),
            ("", ""),
            ("text", "text"),
            (["one", {"text": "two"}], "one\ntwo"),
            (("one", "two"), "one\ntwo"),
            ({"content": [{"text": "one"}]}, "one"),
            ({"content": "one"}, '{"content":"one"}'),
            ({"content": []}, '{"content":[]}'),
            ([], "[]"),
            ([{"text": "one"}, {"image": 1}], '[{"text":"one"},{"image":1}]'),
            ([{"text": 1}], '[{"text":1}]'),
            (7, "7"),
        ],
    )
    def test_a_result_as_text(self, result: object, shown: str | None) -> None:
        assert result_preview(result) == shown

    def test_what_cannot_be_shown_is_named(self) -> None:
        assert json_text(Stubborn()) == "<Stubborn>"
        assert json_text({"a": "\ud800"}) == "{'a': '\\ud800'}"
        assert json_text({"a": 1}) == '{"a":1}'
