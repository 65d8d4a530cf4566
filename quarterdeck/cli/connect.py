"""Find the server of this home, start it if necessary, and return a client for it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from quarterdeck.client.errors import Unreachable
from quarterdeck.home import Home
from quarterdeck.server import server_file
from quarterdeck.server.server_file import InvalidTokenFile, ServerInfo, read_owner_token

if TYPE_CHECKING:
    from quarterdeck.client.json_api import JsonApi
    from quarterdeck.client.sync_client import Client

_RESTART_INTERRUPTS = "Busy sessions are interrupted and can be resumed."


class ServerConnection:
    """A running server, and two clients for it with the owner's token. Each is imported when it is used."""

    def __init__(self, server: ServerInfo, token: str) -> None:
        self.server = server
        self._token = token

    @cached_property
    def api(self) -> JsonApi:
        """The API as plain JSON, which is quick to import."""
        from quarterdeck.client.json_api import JsonApi

        return JsonApi(self.server.address, self._token, tls_cert=self.server.tls_cert)

    @cached_property
    def client(self) -> Client:
        """The API with types."""
        from quarterdeck.client.sync_client import Client

        return Client(self.server.address, self._token, tls_cert=self.server.tls_cert)


def find_server(home: Home) -> ServerConnection | None:
    """Return a connection to the running server, or None if none runs. Starts nothing.

    Raises:
        Unreachable: a server runs, but its token can't be read.
    """
    server = server_file.find_server(home)
    return None if server is None or server.is_leaving else connect_to(server, home)


def connect(home: Home) -> ServerConnection:
    """Return a connection to the server of this home. Starts one in the background if none runs.

    Raises:
        NotStarted: the server didn't become ready.
        Unreachable: the server's token can't be read.
    """
    running = find_server(home)
    if running is not None:
        return running
    from quarterdeck.cli.start_server import start_in_background

    return connect_to(start_in_background(home, {}), home)


def connect_to(server: ServerInfo, home: Home) -> ServerConnection:
    """Return a connection to this server.

    Raises:
        Unreachable: its token can't be read.
    """
    return ServerConnection(server, read_token(home))


def read_token(home: Home) -> str:
    """Read the owner's token.

    Raises:
        Unreachable: the file is missing, empty or not a token.
    """
    try:
        token = read_owner_token(home.token)
    except FileNotFoundError:
        token = ""
    except (OSError, InvalidTokenFile) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise Unreachable(
            f"{home.token} can't be read: {reason}",
            f"Remove the file and run `qd restart --force`, which creates a new token. {_RESTART_INTERRUPTS}",
        ) from None
    if not token:
        raise Unreachable(
            f"there is no token in {home.token}",
            f"Run `qd restart --force`, which creates a new token. {_RESTART_INTERRUPTS}",
        )
    return token
