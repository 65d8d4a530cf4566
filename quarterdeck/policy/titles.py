"""Write the title of an approval: the command, path or address that a person is asked about.

Titles are for people only. No decision may depend on one: rules read the tool, the arguments and the purpose of a gate
(`request.py`).
"""

from __future__ import annotations

from typing import Any, cast

from quarterdeck.events import Json
from quarterdeck.policy.request import COMMAND_ARGUMENTS, SHELL_TOOLS, UNREADABLE, command_text, paths_in

TITLE_LIMIT = 200
_ADDRESS_ARGUMENTS = ("url", "uri", "address", "href")
_OTHER_ARGUMENTS = ("query", "pattern", "skill", "question", "prompt")
#: How many paths a title lists.
_PATHS_LIMIT = 3


def approval_title(tool: str, args: Json, fallback: str = "") -> str:
    """Describe in one line what a call of a tool would do.

    A shell command is shown as it is (`rm -rf build`); any other call by its tool and what it works on (`Edit src/app.py`,
    `WebFetch https://example.org`). If the arguments say nothing, the fallback is used, else the name of the tool.
    """
    arguments = cast("dict[str, Any]", args) if isinstance(args, dict) else {}
    command = next((text for name in COMMAND_ARGUMENTS if (text := command_text(arguments.get(name)))), "")
    paths = paths_in(args)
    # A patch may be passed as a command too, and then the files that it changes say more.
    if command and (tool.lower() in SHELL_TOOLS or not paths):
        return one_line(command)
    address = next((value for name in _ADDRESS_ARGUMENTS if _is_address(value := arguments.get(name))), "")
    subject = address or _listed(paths) or _other(arguments)
    if subject:
        return one_line(f"{tool} {subject}")
    return one_line(fallback or tool)


def network_title(host: str) -> str:
    """Describe an approval to let a running call access a host."""
    return f"Network access to {host}"


def one_line(text: str) -> str:
    """Return a text without line breaks, cut off after `TITLE_LIMIT` characters."""
    line = " ".join(text.split())
    return line if len(line) <= TITLE_LIMIT else line[: TITLE_LIMIT - 1] + "…"


def _is_address(value: object) -> bool:
    return isinstance(value, str) and "://" in value and not value.startswith("file://")


def _listed(paths: tuple[str, ...]) -> str:
    readable = [path for path in paths if path and path != UNREADABLE]
    more = len(readable) - _PATHS_LIMIT
    return ", ".join(readable[:_PATHS_LIMIT]) + (f" and {more} more" if more > 0 else "")


def _other(arguments: dict[str, Any]) -> str:
    return next((value for name in _OTHER_ARGUMENTS if isinstance(value := arguments.get(name), str) and value), "")
