"""Provide the command line that the generators of pages share: `--write` and `--check`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(pages: Mapping[str, Callable[[], str]], description: str, arguments: Sequence[str] | None = None) -> int:
    """Run a generator. `pages` maps each page's path to the function that renders it. Return the exit code."""
    options = _parser(description).parse_args(arguments)
    stale = [name for name, render in pages.items() if _text_of(options.root / name) != render()]
    if options.write:
        for name in stale:
            (options.root / name).parent.mkdir(parents=True, exist_ok=True)
            (options.root / name).write_text(pages[name](), encoding="utf-8")
            print(f"wrote {name}")
        return 0
    for name in stale:
        print(f"{name} is out of date", file=sys.stderr)
    return 1 if stale else 0


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Render a Markdown table. Bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--write", action="store_true", help="write the pages")
    task.add_argument("--check", action="store_true", help="fail if a page is out of date (the default)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to write to (default: this one)")
    return parser


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
