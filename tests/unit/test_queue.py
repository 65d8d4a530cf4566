"""Test the queue of unread messages."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.kernel.queue import Waiting, added, edited, matching, receipted, steering_count, taken, without


def text(name: str, words: str = "", kind: Literal["prompt", "steer"] = "prompt") -> Waiting:
    return Waiting(name, words or name, kind, "queued", 5)


A, B, C = text("a"), text("b", kind="steer"), text("c")


def test_texts_stand_in_the_order_in_which_they_came() -> None:
    assert added(added((), A), B) == (A, B)


def test_the_same_id_again_is_the_same_text_again() -> None:
    again = text("a", "changed")
    assert added((A, B), again) == (B, again)


def test_texts_are_taken_out_by_their_ids() -> None:
    assert without((A, B, C), ("a", "c", "lost")) == (B,)


def test_a_text_is_edited_in_its_place() -> None:
    assert edited((A, B, C), "b", "new") == (A, text("b", "new", "steer"), C)
    assert edited((A,), "lost", "new") == (A,)


def test_a_receipt_says_how_far_a_text_got() -> None:
    assert [item.receipt for item in receipted((A, B), "b", "sending")] == ["queued", "sending"]


def test_the_text_that_the_agent_took_is_known_by_its_id() -> None:
    assert taken((A, B, C), "b", "whatever") == (A, C)
    assert matching((A, B, C), "c", "") is C


def test_without_an_id_the_first_prompt_of_the_same_text_is_meant() -> None:
    steer, first, second = text("s", "Go", "steer"), text("p", "Go"), text("q", "Go")
    assert matching((steer, first, second), "", "Go") is first
    assert taken((steer, first, second), "", "Go") == (steer, second)


def test_what_does_not_wait_takes_nothing_out() -> None:
    queue = (A, B)
    assert taken(queue, "", "other") is queue
    assert taken(queue, "lost", "a") is queue
    assert matching((), "", "") is None


@given(st.lists(st.sampled_from([A, B, C]), max_size=8))
def test_steering_texts_are_counted(items: list[Waiting]) -> None:
    assert steering_count(tuple(items)) == items.count(B)
