"""Read and write the files by which commands find the server: `server.json` and the owner's `token`.

The server writes `server.json` when it is ready and removes it when it exits. A killed server leaves the file behind, and
its pid may be reused, so the file names processes by pid and start time. Readers trust it only while that process runs.

Every `qd` command reads these files: don't import anything heavy here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from quarterdeck.files import write_atomic
from quarterdeck.home import Home
from quarterdeck.process.identity import Identity, is_alive


class ServerInfo(NamedTuple):
    """The contents of `server.json`."""

    pid: int
    #: Start time of the process, in the kernel's unit.
    started: int
    #: The subreaper process above the server; 0 if there is none.
    keeper_pid: int
    keeper_started: int
    address: str
    version: str
    #: When the server became ready, in milliseconds since the epoch.
    since: int
    #: Options the server was started with. `qd restart` passes them again.
    options: dict[str, Any]
    #: The server's certificate, for clients on this machine.
    tls_cert: str = ""
    #: How many seconds a shutdown may take, including what the keeper has to kill afterwards.
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
        """The process that exits last. When it has exited, nothing of the server is left."""
        keeper = self.keeper
        return keeper if keeper is not None and is_alive(keeper) else self.server

    @property
    def is_leaving(self) -> bool:
        """Whether the server is shutting down or about to: it said so, or it or its keeper has exited."""
        return self.stopping or not is_alive(self.server) or (self.keeper is not None and not is_alive(self.keeper))


#: An example with the type of each value.
_EXAMPLE = ServerInfo(0, 0, 0, 0, "", "", 0, {})


def write_server_info(home: Home, info: ServerInfo) -> None:
    """Replace `server.json` atomically. Only the user can read it."""
    write_atomic(home.server, json.dumps(info._asdict(), indent=1) + "\n", durable=False)


def remove_server_info(home: Home, pid: int) -> None:
    """Remove `server.json` if it still belongs to the process `pid`."""
    info = _read(home.server)
    if info is not None and info.pid == pid:
        home.server.unlink(missing_ok=True)


def find_server(home: Home) -> ServerInfo | None:
    """Return the server that runs now, or None if there is none.

    A server that has exited still counts while its keeper kills the agents it left.
    """
    info = _read(home.server)
    if info is None:
        return None
    is_running = is_alive(info.server) or (info.keeper is not None and is_alive(info.keeper))
    return info if is_running else None


def _read(path: Path) -> ServerInfo | None:
    """Return None for a missing or damaged file, and for one of a release with other fields."""
    try:
        fields = json.loads(path.read_bytes())
        info = ServerInfo(**{name: fields[name] for name in ServerInfo._fields if name in fields})
    except (OSError, ValueError, TypeError):
        return None
    is_valid = all(isinstance(value, type(example)) for value, example in zip(info, _EXAMPLE))
    return info if is_valid else None


# --- The owner's token


class InvalidTokenFile(ValueError):
    """The file's contents can't be sent as a token in a header."""


def read_owner_token(path: Path) -> str:
    """Return the token without surrounding whitespace. It is empty if the file is.

    Raises:
        OSError: the file can't be read.
        InvalidTokenFile: the file holds something else than one word of ASCII.
    """
    try:
        token = path.read_bytes().decode("ascii").strip()
    except UnicodeError:
        raise InvalidTokenFile("it isn't ASCII") from None
    if not all("!" <= letter <= "~" for letter in token):
        raise InvalidTokenFile("it holds more than one word")
    return token
