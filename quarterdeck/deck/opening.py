"""Define `quarterdeck.open(home)`, whose result can be awaited or entered with `async with`.

It has a module of its own because a function called `open` would hide the built-in one from its neighbours.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from quarterdeck.config import Settings
from quarterdeck.deck.deck import Deck


class Opening:
    """A deck that is being opened: `deck = await open(home)`, or `async with open(home) as deck`, which also closes it."""

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


def open(  # noqa: A001 # The public name. No module imports it next to the built-in one.
    home: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    environment: Mapping[str, str] | None = None,
) -> Opening:
    """Open the whole deck in this process.

    `environment` is what agents start with; by default it's the caller's own.

    Raises:
        HomeInUse: another deck has this home open.
        LogUnavailable: the home or its store can't be used.
        NewerLog: a newer release wrote the store.
    """
    return Opening(home, settings, environment)
