"""Exit codes, and how errors are printed and turned into them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from quarterdeck.errors import QuarterdeckError


class Exit(IntEnum):
    """The exit codes of the contract (section 1)."""

    DONE = 0
    FAILED = 1
    WRONG_USE = 2
    NO_SUCH_THING = 3
    NOT_ALLOWED_NOW = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


# By code and not by class: this program may lack the class of an error that a server sends.
_EXIT_OF_CODE = {
    "already_decided": Exit.NOT_ALLOWED_NOW,
    "bad_request": Exit.WRONG_USE,
    "bad_script": Exit.WRONG_USE,
    "busy_sessions": Exit.NOT_ALLOWED_NOW,
    "deck_closed": Exit.UNREACHABLE,
    "deck_running": Exit.NOT_ALLOWED_NOW,
    "file_exists": Exit.NOT_ALLOWED_NOW,
    "home_in_use": Exit.NOT_ALLOWED_NOW,
    "invalid_command": Exit.WRONG_USE,
    "invalid_input": Exit.WRONG_USE,
    "invalid_rule": Exit.WRONG_USE,
    "invalid_setting": Exit.WRONG_USE,
    "malformed_event": Exit.WRONG_USE,
    "not_allowed": Exit.NOT_ALLOWED_NOW,
    "not_sqlite": Exit.WRONG_USE,
    "not_text": Exit.WRONG_USE,
    "queue_full": Exit.NOT_ALLOWED_NOW,
    "timed_out": Exit.UNREACHABLE,
    "unknown_agent": Exit.NO_SUCH_THING,
    "unreachable": Exit.UNREACHABLE,
}


_EXIT_OF_STATUS = {
    400: Exit.WRONG_USE,
    404: Exit.NO_SUCH_THING,
    409: Exit.NOT_ALLOWED_NOW,
    413: Exit.WRONG_USE,
    503: Exit.UNREACHABLE,
}


def exit_for(code: str, status: int = 0) -> Exit:
    """Return the exit code for an error. `status` is the HTTP status, for codes of newer servers that aren't listed."""
    if code.startswith("no_such_"):
        return Exit.NO_SUCH_THING
    return _EXIT_OF_CODE.get(code) or _EXIT_OF_STATUS.get(status, Exit.FAILED)


def echo_json(value: object, indent: int | None = None) -> None:
    """Print JSON as UTF-8, whatever the terminal's encoding is. Undecodable bytes of file names are escaped."""
    import json

    click.echo(json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace"))


def report(error: QuarterdeckError) -> Exit:
    """Print an error and its hint, and return the exit code."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {error.message}", err=True)
    if error.hint:
        click.echo(error.hint, err=True)
    return exit_for(error.code, getattr(error, "status", 0))
