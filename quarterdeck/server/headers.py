"""What every answer says to a browser, streams and refusals too: whose scripts may run here, and that nobody may frame it.

No Strict-Transport-Security: a browser applies it to all ports of a name, and `localhost` has many owners.
"""

from __future__ import annotations

from aiohttp import web

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def dress(_: web.Request, response: web.StreamResponse) -> None:
    """Called for every answer before its first byte. What software answers is nobody's business."""
    headers = response.headers
    headers.update(HEADERS)
    headers.setdefault("Cache-Control", "no-store")
    headers.popall("Server", None)
