"""Name the folder where Quarterdeck stores its files, and each file in it.

This module only computes paths. It doesn't check whether they exist and creates nothing.
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
        """The key for hashing secrets that must not be stored themselves (deck/seal.py)."""
        return self.folder / "seal.key"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def traces(self) -> Path:
        return self.folder / "traces"

    @property
    def results(self) -> Path:
        """Tool results of the built-in agent that were too long for its model, in one folder per session."""
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
        """Locked (flock) by the process that owns the store: a deck, or a command that needs exclusive access."""
        return self.folder / "lock"

    @property
    def starting(self) -> Path:
        """Locked (flock) while a command starts or stops the server."""
        return self.folder / "start.lock"

    @property
    def log(self) -> Path:
        """The log of a background server, one JSON object per line."""
        return self.folder / "server.log"

    @property
    def errors(self) -> Path:
        """Standard error of a background server: what it prints when logging itself fails, such as a crash."""
        return self.folder / "server.err"


def home(environment: Mapping[str, str] = os.environ, platform: str = sys.platform, user: Path | None = None) -> Home:
    """Return `QUARTERDECK_HOME`, or the platform's folder for the state of programs."""
    user = user or Path(environment.get("HOME") or Path.home())
    configured = environment.get("QUARTERDECK_HOME")
    if configured:
        return Home(Path(os.path.abspath(_expand_home(configured, user))))
    if platform == "darwin":
        return Home(user / "Library" / "Application Support" / "Quarterdeck")
    state = environment.get("XDG_STATE_HOME", "")
    # The XDG specification says that a relative path is invalid and must be ignored.
    base = Path(state) if os.path.isabs(state) else user / ".local" / "state"
    return Home(base / "quarterdeck")


def _expand_home(path: str, user: Path) -> Path:
    """Expand a leading `~` for callers without a shell, such as a service file."""
    if path == "~":
        return user
    return user / path[2:] if path.startswith("~/") else Path(path)
