"""Describe a request as rules see it: a tool, with a command line or with paths.

Each agent names its tools and arguments differently. A shell is recognized by the kind of the gate or by the usual tool
names; a path by the name of its argument (`file_path`, `path`, `files`, `move_path` …) and by the headers in a patch. If
an argument can't be read, no narrow rule allows the request and the user is asked.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, cast
from urllib.parse import unquote

from msgspec import Struct

from quarterdeck.events import Json
from quarterdeck.kernel.gate import ASKS, Gate
from quarterdeck.policy import shell
from quarterdeck.policy.paths import Workspace, is_inside

SHELL_TOOLS = frozenset(
    ("bash", "shell", "powershell", "exec_command", "run_shell_command", "execute_command", "local_shell", "terminal")
)
COMMAND_ARGUMENTS = ("command", "cmd", "script")
_WORKDIRS = ("cwd", "workdir", "working_directory", "directory", "dir_path")
_PATH_NAME = re.compile(
    r"(?:path|file|filename|dir|directory|folder|uri|root|destination|dest|dst|src|target|cwd)s?|filechanges"
)
_SEARCHES = ("pattern", "glob", "include")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+?)\s*$", re.MULTILINE)
_MAX_DEPTH = 8
#: Replaces arguments that are nested too deep. No file has this name, so no rule allows it.
UNREADABLE = "\0"


class Request(Struct, frozen=True, gc=False):
    """One request for approval."""

    tool: str
    workspace: Workspace
    #: None if the tool isn't a shell.
    command: shell.Command | None = None
    paths: tuple[str, ...] = ()
    workdir: str = "."
    #: False if no rule may allow the request, because we don't know what it is.
    is_known: bool = True

    @property
    def is_inside(self) -> bool:
        """Whether the command runs in the session's folder."""
        return is_inside(self.workspace, self.workdir)


def request_of(gate: Gate, workspace: Workspace) -> Request:
    """Return the request of a gate."""
    payload = _object(gate.payload)
    tool, args = _text(payload.get("tool")), payload.get("args")
    # Codex asks for network access with the arguments of the command that needs it. That isn't a request for the command.
    is_known = gate.kind == "approval" and bool(tool) and payload.get("purpose", "call") == "call"
    return _request(tool, args, workspace, is_known, gate.kind == "approval" and gate.ask == ASKS["command"])


def request_for_call(tool: str, args: Json, workspace: Workspace) -> Request:
    """Return the request of a tool call before a gate is opened for it."""
    return _request(tool, args, workspace, bool(tool), is_command=False)


def _request(tool: str, args: Json, workspace: Workspace, is_known: bool, is_command: bool) -> Request:
    if is_command or tool.lower() in SHELL_TOOLS:
        return _shell_request(tool, workspace, _object(args), is_known)
    return Request(tool, workspace, None, paths_in(args), is_known=is_known)


# -------------------------------------------------------------------------------------------- shell commands


def _shell_request(tool: str, workspace: Workspace, args: dict[str, Any], is_known: bool) -> Request:
    values = [args[name] for name in COMMAND_ARGUMENTS if args.get(name)]
    text = command_text(values[0]) if len(values) == 1 else ""
    command = shell.read(text)
    if tool.lower() == "powershell":
        # We can't parse PowerShell, so only whole lines can be compared.
        command = shell.Command(text, (), command.loose)
    if len(values) > 1:
        # We don't know which argument is executed: none may be allowed, and each may be denied.
        everything = shell.read("\n".join(map(command_text, values)))
        command = shell.Command("", (), everything.loose)
    workdir = next((_text(args[name]) for name in _WORKDIRS if args.get(name)), ".")
    return Request(tool, workspace, command, (), workdir, is_known)


def command_text(value: Any) -> str:
    """Return a command that is given as a string or as a list of words, else ""."""
    if isinstance(value, list):
        return shlex.join(str(word) for word in cast(list[Any], value))
    return _text(value).strip()


# ----------------------------------------------------------------------------------------- paths in arguments


def paths_in(args: Json) -> tuple[str, ...]:
    """Return every path in the arguments of a call, each once. Addresses aren't paths."""
    paths: list[str] = []
    _collect_paths(args, 0, paths)
    unique = dict.fromkeys(map(_without_file_scheme, paths))
    return tuple(path for path in unique if "://" not in path)


def _collect_paths(value: Json, depth: int, paths: list[str]) -> None:
    """Append every path in the arguments to `paths`."""
    if depth > _MAX_DEPTH:
        paths.append(UNREADABLE)
    elif isinstance(value, dict):
        for name, item in cast(dict[str, Any], value).items():
            _collect_paths_of(name, item, depth, paths)
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            _collect_paths(item, depth + 1, paths)
    elif isinstance(value, str) and depth == 0:
        paths += _PATCHED.findall(value)


def _collect_paths_of(name: str, value: Json, depth: int, paths: list[str]) -> None:
    if _names_paths(name):
        paths += _strings(value)
    elif isinstance(value, str):
        if name in _SEARCHES and (value.startswith(("/", "~")) or ".." in value):
            paths.append(value)
        else:
            paths += _PATCHED.findall(value)
    _collect_paths(value, depth + 1, paths)


def _names_paths(name: str) -> bool:
    """Return whether an argument of this name is a path or several."""
    last = re.split(r"_|(?<=[a-z])(?=[A-Z])", name)[-1].lower()
    return _PATH_NAME.fullmatch(last) is not None or _PATH_NAME.fullmatch(name.lower()) is not None


def _strings(value: Json) -> list[str]:
    """Return the paths in an argument: a string, a list of strings, or an object that has paths as its keys."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [item for item in cast(list[Any], value) if isinstance(item, str)]
    table = _object(value)
    return list(table) if all(isinstance(item, dict) for item in table.values()) else []


def _without_file_scheme(path: str) -> str:
    return unquote(path.removeprefix("file://")) if path.startswith("file://") else path


def _object(value: Json) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
