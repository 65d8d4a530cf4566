"""`server.json`: who serves this home, and where. Written when the server is ready, removed when it leaves.

A pid alone says nothing: a killed server leaves the file, and its pid comes again. So it names processes by pid and start
time, and whoever reads it believes it only while that very process runs. The command line reads it at every call:
nothing heavy may be imported here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from quarterdeck.files import write_atomic
from quarterdeck.home import Home
from quarterdeck.process.identity import Identity, is_alive


class Beacon(NamedTuple):
    """`options` are what the server was started with, so that a restart can do the same."""

    pid: int
    #: When the process was started, in the kernel's own unit.
    started: int
    keeper_pid: int
    keeper_started: int
    address: str
    version: str
    #: Since when it serves, in milliseconds since the epoch.
    since: int
    options: dict[str, Any]
    #: Where the certificate is that it shows, for clients of the same machine.
    tls_cert: str = ""
    #: How many seconds its end may take, with all that its keeper has to end then.
    leaves_within: float = 20.0
    stopping: bool = False

    @property
    def server(self) -> Identity:
        return Identity(self.pid, self.started, "")

    @property
    def keeper(self) -> Identity | None:
        return Identity(self.keeper_pid, self.keeper_started, "") if self.keeper_pid else None

    @property
    def last(self) -> Identity:
        """Who is the last to go: when it has ended, nothing of the server is left."""
        keeper = self.keeper
        return keeper if keeper is not None and is_alive(keeper) else self.server

    @property
    def is_leaving(self) -> bool:
        """It said so, or it is gone and its keeper cleans up, or it is about to notice that its keeper is gone."""
        return self.stopping or not is_alive(self.server) or (self.keeper is not None and not is_alive(self.keeper))


#: Of which type each value is.
_MODEL = Beacon(0, 0, 0, 0, "", "", 0, {})


def write(home: Home, beacon: Beacon) -> None:
    """Whole or not at all, for the owner's eyes only."""
    write_atomic(home.server, json.dumps(beacon._asdict(), indent=1) + "\n", durable=False)


def remove(home: Home, pid: int) -> None:
    """If it is still the one of this process."""
    told = _read(home.server)
    if told is not None and told.pid == pid:
        home.server.unlink(missing_ok=True)


def found(home: Home) -> Beacon | None:
    """Of the server that runs now; None when there is none, whatever the file says."""
    beacon = _read(home.server)
    if beacon is None or not (is_alive(beacon.server) or _is_cleaning(beacon)):
        return None
    return beacon


def _is_cleaning(beacon: Beacon) -> bool:
    """The server is gone, and its keeper still ends what it left."""
    return beacon.keeper is not None and is_alive(beacon.keeper)


def _read(path: Path) -> Beacon | None:
    """What is no such file, or one of a release that wrote it otherwise, leads nowhere."""
    try:
        told = json.loads(path.read_bytes())
        beacon = Beacon(**{name: told[name] for name in Beacon._fields if name in told})
    except (OSError, ValueError, TypeError):
        return None
    is_ours = all(isinstance(value, type(model)) for value, model in zip(beacon, _MODEL))
    return beacon if is_ours else None
