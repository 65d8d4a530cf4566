"""The HTTP API as plain JSON, for commands that send one or two requests and must start quickly.

The typed API (`api.py`) imports msgspec, all events and the kernel, which takes longer than everything else that
`qd status` and `qd run -d` do.
"""

from __future__ import annotations

import json
from typing import Any

from quarterdeck.client.blocking_transport import BlockingTransport, run_blocking
from quarterdeck.client.errors import decode_error, decode_refusal
from quarterdeck.client.transport import TIMEOUT_S


class JsonApi:
    """Send requests to one server and return the JSON of their answers. Threads may share it.

    Every method raises `Unreachable`, `TimedOut`, or the `QuarterdeckError` with which the server refused.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S, tls_cert: str = "") -> None:
        self._transport = BlockingTransport(url, token, timeout_s, tls_cert)

    def get(self, path: str, **query: str) -> Any:
        return self._request("GET", path, None, query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._request("POST", path, json.dumps(body or {}).encode(), {})

    def close(self) -> None:
        """Fail every open request."""
        run_blocking(self._transport.close())

    def _request(self, method: str, path: str, body: bytes | None, query: dict[str, str]) -> Any:
        status, content = run_blocking(self._transport.request(method, path, body, query, "application/json"))
        if not 200 <= status < 300:
            raise decode_error(status, content)
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise decode_refusal(status, b"") from None
