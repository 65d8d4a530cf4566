"""The agents by name: their translators, and the whole harnesses of those that we can drive. Each is loaded when asked for.

A package of somebody else's adds a harness by an entry point in the group `quarterdeck.harnesses`: its name is the agent's,
its object a function that takes the agent's name and gives a `Harness`. It is looked for only when a name is not ours.
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
_QUIET_NS = 60 * 10**9
_kept: tuple[dict[str, int], list[EntryPoint]] | None = None

#: agent name → "module:function"; the function makes a new translator.
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
#: agent name → "module:function"; the function takes the agent's name and gives its Harness.
HARNESSES = {
    "builtin": "quarterdeck.harness.builtin.driver:harness",
    "demo": "quarterdeck.harness.builtin.driver:demo",
    "test": "quarterdeck.testing.harness:harness",
}


class Standing(Struct, frozen=True):
    """Whether an agent could be used now. `login` is ok, missing or unknown; `hint` what to do about it."""

    installed: bool = True
    login: Literal["ok", "missing", "unknown"] = "unknown"
    hint: str = ""


def _unknown(_: Mapping[str, str]) -> Standing:
    return Standing()


class Harness(Struct, frozen=True):
    """How to speak to an agent and how to read it. Both are made anew for every process.

    `history` names the events that an agent wants back when its session goes on, because it keeps no memory of its own.
    `standing` looks at an environment. `prompt` is what a session begins with if nobody says what it shall do.
    """

    name: str
    make_driver: Callable[[], Driver]
    make_translator: Callable[[], Translator]
    history: frozenset[str] = frozenset()
    standing: Callable[[Mapping[str, str]], Standing] = _unknown
    prompt: str = ""


class UnknownAgent(QuarterdeckError):
    """Nobody here knows an agent of this name."""

    code = "unknown_agent"

    def __init__(self, agent: str, names: Sequence[str]) -> None:
        super().__init__(f"no agent is called {agent!r}", f"The agents are: {', '.join(names)}.")


class BrokenHarness(QuarterdeckError):
    """Somebody else's harness cannot be loaded, or is none."""

    code = "broken_harness"

    def __init__(self, agent: str, where: str, why: str) -> None:
        super().__init__(f"the harness of {agent} cannot be used: {where}: {why}", "Update or remove its package.")


def translator(agent: str) -> Translator:
    """A new translator for this agent (`acp:COMMAND` is any ACP agent); UnknownAgent for a name that nobody knows."""
    if target := TRANSLATORS.get(_family(agent)):
        return _loaded(target)()
    found = _found(agent)
    if found is None:
        raise UnknownAgent(agent, [*known(), "acp:COMMAND"])
    return found.make_translator()


def harness(agent: str) -> Harness:
    """What drives and reads this agent. CannotDo when we can only read it, UnknownAgent when nobody knows it."""
    found = _found(agent)
    if found is not None:
        return found
    if _family(agent) in TRANSLATORS:
        hint = f"These can be started: {', '.join(driven())}."
        raise CannotDo(agent, "be started from here: only its signals are read", hint)
    raise UnknownAgent(agent, driven())


def driven() -> list[str]:
    """The names of those that can be started, ours first."""
    any_acp = ["acp:COMMAND"] if "acp" in HARNESSES else []
    return [*HARNESSES, *any_acp, *sorted(one.name for one in _entry_points())]


def known() -> list[str]:
    """The names of all agents, ours first."""
    return [*TRANSLATORS, *HARNESSES.keys() - TRANSLATORS.keys(), *sorted(one.name for one in _entry_points())]


def _family(agent: str) -> str:
    """`acp:COMMAND` is one of the family `acp`."""
    return "acp" if agent.startswith("acp:") else agent


@cache
def _loaded(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)


def _entry_points() -> list[EntryPoint]:
    """Finding them opens a file of every installed package, so they are kept as long as no package comes or goes: that
    changes a folder of the path. One that changed just now may be in the middle of an installation."""
    global _kept
    stamps = {folder: _changed_at(folder) for folder in sys.path}
    if _kept is None or _kept[0] != stamps:
        found = _found_entry_points()
        is_quiet = max(stamps.values(), default=0) < time.time_ns() - _QUIET_NS
        _kept = (stamps, found) if is_quiet else None
        return found
    return _kept[1]


def _changed_at(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _found_entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # it brings the email package along: not for the quick commands

    return [one for one in entry_points(group=GROUP) if one.name not in TRANSLATORS and one.name not in HARNESSES]


def _found(agent: str) -> Harness | None:
    """Ours, or somebody else's; None when there is none."""
    if target := HARNESSES.get(_family(agent)):
        return _loaded(target)(agent)
    if _family(agent) in TRANSLATORS:
        return None  # and nobody looks for packages, which takes its time
    return next((_checked(agent, one) for one in _entry_points() if one.name == agent), None)


def _checked(agent: str, entry: EntryPoint) -> Harness:
    """Code that is not ours runs here, and whatever is wrong with it must not become our own failure."""
    try:
        found = entry.load()(agent)
    except Exception as error:
        raise BrokenHarness(agent, entry.value, f"{type(error).__name__}: {error}") from error
    if not isinstance(found, Harness):
        raise BrokenHarness(agent, entry.value, f"it gives a {type(found).__name__} and not a Harness")
    return found
