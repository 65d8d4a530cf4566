"""Run a program on a pty of its own, so that a test can type and read the screen."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Sequence

from tests.support.servers import PATIENCE_S, QD, At


class Terminal:
    """`qd` on a terminal that the test types into."""

    def __init__(self, at: At, *args: str, program: Sequence[str] = (QD,), **more: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*program, *args],
            env={**at.environment, **more},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def see(self, what: str, times: int = 1) -> None:
        """Wait until this text is on the screen."""
        until = time.monotonic() + PATIENCE_S
        while self.text.count(what) < times:
            ready = select.select([self.master], [], [], max(0.0, until - time.monotonic()))[0]
            assert ready, f"no {what!r} in {self.text!r}"
            assert self._read(), f"it ended without {what!r}: {self.text!r}"

    def _read(self) -> bool:
        try:
            data = os.read(self.master, 65536)
        except OSError:
            data = b""
        self.text += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def type(self, line: str) -> None:
        self.press(f"{line}\n".encode())

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ends(self) -> int:
        until = time.monotonic() + PATIENCE_S
        while select.select([self.master], [], [], max(0.0, until - time.monotonic()))[0] and self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
