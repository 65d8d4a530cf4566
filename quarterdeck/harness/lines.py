"""Split an agent's output into JSON objects and lines of text.

Agents aren't tidy: lines arrive in halves, contain terminal colours or several objects, or are prose between the JSON.

- Lines end with LF only, because U+2028 and similar characters may stand unescaped inside JSON strings.
- An object may be printed over many lines, as Cline 1's own view does. A line that starts an object and doesn't end it is
  held until its braces are closed. Inner lines of such output are indented, so a line that starts with a brace of its own
  shows that the held lines were prose.
- Anything that isn't an object is text: a number or a quoted word on a line isn't an event. A list of objects is read
  as its objects.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias, cast

import msgspec

#: An object, or a line of plain text without control codes.
Piece: TypeAlias = "dict[str, Any] | str"

_CONTROL_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[@-Z\\^_=>78cHM]"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_NOT_JSON = (ValueError, RecursionError)
#: Limits of one object, so that prose that happens to start with a brace isn't held for ever.
_HELD_LINES_LIMIT = 20_000
_HELD_CHARACTERS_LIMIT = 32 << 20

_decoder = msgspec.json.Decoder(cast("type[Any]", Any))
_prefix_decoder = json.JSONDecoder()


def plain(text: str) -> str:
    """Remove terminal control codes."""
    return _CONTROL_CODES.sub("", text)


def object_in(text: str | bytes) -> dict[str, Any] | None:
    """Decode a JSON object. Return None if the text is anything else."""
    value = _decode(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _objects_in(text: str) -> list[dict[str, Any]]:
    """Decode a JSON list of objects. Return [] if the text is anything else."""
    value = _decode(text)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return items if all(isinstance(item, dict) for item in items) else []


def _decode(text: str | bytes) -> object:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, *_NOT_JSON):
        return None


class LineBuffer:
    """Output that arrived and isn't a complete piece yet."""

    def __init__(self) -> None:
        self._tail = b""
        #: Lines of an object that isn't closed yet, and how deep its braces are.
        self._held: list[str] = []
        self._depth = 0
        self._held_characters = 0

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces that these bytes complete."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        pieces: list[Piece] = []
        for line in lines:
            self._read_line(line, pieces)
        return pieces

    def flush(self) -> list[Piece]:
        """Return what is left at the end of the stream."""
        pieces: list[Piece] = []
        tail, self._tail = self._tail, b""
        self._read_line(tail, pieces)
        self._release_as_text(pieces)
        return pieces

    def reset(self) -> None:
        """Discard what is left."""
        self._tail = b""
        self._clear_held()

    def _clear_held(self) -> None:
        self._held.clear()
        self._depth = self._held_characters = 0

    def _read_line(self, line: bytes, pieces: list[Piece]) -> None:
        if not self._held and line[:1] == b"{" and (item := object_in(line)) is not None:
            pieces.append(item)
            return
        text = plain(line.decode("utf-8", "replace"))
        if self._held and not text.startswith("{"):
            self._hold(text, pieces)
            return
        self._release_as_text(pieces)
        self._read_objects(text, pieces)

    def _read_objects(self, text: str, pieces: list[Piece]) -> None:
        """Read consecutive objects. What follows the last one is text, or the start of a longer object."""
        text = text.strip()
        if text.startswith("[") and (items := _objects_in(text)):
            pieces.extend(items)
            return
        while text.startswith("{"):
            try:
                item, end = _prefix_decoder.raw_decode(text)
            except _NOT_JSON:
                self._hold(text, pieces)
                return
            pieces.append(item)
            text = text[end:].lstrip()
        if text:
            pieces.append(text)

    def _hold(self, text: str, pieces: list[Piece]) -> None:
        self._held.append(text)
        self._held_characters += len(text)
        unquoted = _QUOTED.sub("", text)
        self._depth += unquoted.count("{") - unquoted.count("}")
        is_too_long = len(self._held) > _HELD_LINES_LIMIT or self._held_characters > _HELD_CHARACTERS_LIMIT
        # No JSON string goes over the end of a line, so a quote that is open there shows prose.
        if self._depth <= 0 or '"' in unquoted or is_too_long:
            self._release(pieces)

    def _release(self, pieces: list[Piece]) -> None:
        """Read the held lines as one object, or as text if they aren't one."""
        item = object_in("\n".join(self._held))
        if item is None:
            self._release_as_text(pieces)
        else:
            pieces.append(item)
            self._clear_held()

    def _release_as_text(self, pieces: list[Piece]) -> None:
        pieces.extend(line for held in self._held if (line := held.strip()))
        self._clear_held()
