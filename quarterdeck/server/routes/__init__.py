"""The routes of the API, one file per subject."""

from __future__ import annotations

from quarterdeck.server.route import Route
from quarterdeck.server.routes import (
    agents,
    commands,
    environment,
    export,
    folders,
    reading,
    rules,
    sessions,
)


def all_routes() -> list[Route]:
    """Return all routes in the order of the contract."""
    modules = (sessions, commands, reading, agents, environment, folders, rules, export)
    return [route for module in modules for route in module.TABLE.routes]
