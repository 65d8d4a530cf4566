"""Print the agent's reply to standard output and everything else to standard error.

So `qd run claude "…" > reply.txt` stores the reply and nothing else, while on a terminal both read as one text. Control
characters from agents are shown as escapes on a terminal: they can't move the cursor, change colours or rename the
window.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

import click

#: All characters that a terminal acts on, except tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Output:
    """Two streams that know whether they are at the start of a line."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = _StreamState(out)
        self._err = self._out if _is_same_file(out, err) else _StreamState(err)
        self._files = out, err
        #: Whether the cursor is behind an invitation to type.
        self.is_asking = False

    def reply(self, text: str) -> None:
        """Print a piece of the agent's reply."""
        if self.is_asking or self._err.prefix:
            self._start_line()
        self._write(self._files[0], self._out, text)

    def end_reply_line(self) -> None:
        """End the line of a finished message."""
        if self._out.is_in_line:
            self._write(self._files[0], self._out, "\n")

    def note(self, text: str, **style: object) -> None:
        """Print one or more whole lines about the session."""
        self._start_line()
        self._write(self._files[1], self._err, text + "\n", **style)

    def aside(self, text: str, prefix: str) -> None:
        """Print a piece of text beside the reply, such as reasoning, with a prefix at the start of each line."""
        if self._err.prefix != prefix:
            self._start_line()
        for piece in text.splitlines(keepends=True):
            head = "" if self._err.is_in_line else prefix
            self._write(self._files[1], self._err, head + piece, dim=True)
            self._err.prefix = prefix if self._err.is_in_line else ""

    def ask(self, invitation: str) -> None:
        """Print an invitation. The user types on the same line. `is_asking` holds until something else is printed."""
        self._start_line()
        self._write(self._files[1], self._err, invitation, bold=True)
        self.is_asking = True

    def user_ended_line(self) -> None:
        """Note that the terminal's cursor is at the start of a line, because the user pressed Enter."""
        self._err.is_in_line = self.is_asking = False

    def terminal_echoed(self) -> None:
        """Note that the terminal printed "^C" behind our text, so that the next line starts below it."""
        if self._err.is_terminal:
            self._err.is_in_line = True

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def _start_line(self) -> None:
        if self._err.is_in_line:
            self._write(self._files[0] if self._err is self._out else self._files[1], self._err, "\n")

    def _write(self, file: TextIO, state: _StreamState, text: str, **style: object) -> None:
        if not text:
            return
        self.is_asking = False
        state.is_in_line = not text.endswith("\n")
        state.prefix = ""
        printable = _CONTROL.sub(_escape, text) if state.is_terminal else text
        if not style:
            file.write(printable)
            return
        body, end = (printable[:-1], "\n") if printable.endswith("\n") else (printable, "")
        click.echo((click.style(body, **style) if body else body) + end, file, nl=False)  # type: ignore[arg-type]


class _StreamState:
    def __init__(self, file: TextIO) -> None:
        self.is_terminal = file.isatty()
        self.is_in_line = False
        #: The prefix of the unfinished aside, or empty.
        self.prefix = ""


def _escape(match: re.Match[str]) -> str:
    # Some programs end their lines with \r\n, so a carriage return is dropped.
    character = match.group()
    return "" if character == "\r" else f"\\x{ord(character):02x}"


def _is_same_file(out: TextIO, err: TextIO) -> bool:
    """Return whether both streams end up in one terminal or file, in one order."""
    try:
        return os.path.samestat(os.fstat(out.fileno()), os.fstat(err.fileno()))
    except (OSError, ValueError):
        return False
