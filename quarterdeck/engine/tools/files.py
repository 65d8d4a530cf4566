"""read_file, write_file, edit_file."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import secrets
import stat
from typing import Annotated

from msgspec import Meta, Struct

from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.engine.tools.paths import (
    NoSuchPath,
    OutsidePath,
    PathRefused,
    WrongKind,
    found_at,
    located,
    opened,
    opened_at,
    parent_of,
)
from quarterdeck.engine.tools.text import SAMPLE, Text, counted, encoding_of, image_type, page_of
from quarterdeck.engine.tools.threads import in_thread, in_thread_to_its_end
from quarterdeck.events import Image

#: Base64 makes a third more of it, and providers take five megabytes.
IMAGE_LIMIT = 3_750_000
#: A larger file is not a thing to edit in one piece.
EDIT_LIMIT = 50_000_000
#: How many lines around a change are shown.
_AROUND = 2
#: How many changed places are shown.
_SHOWN = 10


class EditRefused(PathRefused):
    """An edit that does not fit the file. Nothing was changed."""

    code = "edit_refused"


class Edit(Struct, forbid_unknown_fields=True):
    """One replacement."""

    old: Annotated[str, Meta(description="the text to replace, exactly as it is in the file, without line numbers")]
    new: Annotated[str, Meta(description="what comes in its place")]
    replace_all: Annotated[bool, Meta(description="replace every occurrence, not exactly one")] = False


# --- reading


@tool
async def read_file(
    path: str,
    context: ToolContext,
    offset: Annotated[int, Meta(ge=1)] = 1,
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 2_000,
) -> Outcome:
    """Reads a file: text with line numbers, a page at a time, or an image. Also reads whole results that were stored.

    Args:
        path: which file, relative to the working directory
        offset: the first line to show
        limit: how many lines to show at most
    """
    try:
        return await in_thread(_read, path, context, offset, limit)
    except (OutsidePath, NoSuchPath):
        stored = await context.read_elsewhere(path)
        if stored is None:
            raise
        return await in_thread(_shown, io.BytesIO(stored), path, len(stored), offset, limit)


def _read(path: str, context: ToolContext, offset: int, limit: int) -> Outcome:
    place = located(path, context)
    with open(opened_at(place), "rb") as file:
        return _shown(file, place.shown, os.fstat(file.fileno()).st_size, offset, limit)


def _shown(file: io.BufferedReader | io.BytesIO, shown: str, size: int, offset: int, limit: int) -> Outcome:
    sample = file.read(SAMPLE)
    if kind := image_type(sample):
        return _image(sample + file.read(IMAGE_LIMIT), kind, shown, size)
    encoding = encoding_of(sample)
    if encoding is None:
        raise WrongKind(f"{shown} is no text ({size} bytes)", "Use the shell to look at other files.")
    text = page_of(file, encoding, offset, limit)
    return Outcome(text if encoding.name == "utf-8" else f"[read as {encoding.name}]\n{text}")


def _image(data: bytes, kind: str, shown: str, size: int) -> Outcome:
    if len(data) > IMAGE_LIMIT:
        raise WrongKind(f"{shown} is too large to look at ({size} bytes)", f"Make it smaller than {IMAGE_LIMIT}.")
    image = Image(media_type=kind, data=base64.b64encode(data).decode())
    return Outcome(f"{shown}: {kind}, {len(data)} bytes", images=(image,))


# --- writing


@tool(writes=True, parallel=False)
async def write_file(path: str, content: str, context: ToolContext) -> Outcome:
    """Writes a whole file, a new one or over the old one. Folders on the way are made. To change a part, use edit_file.

    Args:
        path: which file, relative to the working directory
        content: the whole new content
    """
    return await in_thread_to_its_end(_write, path, content, context)


def _write(path: str, content: str, context: ToolContext) -> Outcome:
    place = located(path, context)
    try:
        data = content.encode()
    except UnicodeEncodeError as error:
        raise PathRefused(f"content cannot be written as UTF-8: {error.reason}", "Leave the character out.") from None
    with parent_of(place, create=True) as (parent, name):
        before = found_at(parent, name, place.shown)
        _put(parent, name, data, before, place.shown)
    lines = content.count("\n") + (not content.endswith("\n") and content != "")
    verb = "wrote over" if before else "created"
    return Outcome(f"{verb} {place.shown}: {counted(lines, 'line')}, {counted(len(data), 'byte')}")


def _put(parent: int, name: str, data: bytes, before: os.stat_result | None, shown: str) -> None:
    """Readers see the old file or the new one, nothing between. A link that stands there now is replaced, not followed."""
    if before and not os.access(name, os.W_OK, dir_fd=parent):
        raise PathRefused(f"{shown} is read-only", "Make it writable first if that is meant.")
    temporary = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600 if before else 0o666, dir_fd=parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if before:
                _dress(file.fileno(), before)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


def _dress(descriptor: int, before: os.stat_result) -> None:
    """The mode and the owner that the old file had, as far as we may give them."""
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


# --- editing


@tool(writes=True, parallel=False)
async def edit_file(path: str, edits: Annotated[list[Edit], Meta(min_length=1)], context: ToolContext) -> Outcome:
    """Replaces exact pieces of text in a file. All edits are made, one after the other, or none.

    Args:
        path: which file, relative to the working directory
        edits: what to replace; each old text must be there exactly once unless replace_all is set
    """
    return await in_thread_to_its_end(_edit, path, edits, context)


def _edit(path: str, edits: list[Edit], context: ToolContext) -> Outcome:
    place = located(path, context)
    with parent_of(place) as (parent, name):
        with open(opened(parent, name, place.shown), "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read(EDIT_LIMIT + 1)
        old = Text.decoded(data) if len(data) <= EDIT_LIMIT else None
        if old is None:
            raise WrongKind(f"{place.shown} is no text, or too large to edit", "Use the shell to change it.")
        changed = _Changed(old.text)
        for number, edit in enumerate(edits, 1):
            changed.apply(edit, old.newline, f"{place.shown}, edit {number} of {len(edits)}")
        written = _encoded(old, changed.text, place.shown)
        _expect_unchanged(parent, name, before, place.shown)
        _put(parent, name, written, before, place.shown)
    return Outcome(f"edited {place.shown}: {counted(changed.count, 'replacement')}\n{changed.excerpt()}")


def _encoded(old: Text, text: str, shown: str) -> bytes:
    try:
        return old.encoded(text)
    except UnicodeEncodeError as error:
        what = text[error.start : error.start + 1]
        raise EditRefused(
            f"{shown} is {old.encoding.name}, which has no {what!r}", "Leave the character out."
        ) from None


def _expect_unchanged(parent: int, name: str, before: os.stat_result, shown: str) -> None:
    now = found_at(parent, name, shown)
    if now is None or (now.st_ino, now.st_mtime_ns, now.st_size) != (
        before.st_ino,
        before.st_mtime_ns,
        before.st_size,
    ):
        raise EditRefused(f"{shown} was changed by somebody else meanwhile", "Read it again.")


def _with_ends(text: str, newline: str) -> str:
    """Models write \\n whatever the file has; a replacement must not bring a second kind into it."""
    return text.replace("\r\n", "\n").replace("\n", newline)


class _Changed:
    """A text that is being edited, and where it changed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0
        self._places: list[tuple[int, int]] = []

    def apply(self, edit: Edit, newline: str, where: str) -> None:
        if not edit.old or edit.old == edit.new:
            what = "the old text is empty" if not edit.old else "old and new text are the same"
            raise EditRefused(f"{where}: {what}", "Nothing was changed.")
        old = self._meant(edit.old, newline)
        new = _with_ends(edit.new, newline)
        times = self.text.count(old)
        if not times:
            raise EditRefused(f"{where}: the old text is not in the file", "Read the file again; nothing was changed.")
        if times > 1 and not edit.replace_all:
            hint = "Give more of the text around it, or set replace_all; nothing was changed."
            raise EditRefused(f"{where}: the old text is there {times} times", hint)
        self._replace(old, new)

    def _meant(self, old: str, newline: str) -> str:
        """As it stands in the file. One that begins with \\n is also there behind a \\r, which must not be left alone."""
        with_ends = _with_ends(old, newline)
        is_cut = old[0] != with_ends[0] and with_ends in self.text
        return old if old in self.text and not is_cut else with_ends

    def _replace(self, old: str, new: str) -> None:
        pieces = self.text.split(old)
        at = 0
        for piece in pieces[:-1]:
            at += len(piece)
            self._note(at, len(old), len(new))
            at += len(new)
        self.text = new.join(pieces)
        self.count += len(pieces) - 1

    def _note(self, at: int, removed: int, added: int) -> None:
        """Places that lie behind move along."""
        if self.count + len(self._places) > 1_000:
            return
        moved = added - removed
        self._places = [(start + moved, end + moved) if start > at else (start, end) for start, end in self._places]
        self._places.append((at, at + added))

    def excerpt(self) -> str:
        """The lines around the changes, with their numbers as they are now."""
        lines = self.text.removesuffix("\n").split("\n")
        shown: set[int] = set()
        for start, end in sorted(self._places)[:_SHOWN]:
            first, last = self.text.count("\n", 0, start), self.text.count("\n", 0, end)
            shown.update(range(max(0, first - _AROUND), min(len(lines), min(last, first + 20) + _AROUND + 1)))
        told: list[str] = []
        for number in sorted(shown):
            if told and number - 1 not in shown:
                told.append("   ...")
            line = lines[number].rstrip("\r")
            told.append(f"{number + 1:>6}\t{line[:500]}")
        return "\n".join(told)
