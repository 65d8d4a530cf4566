"""What a person types at the terminal of standard input, line by line, and the line that was never ended."""

from __future__ import annotations

import os
import sys
import termios
from typing import Any


class Keyboard:
    """A terminal that is somebody else's for the moment (`bg`, `&`) is not read: the system would stop us for it."""

    def __init__(self, wanted: bool) -> None:
        self.descriptor = sys.stdin.fileno()
        #: Whether somebody may still type.
        self.is_open = wanted and sys.stdin.isatty()
        self._rest = b""

    @property
    def listens(self) -> bool:
        """Whether what is typed now is for us."""
        return self.is_open and self._is_ours()

    def read(self) -> list[bytes]:
        """The lines that are there. Not `is_open` any more when the person has ended the input, or the terminal is gone."""
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            data = b""
        if not data:
            self.is_open = False
            lines, self._rest = [self._rest] if self._rest else [], b""
            return lines
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def left_over(self) -> list[bytes]:
        """What was typed and not read yet, also a line that was not ended; nobody else gets it, such as the shell."""
        if self.listens:
            self._rest += self._pending()
        lines, self._rest = self._rest.split(b"\n"), b""
        return [line for line in lines if line.strip()]

    def _pending(self) -> bytes:
        """A terminal hands out whole lines only, until it is told otherwise."""
        try:
            before = termios.tcgetattr(self.descriptor)
            termios.tcsetattr(self.descriptor, termios.TCSANOW, _at_once(before))
        except termios.error:
            return b""
        found = b""
        try:
            while data := os.read(self.descriptor, 65536):
                found += data
        except OSError:
            pass  # the terminal is gone, and what was typed with it
        finally:
            termios.tcsetattr(self.descriptor, termios.TCSANOW, before)
        return found

    def _is_ours(self) -> bool:
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            return True  # no terminal that has jobs: nobody else could have it


def _at_once(modes: list[Any]) -> list[Any]:
    """The same terminal, which gives what it has and waits for nothing."""
    changed = [*modes]
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6] = [*modes[6]]
    changed[6][termios.VMIN] = changed[6][termios.VTIME] = 0
    return changed


def text_of(line: bytes) -> str | None:
    """None when it is no UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return None
