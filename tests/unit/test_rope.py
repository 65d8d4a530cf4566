"""Test ropes: a rope is the join of its pieces, has few parts, and the same pieces make equal ropes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.kernel.rope import Rope, grown, text_of

pieces = st.lists(st.text(max_size=20), max_size=60)


def rope_of(parts: list[str]) -> Rope:
    rope: Rope = ()
    for part in parts:
        rope = grown(rope, part)
    return rope


@given(pieces)
def test_the_text_is_the_join_of_the_pieces(parts: list[str]) -> None:
    assert text_of(rope_of(parts)) == "".join(parts)


@given(pieces)
def test_each_part_is_at_least_twice_as_long_as_the_next_so_there_are_few(parts: list[str]) -> None:
    rope = rope_of(parts)
    assert all(len(one) >= 2 * len(following) for one, following in pairwise(rope))
    assert all(rope)
    assert len(rope) <= len(text_of(rope)).bit_length()


@given(st.integers(1, 3_000))
def test_a_text_that_comes_letter_by_letter_is_in_few_parts_too(letters: int) -> None:
    assert len(rope_of(["x"] * letters)) <= letters.bit_length()


@given(pieces)
def test_the_same_pieces_make_equal_ropes(parts: list[str]) -> None:
    assert rope_of(parts) == rope_of(list(parts))


@given(pieces, st.text())
def test_a_rope_that_was_shared_stays_as_it_was(parts: list[str], more: str) -> None:
    rope = rope_of(parts)
    before = text_of(rope)
    grown(rope, more)
    assert text_of(rope) == before


@given(pieces)
def test_empty_pieces_leave_no_trace(parts: list[str]) -> None:
    assert rope_of([part for part in parts if part]) == rope_of(parts)


def test_a_rope_of_nothing() -> None:
    assert grown((), "") == ()
    assert text_of(()) == ""
