"""The port between the API (`api.py`) and HTTP: send one request, or read one stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

from quarterdeck.client.errors import Unreachable
from quarterdeck.client.sse import EventBlock
from quarterdeck.errors import QuarterdeckError

#: How long to wait for the answer to a request.
TIMEOUT_S = 30.0
#: How long a stream may be silent. The server sends a heartbeat every 15 seconds.
SILENCE_S = 60.0
#: Statuses of a server that is starting or stopping: the request can be repeated later.
BUSY_STATUSES = frozenset({429, 502, 503, 504})


class Response(NamedTuple):
    status: int
    body: bytes


class StreamCut(Exception):
    """A stream ended early and may be opened again. `error` is what to raise if it can't."""

    def __init__(self, error: QuarterdeckError) -> None:
        super().__init__(str(error))
        self.error = error


class Transport(Protocol):
    """One server, reached with one token. Closing it fails every open request and ends every stream."""

    @property
    def url(self) -> str: ...

    @property
    def is_closed(self) -> bool: ...

    async def request(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, str], accept: str
    ) -> Response:
        """Send a request and read the whole response.

        Raises:
            Unreachable: there is no server, the connection was lost, or the transport is closed.
            TimedOut: no answer came in time.
        """
        ...

    def open_stream(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[EventBlock]:
        """Read the blocks of one stream. The first block is named `open` and says that the server accepted it.

        Raises:
            StreamCut: the connection failed, or the server can't serve the stream now.
            QuarterdeckError: the server refused the stream.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Wait, or return at once when the transport is closed."""
        ...

    async def close(self) -> None: ...


def parse_address(url: str) -> SplitResult:
    """Split the address of a server.

    Raises:
        Unreachable: it isn't an address.
    """
    try:
        address = urlsplit(url)
        is_valid = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # The port isn't a number, or a bracket is missing.
        address, is_valid = None, False
    if address is None or not is_valid or address.query or address.fragment:
        raise Unreachable(f"{url!r} isn't the address of a server", "Write it like http://127.0.0.1:4986.")
    return address


def check_token(token: str) -> str:
    """Return the token without surrounding whitespace. One that was read from a file usually ends with a newline.

    Raises:
        Unreachable: it can't be sent in a header.
    """
    token = token.strip()
    if not all("!" <= character <= "~" for character in token):
        raise Unreachable("the token isn't one word of ASCII", "Pass the contents of the file `token` in the home.")
    return token
