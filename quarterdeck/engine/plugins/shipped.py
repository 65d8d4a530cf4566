"""List the plugins that come with Quarterdeck and choose the set that the built-in agent mounts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast, get_type_hints

import msgspec

from quarterdeck.engine.plugins.approval import READ_ONLY_COMMANDS
from quarterdeck.engine.plugins.base import InvalidPluginOption, Plugin
from quarterdeck.events import Json
from quarterdeck.kernel.commands import MODES

#: Module and class of each shipped plugin.
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
#: Plugins that are mounted by default, with their options.
DEFAULTS: dict[str, Mapping[str, Json]] = {
    "security_guard": {},
    "human_approval": {"safe_commands": READ_ONLY_COMMANDS},
    "loop_detection": {},
    "large_result_offload": {},
}


def shipped(name: str) -> type[Plugin]:
    """Return the class of a shipped plugin."""
    module, kind = SHIPPED[name]
    return getattr(import_module(f"quarterdeck.engine.plugins.{module}"), kind)


def default_plugins(mode: str = "", overrides: Mapping[str, Json] | None = None) -> list[Plugin]:
    """Create the plugins that the built-in agent mounts in a mode.

    Planning is added in plan mode, where the plan is the result.

    Args:
        mode: the session's mode.
        overrides: changes to the default set. Each name maps to the plugin's options, to True (default options) or to False
            (not mounted). A name that isn't a shipped plugin is looked up among the installed packages.

    Raises:
        QuarterdeckError: a plugin can't be mounted. An agent must not run without a guard that its user configured.
    """
    if mode and mode not in MODES:
        raise InvalidPluginOption("", "mode", f"unknown mode {mode!r}", f"Modes: {', '.join(MODES)}.")
    planning: dict[str, Json] = {"planning": {}} if mode == "plan" else {}
    selected: dict[str, Json] = {**DEFAULTS, **planning, **(overrides or {})}
    return [create_plugin(name, _merge_options(name, value)) for name, value in selected.items() if value is not False]


def _merge_options(name: str, value: Json) -> dict[str, Json]:
    defaults = DEFAULTS.get(name, {})
    if value is True:
        return dict(defaults)
    if not isinstance(value, Mapping):
        raise InvalidPluginOption(name, "", "options must be a table, true or false")
    return {**defaults, **cast("Mapping[str, Json]", value)}


def create_plugin(name: str, options: Mapping[str, Json]) -> Plugin:
    """Create a plugin by name: a shipped one, or one of an installed package. A package can't replace a shipped plugin.

    Raises:
        InvalidPluginOption: an option is unknown or invalid.
        NoSuchExtension: there is no such plugin.
        BrokenExtension: the package's plugin can't be created.
    """
    if name not in SHIPPED:
        from quarterdeck.engine.plugins.installed import installed_plugin

        return installed_plugin(name, options)
    kind: Any = shipped(name)
    hints = get_type_hints(kind.__init__)
    converted = {option: _convert_option(name, option, value, hints) for option, value in options.items()}
    try:
        return kind(**converted)
    except TypeError as error:
        # A required option is missing.
        raise InvalidPluginOption(name, ", ".join(options), str(error)) from None


def _convert_option(name: str, option: str, value: Json, hints: Mapping[str, Any]) -> Any:
    """Convert an option to its declared type. Options come from files and requests, so they may be anything."""
    if option not in hints or option == "return":
        names = ", ".join(hint for hint in hints if hint != "return")
        raise InvalidPluginOption(name, option, "no such option", f"Options: {names or 'none'}.")
    try:
        return msgspec.convert(value, hints[option])
    except msgspec.ValidationError as error:
        raise InvalidPluginOption(name, option, str(error)) from None
