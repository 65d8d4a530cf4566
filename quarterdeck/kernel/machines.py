"""The machines by name, each loaded only when it is asked for."""

from __future__ import annotations

from importlib import import_module

from quarterdeck.kernel.machine import Machine

NAMES = ("lifecycle", "process", "run", "activity", "phase")


def load(name: str) -> Machine:
    """The machine of this name; KeyError for another one."""
    if name not in NAMES:
        raise KeyError(name)
    return import_module(f"quarterdeck.kernel.{name}").MACHINE
