"""Test the output of commands, in whatever pieces it arrives, and the excerpts of edits."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.tools.files import Edit, EditedText, EditRefused
from quarterdeck.engine.tools.output import CommandOutput, Limits, shorten
from tests.support.tool_context import TestHands

LIMITS = Limits(head=20, tail=10, live=40, total=1_000)


def collected(pieces: list[bytes], limits: Limits = LIMITS) -> tuple[str, str, str, bytes]:
    """Return the model's text with the file name replaced by FILE, the live output, the name and the file's content."""

    async def work(folder: Path) -> tuple[str, str, str, bytes]:
        hands = TestHands(folder)
        output = CommandOutput(hands, limits)
        for piece in pieces:
            output.add(piece, "stdout")
        text = output.finish()
        kept = (hands.store / output.path).read_bytes() if output.path else b""
        return (text.replace(output.path, "FILE") if output.path else text), hands.said(), output.path, kept

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "work").mkdir()
        return asyncio.run(work(Path(folder) / "work"))


@given(st.text(max_size=80), st.binary(max_size=10), st.lists(st.integers(0, 300), max_size=12))
def test_pieces_make_no_difference(text: str, odd: bytes, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace") + odd
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[begin:end] for begin, end in itertools.pairwise(ends)]
    whole = collected([data])
    cut = collected(pieces)
    assert cut[0] == whole[0]
    assert bool(cut[2]) == bool(whole[2])
    assert cut[3] == whole[3]
    decoded = data.decode("utf-8", "replace").replace("\0", "�")
    if len(decoded) <= LIMITS.head + LIMITS.tail:
        assert whole[0] == decoded
        assert not whole[2]
    else:
        assert whole[0].startswith(decoded[: LIMITS.head])
        assert whole[0].endswith(decoded[-LIMITS.tail :])
        assert f"[{len(decoded) - LIMITS.head - LIMITS.tail} characters omitted" in whole[0]
        assert whole[3] == data
    assert cut[1].removesuffix("\n[live output stops here; the result will have more]\n") == decoded[: LIMITS.live]


@given(st.text(max_size=100))
def test_a_text_is_shortened_in_the_same_way(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hands = TestHands(Path(folder))
        hands.store = Path(folder) / "store"
        shown, name = shorten(text, hands, LIMITS)
        if len(text) <= LIMITS.head + LIMITS.tail:
            assert (shown, name) == (text, "")
        else:
            assert shown.startswith(text[: LIMITS.head])
            assert shown.endswith(text[-LIMITS.tail :])
            assert (hands.store / name).read_bytes() == text.encode("utf-8", "replace")


@given(
    st.text("ab\n", max_size=60),
    st.lists(st.tuples(st.text("ab\n", max_size=3), st.text("abc\n", max_size=4), st.booleans()), max_size=4),
)
def test_edits_are_plain_replacements_in_order(text: str, edits: list[tuple[str, str, bool]]) -> None:
    changed, plain, count = EditedText(text), text, 0
    for old, new, everywhere in edits:
        fits = old != "" and old != new and old in plain and (everywhere or plain.count(old) == 1)
        try:
            changed.apply(Edit(old, new, everywhere), "\n", "here")
        except EditRefused:
            assert not fits
            continue
        assert fits
        count += plain.count(old)
        plain = plain.replace(old, new)
        assert changed.text == plain
    assert changed.count == count
    lines = plain.split("\n")
    for line in changed.excerpt().splitlines():
        number, _, shown = line.partition("\t")
        assert line == "   ..." or lines[int(number) - 1] == shown


def test_nothing_at_all() -> None:
    assert collected([]) == ("", "", "", b"")
