"""Test the open turn: its running calls and their targets."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck.kernel.turn import NO_TURN, Call, Turn, target_of, with_call, without_call

TURN = Turn("t1", 5, (Call("c1", "read", "a.py", 6), Call("c2", "shell", "ls", 7)))


def ids(turn: Turn) -> list[str]:
    return [call.id for call in turn.calls]


def test_a_turn_is_open_while_it_has_a_name() -> None:
    assert not NO_TURN.is_open
    assert TURN.is_open


def test_the_first_call() -> None:
    assert with_call(Turn("t1", 5), "c1", "read", {"path": "a.py"}, 6) == Turn(
        "t1", 5, (Call("c1", "read", "a.py", 6),)
    )


def test_calls_stand_in_the_order_in_which_they_began() -> None:
    assert ids(with_call(TURN, "c3", "grep", None, 8)) == ["c1", "c2", "c3"]


def test_a_call_that_is_told_again_is_the_same_call() -> None:
    again = with_call(TURN, "c1", "read", {"path": "b.py"}, 9)
    assert again.calls == (Call("c2", "shell", "ls", 7), Call("c1", "read", "b.py", 9))


def test_a_call_that_ends_is_gone() -> None:
    assert ids(without_call(TURN, "c1")) == ["c2"]
    assert without_call(TURN, "c1").since == 5


@pytest.mark.parametrize("turn", [TURN, NO_TURN])
def test_ending_a_call_that_does_not_run_changes_nothing(turn: Turn) -> None:
    assert without_call(turn, "c9") is turn


@pytest.mark.parametrize(
    ("args", "target"),
    [
        ({"file_path": "a.py", "command": "ls"}, "a.py"),
        ({"command": "ls -l"}, "ls -l"),
        ({"command": ["git", "status", 7]}, "git status 7"),
        ({"path": None, "query": "how"}, "how"),
        ({"path": {"deep": [1]}}, '{"deep":[1]}'),
        ({"path": 7}, "7"),
        ({"path": ""}, ""),
        ({"other": "x"}, ""),
        ({}, ""),
        ("ls", ""),
        (["ls"], ""),
        (None, ""),
    ],
)
def test_the_target_is_what_the_arguments_name(args: Any, target: str) -> None:
    assert target_of(args) == target


def test_the_target_is_one_short_line() -> None:
    assert target_of({"path": "x" * 1_000}) == "x" * 200


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"path": value}
    return value


@pytest.mark.parametrize(
    "value", [10**5_000, nested(5_000), [nested(5_000)], {"\ud800"}], ids=["int", "dict", "list", "set"]
)
def test_what_cannot_be_written_out_is_no_reason_to_fail(value: Any) -> None:
    """Agents choose the arguments, which may be impossible to encode."""
    assert 0 < len(target_of({"path": value})) <= 200
