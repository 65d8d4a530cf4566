"""What is asked, as rules see it: a tool, with a command line or paths.

Agents name their tools and arguments as they like. A shell is known by the kind of the question or by its usual names, a
path by the name of its argument (`file_path`, `path`, `files`, `move_path` …) and by the lines of a patch. An argument
that cannot be read makes a request that no narrow rule allows, and a person is asked.
"""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

from msgspec import Struct

from quarterdeck.events import Json
from quarterdeck.kernel.gate import ASKS, Gate
from quarterdeck.policy import shell
from quarterdeck.policy.paths import Place, is_inside

_SHELLS = frozenset(
    ("bash", "shell", "powershell", "exec_command", "run_shell_command", "execute_command", "local_shell", "terminal")
)
_COMMANDS = ("command", "cmd", "script")
_WORKDIRS = ("cwd", "workdir", "working_directory", "directory", "dir_path")
_PATH_NAME = re.compile(
    r"(?:path|file|filename|dir|directory|folder|uri|root|destination|dest|dst|src|target|cwd)s?|filechanges"
)
_SEARCHES = ("pattern", "glob", "include")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+?)\s*$", re.MULTILINE)
_DEEPEST = 8
#: A path that no file has: no rule allows it.
UNREADABLE = "\0"
#: Codex asks with a command's own words whether it may reach a host: that is not the command.
_OTHER_QUESTION = "Network access to "


class Request(Struct, frozen=True, gc=False):
    """One question. `command` is None for what is not a shell; `is_known` is false for what no rule may allow."""

    tool: str
    place: Place
    command: shell.Command | None = None
    paths: tuple[str, ...] = ()
    workdir: str = "."
    is_known: bool = True

    @property
    def is_inside(self) -> bool:
        """Whether the command runs in the session's folder."""
        return is_inside(self.place, self.workdir)


def request_of(gate: Gate, place: Place) -> Request:
    """What this gate asks."""
    payload = _object(gate.payload)
    tool, args = _text(payload.get("tool")), payload.get("args")
    is_known = gate.kind == "approval" and bool(tool) and not gate.title.startswith(_OTHER_QUESTION)
    return _request(tool, args, place, is_known, gate.kind == "approval" and gate.ask == ASKS["command"])


def request_for_call(tool: str, args: Json, place: Place) -> Request:
    """What a tool call would do, before anybody is asked."""
    return _request(tool, args, place, bool(tool), is_command=False)


def _request(tool: str, args: Json, place: Place, is_known: bool, is_command: bool) -> Request:
    if is_command or tool.lower() in _SHELLS:
        return _shell_request(tool, place, _object(args), is_known)
    found: list[str] = []
    _find_paths(args, 0, found)
    paths = dict.fromkeys(map(_plain_path, found))
    return Request(tool, place, None, tuple([path for path in paths if "://" not in path]), is_known=is_known)


def _shell_request(tool: str, place: Place, args: dict[str, Any], is_known: bool) -> Request:
    given = [args[name] for name in _COMMANDS if args.get(name)]
    text = _command_text(given[0]) if len(given) == 1 else ""
    command = shell.read(text)
    if tool.lower() == "powershell":  # another language: only whole lines can be compared
        command = shell.Command(text, (), command.loose)
    if len(given) > 1:
        everything = shell.read("\n".join(map(_command_text, given)))
        command = shell.Command("", (), everything.loose)
    workdir = next((_text(args[name]) for name in _WORKDIRS if args.get(name)), ".")
    return Request(tool, place, command, (), workdir, is_known)


def _command_text(given: Any) -> str:
    if isinstance(given, list):
        return shlex.join(str(word) for word in cast(list[Any], given))
    return _text(given).strip()


def _find_paths(value: Json, depth: int, found: list[str]) -> None:
    if depth > _DEEPEST:
        found.append(UNREADABLE)
    elif isinstance(value, dict):
        for name, one in cast(dict[str, Any], value).items():
            _find_paths_of(name, one, depth, found)
    elif isinstance(value, list):
        for one in cast(list[Any], value):
            _find_paths(one, depth + 1, found)
    elif isinstance(value, str) and depth == 0:
        found += _PATCHED.findall(value)


def _find_paths_of(name: str, value: Json, depth: int, found: list[str]) -> None:
    if _names_paths(name):
        found += _strings(value)
    elif isinstance(value, str):
        if name in _SEARCHES and (value.startswith(("/", "~")) or ".." in value):
            found.append(value)
        else:
            found += _PATCHED.findall(value)
    _find_paths(value, depth + 1, found)


@lru_cache(256)
def _names_paths(name: str) -> bool:
    """Whether an argument of this name is a path, or several. Agents use the same few names all the time."""
    last = re.split(r"_|(?<=[a-z])(?=[A-Z])", name)[-1].lower()
    return _PATH_NAME.fullmatch(last) is not None or _PATH_NAME.fullmatch(name.lower()) is not None


def _strings(value: Json) -> list[str]:
    """A path, several, or a table that has them as keys."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [one for one in cast(list[Any], value) if isinstance(one, str)]
    table = _object(value)
    return list(table) if all(isinstance(one, dict) for one in table.values()) else []


def _plain_path(path: str) -> str:
    return unquote(path.removeprefix("file://")) if path.startswith("file://") else path


def _object(value: Json) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
