"""Where plain text goes: what an agent says to standard output, everything about it to standard error.

So `qd run claude "…" > reply.txt` keeps the reply and nothing else, and on a terminal both read as one text. What an
agent says cannot move the cursor, change colours or rename the window: on a terminal its control characters are shown.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

import click

#: Everything that a terminal obeys; a tab and the end of a line stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Paper:
    """Two streams that know whether they stand at the beginning of a line."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = _Sheet(out)
        self._err = self._out if _is_one(out, err) else _Sheet(err)
        self._files = out, err
        self.is_asking = False

    def say(self, text: str) -> None:
        """Words of the agent, as they come."""
        if self.is_asking or self._err.mark:
            self._fresh()
        self._write(self._files[0], self._out, text)

    def end_line(self) -> None:
        """What was said is whole."""
        if self._out.is_open:
            self._write(self._files[0], self._out, "\n")

    def note(self, text: str, **style: object) -> None:
        """One line about it, or some."""
        self._fresh()
        self._write(self._files[1], self._err, text + "\n", **style)

    def aside(self, text: str, mark: str) -> None:
        """Words beside the reply as they come, such as reasoning; each of their lines begins with the mark."""
        if self._err.mark != mark:
            self._fresh()
        for piece in text.splitlines(keepends=True):
            head = "" if self._err.is_open else mark
            self._write(self._files[1], self._err, head + piece, dim=True)
            self._err.mark = mark if self._err.is_open else ""

    def ask(self, text: str) -> None:
        """The person types on the same line. `is_asking` until something else is written."""
        self._fresh()
        self._write(self._files[1], self._err, text, bold=True)
        self.is_asking = True

    def typed(self) -> None:
        """The person ended the line."""
        self._err.is_open = self.is_asking = False

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def _fresh(self) -> None:
        if self._err.is_open:
            self._write(self._files[0] if self._err is self._out else self._files[1], self._err, "\n")

    def _write(self, file: TextIO, sheet: _Sheet, text: str, **style: object) -> None:
        if not text:
            return
        self.is_asking = False
        sheet.is_open = not text.endswith("\n")
        sheet.mark = ""
        shown = _CONTROL.sub(_shown, text) if sheet.is_terminal else text
        if not style:
            file.write(shown)
            return
        body, end = (shown[:-1], "\n") if shown.endswith("\n") else (shown, "")
        click.echo((click.style(body, **style) if body else body) + end, file, nl=False)  # type: ignore[arg-type]


class _Sheet:
    def __init__(self, file: TextIO) -> None:
        self.is_terminal = file.isatty()
        self.is_open = False
        self.mark = ""


def _shown(found: re.Match[str]) -> str:
    """A return at the end of a line is how some programs end theirs; anything else is shown as what it is."""
    character = found.group()
    return "" if character == "\r" else f"\\x{ord(character):02x}"


def _is_one(out: TextIO, err: TextIO) -> bool:
    """Whether both end up in one place, in one order."""
    try:
        return os.path.samestat(os.fstat(out.fileno()), os.fstat(err.fileno()))
    except (OSError, ValueError):
        return False
