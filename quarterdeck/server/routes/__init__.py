"""What can be asked, one file for each subject. `all_routes` is the whole list."""

from __future__ import annotations

from quarterdeck.server.route import Route
from quarterdeck.server.routes import around, commands, reading, sessions


def all_routes() -> list[Route]:
    """In the order of the contract."""
    return [
        *sessions.TABLE.routes,
        *commands.TABLE.routes,
        *reading.TABLE.routes,
        *around.TABLE.routes,
    ]
