"""`python -m bench [NAME ...] [--json]`: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

from bench.figure import Figure, table
from bench.measure import FULL, Effort

GROUPS = (
    "machine",
    "view",
    "decode",
    "start",
    "translate",
    "log",
    "replay",
    "fanout",
    "catalogue",
    "delivery",
    "requests",
    "providers",
    "engine",
    "frameworks",
)


def figures_of(group: str) -> Callable[[Effort], Iterator[Figure]]:
    """Return a group's `figures`. Import the group only now, because it may need packages that other groups don't."""
    return import_module(f"bench.{group}").figures


def main() -> None:
    """Measure the named groups and print the table. Exit with 0 even if a target is missed: machines are noisy."""
    options = _parsed()
    found: list[Figure] = []
    for group in options.names or GROUPS:
        print(f"measuring {group} ...", file=sys.stderr)
        for figure in figures_of(group)(FULL):
            found.append(figure)
            if options.json:
                print(json.dumps(figure.as_json()), flush=True)
    if not options.json:
        print("\n".join(table(found)))
        print(_verdict(found))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Every figure is a ratio to a floor.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to measure: {', '.join(GROUPS)}; all of them if none"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    options = parser.parse_args()
    for name in options.names:
        if name not in GROUPS:
            parser.error(f"no group is called {name!r}; there are: {', '.join(GROUPS)}")
    return options


def _verdict(found: list[Figure]) -> str:
    missed = [one.name for one in found if one.verdict == "OVER"]
    judged = [one for one in found if one.verdict]
    return f"{len(judged) - len(missed)} of {len(judged)} within target" + "".join(
        f"\n  OVER: {name}" for name in missed
    )


if __name__ == "__main__":
    main()
