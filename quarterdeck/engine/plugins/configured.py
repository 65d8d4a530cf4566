"""What a person wants of plugins, in config.toml:

    [plugin]
    loop_detection = false
    memory_flush = true

    [plugin.human_approval]
    safe_commands = ["make test"]

The names are those of shipped plugins, or of entry points (installed.py). A plugin that is wanted and cannot be had keeps
the agent from starting; a tool of another package that cannot be had is told as a notice.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from quarterdeck.engine.plugins.base import Context, Emit, Plugin
from quarterdeck.engine.plugins.installed import all_installed_tools
from quarterdeck.engine.plugins.shipped import default_plugins
from quarterdeck.engine.tools.base import Tool
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json, Notice
from quarterdeck.home import home


class PluginsUnreadable(QuarterdeckError):
    """The table of the plugins cannot be understood."""

    code = "plugins_unreadable"


class _Wanted(Struct, frozen=True):
    plugin: dict[str, bool | dict[str, Any]] = {}


class _Missing(Plugin):
    """Says at the beginning of a session what it has to do without."""

    name = "installed"

    def __init__(self, faults: Sequence[QuarterdeckError]) -> None:
        self.faults = faults

    def session_start(self, context: Context) -> list[Emit]:
        told = (f"{fault.message}. {fault.hint}" for fault in self.faults)
        return [Emit(Notice(text=text, level="warning", source=self.name)) for text in told]


def mounted(
    mode: str,
    own: Mapping[str, dict[str, Json]],
    tools: Sequence[Tool],
    installed: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> tuple[list[Plugin], list[Tool]]:
    """The plugins and tools of an agent in this mode: `own` wants, changed by the file; tools, and the installed ones."""
    wanted = _read(environment).plugin
    plugins = default_plugins(mode, {**own, **{name: _over(own, name, given) for name, given in wanted.items()}})
    added, faults = all_installed_tools(installed)
    by_name = {tool.name: tool for tool in tools}
    for tool in added:
        if tool.name in by_name:
            faults.append(
                PluginsUnreadable(f"there are two tools {tool.name!r}", "The one of the package is left out.")
            )
        by_name.setdefault(tool.name, tool)
    return [*plugins, *([_Missing(faults)] if faults else [])], list(by_name.values())


def _over(own: Mapping[str, dict[str, Json]], name: str, given: bool | dict[str, Any]) -> bool | dict[str, Json]:
    if given is False or name not in own:
        return given
    return {**own[name], **(given if isinstance(given, dict) else {})}


def _read(environment: Mapping[str, str]) -> _Wanted:
    path = home(environment).config
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
        return msgspec.convert({"plugin": tables.get("plugin", {})}, _Wanted)
    except FileNotFoundError:
        return _Wanted()
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as fault:
        hint = "Under [plugin] stands NAME = true or false, under [plugin.NAME] its options."
        raise PluginsUnreadable(f"{path}: {fault}", hint) from None
