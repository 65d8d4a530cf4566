"""`quarterdeck.open(home)`: to be awaited, or entered."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from quarterdeck.config import Settings
from quarterdeck.deck.deck import Deck


class Opening:
    """`deck = await quarterdeck.open(home)`, or `async with quarterdeck.open(home) as deck`, which closes it too."""

    def __init__(
        self, home: str | os.PathLike[str], settings: Settings | None, environment: Mapping[str, str] | None
    ) -> None:
        self._home = home
        self._settings = settings
        self._environment = environment
        self._deck: Deck | None = None

    def __await__(self) -> Generator[Any, None, Deck]:
        return Deck.open(self._home, settings=self._settings, environment=self._environment).__await__()

    async def __aenter__(self) -> Deck:
        self._deck = await self
        return self._deck

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._deck is not None:
            await self._deck.close()


def open(  # noqa: A001 # the contract's name; nobody imports it next to the built-in one
    home: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    environment: Mapping[str, str] | None = None,
) -> Opening:
    """The whole deck in this process. `environment` is what agents are started with; by default the caller's own."""
    return Opening(home, settings, environment)
