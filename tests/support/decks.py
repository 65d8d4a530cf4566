"""Open a real deck for tests: its home is a folder of the test, its agents are processes, and its time can be moved.

`at_home` opens a deck over a home. `until` waits for a condition of a session's view. `Time` moves the clocks of the loop
and of the deck together, so that a test can skip half an hour.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from quarterdeck import Deck, SessionHandle, Settings
from quarterdeck.deck.clock import Clock
from quarterdeck.deck.login import LoginShell
from quarterdeck.events import Event
from quarterdeck.kernel.gate import Gate
from quarterdeck.kernel.view import View

#: How long a test waits for a process that it runs.
PATIENCE_S = 60.0
#: The product's settings with a short grace period, so that no test waits five seconds for an agent that ignores signals.
SETTINGS = Settings(stop_grace=0.3)


class Time:
    """Replace the clocks of the loop and of the deck. Both can be moved forward, and the wall clock alone as well."""

    def __init__(self) -> None:
        self.moved = 0.0
        self.slept = 0.0
        self.wall_moved_ms = 0
        loop = asyncio.get_running_loop()
        loop.time = self.monotonic  # type: ignore[method-assign]

    def monotonic(self) -> float:
        return time.monotonic() + self.moved

    def wall(self) -> int:
        return int((time.time() + self.moved + self.slept) * 1000) + self.wall_moved_ms

    def up(self) -> float:
        return self.monotonic() + self.slept

    def clock(self) -> Clock:
        return Clock(self.wall, self.monotonic, self.up)

    async def skip(self, seconds: float) -> None:
        """Move the clocks forward and let everything that is due begin."""
        self.moved += seconds
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@asynccontextmanager
async def _opened(home: Path, settings: Settings, clock: Clock | None, environment: Any) -> Any:
    deck = await Deck.open(home / "home", settings=settings, clock=clock, environment=environment)
    try:
        yield deck
    finally:
        await deck.close()


def at_home(
    folder: Path,
    settings: Settings = SETTINGS,
    clock: Clock | None = None,
    environment: dict[str, str] | LoginShell | None = None,
    **changes: object,
) -> AbstractAsyncContextManager[Deck]:
    """Open a deck over the home in this folder. `changes` are changes to the settings."""
    return _opened(folder, msgspec.structs.replace(settings, **changes), clock, environment)


async def until(session: SessionHandle, holds: Callable[[View], object]) -> View:
    """Wait until the condition holds for the session's view."""
    return await session.until(holds)


async def eventually(holds: Callable[[], object]) -> None:
    """Wait for a condition that no event reports."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def gate_of(session: SessionHandle) -> Gate:
    """Wait until a gate is open, and return it."""
    view = await until(session, lambda view: view.state.gates.open)
    return view.state.gates.open[0]


async def busy(session: SessionHandle) -> View:
    """Wait until a turn is open."""
    return await until(session, lambda view: view.state.turn.is_open)


async def types_of(session: SessionHandle, since: int = 0) -> list[str]:
    return [event.type for event in await all_events(session, since)]


async def all_events(session: SessionHandle, since: int = 0) -> list[Event]:
    return await session.events(since, 100_000)


async def texts_of(session: SessionHandle, kind: str = "") -> list[str]:
    """Return the texts of the timeline in order."""
    return [entry.text.strip() for entry in await session.timeline() if not kind or entry.kind == kind]


def pid_of(deck: Deck, session: SessionHandle) -> int:
    """Return the pid of a session's agent, which must be running."""
    live = deck.services.supervisor.sessions[session.id].connection
    assert live is not None
    assert live.pid is not None
    return live.pid


def is_alive(pid: int) -> bool:
    """Return whether a process with this pid runs. A zombie doesn't count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
