"""The tools read_file, write_file and edit_file."""

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
    open_file,
    open_parent,
    open_path,
    resolve,
    stat_file,
)
from quarterdeck.engine.tools.text import SAMPLE, TextFile, detect_encoding, detect_image, pluralize, read_page
from quarterdeck.engine.tools.threads import run_in_thread, run_in_thread_to_end
from quarterdeck.events import Image

#: Providers accept images of five megabytes in base64, which is a third larger than the file.
IMAGE_LIMIT = 3_750_000
#: Larger files can't be edited.
EDIT_LIMIT = 50_000_000
#: How many lines to show around each change, and how many changes to show.
_CONTEXT_LINES, _SHOWN_CHANGES = 2, 10
#: After this many replacements their positions aren't tracked any more: moving them along takes quadratic time.
_TRACKED_CHANGES = 1_000


class EditRefused(PathRefused):
    """An edit that doesn't apply to the file. The file wasn't changed."""

    code = "edit_refused"


class Edit(Struct, forbid_unknown_fields=True):
    """One replacement."""

    old: Annotated[str, Meta(description="the text to replace, exactly as in the file, without line numbers")]
    new: Annotated[str, Meta(description="the text to put in its place")]
    replace_all: Annotated[bool, Meta(description="replace every occurrence instead of exactly one")] = False


# --------------------------------------------------------------------------------------------------------- reading


@tool
async def read_file(
    path: str,
    context: ToolContext,
    offset: Annotated[int, Meta(ge=1)] = 1,
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 2_000,
) -> Outcome:
    """Read a file. Text is returned in pages with line numbers, images are shown. Also reads stored tool results.

    Args:
        path: the file, relative to the working directory
        offset: the first line to return
        limit: the largest number of lines to return
    """
    try:
        return await run_in_thread(_read_path, path, context, offset, limit)
    except (OutsidePath, NoSuchPath):
        stored = await context.read_elsewhere(path)
        if stored is None:
            raise
        return await run_in_thread(_read, io.BytesIO(stored), path, len(stored), offset, limit)


def _read_path(path: str, context: ToolContext, offset: int, limit: int) -> Outcome:
    resolved = resolve(path, context)
    with open(open_path(resolved), "rb") as file:
        return _read(file, resolved.shown, os.fstat(file.fileno()).st_size, offset, limit)


def _read(file: io.BufferedReader | io.BytesIO, shown: str, size: int, offset: int, limit: int) -> Outcome:
    sample = file.read(SAMPLE)
    if kind := detect_image(sample):
        return _show_image(sample + file.read(IMAGE_LIMIT), kind, shown, size)
    encoding = detect_encoding(sample)
    if encoding is None:
        raise WrongKind(f"{shown} isn't text ({size} bytes)", "Use the shell to look at binary files.")
    text = read_page(file, encoding, offset, limit)
    return Outcome(text if encoding.name == "utf-8" else f"[decoded as {encoding.name}]\n{text}")


def _show_image(data: bytes, kind: str, shown: str, size: int) -> Outcome:
    if len(data) > IMAGE_LIMIT:
        raise WrongKind(f"{shown} is too large to show ({size} bytes)", f"Make it smaller than {IMAGE_LIMIT} bytes.")
    image = Image(media_type=kind, data=base64.b64encode(data).decode())
    return Outcome(f"{shown}: {kind}, {len(data)} bytes", images=(image,))


# --------------------------------------------------------------------------------------------------------- writing


@tool(writes=True, parallel=False)
async def write_file(path: str, content: str, context: ToolContext) -> Outcome:
    """Create a file or replace its whole content. Missing folders are created. Use edit_file to change a part of a file.

    Args:
        path: the file, relative to the working directory
        content: the new content of the file
    """
    return await run_in_thread_to_end(_write, path, content, context)


def _write(path: str, content: str, context: ToolContext) -> Outcome:
    resolved = resolve(path, context)
    try:
        data = content.encode()
    except UnicodeEncodeError as error:
        raise PathRefused(f"content can't be encoded as UTF-8: {error.reason}", "Remove the character.") from None
    with open_parent(resolved, create=True) as (parent, name):
        before = stat_file(parent, name, resolved.shown)
        _replace(parent, name, data, before, resolved.shown)
    lines = content.count("\n") + (not content.endswith("\n") and content != "")
    verb = "replaced" if before else "created"
    return Outcome(f"{verb} {resolved.shown}: {pluralize(lines, 'line')}, {pluralize(len(data), 'byte')}")


def _replace(parent: int, name: str, data: bytes, before: os.stat_result | None, shown: str) -> None:
    """Replace a file atomically, keeping its mode and owner. If a link has taken its name, replace the link.

    This isn't `quarterdeck.files.write_atomic`, because everything happens relative to the parent's descriptor.
    """
    if before and not os.access(name, os.W_OK, dir_fd=parent):
        raise PathRefused(f"{shown} is read-only", "Make it writable first, if it should be changed.")
    temporary = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600 if before else 0o666, dir_fd=parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if before:
                # Changing the owner may not be permitted; the new file then belongs to us.
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


# --------------------------------------------------------------------------------------------------------- editing


