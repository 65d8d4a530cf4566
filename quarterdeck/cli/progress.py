"""Show the progress of a long job on standard error: one line that is overwritten on a terminal, a few lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

import click


class Progress:
    """`with Progress("checking") as progress: ...; progress(done, total)`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._is_terminal = sys.stderr.isatty()
        self._shown_percent = -1

    def __call__(self, done: int, total: int) -> None:
        """Show how much is done, if that is worth a new line."""
        percent = 100 * done // total if total else 100
        step = 1 if self._is_terminal else 25
        if percent - self._shown_percent >= step or (percent == 100 != self._shown_percent):
            self._shown_percent = percent
            self._print(f"{percent} %")

    def beat(self) -> None:
        """Show that the job is running, when its total is unknown."""
        if self._is_terminal:
            self._shown_percent += 1
            self._print("|/-"[self._shown_percent % 3])
        elif self._shown_percent < 0:
            self._shown_percent = 0
            self._print("...")

    def _print(self, text: str) -> None:
        start = "\r" if self._is_terminal else ""
        click.echo(f"{start}{self._label}: {text}", err=True, nl=not self._is_terminal)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal and self._shown_percent >= 0:
            click.echo(err=True)
