"""Find agents by name: their translators, and the harnesses of those that Quarterdeck can start.

An agent's code is imported when it is first asked for. Another package adds a harness with an entry point in the group
`quarterdeck.harnesses`: the entry point's name is the agent's name, its object a function that takes that name and returns a
`Harness`. Packages are only searched for names that aren't built in.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness.base import Translator
from quarterdeck.harness.driver import CannotDo, Driver

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "quarterdeck.harnesses"

#: Agent name → "module:function". The function returns a new translator.
TRANSLATORS = {
    "claude": "quarterdeck.harness.claude.translate:claude",
    "codex": "quarterdeck.harness.codex.translate:codex",
    "acp": "quarterdeck.harness.acp.translate:acp",
    "gemini": "quarterdeck.harness.acp.translate:gemini",
    "opencode": "quarterdeck.harness.acp.translate:opencode",
    "kilo": "quarterdeck.harness.acp.translate:kilo",
    "cline": "quarterdeck.harness.sayask.translate:cline",
    "sayask": "quarterdeck.harness.sayask.translate:sayask",
    "pi": "quarterdeck.harness.pi.translate:pi",
    "builtin": "quarterdeck.harness.builtin.translate:builtin",
    "demo": "quarterdeck.harness.builtin.translate:builtin",
}
#: Agent name → "module:function". The function takes the agent's name and returns its Harness.
HARNESSES = {
    "builtin": "quarterdeck.harness.builtin.driver:harness",
    "demo": "quarterdeck.harness.builtin.driver:demo",
    "test": "quarterdeck.testing.harness:harness",
}


class Availability(Struct, frozen=True):
    """Whether an agent can be used now."""

    installed: bool = True
    login: Literal["ok", "missing", "unknown"] = "unknown"
    #: What to do if it can't.
    hint: str = ""


def _unknown_availability(_: Mapping[str, str]) -> Availability:
    return Availability()


class Harness(Struct, frozen=True):
    """How to start, drive and read an agent. Every process gets a new driver and a new translator."""

    name: str
    make_driver: Callable[[], Driver]
    make_translator: Callable[[], Translator]
    #: Types of the events that an agent without a memory of its own needs when its session continues.
    history: frozenset[str] = frozenset()
    #: Checks whether the agent can be used in an environment.
    availability: Callable[[Mapping[str, str]], Availability] = _unknown_availability
    #: What a session starts with if the user gives no prompt.
    prompt: str = ""


class UnknownAgent(QuarterdeckError):
    """No agent has this name."""

    code = "unknown_agent"

    def __init__(self, agent: str, names: Sequence[str]) -> None:
        super().__init__(f"unknown agent {agent!r}", f"Use one of: {', '.join(names)}.")


class BrokenHarness(QuarterdeckError):
    """The harness of another package can't be loaded, or isn't a harness."""

    code = "broken_harness"

    def __init__(self, agent: str, where: str, why: str) -> None:
        super().__init__(f"the harness of {agent} can't be used: {where}: {why}", "Update or remove its package.")


def translator(agent: str) -> Translator:
    """Return a new translator for an agent. `acp:COMMAND` is any ACP agent.

    Raises:
        UnknownAgent: no agent has this name.
        BrokenHarness: the agent's package can't be loaded.
    """
    if target := TRANSLATORS.get(_family(agent)):
        return _load(target)()
    harness = _find_harness(agent)
    if harness is None:
        raise UnknownAgent(agent, [*known_agents(), "acp:COMMAND"])
    return harness.make_translator()


def harness(agent: str) -> Harness:
    """Return the harness of an agent.

    Raises:
        CannotDo: the agent can only be observed, not started.
        UnknownAgent: no agent has this name.
        BrokenHarness: the agent's package can't be loaded.
    """
    harness = _find_harness(agent)
    if harness is not None:
        return harness
    if _family(agent) in TRANSLATORS:
        hint = f"These can be started: {', '.join(startable_agents())}."
        raise CannotDo(agent, "be started by Quarterdeck: only its signals are read", hint)
    raise UnknownAgent(agent, startable_agents())


def startable_agents() -> list[str]:
    """Return the names of the agents that can be started, built-in ones first."""
    any_acp = ["acp:COMMAND"] if "acp" in HARNESSES else []
    return [*HARNESSES, *any_acp, *sorted(entry.name for entry in _entry_points())]


def known_agents() -> list[str]:
    """Return the names of all agents, built-in ones first."""
    return [*TRANSLATORS, *HARNESSES.keys() - TRANSLATORS.keys(), *sorted(entry.name for entry in _entry_points())]


def _family(agent: str) -> str:
    """Return the name that stands for an agent in the tables: `acp` for any `acp:COMMAND`."""
    return "acp" if agent.startswith("acp:") else agent


@cache
def _load(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)


def _find_harness(agent: str) -> Harness | None:
    """Return the harness of an agent, or None if it can't be started from here."""
    if target := HARNESSES.get(_family(agent)):
        return _load(target)(agent)
    if _family(agent) in TRANSLATORS:
        return None
    entry = next((entry for entry in _entry_points() if entry.name == agent), None)
    return None if entry is None else _load_package(agent, entry)


# ----------------------------------------------------------------------------------------------------------------------
# Harnesses of other packages
# ----------------------------------------------------------------------------------------------------------------------

#: A directory that changed within this time may be in the middle of an installation.
_SETTLED_NS = 60 * 10**9
#: The entry points, and the times at which the directories of `sys.path` had changed last when they were read.
_cached_entries: tuple[dict[str, int], list[EntryPoint]] | None = None


def _entry_points() -> list[EntryPoint]:
    """Return the entry points of other packages.

    Reading them opens a file of every installed package, so they are cached until a package is installed or removed,
    which changes a directory of `sys.path`.
    """
    global _cached_entries
    changed_at = {directory: _changed_at(directory) for directory in sys.path}
    if _cached_entries is not None and _cached_entries[0] == changed_at:
        return _cached_entries[1]
    entries = _read_entry_points()
    is_settled = max(changed_at.values(), default=0) < time.time_ns() - _SETTLED_NS
    _cached_entries = (changed_at, entries) if is_settled else None
    return entries


def _changed_at(directory: str) -> int:
    try:
        return os.stat(directory or ".").st_mtime_ns
    except OSError:
        return 0


def _read_entry_points() -> list[EntryPoint]:
    # Importing importlib.metadata imports the email package, which short commands shouldn't pay for.
    from importlib.metadata import entry_points

    entries = entry_points(group=GROUP)
    return [entry for entry in entries if entry.name not in TRANSLATORS and entry.name not in HARNESSES]


def _load_package(agent: str, entry: EntryPoint) -> Harness:
    """Load the harness of another package.

    Raises:
        BrokenHarness: its code raised anything at all, or returned something else.
    """
    try:
        harness = entry.load()(agent)
    except Exception as error:
        raise BrokenHarness(agent, entry.value, f"{type(error).__name__}: {error}") from error
    if not isinstance(harness, Harness):
        raise BrokenHarness(agent, entry.value, f"it returned a {type(harness).__name__} instead of a Harness")
    return harness
