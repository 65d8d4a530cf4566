"""How long it takes until something happens: whole processes against `python -c pass`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure
from bench.measure import Effort, process_ratio

#: Python looks for modules in the current folder first, which would find the repository instead of what is installed.
_PYTHON = (sys.executable, "-P")


def figures(effort: Effort) -> Iterator[Figure]:
    """The command that does the least, and the import that everything begins with."""
    nothing = (*_PYTHON, "-c", "pass")
    commands = {
        "qd --help": ((*_PYTHON, str(Path(sys.executable).with_name("qd")), "--help"), 6.0),
        "import quarterdeck": ((*_PYTHON, "-c", "import quarterdeck"), 3.0),
    }
    for name, (command, target) in commands.items():
        yield Figure("start", f"{name} to python -c pass", process_ratio(command, nothing, effort), target)
