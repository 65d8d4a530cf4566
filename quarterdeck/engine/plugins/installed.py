"""Load plugins and tools of other packages by their entry points.

A package declares them in its metadata:

    [project.entry-points."quarterdeck.plugins"]
    redact = "acme_redact:Redact"
    [project.entry-points."quarterdeck.tools"]
    weather = "acme_weather:tools"

A plugin entry is a class, or a callable that takes the options and returns a Plugin. A tools entry is a Tool, several tools,
or a callable without arguments that returns them. A package is imported only when one of its entries is requested by name.
Whatever goes wrong then is raised as one error that names the package.
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
    """No installed package provides a plugin or tools of this name."""

    code = "no_such_extension"

    def __init__(self, group: str, name: str, installed: Sequence[str]) -> None:
        hint = f"Installed: {', '.join(installed) or 'none'}."
        super().__init__(f"no installed package provides {name!r} in {group}", hint)
        self.group = group
        self.name = name


class BrokenExtension(QuarterdeckError):
    """The plugin or the tools of a package can't be used. `package` is the package's name and version."""

    code = "broken_extension"

    def __init__(self, extension: Extension, problem: str) -> None:
        hint = f"Fix or remove the package {extension.package!r}, or don't request {extension.name!r}."
        message = f"{extension.name!r} of the package {extension.package!r} ({extension.target}) {problem}"
        super().__init__(message, hint)
        self.package = extension.package
        self.name = extension.name


class Extension(Struct, frozen=True):
    """An entry point of an installed package. Its code hasn't been imported."""

    group: str
    name: str
    package: str
    target: str


def extensions(group: str) -> list[Extension]:
    """Return the extensions of all installed packages, sorted by name."""
    return sorted({_describe(point) for point in entry_points(group=group)}, key=lambda ext: (ext.name, ext.package))


def _describe(point: EntryPoint) -> Extension:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"
    return Extension(point.group, point.name, package, point.value)


def installed_plugin(name: str, options: Mapping[str, Json]) -> Plugin:
    """Create a plugin of another package.

    Raises:
        NoSuchExtension: no package provides it.
        BrokenExtension: it can't be imported or created, or it isn't a plugin.
    """
    extension, factory = _load(PLUGINS, name)
    plugin = _call(extension, factory, options)
    if not isinstance(plugin, Plugin):
        raise BrokenExtension(extension, f"returns an object of type {type(plugin).__name__}, not a quarterdeck Plugin")
    if not plugin.name:
        plugin.name = name
    return plugin


def installed_tools(name: str) -> tuple[Tool, ...]:
    """Return the tools that another package provides under this name.

    Raises:
        NoSuchExtension: no package provides them.
        BrokenExtension: they can't be imported or created, or they aren't tools.
    """
    extension, target = _load(TOOLS, name)
    value = _call(extension, target, {}) if callable(target) and not isinstance(target, Tool) else target
    tools = (value,) if isinstance(value, Tool) else value
    if not isinstance(tools, Iterable):
        raise BrokenExtension(extension, f"returns an object of type {type(tools).__name__}, not a quarterdeck Tool")
    listed = tuple(cast("Iterable[Any]", tools))
    if not listed:
        raise BrokenExtension(extension, "returns no tools")
    invalid = next((item for item in listed if not isinstance(item, Tool)), None)
    if invalid is not None:
        raise BrokenExtension(extension, f"returns an object of type {type(invalid).__name__} among its tools")
    return listed


def all_installed_tools(names: Iterable[str]) -> tuple[list[Tool], list[QuarterdeckError]]:
    """Return the tools of all these names, and the errors of those that can't be loaded."""
    tools: list[Tool] = []
    errors: list[QuarterdeckError] = []
    for name in names:
        try:
            tools += installed_tools(name)
        except QuarterdeckError as error:
            errors.append(error)
    return tools, errors


def _load(group: str, name: str) -> tuple[Extension, Any]:
    """Import the object of an entry point."""
    points = {_describe(point): point for point in entry_points(group=group) if point.name == name}
    if not points:
        raise NoSuchExtension(group, name, [extension.name for extension in extensions(group)])
    extension, point = next(iter(points.items()))
    if len(points) > 1:
        packages = ", ".join(sorted(candidate.package for candidate in points))
        raise BrokenExtension(extension, f"is provided by more than one package: {packages}")
    try:
        return extension, point.load()
    except (Exception, SystemExit) as error:
        # A package may call sys.exit when it is imported. That must not end the server.
        raise BrokenExtension(extension, f"can't be imported: {_describe_error(error)}") from error


def _call(extension: Extension, target: Any, options: Mapping[str, Json]) -> Any:
    try:
        return target(**options)
    except QuarterdeckError:
        raise
    except (Exception, SystemExit) as error:
        raise BrokenExtension(extension, f"can't be created: {_describe_error(error)}") from error


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
