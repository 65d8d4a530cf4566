"""A shell command of the user's own, beside the conversation: it is told, and the model is not."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

from quarterdeck import events as ev
from quarterdeck.events import Body

_PIECE = 1 << 16
#: More output than this is not kept; what came before it is.
_MOST = 1 << 20
_LEFT_OUT = "\n… the rest was left out"


class Bash:
    """One command. `kill` ends it and everything in its group."""

    def __init__(self, bash_id: str, command: str, say: Callable[..., None]) -> None:
        self._id = bash_id
        self._command = command
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._output: list[str] = []
        self._length = 0

    async def run(self) -> None:
        self._tell(ev.BashStart(bash_id=self._id, command=self._command))
        code: int | None = None
        try:
            code = await self._ran()
        except OSError as error:
            self._add(f"{error.strerror}\n")
        finally:
            self.kill()
            end = ev.BashEnd(bash_id=self._id, exit_code=code, output="".join(self._output), command=self._command)
            self._tell(end)

    async def _ran(self) -> int | None:
        """Its exit code; none when a signal ended it."""
        process = self._process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await process.stdout.read(_PIECE):
            self._add(decoder.decode(data))
        code = await process.wait()
        return code if code >= 0 else None

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _add(self, text: str) -> None:
        if self._length >= _MOST or not text:
            return
        self._length += len(text)
        shown = text if self._length < _MOST else text[: len(text) - (self._length - _MOST)] + _LEFT_OUT
        self._output.append(shown)
        self._tell(ev.BashOutput(bash_id=self._id, delta=shown))

    def _tell(self, body: Body) -> None:
        self._say(body)
