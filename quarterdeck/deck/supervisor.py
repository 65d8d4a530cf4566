"""Supervise the sessions in memory: evict idle ones, stop idle processes, suspend all of them when the deck closes.

An idle process is stopped after `idle_timeout`, or earlier if another session needs its slot. That doesn't change the
session: its next message starts a process again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from quarterdeck import events as ev
from quarterdeck.config import Settings
from quarterdeck.deck.catalogue import Catalogue
from quarterdeck.deck.clock import Clock, Jump
from quarterdeck.deck.delivery import interrupt_texts
from quarterdeck.deck.services import LiveSessions
from quarterdeck.events import Body
from quarterdeck.kernel.routing import is_busy
from quarterdeck.kernel.state import State
from quarterdeck.log.base import StoredSession
from quarterdeck.log.rows import encode_snapshot

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session

_MINUTE_MS = 60_000
#: A session stays in memory this long after its last use, because the next one often comes soon.
_EVICT_AFTER_S = 1.0
#: A killed process is gone within milliseconds, unless something else is wrong.
_AFTER_KILL_S = 1.0
#: Sessions that are repaired in one go after a crash.
_REPAIR_BATCH = 256
_SERVER_STOPPED = "the server stopped before the agent confirmed this text"


class Supervisor:
    """Supervises all sessions in memory."""

    def __init__(self, sessions: LiveSessions, catalogue: Catalogue, clock: Clock, settings: Settings) -> None:
        self.sessions = sessions
        self._catalogue = catalogue
        self._clock = clock
        self._settings = settings
        #: Monotonic time before which no process is stopped as idle, because the machine just woke up.
        self._no_reaping_before = 0.0
        self._eviction_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def close(self) -> None:
        """Evict no more sessions."""
        self._is_closed = True
        if self._eviction_timer is not None:
            self._eviction_timer.cancel()
            self._eviction_timer = None

    # --- memory

    def schedule_eviction(self) -> None:
        """Evict sessions soon. Call this when a session may have become evictable."""
        if self._eviction_timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._eviction_timer = loop.call_later(_EVICT_AFTER_S, self.evict_sessions)

    def evict_sessions(self) -> None:
        """Remove all evictable sessions from memory."""
        if self._eviction_timer is not None:
            self._eviction_timer.cancel()
            self._eviction_timer = None
        for session in self.sessions:
            # A session without events is just being created.
            if session.is_evictable and session.view.index:
                view, writer = session.view, session.writer
                snapshot = encode_snapshot(view.state)
                self.sessions.discard(session.id)
                stored = StoredSession(writer.row_for(view.state), view.index, snapshot, view.index, writer.fence)
                self._catalogue.on_evicted(stored)

    # --- rules

    def apply_rules(self) -> None:
        """Apply changed rules to the open gates of all sessions."""
        for session in self.sessions:
            if session.state.gates.open:
                session.apply_rules()

    # --- idle processes

    async def reap(self) -> list[str]:
        """Stop every process that was idle for too long. Return the ids of their sessions."""
        self._clock.wall()  # Notices if the machine slept.
        if self._clock.monotonic() < self._no_reaping_before:
            return []
        idle = [session for session in self._idle_sessions() if self._idle_s(session) > self._settings.idle_timeout]
        # If one process can't be stopped, the others are stopped all the same.
        await asyncio.gather(*(session.launcher.stop() for session in idle), return_exceptions=True)
        return [session.id for session in idle]

    async def stop_idle_agent(self) -> bool:
        """Stop the process that has been idle longest, to free its slot. Return whether there was one."""
        idle = [session for session in self._idle_sessions() if not session.state.background]
        if not idle:
            return False
        await max(idle, key=self._idle_s).launcher.stop()
        return True

    def _idle_sessions(self) -> list[Session]:
        return [
            session
            for session in self.sessions
            if session.launcher.ready_connection is not None
            and not session.has_users
            and not _needs_process(session.state, self._idle_s(session), self._settings.background_cap)
        ]

    def _idle_s(self, session: Session) -> float:
        """Return for how long no signal went to or came from the process."""
        connection = session.connection
        return 0.0 if connection is None else self._clock.monotonic() - connection.last_signal_at

    def on_clock_jump(self, jump: Jump) -> None:
        """Pause deadlines and the reaper for a while after the machine slept, and record the sleep."""
        if not jump.slept_ms:
            return
        pause = self._settings.pause_after_sleep
        self._no_reaping_before = self._clock.monotonic() + pause
        notice = ev.Notice(text=_describe_sleep(jump), source="deck")
        for session in self.sessions:
            if session.observed_agent is not None:
                session.observed_agent.postpone_deadlines(pause)
            if session.connection is not None:
                session.connection.postpone_deadlines(pause)
                # Not now: the jump is noticed while a session reads the clock to write an event.
                asyncio.get_running_loop().call_soon(session.record, notice)

    # --- closing and recovery

    async def suspend(self, sessions: Iterable[Session], reason: str) -> None:
        """Suspend sessions in the log, then end their processes."""
        sessions = list(sessions)
        for session in sessions:
            session.launcher.retire()
            if session.state.lifecycle.value == "active":
                # One write: if the deck is killed after it, the next start has nothing to repair.
                session.record(*_suspension_events(session, reason))
        await _run_all(session.writer.flush() for session in sessions)
        await _run_all(session.launcher.stop() for session in sessions)
        await _run_all(session.writer.flush() for session in sessions)

    async def kill_all(self) -> None:
        """Kill all processes. Record their exits if the log accepts them quickly."""
        remaining = [session for session in self.sessions if session.connection is not None]
        for session in remaining:
            if session.connection is not None:
                session.connection.kill()
        steps = [
            _run_all(session.launcher.stop() for session in remaining),
            _run_all(session.writer.flush() for session in remaining),
        ]
        for step in steps:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(step, _AFTER_KILL_S)

    async def repair(self, sessions: Sequence[Session]) -> None:
        """Suspend sessions that a crashed deck left active. Their processes were ended before.

        Queued texts stay queued. Texts that were being sent become `unknown`.
        """
        for start in range(0, len(sessions), _REPAIR_BATCH):
            batch = sessions[start : start + _REPAIR_BATCH]
            await asyncio.gather(
                *(session.writer.commit(_suspension_events(session, "restart"), "supervisor") for session in batch)
            )


def _suspension_events(session: Session, reason: str) -> list[Body]:
    return [*interrupt_texts(session.state.queue, _SERVER_STOPPED), ev.SessionSuspended(reason=reason)]


def _needs_process(state: State, idle_s: float, background_cap: float) -> bool:
    """Return whether a process must stay: it's busy, waits for a person, has queued texts, or works in the background."""
    if is_busy(state) or state.gates.open:
        return True
    if any(item.receipt in ("queued", "sending") for item in state.queue):
        return True
    return bool(state.background) and idle_s < background_cap


async def _run_all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, even if some fail."""
    await asyncio.gather(*work, return_exceptions=True)


def _describe_sleep(jump: Jump) -> str:
    minutes, rest = divmod(jump.slept_ms, _MINUTE_MS)
    seconds = rest // 1000
    return f"The machine slept for {minutes} min {seconds} s" if minutes else f"The machine slept for {seconds} s"