@tool(writes=True, parallel=False)
async def edit_file(path: str, edits: Annotated[list[Edit], Meta(min_length=1)], context: ToolContext) -> Outcome:
    """Replace exact pieces of text in a file. Either all edits are applied, in order, or none.

    Args:
        path: the file, relative to the working directory
        edits: the replacements; each old text must occur exactly once unless replace_all is set
    """
    return await run_in_thread_to_end(_edit, path, edits, context)


def _edit(path: str, edits: list[Edit], context: ToolContext) -> Outcome:
    resolved = resolve(path, context)
    with open_parent(resolved) as (parent, name):
        with open(open_file(parent, name, resolved.shown), "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read(EDIT_LIMIT + 1)
        original = TextFile.decode(data) if len(data) <= EDIT_LIMIT else None
        if original is None:
            raise WrongKind(f"{resolved.shown} isn't text, or is too large to edit", "Use the shell to change it.")
        edited = EditedText(original.text)
        for number, edit in enumerate(edits, 1):
            edited.apply(edit, original.newline, f"{resolved.shown}, edit {number} of {len(edits)}")
        new_data = _encode(original, edited.text, resolved.shown)
        _expect_unchanged(parent, name, before, resolved.shown)
        _replace(parent, name, new_data, before, resolved.shown)
    return Outcome(f"edited {resolved.shown}: {pluralize(edited.count, 'replacement')}\n{edited.excerpt()}")


def _encode(original: TextFile, text: str, shown: str) -> bytes:
    try:
        return original.encode(text)
    except UnicodeEncodeError as error:
        character = text[error.start : error.start + 1]
        raise EditRefused(
            f"{shown} is {original.encoding.name}, which can't encode {character!r}", "Remove the character."
        ) from None


def _expect_unchanged(parent: int, name: str, before: os.stat_result, shown: str) -> None:
    now = stat_file(parent, name, shown)
    if now is None or _version(now) != _version(before):
        raise EditRefused(f"{shown} was changed by another program during the edit", "Read it again.")


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _with_line_endings(text: str, newline: str) -> str:
    """Convert line endings to those of the file. Models write \\n in any case, and an edit mustn't mix two kinds."""
    return text.replace("\r\n", "\n").replace("\n", newline)


class EditedText:
    """A text that is being edited, and the positions of its changes."""

    def __init__(self, text: str) -> None:
        self.text = text
        #: Number of replacements.
        self.count = 0
        self._changes: list[tuple[int, int]] = []

    def apply(self, edit: Edit, newline: str, location: str) -> None:
        """Make one replacement.

        Raises:
            EditRefused: the old text is empty, missing, or occurs more than once without `replace_all`.
        """
        if not edit.old or edit.old == edit.new:
            problem = "the old text is empty" if not edit.old else "the old and the new text are the same"
            raise EditRefused(f"{location}: {problem}", "Nothing was changed.")
        old = self._find_old(edit.old, newline)
        new = _with_line_endings(edit.new, newline)
        times = self.text.count(old)
        if not times:
            raise EditRefused(
                f"{location}: the old text isn't in the file", "Nothing was changed. Read the file again."
            )
        if times > 1 and not edit.replace_all:
            hint = "Nothing was changed. Include more of the surrounding text, or set replace_all."
            raise EditRefused(f"{location}: the old text occurs {times} times", hint)
        self._replace(old, new)

    def _find_old(self, old: str, newline: str) -> str:
        """Return the old text with the line endings it has in the file."""
        converted = _with_line_endings(old, newline)
        # A text that starts with \n also matches behind a \r. Replacing it there would leave the \r alone.
        is_cut = old[0] != converted[0] and converted in self.text
        return old if old in self.text and not is_cut else converted

    def _replace(self, old: str, new: str) -> None:
        pieces = self.text.split(old)
        at = 0
        for piece in pieces[:-1]:
            at += len(piece)
            self._add_change(at, len(old), len(new))
            at += len(new)
        self.text = new.join(pieces)
        self.count += len(pieces) - 1

    def _add_change(self, at: int, removed: int, added: int) -> None:
        if self.count + len(self._changes) > _TRACKED_CHANGES:
            return
        # Earlier changes behind this one move along.
        shift = added - removed
        self._changes = [(start + shift, end + shift) if start > at else (start, end) for start, end in self._changes]
        self._changes.append((at, at + added))

    def excerpt(self) -> str:
        """Return the lines around the changes, with their new line numbers."""
        lines = self.text.removesuffix("\n").split("\n")
        numbers: set[int] = set()
        for start, end in sorted(self._changes)[:_SHOWN_CHANGES]:
            first, last = self.text.count("\n", 0, start), self.text.count("\n", 0, end)
            last = min(last, first + 20) + _CONTEXT_LINES
            numbers.update(range(max(0, first - _CONTEXT_LINES), min(len(lines), last + 1)))
        shown: list[str] = []
        for number in sorted(numbers):
            if shown and number - 1 not in numbers:
                shown.append("   ...")
            line = lines[number].rstrip("\r")
            shown.append(f"{number + 1:>6}\t{line[:500]}")
        return "\n".join(shown)
