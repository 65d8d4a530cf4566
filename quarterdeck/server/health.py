"""Whether the deck can do its work: tried, not believed. However many ask, the log is tried once a second at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quarterdeck.errors import QuarterdeckError
from quarterdeck.log.base import LogUnavailable

EVERY_S = 1.0
PATIENCE_S = 3.0


class Health:
    """`probe` reads and commits, and raises what is wrong. Its outcome is everybody's for a second."""

    def __init__(self, probe: Callable[[], Awaitable[None]], now: Callable[[], float]) -> None:
        self._probe = probe
        self._now = now
        self._trying: asyncio.Task[QuarterdeckError | None] | None = None
        self._tried_at = float("-inf")
        self._found: QuarterdeckError | None = None
        self.probes = 0

    async def check(self) -> None:
        """Raises what is wrong, if anything is."""
        trying = self._trying
        if trying is None and self._now() - self._tried_at >= EVERY_S:
            trying = self._trying = asyncio.get_running_loop().create_task(self._try())
        found = self._found if trying is None else await _outcome(trying)
        if found is not None:
            raise found.with_traceback(None)

    async def _try(self) -> QuarterdeckError | None:
        self.probes += 1
        self._found = None
        try:
            await self._probe()
        except QuarterdeckError as error:
            self._found = error
        finally:
            self._tried_at = self._now()
            self._trying = None
        return self._found


async def _outcome(trying: asyncio.Task[QuarterdeckError | None]) -> QuarterdeckError | None:
    """Who leaves does not end what others wait for, and nobody waits for a disk that hangs."""
    done, _ = await asyncio.wait({trying}, timeout=PATIENCE_S)
    if done:
        return trying.result()
    return LogUnavailable(f"it gave no answer within {PATIENCE_S:g} seconds", "Look at the disk and the system's log.")
