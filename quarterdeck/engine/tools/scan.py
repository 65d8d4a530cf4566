"""Searching files for a regular expression, where ripgrep is not installed.

It runs in a process of its own: an unlucky expression can take for ever and would hold up everything else, and a process
can be ended. It gets descriptors and no paths, and says one JSON line for each line that it found:
[path, number, whether it matched, text].
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from quarterdeck.engine.tools.pattern import Glob
from quarterdeck.engine.tools.text import Text
from quarterdeck.engine.tools.walk import read_below, walked_from

#: Larger files are passed over.
FILE_LIMIT = 20_000_000
#: As much of a line as anybody is shown; this much of it is searched.
_LINE = 10_000


def main() -> None:
    wish = json.loads(sys.argv[1])
    try:
        wanted = re.compile(wish["pattern"], re.IGNORECASE if wish["ignore_case"] else 0)
    except re.error as error:
        sys.exit(f"not a regular expression: {error}")
    left = wish["limit"]
    for path, data in _files(wish):
        left -= _searched(path, data, wanted, wish["context"], wish["per_file"] or left)
        if left <= 0:
            break


def _files(wish: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    if wish["file"] is not None:
        with open(wish["file"], "rb") as file:
            yield "", file.read(FILE_LIMIT)
        return
    wanted = Glob(wish["glob"]) if wish["glob"] else None
    for one in walked_from(wish["root"], tuple(wish["parts"]), all_of_them=wish["all"]):
        if not one.is_folder and (wanted is None or wanted.matches(one.parts)):
            data = read_below(one.parent, one.parts[-1], FILE_LIMIT)
            if data:
                yield one.path, data


def _searched(path: str, data: bytes, wanted: re.Pattern[str], context: int, limit: int) -> int:
    """How many lines matched."""
    found = Text.decoded(data)
    if found is None:
        return 0
    lines = found.text.split("\n")
    if lines[-1] == "":
        lines.pop()
    hits = [at for at, line in enumerate(lines) if wanted.search(line[:_LINE])][:limit]
    shown = {near for at in hits for near in range(max(0, at - context), min(len(lines), at + context + 1))}
    matched = set(hits)
    for at in sorted(shown):
        line = [path, at + 1, at in matched, lines[at].rstrip("\r")[:_LINE]]
        # surrogates of names that are no UTF-8 are escaped here, and found again by the reader
        sys.stdout.write(json.dumps(line) + "\n")
    return len(hits)
