"""Search the product model with other bounds than `make test`: `python -m tests.model`."""

from __future__ import annotations

import sys

import click

from tests.model.search import explore
from tests.model.truth import Bounds

DEFAULT = Bounds()


@click.command()
@click.option("--depth", type=int, help="Stop after so many batches; without it the search goes to the end.")
@click.option("--calls", default=DEFAULT.calls, show_default=True, help="Calls that are open at once.")
@click.option("--subs", default=DEFAULT.subs, show_default=True, help="Sub-agents at once.")
@click.option("--texts", default=DEFAULT.texts, show_default=True, help="Texts that wait, and room for steering.")
@click.option("--dialogs/--no-dialogs", default=True, help="Extensions open dialogs.")
@click.option("--shells/--no-shells", default=True, help="Shells go to the background.")
def main(depth: int | None, calls: int, subs: int, texts: int, dialogs: bool, shells: bool) -> None:
    """Search the product model and print the result."""
    bounds = Bounds(depth=depth, calls=calls, subs=subs, texts=texts, dialogs=dialogs, shells=shells)
    report = explore(bounds)
    click.echo(report)
    sys.exit(bool(report.violations))


if __name__ == "__main__":
    main()
