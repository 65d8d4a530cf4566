"""Test converting an agent's history to entries. 4-050 compares it with a live session."""

from __future__ import annotations

import pytest

from quarterdeck.events import Block, HistoryMessage, Image
from quarterdeck.kernel.narrate import entries_of_history
from quarterdeck.kernel.timeline import BashResult, Entry, ToolStep

ONE = Image(media_type="image/png", data="b25l")
TWO = Image(media_type="image/png", path="two.png")


def message(name: str, role: str, *blocks: Block) -> HistoryMessage:
    return HistoryMessage(message_id=name, role=role, blocks=blocks)  # type: ignore[arg-type]


def call(call_id: str, block: int = 0) -> Block:
    return Block(block=block, kind="tool_call", call_id=call_id, name="shell", args={"command": "ls"})


def result(call_id: str, text: str, ok: bool = True) -> Block:
    return Block(kind="tool_result", call_id=call_id, name="shell", text=text, ok=ok)


class TestMessages:
    def test_a_message_of_a_user_is_one_entry_under_its_own_id(self) -> None:
        parts = (Block(text="See", images=(ONE,)), Block(block=1, text=" "), Block(block=2, text="this", images=(TWO,)))
        assert entries_of_history([message("m1", "user", *parts)]) == [
            Entry("m1", "user", "See\nthis", images=(ONE, TWO))
        ]

    def test_a_message_of_images_only_is_an_entry(self) -> None:
        assert entries_of_history([message("m1", "user", Block(images=(ONE,)))]) == [
            Entry("m1", "user", "", images=(ONE,))
        ]

    @pytest.mark.parametrize(
        ("role", "kind"), [("assistant", "assistant"), ("system", "system"), ("tool", "system"), ("bash", "system")]
    )
    def test_every_other_part_is_an_entry_under_its_number(self, role: str, kind: str) -> None:
        entries = entries_of_history([message("x", role, Block(text="One"), Block(block=3, text="Two"))])
        assert [(entry.id, entry.kind, entry.text) for entry in entries] == [("x:0", kind, "One"), ("x:3", kind, "Two")]

    def test_reasoning_is_a_thinking_entry(self) -> None:
        assert entries_of_history([message("a", "assistant", Block(kind="thinking", text="Hm"))]) == [
            Entry("a:0", "thinking", "Hm")
        ]

    @pytest.mark.parametrize("role", ["user", "assistant", "system"])
    def test_blank_parts_are_dropped(self, role: str) -> None:
        assert entries_of_history([message("x", role, Block(text=""), Block(block=1, text=" \n"))]) == []

    def test_a_message_that_stands_there_twice_is_told_once(self) -> None:
        twice = message("m1", "user", Block(text="Go"))
        assert entries_of_history([twice, twice]) == [Entry("m1", "user", "Go")]

    def test_nothing(self) -> None:
        assert entries_of_history([]) == []


class TestCalls:
    def test_a_call_without_a_result_is_calling(self) -> None:
        (entry,) = entries_of_history([message("a", "assistant", call("c1"))])
        assert entry == Entry("c1", "tool", "shell", ToolStep("shell", '{"command":"ls"}', "calling"))

    def test_a_result_goes_to_its_call_wherever_it_stands(self) -> None:
        done = Entry("c1", "tool", "shell", ToolStep("shell", '{"command":"ls"}', "done", "a.py"))
        after = [message("a", "assistant", call("c1")), message("t", "tool", result("c1", "a.py"))]
        assert entries_of_history(after) == entries_of_history(reversed(after)) == [done]

    def test_a_result_does_not_move_its_call(self) -> None:
        entries = entries_of_history(
            [
                message("a", "assistant", call("c1"), call("c2", 1), Block(block=2, text="Wait")),
                message("t", "tool", result("c2", "two", ok=False), result("c1", "one")),
            ]
        )
        assert [entry.id for entry in entries] == ["c1", "c2", "a:2"]
        assert [entry.tool_step and entry.tool_step.result for entry in entries] == ["one", "two", None]

    def test_a_result_whose_call_is_not_there_is_still_shown(self) -> None:
        (entry,) = entries_of_history([message("t", "tool", result("c9", "denied", ok=False))])
        assert entry == Entry("c9", "tool", "shell", ToolStep("shell", "", "error", "denied"))

    def test_calls_without_an_id_are_kept_apart(self) -> None:
        entries = entries_of_history([message("a", "assistant", call("", 0), call("", 1))])
        assert [entry.id for entry in entries] == ["a:0", "a:1"]

    def test_a_result_under_the_id_of_something_else_makes_it_a_step(self) -> None:
        """Agents choose the ids. A clash must not lose the text."""
        history = [message("c1", "user", Block(text="Go")), message("t", "tool", result("c1", "x"))]
        assert entries_of_history(history) == [Entry("c1", "user", "Go", ToolStep("shell", "", "done", "x"))]
        assert [entry.kind for entry in entries_of_history([history[0], message("a", "assistant", call("c1"))])] == [
            "tool"
        ]

    def test_a_long_result_is_previewed(self) -> None:
        (entry,) = entries_of_history([message("t", "tool", result("c1", "x" * 5_000))])
        assert entry.tool_step is not None
        assert entry.tool_step.result == "x" * 3_999 + "…"


def test_a_command_of_the_user_is_a_bash_entry() -> None:
    ran = Block(kind="bash", name="ls", text="a.py", exit_code=1)
    assert entries_of_history([message("b", "bash", ran)]) == [
        Entry("b:0", "bash", "ls", bash_result=BashResult("ls", "a.py", 1))
    ]
