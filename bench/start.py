"""Measure how long commands take to start: whole processes against `python -c pass`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figure import Figure
from bench.measure import Effort, process_ratio

#: Python looks for modules in the current folder first, where it would find the repository, not the installed package.
_PYTHON = (sys.executable, "-P")
_QD = (*_PYTHON, str(Path(sys.executable).with_name("qd")))


def figures(effort: Effort) -> Iterator[Figure]:
    """Compare the import of the package and the commands that users wait for with an empty program."""
    nothing = (*_PYTHON, "-c", "pass")
    commands = {
        "import quarterdeck": ((*_PYTHON, "-c", "import quarterdeck"), 3.0),
        "qd --help": ((*_QD, "--help"), 6.0),
        "qd machine phase": ((*_QD, "machine", "phase"), 10.0),
        "qd status": ((*_QD, "status"), 10.0),
        "qd run -d": ((*_QD, "run", "-d", "test", "say hi"), 10.0),
    }
    with _running_server():
        for name, (command, target) in commands.items():
            yield Figure("start", f"{name} to python -c pass", process_ratio(command, nothing, effort), target)


@contextmanager
def _running_server() -> Iterator[None]:
    """Run a server in a home of its own, which the environment names, and stop it afterwards."""
    variable = "QUARTERDECK_HOME"
    previous = os.environ.get(variable)
    with TemporaryDirectory() as folder:
        os.environ[variable] = folder
        try:
            subprocess.run((*_QD, "up", "-d", "--port", "0"), check=True, stdout=subprocess.DEVNULL)
            yield
        finally:
            subprocess.run((*_QD, "down", "--force"), check=True, stdout=subprocess.DEVNULL)
            os.environ.pop(variable)
            if previous is not None:
                os.environ[variable] = previous
