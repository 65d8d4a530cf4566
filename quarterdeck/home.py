"""Where Quarterdeck keeps its files: one folder, and a name for each file in it.

Pure: it says where things would be, and neither looks nor creates.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Home(NamedTuple):
    """The folder of one deck."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "quarterdeck.db"

    @property
    def token(self) -> Path:
        return self.folder / "token"

    @property
    def seal(self) -> Path:
        """The key for hashes of what must not be kept (deck/seal.py)."""
        return self.folder / "seal.key"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def traces(self) -> Path:
        return self.folder / "traces"

    @property
    def results(self) -> Path:
        """What the built-in agent's tools gave and was too long for its model: a folder for each session."""
        return self.folder / "results"

    @property
    def changes(self) -> Path:
        """Snapshots of the repositories that sessions work in."""
        return self.folder / "changes"

    @property
    def server(self) -> Path:
        return self.folder / "server.json"

    @property
    def lock(self) -> Path:
        """Held (flock) by whoever owns the store: a deck, or a command that must be alone with it."""
        return self.folder / "lock"

    @property
    def starting(self) -> Path:
        """Held (flock) by whoever starts or stops the server, until that is done."""
        return self.folder / "start.lock"

    @property
    def log(self) -> Path:
        """What a server in the background says, one JSON object a line."""
        return self.folder / "server.log"

    @property
    def errors(self) -> Path:
        """What a server in the background could not say by its log: the words of an interpreter that breaks down."""
        return self.folder / "server.err"


def home(environment: Mapping[str, str] = os.environ, platform: str = sys.platform, user: Path | None = None) -> Home:
    """`QUARTERDECK_HOME`, or the folder where this platform keeps the state of programs."""
    user = user or Path(environment.get("HOME") or Path.home())
    chosen = environment.get("QUARTERDECK_HOME")
    if chosen:
        return Home(Path(os.path.abspath(_expanded(chosen, user))))
    if platform == "darwin":
        return Home(user / "Library" / "Application Support" / "Quarterdeck")
    state = environment.get("XDG_STATE_HOME", "")
    # a relative path there is invalid, says the XDG specification, and to be ignored
    base = Path(state) if os.path.isabs(state) else user / ".local" / "state"
    return Home(base / "quarterdeck")


def _expanded(path: str, user: Path) -> Path:
    """A leading ~ is the user's folder also where no shell has expanded it (a service file, a test)."""
    return user / path[2:] if path.startswith("~/") else user if path == "~" else Path(path)
