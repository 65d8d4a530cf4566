"""Check input from callers once, before a session is asked to do anything.

The deck is a library: a caller may pass anything, whatever the type annotations promise. So types are checked here too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from quarterdeck.config import Settings
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Image, Json
from quarterdeck.kernel.commands import KEY_LIMIT
from quarterdeck.log.base import START

#: Maximum length of the cursor of a session list.
CURSOR_LIMIT = 1000
_PATH_LIMIT = 8192


class InvalidInput(QuarterdeckError):
    """A value that can't be used in any state. `field` names it."""

    code = "invalid_input"

    def __init__(self, field: str, what: str, hint: str) -> None:
        super().__init__(f"{field}: {what}", hint)
        self.field = field


class TooLarge(InvalidInput):
    """A value that exceeds a size limit."""

    code = "too_large"


class NoSuchFolder(QuarterdeckError):
    """The folder for the agent doesn't exist."""

    code = "no_such_folder"

    def __init__(self, folder: str) -> None:
        super().__init__(f"no folder {folder}", "Create the folder, or use another one.")


class OutsideWorkspace(QuarterdeckError):
    """The folder is outside the folders in which this deck may start agents."""

    code = "outside_workspace"

    def __init__(self, folder: str, workspace: Sequence[str]) -> None:
        super().__init__(
            f"{folder} is outside of {' and '.join(workspace)}",
            "Use a folder inside the workspace, or add the folder to `workspace`.",
        )


# --- texts


