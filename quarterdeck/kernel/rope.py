"""Represent a growing text so that it can be shared while it grows.

`text += piece` is quadratic, and a list of pieces is mutable. A rope is a tuple of strings, each at least twice as long
as the next. A new piece absorbs its shorter neighbours, so a text of n characters is a tuple of at most log n strings
and each character is copied at most log n times. Two ropes made from the same pieces are equal.
"""

from __future__ import annotations

Rope = tuple[str, ...]


def grown(rope: Rope, piece: str) -> Rope:
    """Append a piece. Empty pieces are ignored: agents send them, and they would accumulate."""
    if not piece:
        return rope
    while rope and len(rope[-1]) < 2 * len(piece):
        piece = rope[-1] + piece
        rope = rope[:-1]
    return (*rope, piece)


def text_of(rope: Rope) -> str:
    return "".join(rope)
