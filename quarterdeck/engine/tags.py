"""Inline tags of a reply, `<status>…</status>` and `<title>…</title>`, taken out of its text as it streams.

A tag may be cut anywhere. What could still become one is held back until it is decided; whatever the cuts, the text that
comes out and the tags that are found are the same. A tag that is never closed, or holds more than a line or two should, was
never a tag: it is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

TITLE_LENGTH = 60
#: More than this between the two is no tag.
LONGEST = 400

_OPENINGS = ("<status>", "<title>")
_CLOSINGS = {"<status>": "</status>", "<title>": "</title>"}


class Tag(NamedTuple):
    """A tag that was found."""

    kind: Literal["status", "title"]
    text: str


class Tags:
    """The filter of one reply."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        #: What is held back; while it is empty a text without `<` may pass by.
        self.held = ""

    def feed(self, text: str) -> Iterator[str | Tag]:
        """What is decided by this piece, in order: texts and tags."""
        self.held += text
        yield from self._decided(False)

    def close(self) -> Iterator[str | Tag]:
        """What was held back; nothing more comes."""
        yield from self._decided(True)

    def _decided(self, ended: bool) -> Iterator[str | Tag]:
        while self.held:
            start = self.held.find("<")
            if start != 0:
                end = len(self.held) if start < 0 else start
                yield self._take(end)
                continue
            found = self._at_bracket(ended)
            if found is None:
                return
            yield found

    def _take(self, end: int) -> str:
        taken, self.held = self.held[:end], self.held[end:]
        return taken

    def _at_bracket(self, ended: bool) -> str | Tag | None:
        """What stands at the start, which is a `<`; None while that is open."""
        held = self.held
        opening = next((one for one in _OPENINGS if held.startswith(one)), None)
        if opening is None:
            may_come = not ended and any(one.startswith(held) for one in _OPENINGS)
            return None if may_come else self._take(1)
        closing = _CLOSINGS[opening]
        end = held.find(closing, len(opening), len(opening) + LONGEST + len(closing))
        if end >= 0:
            tag = _tag(opening, held[len(opening) : end])
            self._take(end + len(closing))
            return tag
        if ended or len(held) >= len(opening) + LONGEST + len(closing):
            return self._take(len(opening))
        return None


def _tag(opening: str, text: str) -> Tag:
    text = " ".join(text.split())
    return Tag("title", text[:TITLE_LENGTH]) if opening == "<title>" else Tag("status", text)
