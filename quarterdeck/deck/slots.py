"""Limit how many agent processes run at once. Sessions that find all slots busy wait in first-in, first-out order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable


class Slots:
    """A fixed number of slots for agent processes, identified by session id."""

    def __init__(self, limit: int, stop_idle_agent: Callable[[], Awaitable[bool]]) -> None:
        """Allow `limit` processes.

        Before a session has to wait, `stop_idle_agent` may stop a process that has nothing to do. It returns whether it did.
        """
        self.limit = limit
        self._stop_idle_agent = stop_idle_agent
        self._taken: set[str] = set()
        self._queue: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._clearing: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self._taken) >= self.limit

    @property
    def taken(self) -> int:
        """Number of slots in use."""
        return len(self._taken)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of the sessions that wait, in order."""
        return tuple(session_id for session_id, turn in self._queue if not turn.done())

    async def acquire(self, session_id: str, on_wait: Callable[[], None]) -> None:
        """Wait for a free slot and take it. `on_wait` is called if the session has to wait."""
        # Check again after the await: another session may have taken the slot that was freed.
        if not self.is_full or (await self._stop_idle_agent() and not self.is_full):
            self._taken.add(session_id)
            return
        on_wait()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((session_id, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # `release` may already have given us the slot in this pass of the loop. Hand it on, or it is lost.
            if turn.done() and not turn.cancelled():
                self.release(session_id)
            raise

    def release(self, session_id: str) -> None:
        """Free the session's slot, if it has one, and give free slots to the sessions that wait."""
        self._taken.discard(session_id)
        while self._queue and not self.is_full:
            next_id, turn = self._queue.popleft()
            # A cancelled waiter stays in the queue until its turn comes.
            if not turn.done():
                self._taken.add(next_id)
                turn.set_result(None)

    def recheck(self) -> None:
        """Stop idle agents for waiting sessions. Call this when a session becomes idle."""
        if self._queue and self._clearing is None:
            self._clearing = asyncio.get_running_loop().create_task(self._clear())

    async def _clear(self) -> None:
        try:
            while self.waiting and await self._stop_idle_agent():
                pass
        finally:
            self._clearing = None
