"""What comes in from outside is checked here once, before anything is asked of a session."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from quarterdeck.deck.settings import Settings
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Image

_CLIENT_ID_LIMIT = 200


class InvalidInput(QuarterdeckError):
    """Something that cannot be used whatever the state is. `field` names it."""

    code = "invalid_input"

    def __init__(self, field: str, what: str, hint: str) -> None:
        super().__init__(f"{field}: {what}", hint)
        self.field = field


class TooLarge(InvalidInput):
    """More than is taken."""

    code = "too_large"


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
    size = sum(len(image.data) * 3 // 4 for image in found)
    if size > settings.images_limit:
        raise TooLarge("images", f"{size} bytes, at most {settings.images_limit} are taken", "Send smaller images.")
    for image in found:
        text("images.media_type", image.media_type, 200)
        text("images.data", image.data, 2 * settings.images_limit)
    return tuple(found)


def folder(value: str) -> str:
    """An existing folder, as an absolute path."""
    path = os.path.abspath(os.path.expanduser(text("cwd", value, 8192)))
    if not os.path.exists(path):
        raise InvalidInput("cwd", f"there is no folder {path}", "Create it, or name another one.")
    if not os.path.isdir(path):
        raise InvalidInput("cwd", f"{path} is not a folder", "Name the folder that the agent is to work in.")
    return path


def client_id(value: str) -> str:
    """The caller's own key of a command."""
    if len(text("client_id", value, 4 * _CLIENT_ID_LIMIT)) > _CLIENT_ID_LIMIT:
        raise InvalidInput("client_id", f"longer than {_CLIENT_ID_LIMIT} characters", "Use a UUID.")
    return value


def environment(found: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Variables that a process can be given. Their values are never told, not even in an error."""
    for name, value in (found or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidInput("env", f"{name!r} cannot be a variable", "Use NAME=value without NUL characters.")
    return found
