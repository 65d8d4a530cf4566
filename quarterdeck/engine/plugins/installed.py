"""Plugins and tools of other packages, found by their entry points.

A package names them in its own metadata:

    [project.entry-points."quarterdeck.plugins"]
    redact = "acme_redact:Redact"
    [project.entry-points."quarterdeck.tools"]
    weather = "acme_weather:tools"

A plugin is a class, or anything that can be called with the options and gives a Plugin. Tools are a Tool, several, or
anything that can be called without arguments and gives them. Nothing is imported before somebody asks for it by name, and
whatever a package does wrong then is one error that names the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from msgspec import Struct

from quarterdeck.engine.plugins.base import Plugin
from quarterdeck.engine.tools.base import Tool
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json

PLUGINS, TOOLS = "quarterdeck.plugins", "quarterdeck.tools"


class NoSuchExtension(QuarterdeckError):
    """No installed package offers a plugin, or tools, of this name."""

    code = "no_such_extension"

    def __init__(self, group: str, name: str, known: Sequence[str]) -> None:
        listed = ", ".join(known) or "none"
        super().__init__(f"no installed package offers {name!r} in {group}", f"Installed are: {listed}.")
        self.group = group
        self.name = name


class BrokenExtension(QuarterdeckError):
    """A package whose plugin, or tools, cannot be used. `package` is its name with the version."""

    code = "broken_extension"

    def __init__(self, found: Extension, what: str) -> None:
        hint = f"Repair or remove the package {found.package!r}, or do not ask for {found.name!r}."
        super().__init__(f"{found.name!r} of the package {found.package!r} ({found.target}) {what}", hint)
        self.package = found.package
        self.name = found.name


class Extension(Struct, frozen=True):
    """What a package offers: a name, whose it is, and where its code stands. Nothing of it is imported yet."""

    group: str
    name: str
    package: str
    target: str


def extensions(group: str) -> list[Extension]:
    """What is installed, by name."""
    return sorted({_extension(one) for one in entry_points(group=group)}, key=lambda one: (one.name, one.package))


def _extension(one: EntryPoint) -> Extension:
    package = f"{one.dist.name} {one.dist.version}" if one.dist is not None else "unknown"
    return Extension(one.group, one.name, package, one.value)


def installed_plugin(name: str, options: Mapping[str, Json]) -> Plugin:
    """A plugin of another package, made with these options."""
    found, made = _loaded(PLUGINS, name)
    plugin = _called(found, made, options)
    if not isinstance(plugin, Plugin):
        raise BrokenExtension(found, f"gives a {type(plugin).__name__}, not a quarterdeck Plugin")
    if not plugin.name:
        plugin.name = name
    return plugin


def installed_tools(name: str) -> tuple[Tool, ...]:
    """The tools that another package offers under this name."""
    found, made = _loaded(TOOLS, name)
    given = _called(found, made, {}) if callable(made) and not isinstance(made, Tool) else made
    tools = (given,) if isinstance(given, Tool) else given
    if not isinstance(tools, Iterable):
        raise BrokenExtension(found, f"gives a {type(tools).__name__}, not a quarterdeck Tool")
    listed = tuple(cast("Iterable[Any]", tools))
    wrong = next((one for one in listed if not isinstance(one, Tool)), None)
    if wrong is not None or not listed:
        raise BrokenExtension(found, f"gives a {type(wrong).__name__} among its tools" if listed else "gives no tools")
    return listed


def all_installed_tools(names: Iterable[str]) -> tuple[list[Tool], list[QuarterdeckError]]:
    """The tools of all these names, and what is wrong with those that cannot be had: the rest works without them."""
    tools: list[Tool] = []
    faults: list[QuarterdeckError] = []
    for name in names:
        try:
            tools += installed_tools(name)
        except QuarterdeckError as fault:
            faults.append(fault)
    return tools, faults


def _loaded(group: str, name: str) -> tuple[Extension, Any]:
    points = [one for one in entry_points(group=group) if one.name == name]
    found = {_extension(one): one for one in points}
    if not found:
        raise NoSuchExtension(group, name, [one.name for one in extensions(group)])
    extension, point = next(iter(found.items()))
    if len(found) > 1:
        others = ", ".join(sorted(one.package for one in found))
        raise BrokenExtension(extension, f"is offered by more than one package: {others}")
    try:
        return extension, point.load()
    except (Exception, SystemExit) as fault:
        raise BrokenExtension(extension, f"cannot be imported: {_words(fault)}") from fault


def _called(found: Extension, made: Any, options: Mapping[str, Json]) -> Any:
    try:
        return made(**options)
    except QuarterdeckError:
        raise
    except (Exception, SystemExit) as fault:
        raise BrokenExtension(found, f"cannot be made: {_words(fault)}") from fault


def _words(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}"