def check_text(field: str, value: object, limit: int) -> str:
    """Check that a value is a text that can be stored and sent.

    Raises:
        InvalidInput: it isn't a string, or contains a NUL or half a surrogate pair.
        TooLarge: it has more than `limit` bytes in UTF-8.
    """
    if not isinstance(value, str):
        raise InvalidInput(field, f"is a {type(value).__name__}", "Send a string.")
    if "\0" in value:
        raise InvalidInput(field, f"contains a NUL character at {value.index(chr(0))}", "Remove the NUL character.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(field, f"contains half a character at {error.start}", "Send valid Unicode.") from None
    if size > limit:
        raise TooLarge(field, f"has {size} bytes, the limit is {limit}", "Put the text into a file and name the file.")
    return value


def check_json_texts(field: str, value: Json, limit: int) -> None:
    """Check that a value is JSON and that every text in it can be stored and sent.

    Raises:
        InvalidInput: it isn't JSON, or contains an invalid text.
    """
    if isinstance(value, str):
        check_text(field, value, limit)
    elif isinstance(value, Mapping):
        for key, member in cast(Mapping[str, Json], value).items():
            check_json_texts(field, key, limit)
            check_json_texts(field, member, limit)
    elif isinstance(value, Sequence):
        for member in cast(Sequence[Json], value):
            check_json_texts(field, member, limit)
    elif not isinstance(value, int | float | None):
        raise InvalidInput(field, f"is a {type(value).__name__}", "Send a JSON value.")


def check_client_id(value: object) -> str:
    """Check the caller's idempotency key of a command.

    Raises:
        InvalidInput: it's too long, or not a valid text.
    """
    if isinstance(value, str) and len(value) > KEY_LIMIT:
        raise InvalidInput("client_id", f"is longer than {KEY_LIMIT} characters", "Use a UUID.")
    return check_text("client_id", value, 4 * KEY_LIMIT)


def check_images(images: Sequence[Image], settings: Settings) -> tuple[Image, ...]:
    """Check that these are images and that together they aren't too large.

    Raises:
        InvalidInput: these aren't images.
        TooLarge: they exceed `images_limit`.
    """
    if not _are_images(images):
        raise InvalidInput("images", "isn't a list of images", "Send `Image(media_type, data)` with data in base64.")
    size = sum(len(image.data) * 3 // 4 for image in images)
    if size > settings.images_limit:
        raise TooLarge("images", f"{size} bytes, the limit is {settings.images_limit}", "Send smaller images.")
    for image in images:
        check_text("images.media_type", image.media_type, 200)
        check_text("images.data", image.data, 2 * settings.images_limit)
    return tuple(images)


def _are_images(value: object) -> bool:
    if not isinstance(value, Sequence):
        return False
    return all(isinstance(item, Image) and type(item.data) is str for item in cast(Sequence[object], value))


# --- folders


def resolve_folder(value: str, workspace: Sequence[str] = ()) -> str:
    """Return the absolute path of an existing folder.

    Raises:
        InvalidInput: it's empty, or not a folder.
        OutsideWorkspace: it's outside of the workspace. Whether it exists is not revealed then.
        NoSuchFolder: it doesn't exist.
    """
    if not check_text("cwd", value, _PATH_LIMIT):
        raise InvalidInput("cwd", "is empty", "Name the folder for the agent to work in.")
    path = os.path.abspath(os.path.expanduser(value))
    if not is_inside(path, workspace):
        raise OutsideWorkspace(path, workspace)
    if not os.path.exists(path):
        raise NoSuchFolder(path)
    if not os.path.isdir(path):
        raise InvalidInput("cwd", f"{path} isn't a folder", "Name the folder for the agent to work in.")
    return path


def is_inside(path: str, workspace: Sequence[str]) -> bool:
    """Return whether a path is in one of these folders after resolving all links. Without folders, every path is."""
    if not workspace:
        return True
    real = os.path.realpath(path)
    roots = [os.path.realpath(os.path.expanduser(root)) for root in workspace]
    return any(os.path.commonpath((real, root)) == root for root in roots)


# --- what an agent is started with


def check_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Check an agent's command line arguments.

    Raises:
        InvalidInput: it's not a sequence of strings. A single string is refused: it would be split into its letters.
    """
    if isinstance(arguments, str) or not _is_instance(arguments, Sequence):
        raise InvalidInput("arguments", f"is a {type(arguments).__name__}", "Send a list of strings.")
    return tuple(arguments)


def check_environment(environment: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Check environment variables. Errors never show their values, which may be secrets.

    Raises:
        InvalidInput: a process can't be started with these.
    """
    if environment is not None and not _is_instance(environment, Mapping):
        raise InvalidInput("env", f"is a {type(environment).__name__}", "Send an object of names and values.")
    for name, value in (environment or {}).items():
        if not _is_variable(name, value):
            raise InvalidInput("env", f"{name!r} can't be a variable", "Use NAME=value without NUL characters.")
    return environment


def _is_variable(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
        return False
    try:
        return b"\0" not in os.fsencode(name) + os.fsencode(value)
    except UnicodeEncodeError:
        return False


# --- commands and queries


def check_field_types(value: Struct) -> None:
    """Check that every field has its declared type, by converting the struct to JSON types and back.

    Raises:
        InvalidInput: a field has another type. The error names it.
    """
    if not _is_instance(value, Struct):
        raise InvalidInput("command", f"is a {type(value).__name__}", "See docs/library.md for the parameters.")
    try:
        msgspec.convert(msgspec.to_builtins(value, str_keys=True), type(value))
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        raise InvalidInput(path.rstrip("`") or "command", what, "See docs/library.md for the parameters.") from None
    except TypeError as error:
        raise InvalidInput("command", str(error), "Send JSON values.") from None


def check_limit(value: object) -> None:
    """Check the number of items that a caller asks for.

    Raises:
        InvalidInput: it's not a positive number.
    """
    if not isinstance(value, int) or not 0 < value < 1 << 63:
        raise InvalidInput("limit", f"{value!r} isn't a number above 0", "Ask for at least one.")


def check_index(field: str, value: object) -> None:
    """Check the index of an event or a timeline entry.

    Negative numbers are allowed and mean the beginning, so `last - 50` works in a short session too.

    Raises:
        InvalidInput: it's not an integer of 64 bits.
    """
    if not isinstance(value, int) or not abs(value) < 1 << 63:
        raise InvalidInput(field, f"{value!r} isn't an index", "Send the index of an event, or 0 for the beginning.")


def check_event_types(types: object) -> None:
    """Check a filter by event types.

    Raises:
        InvalidInput: it's not a collection of names. A single string is refused: it would be split into its letters.
    """
    if types is not None and (isinstance(types, str) or not _are_strings(types)):
        raise InvalidInput("types", "isn't a list of names", "Send names of events, see docs/events.md.")


def _are_strings(value: object) -> bool:
    return isinstance(value, Collection) and all(isinstance(item, str) for item in cast(Collection[object], value))


def check_cursor(value: object) -> None:
    """Check the position of a reader of all sessions.

    Raises:
        InvalidInput: it's not a cursor. A reader that started there would wait for ever.
    """
    if not isinstance(value, str) or not (value == START or (value.isascii() and value.isdecimal())):
        raise InvalidInput("since", f"{value!r} isn't a cursor", "Send the cursor of the last event that you have.")


def check_whole_number(field: str, value: object) -> None:
    """Check an optional number that must fit into a JSON number.

    Raises:
        InvalidInput: it's not a whole number from 0 to 2^53 - 1.
    """
    if value is not None and (not isinstance(value, int) or not 0 <= value < 1 << 53):
        raise InvalidInput(field, f"{value!r} is out of range", "Send a whole number, 0 or more.")


def _is_instance(value: object, kind: type) -> bool:
    # Hides the check from the type checker, which would call it unnecessary: it trusts the annotations.
    return isinstance(value, kind)
