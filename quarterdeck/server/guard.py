"""Which doors a request may come through: the Host it asks for, and the Origin of the page that asks.

A page of a foreign site can make a browser send requests here, and can have its own name point here (DNS rebinding). The
browser tells on it: in `Host`, in `Origin`, and in `Sec-Fetch-Site` where it sends no Origin (images, scripts). So they are
checked on every request, WebSockets too, before anything else.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@lru_cache(256)
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
    return name.lower().removesuffix(".") or None


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isdecimal() and text.isascii() and len(text) <= 6


class Guard:
    """The names by which this server may be called."""

    def __init__(self, allowed: frozenset[str] = frozenset()) -> None:
        self._allowed = LOOPBACK | {name.lower().removesuffix(".") for name in allowed}

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

    def knows_site(self, site: str | None, mode: str | None) -> bool:
        """Whether a page of ours asks, or none: others may lead a person here by a link, and load nothing from here.

        Another port of this machine is the same site to a browser, which sends it our cookie: only the origin counts.
        """
        return site in (None, "same-origin", "none") or mode == "navigate"
