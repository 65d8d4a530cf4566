"""`GET /agents`: the agents, and whether each can be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness import registry
from quarterdeck.server.route import Call, Table

TABLE = Table()


class AgentShown(Struct, frozen=True):
    """An agent. `driven` means that sessions can start it, in one of `modes`.

    `login` is ok, missing or unknown, and `hint` says what to do about it. `prompt` is the first prompt of a session that
    is started without one.
    """

    name: str
    driven: bool
    modes: tuple[str, ...] = ()
    installed: bool | None = None
    login: Literal["ok", "missing", "unknown"] = "unknown"
    hint: str = ""
    prompt: str = ""


class Agents(Struct, frozen=True):
    """All known agents."""

    agents: tuple[AgentShown, ...]


@TABLE.add("GET", "/agents", "List the agents", answer=Agents)
async def agents(call: Call) -> Agents:
    environment = await call.deck.environments.usual.current()
    return Agents(tuple(_agent(name, environment) for name in registry.known_agents()))


def _agent(name: str, environment: Mapping[str, str]) -> AgentShown:
    """Describe an agent as it would be started with this environment."""
    if name not in registry.HARNESSES:
        return AgentShown(name, False)
    harness = registry.harness(name)
    try:
        standing = harness.availability(environment)
    except QuarterdeckError as error:
        # An agent whose configuration can't be read must not break the list.
        standing = registry.Availability(login="unknown", hint=f"{error.message}. {error.hint}")
    modes = harness.make_driver().capabilities.modes
    return AgentShown(name, True, modes, standing.installed, standing.login, standing.hint, harness.prompt)
