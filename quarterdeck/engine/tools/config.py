"""What config.toml says of the tools of the deck's built-in agent.

    [tools]
    sandbox = "bwrap"
    allowed_paths = ["~/notes", "/srv/shared"]
    installed = ["weather"]    # of other packages, by their entry points

    [mcp.files]
    command = "npx"

`[mcp.NAME]` is in `mcp/settings.py`. Who makes agents in a program of their own gives the same to `create_agent`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from quarterdeck.engine.tools.mcp.settings import McpServer, servers_from
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import home


class InvalidToolSettings(QuarterdeckError):
    """config.toml says something of the tools that cannot be used. Nothing is started: it may have been a limit."""

    code = "invalid_tool_settings"


class _Tools(Struct, frozen=True, forbid_unknown_fields=True):
    sandbox: Literal["", "bwrap"] = ""
    allowed_paths: tuple[Annotated[str, Meta(pattern="^[~/]")], ...] = ()
    installed: tuple[str, ...] = ()


class _File(Struct, frozen=True):
    tools: _Tools = _Tools()
    mcp: dict[str, dict[str, Any]] = {}


class ToolSettings(Struct, frozen=True):
    """The same, ready for use."""

    sandbox: str
    allowed_paths: tuple[Path, ...]
    servers: dict[str, McpServer]
    #: Names of entry points (plugins/installed.py).
    installed: tuple[str, ...] = ()


def tool_settings(environment: Mapping[str, str]) -> ToolSettings:
    """Of the home that this environment names. InvalidToolSettings, InvalidMcpServer."""
    path = home(environment).config
    try:
        told = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except (FileNotFoundError, NotADirectoryError):
        told = _File()
    except OSError as error:
        raise InvalidToolSettings(f"{path} cannot be read: {error.strerror}", "Mend its permissions.") from None
    except ValueError as error:
        raise InvalidToolSettings(f"{path}: {error}", "Mend the file; docs/tools.md says what it takes.") from None
    folders = tuple(Path(one).expanduser() for one in told.tools.allowed_paths)
    return ToolSettings(told.tools.sandbox, folders, servers_from(told.mcp), told.tools.installed)
