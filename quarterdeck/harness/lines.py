"""Bytes of an agent's output, cut into JSON objects and plain texts. Pure: drivers and translators use it alike.

Agents are not tidy: lines arrive in halves, carry terminal colours, hold several objects, or are prose between the JSON.
Lines end with LF only, because U+2028 and friends stand raw inside JSON strings. An object may also be printed over many
lines (Cline 1's own view does that): a line that begins an object and does not end it is held until its braces are
closed. In such print the inner lines are indented, so a line that begins with a brace of its own shows that the held
ones were prose after all.

What is not an object is text: a number or a quoted word on a line is no event. A list of objects is its objects.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias, cast

import msgspec

#: An object, or a line of plain text without control codes.
Piece: TypeAlias = "dict[str, Any] | str"

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[@-Z\\^_=>78cHM]"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_NOT_JSON = (ValueError, RecursionError)
#: An object longer than this was never one: prose that happens to begin with a brace must not be held for ever.
_HELD_LINES = 20_000
_HELD_CHARACTERS = 32 << 20

_whole = msgspec.json.Decoder(cast("type[Any]", Any))
_prefix = json.JSONDecoder()


def plain(text: str) -> str:
    """The text without terminal control codes."""
    return _CONTROL.sub("", text)


def object_in(text: str | bytes) -> dict[str, Any] | None:
    """The object that this text is; None when it is anything else."""
    try:
        found = _whole.decode(text)
    except (msgspec.MsgspecError, *_NOT_JSON):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def objects_in(text: str) -> list[dict[str, Any]]:
    """The objects of the list that this text is; none when it is anything else."""
    try:
        found = _whole.decode(text)
    except (msgspec.MsgspecError, *_NOT_JSON):
        return []
    listed = cast("list[Any]", found) if isinstance(found, list) else []
    return listed if all(isinstance(one, dict) for one in listed) else []


class LineBuffer:
    """What came so far and is not whole yet."""

    def __init__(self) -> None:
        self._tail = b""
        self._held: list[str] = []
        self._depth = 0
        self._held_characters = 0

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces that these bytes complete."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        found: list[Piece] = []
        for line in lines:
            self._line(line, found)
        return found

    def flush(self) -> list[Piece]:
        """What is left at the end of the stream."""
        found: list[Piece] = []
        tail, self._tail = self._tail, b""
        self._line(tail, found)
        self._give_up(found)
        return found

    def reset(self) -> None:
        """What is left belongs to nobody any more."""
        self._tail = b""
        self._let_go()

    def _let_go(self) -> None:
        self._held.clear()
        self._depth = self._held_characters = 0

    def _line(self, line: bytes, found: list[Piece]) -> None:
        if not self._held and line[:1] == b"{" and (one := object_in(line)) is not None:
            found.append(one)
            return
        text = plain(line.decode("utf-8", "replace"))
        if self._held and not text.startswith("{"):
            self._hold(text, found)
            return
        self._give_up(found)
        self._objects(text, found)

    def _objects(self, text: str, found: list[Piece]) -> None:
        """Objects one after the other; what follows the last one is text, or the beginning of a longer object."""
        text = text.strip()
        if text.startswith("[") and (listed := objects_in(text)):
            found.extend(listed)
            return
        while text.startswith("{"):
            try:
                one, end = _prefix.raw_decode(text)
            except _NOT_JSON:
                self._hold(text, found)
                return
            found.append(one)
            text = text[end:].lstrip()
        if text:
            found.append(text)

    def _hold(self, text: str, found: list[Piece]) -> None:
        self._held.append(text)
        self._held_characters += len(text)
        bare = _QUOTED.sub("", text)
        self._depth += bare.count("{") - bare.count("}")
        too_long = len(self._held) > _HELD_LINES or self._held_characters > _HELD_CHARACTERS
        if self._depth <= 0 or '"' in bare or too_long:
            self._close(found)

    def _close(self, found: list[Piece]) -> None:
        """The braces are closed, or a quote stands open at a line's end, which no JSON has."""
        one = object_in("\n".join(self._held))
        if one is None:
            self._give_up(found)
            return
        found.append(one)
        self._let_go()

    def _give_up(self, found: list[Piece]) -> None:
        """The held lines were prose."""
        found.extend(line for held in self._held if (line := held.strip()))
        self._let_go()
