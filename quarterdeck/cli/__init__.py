"""The command line, `qd`: one file per command group.

Nothing heavy is imported until a command needs it: `qd --help` loads click and this package's small modules,
and no command.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the installed `qd` script."""
    from quarterdeck.cli.app import app

    app(prog_name="qd")
