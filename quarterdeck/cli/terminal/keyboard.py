"""Read lines from the terminal of standard input, including a last line that was never ended."""

from __future__ import annotations

import os
import sys
import termios
from typing import Any


class Keyboard:
    """The terminal of standard input, as long as this process is in its foreground.

    Reading a terminal from the background (`bg`, `&`) would stop the process, so it isn't read then.
    """

    def __init__(self, is_enabled: bool) -> None:
        self.descriptor = sys.stdin.fileno()
        #: Whether the user can still type.
        self.is_open = is_enabled and sys.stdin.isatty()
        self._incomplete = b""

    @property
    def is_readable(self) -> bool:
        """Whether typed text comes to this process now."""
        return self.is_open and self._is_in_foreground()

    def read(self) -> list[bytes]:
        """Return the lines that are there. Closes the keyboard if the user ended the input or the terminal is gone."""
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            data = b""
        if not data:
            self.is_open = False
            lines, self._incomplete = [self._incomplete] if self._incomplete else [], b""
            return lines
        *lines, self._incomplete = (self._incomplete + data).split(b"\n")
        return lines

    def drain(self) -> list[bytes]:
        """Return what was typed and not yet read, including an unfinished line, so that the shell doesn't get it."""
        if self.is_readable:
            self._incomplete += self._read_pending()
        lines, self._incomplete = self._incomplete.split(b"\n"), b""
        return [line for line in lines if line.strip()]

    def _read_pending(self) -> bytes:
        # In canonical mode a terminal only hands out finished lines, so switch it off for the moment.
        try:
            modes = termios.tcgetattr(self.descriptor)
            termios.tcsetattr(self.descriptor, termios.TCSANOW, _without_line_mode(modes))
        except termios.error:
            return b""
        pending = b""
        try:
            while data := os.read(self.descriptor, 65536):
                pending += data
        except OSError:
            pass  # The terminal is gone, and what was typed with it.
        finally:
            termios.tcsetattr(self.descriptor, termios.TCSANOW, modes)
        return pending

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            return True  # A terminal without job control has no background.


def _without_line_mode(modes: list[Any]) -> list[Any]:
    """Return terminal modes that hand out every byte at once and never wait."""
    changed = [*modes]
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6] = [*modes[6]]
    changed[6][termios.VMIN] = changed[6][termios.VTIME] = 0
    return changed


def decode_line(line: bytes) -> str | None:
    """Return the text of a line, or None if it isn't UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None
