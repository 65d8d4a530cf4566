"""What comes in from outside is checked here once, before anything is asked of a session."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from quarterdeck.config import Settings
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Image, Json
from quarterdeck.log.base import START

#: How long the caller's own key of a command may be.
KEY_LIMIT = 200
#: How long the place in a list can be at which its next page begins.
CURSOR_LIMIT = 1000


class InvalidInput(QuarterdeckError):
    """Something that cannot be used whatever the state is. `field` names it."""

    code = "invalid_input"

    def __init__(self, field: str, what: str, hint: str) -> None:
        super().__init__(f"{field}: {what}", hint)
        self.field = field


class TooLarge(InvalidInput):
    """More than is taken."""

    code = "too_large"


class NoSuchFolder(QuarterdeckError):
    """The folder in which the agent should work is not there."""

    code = "no_such_folder"

    def __init__(self, folder: str) -> None:
        super().__init__(f"no folder {folder}", "Create it, or name another one.")


class OutsideWorkspace(QuarterdeckError):
    """A folder in which this deck lets nobody work."""

    code = "outside_workspace"

    def __init__(self, folder: str, workspace: Sequence[str]) -> None:
        super().__init__(
            f"{folder} is outside of {' and '.join(workspace)}", "Name a folder in there, or add to `workspace`."
        )


def text(field: str, value: object, limit: int) -> str:
    """A text that can be stored and sent: no NUL, no half characters, not endless."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"it is a {type(value).__name__}", "Send a text.")
    if "\0" in value:
        raise InvalidInput(field, f"it has a NUL character at {value.index(chr(0))}", "Remove the NUL character.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(field, f"it has half a character at {error.start}", "Send valid Unicode.") from None
    if size > limit:
        raise TooLarge(field, f"it has {size} bytes, at most {limit} are taken", "Put it into a file and name that.")
    return value


def images(found: Sequence[Image], settings: Settings) -> tuple[Image, ...]:
    """Images that are small enough together."""
    if not _are_images(found):
        raise InvalidInput("images", "it is no list of images", "Send `Image(media_type, data)`, data in base64.")
    size = sum(len(image.data) * 3 // 4 for image in found)
    if size > settings.images_limit:
        raise TooLarge("images", f"{size} bytes, at most {settings.images_limit} are taken", "Send smaller images.")
    for image in found:
        text("images.media_type", image.media_type, 200)
        text("images.data", image.data, 2 * settings.images_limit)
    return tuple(found)


def _are_images(found: object) -> bool:
    if not isinstance(found, Sequence):
        return False
    return all(isinstance(one, Image) and type(one.data) is str for one in cast(Sequence[object], found))


def folder(value: str, workspace: Sequence[str] = ()) -> str:
    """An existing folder, as an absolute path. Where a workspace is set, what is outside of it is not even looked for."""
    if not text("cwd", value, 8192):
        raise InvalidInput("cwd", "it is empty", "Name the folder that the agent is to work in.")
    path = os.path.abspath(os.path.expanduser(value))
    if not is_inside(path, workspace):
        raise OutsideWorkspace(path, workspace)
    if not os.path.exists(path):
        raise NoSuchFolder(path)
    if not os.path.isdir(path):
        raise InvalidInput("cwd", f"{path} is not a folder", "Name the folder that the agent is to work in.")
    return path


def is_inside(path: str, workspace: Sequence[str]) -> bool:
    """Whether a path really is in one of these folders, whatever links lead there; without any, everything is."""
    if not workspace:
        return True
    real = os.path.realpath(path)
    roots = [os.path.realpath(os.path.expanduser(root)) for root in workspace]
    return any(os.path.commonpath((real, root)) == root for root in roots)


def arguments(found: Sequence[str]) -> tuple[str, ...]:
    """Flags of an agent. A text is a sequence of its letters, which nobody means."""
    if isinstance(found, str) or not _is(Sequence, found):
        raise InvalidInput("arguments", f"it is a {type(found).__name__}", "Send a list of texts.")
    return tuple(found)


def _is(kind: type, found: object) -> bool:
    """Whatever the caller promised."""
    return isinstance(found, kind)


def client_id(value: object) -> str:
    """The caller's own key of a command."""
    if isinstance(value, str) and len(value) > KEY_LIMIT:
        raise InvalidInput("client_id", f"longer than {KEY_LIMIT} characters", "Use a UUID.")
    return text("client_id", value, 4 * KEY_LIMIT)


def environment(found: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Variables that a process can be given. Their values are never told, not even in an error."""
    if found is not None and not _is(Mapping, found):
        raise InvalidInput("env", f"it is a {type(found).__name__}", "Send names with their values.")
    for name, value in (found or {}).items():
        if not _is_variable(name, value):
            raise InvalidInput("env", f"{name!r} cannot be a variable", "Use NAME=value without NUL characters.")
    return found


def _is_variable(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
        return False
    try:
        return b"\0" not in os.fsencode(name) + os.fsencode(value)
    except UnicodeEncodeError:
        return False


def fits(found: Struct) -> None:
    """Every field is of its type: a program that calls us may have passed anything."""
    if not _is(Struct, found):
        raise InvalidInput("command", f"it is a {type(found).__name__}", "docs/library.md lists what is taken.")
    try:
        msgspec.convert(msgspec.to_builtins(found, str_keys=True), type(found))
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise InvalidInput(where.rstrip("`") or "command", what, "docs/library.md lists what is taken.") from None
    except TypeError as error:
        raise InvalidInput("command", str(error), "Send what JSON can say.") from None


def json_texts(field: str, value: Json, limit: int) -> None:
    """Every text in a value can be stored and sent."""
    if isinstance(value, str):
        text(field, value, limit)
    elif isinstance(value, Mapping):
        for name, one in cast(Mapping[str, Json], value).items():
            json_texts(field, name, limit)
            json_texts(field, one, limit)
    elif isinstance(value, Sequence):
        for one in cast(Sequence[Json], value):
            json_texts(field, one, limit)
    elif not isinstance(value, int | float | None):
        raise InvalidInput(field, f"it is a {type(value).__name__}", "Send what JSON can say.")


def limit(value: object) -> None:
    """How many of something are wanted."""
    if not isinstance(value, int) or not 0 < value < 1 << 63:
        raise InvalidInput("limit", f"{value!r} is not a number above 0", "Ask for at least one.")


def index(field: str, value: object) -> None:
    """A place among the events or entries of a session. One before the first is the beginning: whoever wants the last
    fifty need not know how many there are."""
    if not isinstance(value, int) or not abs(value) < 1 << 63:
        raise InvalidInput(field, f"{value!r} is no index", "Send the index of an event, or 0 for the beginning.")


def types(found: object) -> None:
    """Nothing, or names of events. One name alone would be looked up letter by letter."""
    if found is not None and (isinstance(found, str) or not _are_texts(found)):
        raise InvalidInput("types", "it is no list of names", "Send the names of events, as docs/events.md lists them.")


def _are_texts(found: object) -> bool:
    return isinstance(found, Collection) and all(isinstance(one, str) for one in cast(Collection[object], found))


def cursor(value: object) -> None:
    """Where a reader of all sessions stands. Whoever begins at what is none would wait for ever."""
    if not isinstance(value, str) or not (value == START or (value.isascii() and value.isdecimal())):
        raise InvalidInput("since", f"{value!r} is no cursor", "Send the cursor of the last event that you have.")


def whole_number(field: str, value: object) -> None:
    """Nothing, or a number that fits a JSON number."""
    if value is not None and (not isinstance(value, int) or not 0 <= value < 1 << 53):
        raise InvalidInput(field, f"{value!r} is out of range", "Send a whole number, 0 or more.")
