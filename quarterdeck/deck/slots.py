"""How many agent processes may run at once. Whoever comes too late waits in line, and is told so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable


class Slots:
    """A fixed number of places. Before anybody has to wait, `make_room` may end a process that is idle."""

    def __init__(self, limit: int, make_room: Callable[[], Awaitable[bool]]) -> None:
        self.limit = limit
        self._make_room = make_room
        self._taken: set[str] = set()
        self._line: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._clearing: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self._taken) >= self.limit

    @property
    def taken(self) -> int:
        """How many have a place."""
        return len(self._taken)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Who waits, first come first."""
        return tuple(name for name, turn in self._line if not turn.done())

    async def take(self, name: str, on_wait: Callable[[], None]) -> None:
        """Returns with a place. `on_wait` is called if there is none yet."""
        if not self.is_full or (await self._make_room() and not self.is_full):
            self._taken.add(name)
            return
        on_wait()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((name, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # cancelled between our turn and our waking up: the place is handed on
            if turn.done() and not turn.cancelled():
                self.give_back(name)
            raise

    def nudge(self) -> None:
        """Somebody has become idle: if others wait, that one may have to go."""
        if self._line and self._clearing is None:
            self._clearing = asyncio.get_running_loop().create_task(self._clear())

    async def _clear(self) -> None:
        try:
            while self.waiting and await self._make_room():
                pass
        finally:
            self._clearing = None

    def give_back(self, name: str) -> None:
        """The place is free; the first in line has it."""
        self._taken.discard(name)
        while self._line and not self.is_full:
            waiting, turn = self._line.popleft()
            if not turn.done():
                self._taken.add(waiting)
                turn.set_result(None)
