"""`/environment`: where the environment of agents comes from, never what it holds."""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.deck.login import Source
from quarterdeck.server.route import Call, Keyed, Table

TABLE = Table()


class EnvironmentShown(Struct, frozen=True):
    """The environment of sessions that were created without their own.

    `problem` says why the login shell's couldn't be read. Then the last one it gave is used, or the server's own.
    """

    source: Source
    shell: str
    asked_at: int
    variables: int
    problem: str


@TABLE.add("GET", "/environment", "Show where the environment of agents comes from", answer=EnvironmentShown)
async def environment(call: Call) -> EnvironmentShown:
    usual = call.deck.environments.usual
    return EnvironmentShown(usual.source, usual.shell, usual.asked_at, usual.variables, usual.problem)


@TABLE.add("POST", "/environment", "Read the login shell's environment again", body=Keyed, answer=EnvironmentShown)
async def refresh_environment(call: Call) -> EnvironmentShown:
    await call.deck.environments.usual.refresh()
    return await environment(call)
