"""What a docstring says: of the function, and of each argument under `Args:` or as `:param name:`."""

from __future__ import annotations

import re
from typing import NamedTuple

_ARGUMENTS = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_OTHER = re.compile(r"^(Returns?|Raises|Yields?|Examples?|Notes?):\s*$")
_ONE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


class Docstring(NamedTuple):
    text: str
    arguments: dict[str, str]


def parsed(docstring: str) -> Docstring:
    """The docstring has to be cleaned already, as `inspect.getdoc` does it."""
    text: list[str] = []
    arguments: dict[str, list[str]] = {}
    section, current, depth = "text", None, 0
    for line in docstring.splitlines():
        bare, indent = line.strip(), len(line) - len(line.lstrip())
        if _ARGUMENTS.match(line):
            section, current, depth = "arguments", None, 0
        elif _OTHER.match(line) or bare.startswith((":return", ":raise", ":rtype")):
            section = "other"
        elif field := _FIELD.match(bare):
            section, current = "field", arguments.setdefault(field[1], [field[2]])
        elif section == "arguments" and bare and indent == 0:
            section = "text"
            text.append(line)
        elif section == "arguments" and bare and (one := _ONE.match(bare)) and indent <= (depth or indent):
            depth = indent
            current = arguments.setdefault(one[1], [one[2]])
        elif section in ("arguments", "field") and current is not None and bare:
            current.append(bare)
        elif section == "text":
            text.append(line)
    return Docstring("\n".join(text).strip(), {name: " ".join(words).strip() for name, words in arguments.items()})
