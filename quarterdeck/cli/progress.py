"""How far a long job is: one line that is written over on a terminal, a few lines elsewhere. On standard error."""

from __future__ import annotations

import sys
from types import TracebackType

import click


class Progress:
    """`with Progress("checking") as progress: ...; progress(done, total)`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._terminal = sys.stderr.isatty()
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        if percent - self._shown >= (1 if self._terminal else 25) or (percent == 100 != self._shown):
            self._shown = percent
            self._say(f"{percent} %")

    def beat(self) -> None:
        """It lives, and nobody can say how far it is."""
        if self._terminal:
            self._shown += 1
            self._say("|/-"[self._shown % 3])
        elif self._shown < 0:
            self._shown = 0
            self._say("...")

    def _say(self, what: str) -> None:
        start = "\r" if self._terminal else ""
        click.echo(f"{start}{self._label}: {what}", err=True, nl=not self._terminal)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal and self._shown >= 0:
            click.echo(err=True)
