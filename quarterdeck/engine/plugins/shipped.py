"""The plugins that come with Quarterdeck, by name, and the set that the built-in agent mounts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast, get_type_hints

import msgspec

from quarterdeck.engine.plugins.approval import READ_ONLY_COMMANDS
from quarterdeck.engine.plugins.base import InvalidPluginOption, Plugin
from quarterdeck.events import Json
from quarterdeck.kernel.commands import MODES

#: name → module and class.
SHIPPED: dict[str, tuple[str, str]] = {
    "security_guard": ("guard", "SecurityGuard"),
    "human_approval": ("approval", "HumanApproval"),
    "loop_detection": ("loops", "LoopDetection"),
    "large_result_offload": ("offload", "LargeResultOffload"),
    "planning": ("planning", "Planning"),
    "memory_flush": ("memory", "MemoryFlush"),
    "content_policy": ("content", "ContentPolicy"),
    "auto_checkpoint": ("checkpoints", "AutoCheckpoint"),
}
#: Those that are mounted unless somebody says no, with their options.
DEFAULTS: dict[str, Mapping[str, Json]] = {
    "security_guard": {},
    "human_approval": {"safe_commands": READ_ONLY_COMMANDS},
    "loop_detection": {},
    "large_result_offload": {},
}


def shipped(name: str) -> type[Plugin]:
    """The class of a plugin of ours."""
    module, kind = SHIPPED[name]
    return getattr(import_module(f"quarterdeck.engine.plugins.{module}"), kind)


def default_plugins(mode: str = "", wanted: Mapping[str, Json] | None = None) -> list[Plugin]:
    """What the built-in agent mounts in this mode, changed by what is wanted.

    `wanted` is name → options, True (with its own), or False (left out); a name that is not ours is a plugin of somebody
    else's, found by its entry point. In plan mode the plan is the result, so Planning is mounted too. QuarterdeckError
    for what cannot be mounted: an agent that runs without a guard that somebody asked for would be worse.
    """
    if mode and mode not in MODES:
        raise InvalidPluginOption("", "mode", f"there is no mode {mode!r}", f"Modes: {', '.join(MODES)}.")
    chosen: dict[str, Json] = {**DEFAULTS, **({"planning": {}} if mode == "plan" else {}), **(wanted or {})}
    return [plugin_of(name, _options(name, given)) for name, given in chosen.items() if given is not False]


def _options(name: str, given: Json) -> dict[str, Json]:
    own = DEFAULTS.get(name, {})
    if given is True:
        return dict(own)
    if not isinstance(given, Mapping):
        raise InvalidPluginOption(name, "", "options are an object, true or false")
    return {**own, **cast("Mapping[str, Json]", given)}


def plugin_of(name: str, options: Mapping[str, Json]) -> Plugin:
    """A plugin by its name, ours or an installed one. Ours cannot be replaced by a package that takes its name."""
    if name not in SHIPPED:
        from quarterdeck.engine.plugins.installed import installed_plugin

        return installed_plugin(name, options)
    kind: Any = shipped(name)
    hints = get_type_hints(kind.__init__)
    given = {option: _typed(name, option, value, hints) for option, value in options.items()}
    try:
        return kind(**given)
    except TypeError as fault:  # one that must be given is not
        raise InvalidPluginOption(name, ", ".join(options), str(fault)) from None


def _typed(name: str, option: str, value: Json, hints: Mapping[str, Any]) -> Any:
    """An option as its type says; settings come from files and requests, where anything can stand."""
    if option not in hints or option == "return":
        known = ", ".join(one for one in hints if one != "return")
        raise InvalidPluginOption(name, option, "there is no such option", f"There are: {known or 'none'}.")
    try:
        return msgspec.convert(value, hints[option])
    except msgspec.ValidationError as fault:
        raise InvalidPluginOption(name, option, str(fault)) from None
