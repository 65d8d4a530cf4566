"""`qd machine NAME`: the table of a state machine, for a reader, for a program, or as a diagram."""

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
    code = "no_such_machine"

    def __init__(self, name: str) -> None:
        super().__init__(f"no machine is called {name!r}", f"The machines are: {', '.join(MACHINE_NAMES)}.")


@click.command()
@click.argument("name")
@click.option("--json", "form", flag_value="json", help="Print one JSON object.")
@click.option("--mermaid", "form", flag_value="mermaid", help="Print a Mermaid state diagram.")
def machine(name: str, form: str | None) -> None:
    """Show a state machine's table of transitions.

    NAME is lifecycle, process, run, activity or phase. What the table lacks leaves the state as it was.
    """
    found = _find(name)
    if form == "json":
        echo_json(found.export(), indent=2)
    elif form == "mermaid":
        click.echo(found.mermaid().rstrip("\n"))
    else:
        click.echo("\n".join(_as_text(found)))


def _find(name: str) -> Machine:
    try:
        return load_machine(name)
    except KeyError:
        raise NoSuchMachine(name) from None


def _as_text(found: Machine) -> Iterable[str]:
    yield f"{found.name} starts as {found.initial}"
    yield ""
    rows = [(row.source, row.event, row.guard or "", row.target) for row in found.rows]
    yield from _aligned([("from", "event", "guard", "to"), *rows])
    if found.flags:
        yield ""
        yield from _aligned([("flag", "holds in"), *((flag, ", ".join(on)) for flag, on in found.flags.items())])


def _aligned(rows: list[tuple[str, ...]]) -> Iterable[str]:
    """The rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
