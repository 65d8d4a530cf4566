"""The home that a command works with: said to be wrong before anything is looked for or started there."""

from __future__ import annotations

import os
from pathlib import Path

from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home, home


class NoHome(QuarterdeckError):
    """What is named as the home is no folder, and none can be made there."""

    code = "no_home"

    def __init__(self, place: Home, what: Path) -> None:
        cure = "Set QUARTERDECK_HOME to a folder" if os.environ.get("QUARTERDECK_HOME") else "Move that file away"
        where = "" if what == place.folder else f"{what}, on the way to it, "
        super().__init__(
            f"{place.folder} cannot be the home: {where or 'it '}is not a folder", f"{cure}, or set another home."
        )


class FolderInTheWay(QuarterdeckError):
    """A folder has the name of one of our files."""

    code = "folder_in_the_way"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is a folder, where a file of Quarterdeck belongs", "Move it away, and try again.")


def own_home() -> Home:
    """The home of this user, which may not be there yet. NoHome, FolderInTheWay."""
    place = home()
    there = next((one for one in (place.folder, *place.folder.parents) if one.exists()), None)
    if there is not None and not there.is_dir():
        raise NoHome(place, there)
    for file in (place.server, place.token, place.config, place.store, place.lock, place.starting, place.log):
        if file.is_dir():
            raise FolderInTheWay(file)
    return place
