"""The command line, `qd`. Each command group is a module in `commands/`, imported only when it runs."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run `qd`."""
    from quarterdeck.cli.app import app

    _open_closed_streams()
    _escape_unprintable_characters()
    app(prog_name="qd")


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller closed (`<&-`).

    Python sets them to None then, and the next file that is opened would get their number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - stays open as long as the process lives


def _escape_unprintable_characters() -> None:
    """Print characters that the terminal's encoding lacks as escapes: an agent's reply can contain any character."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
