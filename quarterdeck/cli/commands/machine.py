"""`qd machine`: print the table of a state machine, as text, as JSON or as a diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quarterdeck.cli.exits import echo_json
from quarterdeck.errors import QuarterdeckError
from quarterdeck.kernel.machine import MACHINE_NAMES, load_machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quarterdeck.kernel.machine import Machine


class NoSuchMachine(QuarterdeckError):
    """No state machine has this name."""

    code = "no_such_machine"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no machine {name!r}", f"Name one of: {', '.join(MACHINE_NAMES)}.")


@click.command()
@click.argument("name")
@click.option("--json", "form", flag_value="json", help="Print one JSON object.")
@click.option("--mermaid", "form", flag_value="mermaid", help="Print a Mermaid state diagram.")
def machine(name: str, form: str | None) -> None:
    """Show a state machine's table of transitions.

    NAME is lifecycle, process, run, activity or phase. An event that the table doesn't list leaves the state unchanged.
    """
    table = _load(name)
    if form == "json":
        echo_json(table.export(), indent=2)
    elif form == "mermaid":
        click.echo(table.mermaid().rstrip("\n"))
    else:
        click.echo("\n".join(_format(table)))


def _load(name: str) -> Machine:
    try:
        return load_machine(name)
    except KeyError:
        raise NoSuchMachine(name) from None


def _format(table: Machine) -> Iterable[str]:
    yield f"{table.name} starts as {table.initial}"
    yield ""
    rows = [(row.source, row.event, row.guard or "", row.target) for row in table.rows]
    yield from _align([("from", "event", "guard", "to"), *rows])
    if table.flags:
        yield ""
        yield from _align([("flag", "true in"), *((flag, ", ".join(on)) for flag, on in table.flags.items())])


def _align(rows: list[tuple[str, ...]]) -> Iterable[str]:
    """Format rows as lines, with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
