"""The command line, `qd`: one file per command group.

Nothing heavy is imported until a command needs it: `qd --help` loads click and this package's small modules,
and no command.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The entry point of the installed `qd` script."""
    from quarterdeck.cli.app import app

    _open_what_is_closed()
    _print_whatever_comes()
    app(prog_name="qd")


def _open_what_is_closed() -> None:
    """A caller may close a standard stream (`<&-`); Python then has None there, and its number is given to the next file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it is open as long as we live


def _print_whatever_comes() -> None:
    """What the terminal's encoding lacks is shown by its number: a reply has any letters, and none is worth a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
