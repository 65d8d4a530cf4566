"""Search files for a regular expression, for machines without ripgrep.

Runs as a process of its own, because an unlucky regular expression can run forever and would block everything else, and a
process can be killed. The process gets descriptors instead of paths, and prints one JSON line for each line of the result:
[path, number, whether it matched, text].
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from quarterdeck.engine.tools.text import TextFile
from quarterdeck.engine.tools.walk import Glob, read_regular_file, walk_below

#: Larger files are skipped.
FILE_LIMIT = 20_000_000
#: How many characters of a line are searched and printed.
_LINE_CHARS = 10_000


def main() -> None:
    """Run the search described by the JSON object in the first argument (`search._PythonSearch`)."""
    query = json.loads(sys.argv[1])
    try:
        expression = re.compile(query["pattern"], re.IGNORECASE if query["ignore_case"] else 0)
    except re.error as error:
        sys.exit(f"invalid regular expression: {error}")
    remaining = query["limit"]
    for path, data in _read_files(query):
        remaining -= _search_file(path, data, expression, query["context"], query["per_file"] or remaining)
        if remaining <= 0:
            break


def _read_files(query: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    if query["file"] is not None:
        with open(query["file"], "rb") as file:
            yield "", file.read(FILE_LIMIT)
        return
    glob = Glob(query["glob"]) if query["glob"] else None
    for entry in walk_below(query["root"], tuple(query["parts"]), include_ignored=query["include_ignored"]):
        if not entry.is_folder and (glob is None or glob.matches(entry.parts)):
            data = read_regular_file(entry.parent, entry.parts[-1], FILE_LIMIT)
            if data:
                yield entry.path, data


def _search_file(path: str, data: bytes, expression: re.Pattern[str], context: int, limit: int) -> int:
    """Print the matching lines with their context. Return how many lines matched."""
    file = TextFile.decode(data)
    if file is None:
        return 0
    lines = file.text.split("\n")
    if lines[-1] == "":
        lines.pop()
    matches = [at for at, line in enumerate(lines) if expression.search(line[:_LINE_CHARS])][:limit]
    shown = {near for at in matches for near in range(max(0, at - context), min(len(lines), at + context + 1))}
    matched = set(matches)
    for at in sorted(shown):
        result = [path, at + 1, at in matched, lines[at].rstrip("\r")[:_LINE_CHARS]]
        # json.dumps escapes the surrogates that stand for bytes of names that aren't UTF-8, and json.loads restores them.
        sys.stdout.write(json.dumps(result) + "\n")
    return len(matches)
