"""A text that grows by pieces and can be shared while it grows.

`text += piece` is quadratic, and a list of pieces is not shareable. A rope here is a tuple of strings, each at least
twice as long as the next: a new piece swallows its shorter neighbours, so a text of n characters is a tuple of at most
log n strings, each character is copied log n times in all, and two ropes made of the same pieces are equal.
"""

from __future__ import annotations

Rope = tuple[str, ...]


def grown(rope: Rope, piece: str) -> Rope:
    """The rope with one more piece. An empty piece is none: agents send them, and they must not pile up."""
    if not piece:
        return rope
    while rope and len(rope[-1]) < 2 * len(piece):
        piece = rope[-1] + piece
        rope = rope[:-1]
    return (*rope, piece)


def text_of(rope: Rope) -> str:
    """The whole text."""
    return "".join(rope)
