"""What an agent's process is started with: its session's own environment, else the deck's.

A session's own may hold secrets, so it is in memory and nowhere else. It serves every process of that session as long as
the deck is open; after that nobody has it any more, and the session says so when it starts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from quarterdeck.deck.login import Source

GONE = "The environment that this session was given went with the server that was told of it; it starts with the usual one."


class Surroundings(Protocol):
    """Where the usual environment of agents comes from."""

    @property
    def source(self) -> Source: ...
    @property
    def shell(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def asked_at(self) -> int: ...
    @property
    def variables(self) -> int: ...

    async def current(self) -> Mapping[str, str]:
        """As it is now."""
        ...

    async def refresh(self) -> None:
        """Asks for it anew."""
        ...

    async def close(self) -> None: ...


class Fixed:
    """An environment that somebody gave, and that stays."""

    shell = problem = ""
    asked_at = 0

    def __init__(self, found: Mapping[str, str], source: Source = "caller") -> None:
        self._found = dict(found)
        self.source: Source = source

    @property
    def variables(self) -> int:
        return len(self._found)

    async def current(self) -> Mapping[str, str]:
        return self._found

    async def refresh(self) -> None:
        """There is nothing to ask."""

    async def close(self) -> None:
        """There is nothing to end."""


class Given(NamedTuple):
    """What one start gets, and what its session is to be told about that."""

    variables: Mapping[str, str]
    notice: str = ""


class Environments:
    """Of all sessions of a deck."""

    def __init__(self, usual: Surroundings) -> None:
        self.usual = usual
        self._own: dict[str, Mapping[str, str]] = {}

    def __len__(self) -> int:
        return len(self._own)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._own

    def add(self, session_id: str, own: Mapping[str, str]) -> None:
        """The first one that is given stays: the same creation again changes nothing."""
        self._own.setdefault(session_id, dict(own))

    def forget(self, session_id: str) -> None:
        self._own.pop(session_id, None)

    async def of(self, session_id: str, *, had_own: bool) -> Given:
        """For a process of this session that starts now. `had_own`: whether it was given one when it was created."""
        own = self._own.get(session_id)
        if own is not None:
            return Given(own)
        found = await self.usual.current()
        notices = [GONE] if had_own else []
        if self.usual.problem:
            which = "as it was before" if self.usual.source == "login_shell" else "the server's own"
            notices.append(f"The login shell does not tell its environment ({self.usual.problem}); it is {which}.")
        return Given(found, " ".join(notices))
