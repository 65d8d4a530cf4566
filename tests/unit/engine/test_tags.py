"""Test the filter for inline tags with every way to cut a text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from quarterdeck.engine.reply import LONGEST, TITLE_LENGTH, Tag, TagFilter

pieces = st.sampled_from(
    ["<status>", "</status>", "<title>", "</title>", "<", "<s", "<sta", "</", ">", "a", "b c", "x" * 90, "\n", "é"]
)
texts = st.lists(pieces, max_size=12).map("".join)


def sifted(chunks: Iterable[str]) -> tuple[str, list[Tag]]:
    tags, found = TagFilter(), list[str | Tag]()
    for chunk in chunks:
        found.extend(tags.feed(chunk))
    found.extend(tags.close())
    assert not tags.held
    return "".join(one for one in found if isinstance(one, str)), [one for one in found if isinstance(one, Tag)]


@given(texts)
def test_cut_at_any_place_or_at_every_one_it_is_the_same(whole: str) -> None:
    wanted = sifted([whole])
    assert sifted(whole) == wanted
    for place in range(len(whole)):
        assert sifted([whole[:place], whole[place:]]) == wanted


@given(st.data(), texts)
def test_cut_into_any_pieces_it_is_the_same(data: st.DataObject, whole: str) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=8)) | {0, len(whole)})
    assert sifted(whole[a:b] for a, b in pairwise(cuts)) == sifted([whole])


@given(st.text(alphabet="ab<>/status", max_size=60))
@example("<status>open")
def test_what_holds_no_whole_tag_stays_as_it_is(whole: str) -> None:
    if "</status>" not in whole and "</title>" not in whole:
        assert sifted([whole]) == (whole, [])


def test_tags_leave_the_text() -> None:
    assert sifted(["a<status> in\n work </status>b<title>T</title>c"]) == (
        "abc",
        [Tag("status", "in work"), Tag("title", "T")],
    )


def test_a_title_has_a_limit() -> None:
    assert sifted([f"<title>{'t' * 100}</title>"])[1] == [Tag("title", "t" * TITLE_LENGTH)]


def test_what_is_too_long_was_no_tag() -> None:
    whole = f"<status>{'x' * (LONGEST + 1)}</status>"
    assert sifted([whole]) == (whole, [])
    assert sifted([f"<status>{'x' * LONGEST}</status>"])[0] == ""


def test_a_tag_behind_one_that_is_never_closed() -> None:
    assert sifted(["<status>open <title>T</title>"]) == ("<status>open ", [Tag("title", "T")])


def test_nothing_is_held_that_cannot_become_a_tag() -> None:
    tags = TagFilter()
    assert "".join(str(one) for one in tags.feed("1 < 2 and <b>")) == "1 < 2 and <b>"
    assert not tags.held
