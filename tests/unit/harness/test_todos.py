"""Test how an agent's todo list is read."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck.events import Todo
from quarterdeck.harness.todos import progress_of, todos_in


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("- [ ] one\n- [x] two\n* [-] three\n1. [X] four", "pending completed in_progress completed"),
        ("[ ] bare", "pending"),
        ("prose\n- [ ] in it", "pending"),
        ('[{"id":"a","content":"x","status":"completed"}]', "completed"),
        ([{"content": "x", "status": "in_progress"}, {"text": "y", "status": "cancelled"}], "in_progress cancelled"),
        ([{"content": "x", "status": []}, {"status": "completed"}, 5], "pending"),
    ],
)
def test_forms(value: Any, found: str) -> None:
    todos = todos_in(value)
    assert todos is not None
    assert [todo.status for todo in todos] == found.split()


@pytest.mark.parametrize("value", ["no list", "", '[{"broken', '[{"a":1}', None, 5, {"todos": []}])
def test_anything_else_is_no_list(value: Any) -> None:
    assert todos_in(value) is None


def test_an_empty_list_is_a_list() -> None:
    assert todos_in([]) == ()


def test_the_list_in_numbers() -> None:
    names = ("completed", "in_progress", "pending", "cancelled")
    todos = tuple(Todo(id=name, content=name, status=name) for name in names)
    progress = progress_of(todos)
    assert (progress.total, progress.completed, progress.in_progress, progress.pending) == (3, 1, 1, 1)
    assert (progress.percent, progress.current, progress.all_done) == (33, "in_progress", False)


def test_done_and_nothing_to_do_are_not_the_same() -> None:
    done = progress_of((Todo(id="1", content="x", status="completed"),))
    assert (done.percent, done.current, done.all_done) == (100, "", True)
    assert not progress_of(()).all_done
