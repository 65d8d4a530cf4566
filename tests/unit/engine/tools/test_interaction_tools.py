"""Test the tools ask_user, write_todos, task and compact_conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.engine.tools.base import Outcome
from quarterdeck.engine.tools.interaction_tools import ask_user, compact_conversation, task, write_todos
from quarterdeck.events import Option, Todo
from tests.support.tool_context import TestHands, call


@pytest.fixture
def hands(tmp_path: Path) -> TestHands:
    return TestHands(tmp_path)


class TestAskUser:
    def test_the_answer(self, hands: TestHands) -> None:
        hands.answer = "the blue one"
        assert call(ask_user, hands, question="which?") == Outcome("the blue one")
        assert hands.asked == [("which?", (), 300.0)]

    def test_an_option_is_told_by_its_words(self, hands: TestHands) -> None:
        hands.answer = "2"
        assert call(ask_user, hands, question="which?", options=["red", "blue"]) == Outcome("blue")
        assert hands.asked[0][1] == (Option(id="1", label="red"), Option(id="2", label="blue"))
        hands.answer = "neither"
        assert call(ask_user, hands, question="which?", options=["red", "blue"]).text == "neither"

    def test_nobody_answers(self, hands: TestHands) -> None:
        outcome = call(ask_user, hands, question="which?")
        assert not outcome.ok
        assert "no answer within 5 minutes" in outcome.text

    @pytest.mark.parametrize(
        "args", [{"question": ""}, {"question": "q", "options": [""]}, {"question": "q", "options": "a"}]
    )
    def test_what_is_no_question(self, hands: TestHands, args: dict[str, object]) -> None:
        hands.answer = "x"
        assert not call(ask_user, hands, **args).ok
        assert hands.asked == []


class TestWriteTodos:
    def test_the_whole_list(self, hands: TestHands) -> None:
        todos = [
            {"content": "look", "status": "completed", "id": "l"},
            {"content": "think", "status": "in_progress"},
            {"content": "write"},
            {"content": "dance", "status": "cancelled"},
        ]
        outcome = call(write_todos, hands, todos=todos)
        assert outcome == Outcome("4 on the list: 1 completed, 1 in progress, 1 pending, 1 cancelled")
        assert hands.todos == [
            Todo(id="l", content="look", status="completed"),
            Todo(id="2", content="think", status="in_progress"),
            Todo(id="3", content="write", status="pending"),
            Todo(id="4", content="dance", status="cancelled"),
        ]

    def test_an_empty_list_is_a_list(self, hands: TestHands) -> None:
        assert call(write_todos, hands, todos=[]) == Outcome("the list is empty")
        assert hands.todos == []

    @pytest.mark.parametrize(
        ("todos", "said"),
        [
            ([{"content": "a", "status": "done"}], "argument todos[0].status: Invalid enum value 'done'"),
            ([{"content": ""}], "argument todos[0].content"),
            ([{"status": "pending"}], "argument todos[0].content is missing"),
            ([{"content": "a", "prio": 1}], "there is no argument todos[0].prio"),
            ([{"content": "a", "id": "x"}, {"content": "b", "id": "x"}], "duplicate id x"),
            ([{"content": "a", "id": "2"}, {"content": "b"}], "duplicate id 2"),
            ("a, b", "argument todos"),
        ],
    )
    def test_what_is_no_list_changes_nothing(self, hands: TestHands, todos: object, said: str) -> None:
        outcome = call(write_todos, hands, todos=todos)
        assert not outcome.ok
        assert said in outcome.text
        assert hands.todos is None


class TestTask:
    def test_is_handed_on(self, hands: TestHands) -> None:
        assert call(task, hands, description="count", prompt="count the files", kind="reader") == Outcome("did count")
        assert hands.delegated == [("count", "count the files", "reader")]

    def test_needs_a_prompt(self, hands: TestHands) -> None:
        assert "argument prompt" in call(task, hands, description="count", prompt="").text
        assert hands.delegated == []


def test_compact_conversation(hands: TestHands) -> None:
    assert "up to 12 messages" in call(compact_conversation, hands).text
    assert hands.compacted == 1
