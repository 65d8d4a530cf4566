"""Check the home folder before a command looks for anything there or starts anything."""

from __future__ import annotations

import os
from pathlib import Path

from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home, home


class InvalidHome(QuarterdeckError):
    """The home's path, or a folder above it, is a file."""

    code = "no_home"

    def __init__(self, folder: Path, obstacle: Path) -> None:
        message = f"{folder} can't be the home: "
        message += "it isn't a folder" if obstacle == folder else f"{obstacle}, a folder above it, isn't a folder"
        hint = "Set QUARTERDECK_HOME to a folder" if os.environ.get("QUARTERDECK_HOME") else "Move that file away"
        super().__init__(message, f"{hint}, or set another home.")


class FolderInTheWay(QuarterdeckError):
    """A folder has the name of one of our files."""

    code = "folder_in_the_way"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is a folder, where Quarterdeck needs a file", "Move it away and try again.")


def check_home() -> Home:
    """Return the user's home folder, which may not exist yet.

    Raises:
        InvalidHome: a file is in the way.
        FolderInTheWay: a folder has the name of one of our files.
    """
    own = home()
    existing = next((path for path in (own.folder, *own.folder.parents) if path.exists()), None)
    if existing is not None and not existing.is_dir():
        raise InvalidHome(own.folder, existing)
    for file in (own.server, own.token, own.config, own.store, own.lock, own.starting, own.log):
        if file.is_dir():
            raise FolderInTheWay(file)
    return own
