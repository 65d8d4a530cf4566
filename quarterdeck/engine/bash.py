"""Run a shell command for the user, beside the conversation. Its output goes to the log; the model doesn't see it."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.process.child import Child, Stream

#: Characters of output that are recorded. The rest is dropped.
_OUTPUT_LIMIT = 1 << 20
_OMITTED = "\n… output over 1 MiB was dropped"


class UserCommand:
    """One command. It ends when its output is closed, so `sleep 10 &` keeps it running for ten seconds."""

    def __init__(self, bash_id: str, command: str, record: Callable[[Body], object]) -> None:
        self._bash_id = bash_id
        self._command = command
        self._record = record
        self._child: Child | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._output: list[str] = []
        self._length = 0

    async def run(self) -> None:
        """Run the command and record its start, its output and its end. Being cancelled kills it."""
        self._record(ev.BashStart(bash_id=self._bash_id, command=self._command))
        exit_code: int | None = None
        try:
            self._child = Child.spawn(
                ["/bin/sh", "-c", self._command],
                os.getcwd(),
                os.environ,
                self._add_output,
                merge_output=True,
                # Leave what the command started in the background running: the user asked for it.
                linger=None,
            )
            code = await self._child.exited
            exit_code = code if code >= 0 else None  # None: a signal killed it.
        except (OSError, ValueError) as error:
            self._add_text(f"{error.strerror if isinstance(error, OSError) else error}\n")
        finally:
            self.kill()
            output = "".join(self._output)
            self._record(ev.BashEnd(bash_id=self._bash_id, exit_code=exit_code, output=output, command=self._command))

    def kill(self) -> None:
        """Kill the command and everything it started, if it is still running."""
        if self._child is not None and not self._child.exited.done():
            self._child.kill()

    def _add_output(self, data: bytes, stream: Stream) -> None:
        del stream  # Both streams are merged.
        self._add_text(self._decoder.decode(data))

    def _add_text(self, text: str) -> None:
        if self._length >= _OUTPUT_LIMIT or not text:
            return
        self._length += len(text)
        if self._length >= _OUTPUT_LIMIT:
            text = text[: len(text) - (self._length - _OUTPUT_LIMIT)] + _OMITTED
        self._output.append(text)
        self._record(ev.BashOutput(bash_id=self._bash_id, delta=text))
