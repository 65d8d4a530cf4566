"""Files as text: in which encoding, with which line endings, one page at a time."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO, NamedTuple

#: How much of a file is looked at to say what it is.
SAMPLE = 64 * 1024
#: A page holds no more than this, however many lines were asked for; a line no more than that.
PAGE_CHARS, LINE_CHARS = 60_000, 2_000
#: How far a file is read on only to find the end of a line, or to say how many lines it has.
_READ_ON = 32_000_000

# UTF-32 first: its mark begins with that of UTF-16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Encoding(NamedTuple):
    """How a file is written, and the mark that it begins with."""

    name: str
    mark: bytes = b""


def encoding_of(sample: bytes) -> Encoding | None:
    """By its mark, else UTF-8, else Latin-1, which gives every byte back as it was; None when it is no text at all."""
    for mark, name in _MARKS:
        if sample.startswith(mark):
            return Encoding(name, mark)
    if b"\0" in sample:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return Encoding("latin-1")
    return Encoding("utf-8")


def image_type(sample: bytes) -> str:
    """The media type of an image that models can see, or ""."""
    if sample.startswith(b"RIFF") and sample[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES if sample.startswith(magic)), "")


class Text(NamedTuple):
    """A whole file, and what it takes to write it back as it was."""

    text: str
    encoding: Encoding
    newline: str

    @classmethod
    def decoded(cls, data: bytes) -> Text | None:
        """None when it is no text."""
        encoding = encoding_of(data)
        if encoding is None:
            return None
        try:
            text = data[len(encoding.mark) :].decode(encoding.name)
        except UnicodeDecodeError:
            return None
        return cls(text, encoding, "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n")

    def encoded(self, text: str) -> bytes:
        """UnicodeEncodeError when the file's encoding cannot say it."""
        return self.encoding.mark + text.encode(self.encoding.name)


def counted(number: int, one: str, several: str = "") -> str:
    """`1 line`, `2 lines`."""
    return f"{number} {one if number == 1 else several or one + 's'}"


# --- pages


def page_of(file: BinaryIO, encoding: Encoding, offset: int, limit: int) -> str:
    """These lines with their numbers, and how to go on. It reads no more than it shows, but for counting the rest."""
    file.seek(len(encoding.mark))
    reader = io.TextIOWrapper(file, encoding.name, errors="replace")
    try:
        return _page(reader, offset, limit)
    finally:
        reader.detach()  # the file is the caller's to close


def _page(reader: io.TextIOWrapper, offset: int, limit: int) -> str:
    for skipped in range(offset - 1):
        length = _skipped(reader)
        if not length:
            return _beyond(offset, skipped)
        if length >= _READ_ON:
            return f"[line {skipped + 1} is too long to read on behind it]"
    shown: list[str] = []
    room = PAGE_CHARS
    while len(shown) < limit and room > 0:
        text, length = _line(reader, LINE_CHARS)
        if not length:
            break
        shown.append(f"{offset + len(shown):>6}\t{text}")
        room -= len(shown[-1]) + 1
        if length >= _READ_ON:
            return "\n".join([*shown, "[the last line is too long to read on behind it]"])
    if not shown:
        return _beyond(offset, offset - 1)
    return "\n".join(shown) + _rest(reader, offset, offset + len(shown))


def _beyond(offset: int, lines: int) -> str:
    return "[the file is empty]" if not lines else f"[no line {offset}: the file has {counted(lines, 'line')}]"


def _line(reader: io.TextIOWrapper, keep: int) -> tuple[str, int]:
    """The first characters of the next line, and how long it is with its end; 0 at the end of the file."""
    text = reader.readline(keep + 1)
    length = len(text)
    if text.endswith("\n") or length <= keep:
        return text.removesuffix("\n"), length
    length += _skipped(reader)
    return f"{text[:keep]} … [a line of {length} characters]", length


def _skipped(reader: io.TextIOWrapper) -> int:
    """How long the next line was, with its end; _READ_ON or more when its end was not looked for any longer."""
    length = 0
    while text := reader.readline(SAMPLE):
        length += len(text)
        if text.endswith("\n") or length >= _READ_ON:
            break
    return length


def _rest(reader: io.TextIOWrapper, first: int, following: int) -> str:
    lines, budget = 0, _READ_ON
    while budget > 0:
        length = _skipped(reader)
        if not length:
            break
        lines += 1
        budget -= length
    if not lines:
        return "" if first == 1 else f"\n[lines {first}-{following - 1}; that is the end]"
    total = f"of {following - 1 + lines}" if budget > 0 else "of many more"
    return f"\n[lines {first}-{following - 1} {total}; go on with offset={following}]"
