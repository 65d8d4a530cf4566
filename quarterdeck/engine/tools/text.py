"""Read files as text: detect the encoding and line endings, and show one page at a time."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO, NamedTuple

#: How many bytes to read to detect the type of a file.
SAMPLE = 64 * 1024
#: Most characters on one page, whatever the number of lines, and most characters shown of one line.
PAGE_CHARS, LINE_CHARS = 60_000, 2_000
#: How many characters to read only to find the end of a line or to count the remaining lines.
_SKIP_LIMIT = 32_000_000

# UTF-32 comes first, because its byte order mark starts with the one of UTF-16.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_IMAGE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Encoding(NamedTuple):
    """The encoding of a file and its byte order mark."""

    name: str
    mark: bytes = b""


def detect_encoding(sample: bytes) -> Encoding | None:
    """Detect the encoding: by the byte order mark, else UTF-8, else Latin-1. Return None for binary data.

    Latin-1 maps every byte to one character, so writing the text back never changes other bytes.
    """
    for mark, name in _BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return Encoding(name, mark)
    if b"\0" in sample:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return Encoding("latin-1")
    return Encoding("utf-8")


def detect_image(sample: bytes) -> str:
    """Return the media type of an image that models can see, or ""."""
    if sample.startswith(b"RIFF") and sample[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _IMAGE_SIGNATURES if sample.startswith(signature)), "")


class TextFile(NamedTuple):
    """The content of a text file, with what is needed to write it back in the same form."""

    text: str
    encoding: Encoding
    newline: str

    @classmethod
    def decode(cls, data: bytes) -> TextFile | None:
        """Decode a file. Return None if it isn't text."""
        encoding = detect_encoding(data)
        if encoding is None:
            return None
        try:
            text = data[len(encoding.mark) :].decode(encoding.name)
        except UnicodeDecodeError:
            return None
        return cls(text, encoding, "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n")

    def encode(self, text: str) -> bytes:
        """Encode a new content for this file.

        Raises:
            UnicodeEncodeError: the file's encoding lacks a character.
        """
        return self.encoding.mark + text.encode(self.encoding.name)


def pluralize(number: int, singular: str, plural: str = "") -> str:
    """Return `1 line` or `2 lines`."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


# ------------------------------------------------------------------------------------------------------------ pages


def read_page(file: BinaryIO, encoding: Encoding, offset: int, limit: int) -> str:
    """Return up to `limit` lines from line `offset` on, numbered, and a note about how to continue.

    Reads no more of the file than it shows, except to count the remaining lines.
    """
    file.seek(len(encoding.mark))
    reader = io.TextIOWrapper(file, encoding.name, errors="replace")
    try:
        return _read_page(reader, offset, limit)
    finally:
        reader.detach()  # The caller closes the file.


def _read_page(reader: io.TextIOWrapper, offset: int, limit: int) -> str:
    for skipped in range(offset - 1):
        length = _skip_line(reader)
        if not length:
            return _no_such_line(offset, skipped)
        if length >= _SKIP_LIMIT:
            return f"[line {skipped + 1} is too long to read past it]"
    lines: list[str] = []
    room = PAGE_CHARS
    while len(lines) < limit and room > 0:
        text, length = _read_line(reader, LINE_CHARS)
        if not length:
            break
        lines.append(f"{offset + len(lines):>6}\t{text}")
        room -= len(lines[-1]) + 1
        if length >= _SKIP_LIMIT:
            return "\n".join([*lines, "[the last line is too long to read past it]"])
    if not lines:
        return _no_such_line(offset, offset - 1)
    return "\n".join(lines) + _continuation_note(reader, offset, offset + len(lines))


def _no_such_line(offset: int, lines: int) -> str:
    return "[the file is empty]" if not lines else f"[no line {offset}: the file has {pluralize(lines, 'line')}]"


def _read_line(reader: io.TextIOWrapper, limit: int) -> tuple[str, int]:
    """Return the first characters of the next line, and its length with the line ending: 0 at the end of the file."""
    text = reader.readline(limit + 1)
    length = len(text)
    if text.endswith("\n") or length <= limit:
        return text.removesuffix("\n"), length
    length += _skip_line(reader)
    return f"{text[:limit]} … [line of {length} characters]", length


def _skip_line(reader: io.TextIOWrapper) -> int:
    """Skip the rest of a line and return its length. Stops at _SKIP_LIMIT without having found the end."""
    length = 0
    while text := reader.readline(SAMPLE):
        length += len(text)
        if text.endswith("\n") or length >= _SKIP_LIMIT:
            break
    return length


def _continuation_note(reader: io.TextIOWrapper, first: int, following: int) -> str:
    remaining, budget = 0, _SKIP_LIMIT
    while budget > 0:
        length = _skip_line(reader)
        if not length:
            break
        remaining += 1
        budget -= length
    if not remaining:
        return "" if first == 1 else f"\n[lines {first}-{following - 1}, the end of the file]"
    total = f"of {following - 1 + remaining}" if budget > 0 else "of many more"
    return f"\n[lines {first}-{following - 1} {total}; continue with offset={following}]"
