"""A bell at the door of a home: whoever changes the tokens rings it, in whatever process, and the server hears it.

It is a named pipe, which any system has; nobody but the user can reach it, and a ring says nothing but "look".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path


def ring(path: Path) -> None:
    """Nothing happens where nobody listens."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, b"!")
        finally:
            os.close(descriptor)


class Bell:
    """One that is listened to until it is taken down."""

    def __init__(self, path: Path, heard: Callable[[], None]) -> None:
        """OSError where there can be no pipe."""
        self._path = path
        self._heard = heard
        path.unlink(missing_ok=True)  # of a server that was killed
        os.mkfifo(path, 0o600)
        # for writing, too: with nobody at the other end a pipe would always be readable
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._descriptor, self._rung)

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 4096)
        self._heard()

    def take_down(self) -> None:
        """Not heard any more."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)
