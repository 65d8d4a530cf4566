"""Which doors a request may come through: the Host it asks for, and the Origin of the page that asks.

A page of a foreign site can make a browser send requests here, and can have its own name point here (DNS rebinding). The
browser tells on it: in `Host` and in `Origin`. So both are checked on every request, WebSockets too, before anything else.
"""

from __future__ import annotations

from urllib.parse import urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def host_of(header: str) -> str | None:
    """The name in a Host header, without its port; None for what is no such header."""
    if not header or any(one in header for one in "/\\@?# \t,"):
        return None
    if header.startswith("["):
        name, closed, rest = header[1:].partition("]")
        return name.lower() if closed and (not rest or _is_port(rest)) else None
    name, colon, port = header.partition(":")
    if colon and not _is_port(f":{port}"):
        return None
    return name.lower().rstrip(".") or None


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isdecimal() and len(text) <= 6


class Guard:
    """The names by which this server may be called."""

    def __init__(self, allowed: frozenset[str] = frozenset()) -> None:
        self._allowed = LOOPBACK | {name.lower().rstrip(".") for name in allowed}

    def knows_host(self, header: str | None) -> bool:
        """Whether the request asks for a name of ours."""
        return header is not None and host_of(header) in self._allowed

    def knows_origin(self, origin: str | None, host: str) -> bool:
        """Whether the page that asks is ours: no page at all, or one of the very host that it asks."""
        if origin is None:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        is_plain = parts.scheme in ("http", "https") and not (parts.path or parts.query or parts.fragment)
        return is_plain and parts.netloc.lower() == host.lower() and host_of(parts.netloc) in self._allowed
