"""The sessions that are in use, and the processes behind them: who may start, who is ended when nobody needs it.

An idle process ends after half an hour, or earlier when another session needs its place. That never changes what the
session is: the next message starts a process again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable

from quarterdeck import events as ev
from quarterdeck.deck.clock import Jump
from quarterdeck.deck.delivery import cut_off
from quarterdeck.deck.recovery import UNKNOWN
from quarterdeck.deck.session import DeckServices, Session
from quarterdeck.deck.slots import Slots
from quarterdeck.kernel.routing import is_busy
from quarterdeck.kernel.state import State

_MINUTE_MS = 60_000
#: A killed process is gone in milliseconds; what is not has other troubles.
_AFTER_KILL_S = 1.0


def is_needed(state: State, idle_for: float, background_cap: float) -> bool:
    """Whether a process must stay whatever its last activity: busy, asked, texts waiting, work in the background."""
    if is_busy(state) or state.gates.open:
        return True
    if any(item.receipt in ("queued", "sending") for item in state.queue):
        return True
    return bool(state.background) and idle_for < background_cap


class Supervisor:
    """All live sessions. `house` is set by the deck, which builds the two together."""

    def __init__(self, limit: int) -> None:
        self.services: DeckServices
        self.sessions: dict[str, Session] = {}
        self.slots = Slots(limit, self._make_room)
        self._quiet_until = 0.0

    def add(self, session: Session) -> Session:
        self.sessions[session.id] = session
        return session

    def idle_for(self, session: Session) -> float:
        """For how long the process of a session neither said nor was told anything."""
        launch = session.connection
        return 0.0 if launch is None else self.services.clock.monotonic() - launch.last_heard

    async def reap(self) -> list[str]:
        """Ends every process that was idle for too long; one that cannot be ended does not keep the others."""
        self.services.clock.wall()  # notices a sleep, if there was one
        if self.services.clock.monotonic() < self._quiet_until:
            return []
        limit = self.services.settings.idle_timeout
        found = [one for one in self._with_idle_process() if self.idle_for(one) > limit]
        await asyncio.gather(*(one.launcher.stop() for one in found), return_exceptions=True)
        return [one.id for one in found]

    def _with_idle_process(self) -> list[Session]:
        cap = self.services.settings.background_cap
        return [
            one
            for one in self.sessions.values()
            if one.connection is not None
            and one.connection.is_ready
            and not one.connection.is_doomed
            and not one.users
            and not is_needed(one.state, self.idle_for(one), cap)
        ]

    async def _make_room(self) -> bool:
        """Ends the process that has been idle longest, for one that has work."""
        idle = [one for one in self._with_idle_process() if not one.state.background]
        if not idle:
            return False
        await max(idle, key=self.idle_for).launcher.stop()
        return True

    def judge_all(self) -> None:
        """The rules changed: each open gate is judged again, on its own."""
        for session in self.sessions.values():
            if session.state.gates.open:
                session.judge()

    def jumped(self, jump: Jump) -> None:
        """After a sleep nothing is judged by the clock for a minute, and a line says how long it was."""
        if not jump.slept_ms:
            return
        pause = self.services.settings.pause_after_sleep
        self._quiet_until = self.services.clock.monotonic() + pause
        for session in self.sessions.values():
            if session.observed_agent is not None:
                session.observed_agent.hold(pause)
            if session.connection is not None:
                session.connection.hold(pause)
                asyncio.get_running_loop().call_soon(session.note, ev.Notice(text=_slept(jump), source="deck"))

    async def suspend(self, sessions: Iterable[Session], reason: str) -> None:
        """They are suspended first, in the log, and their processes end then."""
        chosen = list(sessions)
        for session in chosen:
            session.is_closing = session.launcher.is_retired = True
            if session.state.lifecycle.value == "active":
                # in one write: a kill from here on finds a session at rest, which nobody repairs
                session.note(*cut_off(session.state.queue, UNKNOWN), ev.SessionSuspended(reason=reason))
        await _all(session.writer.flush() for session in chosen)
        await _all(session.launcher.stop() for session in chosen)
        await _all(session.writer.flush() for session in chosen)

    async def kill_all(self) -> None:
        """At once, whatever they do. Their ends are written down, if the store takes them quickly."""
        left = [session for session in self.sessions.values() if session.connection is not None]
        for session in left:
            assert session.connection is not None
            session.connection.kill()
        ends = [_all(session.launcher.stop() for session in left), _all(session.writer.flush() for session in left)]
        for end in ends:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(end, _AFTER_KILL_S)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Each of them, whatever becomes of the others."""
    await asyncio.gather(*work, return_exceptions=True)


def _slept(jump: Jump) -> str:
    minutes, rest = divmod(jump.slept_ms, _MINUTE_MS)
    return (
        f"The machine slept for {minutes} min {rest // 1000} s"
        if minutes
        else f"The machine slept for {rest // 1000} s"
    )
