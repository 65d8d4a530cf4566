"""The whole deck in one process: sessions, their agents and their log. `quarterdeck.open(home)` opens one.

A deck has its home for itself. Opening it ends processes that an earlier deck left running and suspends the sessions that it
left active. Closing it suspends all sessions and ends their agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO
from uuid import uuid4

from quarterdeck import events as ev
from quarterdeck.config import Settings, settings_from
from quarterdeck.deck import validation
from quarterdeck.deck.catalogue import Catalogue
from quarterdeck.deck.clock import Clock, Jump
from quarterdeck.deck.commands import lifecycle
from quarterdeck.deck.counters import DeckCounters
from quarterdeck.deck.environment import (
    EnvironmentFingerprint,
    Environments,
    EnvironmentSource,
    FixedEnvironment,
)
from quarterdeck.deck.git.tracker import ChangeTracker
from quarterdeck.deck.recording import Recordings
from quarterdeck.deck.restore import restore_session
from quarterdeck.deck.rules import RuleStore
from quarterdeck.deck.services import ConversationOwners, DeckServices, GateNumbers, LiveSessions
from quarterdeck.deck.session import Session
from quarterdeck.deck.session_api import SessionHandle
from quarterdeck.deck.slots import Slots
from quarterdeck.deck.supervisor import Supervisor
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, Image
from quarterdeck.home import Home
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.session_list import PAGE as LIST_PAGE
from quarterdeck.kernel.session_list import Badge, Filter, Page
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import Summary
from quarterdeck.kernel.view import View
from quarterdeck.log.base import NEW, START, CatalogueRow, Log, LogUnavailable, Receipt, StaleFence, StoredSession
from quarterdeck.log.tail import Feed
from quarterdeck.process.tree import end_leftovers_of_home


class HomeInUse(QuarterdeckError):
    """Another deck has this home open."""

    code = "home_in_use"

    def __init__(self, home: Path) -> None:
        super().__init__(f"another deck uses {home}", "Stop it with `qd down`, or open another home.")


class DeckClosed(QuarterdeckError):
    """The deck is closed, or closing."""

    code = "deck_closed"

    def __init__(self) -> None:
        super().__init__("the deck is closing", "Open the deck again.")


class Deck:
    """Open one with `await Deck.open(home)`, or with `async with quarterdeck.open(home) as deck`."""

    def __init__(
        self,
        home: Path,
        log: Log,
        feed: Feed,
        stored: Sequence[StoredSession],
        settings: Settings,
        clock: Clock,
        environment: EnvironmentSource,
    ) -> None:
        self.home = home
        self.settings = settings
        self.clock = clock
        self.feed = feed
        self.counters = DeckCounters()
        self.environments = Environments(environment, log)
        self._environment_fingerprint = EnvironmentFingerprint(Home(home).seal)
        self._sessions = LiveSessions()
        self._catalogue = Catalogue(stored, self._sessions)
        self._supervisor = Supervisor(self._sessions, self._catalogue, clock, settings)
        self.changes = ChangeTracker(home, clock, self._catalogue, is_enabled=settings.track_changes)
        self.services = DeckServices(
            home_id=home_id(home),
            log=log,
            clock=clock,
            settings=settings,
            feed=feed,
            catalogue=self._catalogue,
            supervisor=self._supervisor,
            slots=Slots(settings.running_limit, self._supervisor.stop_idle_agent),
            rules=RuleStore(home / "rules.toml"),
            environments=self.environments,
            recordings=Recordings(home),
            changes=self.changes,
            counters=self.counters,
            conversations=ConversationOwners(),
            gate_numbers=GateNumbers(self._catalogue.last_gate_number),
        )
        self._log = log
        self._lock: IO[str] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._has_clock_jumped = False
        self.is_closed = False
        self._closing: asyncio.Task[None] | None = None
        clock.on_jump = self._on_clock_jump

    # --- opening and closing

    @classmethod
    async def open(
        cls,
        home: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        environment: Mapping[str, str] | EnvironmentSource | None = None,
        clock: Clock | None = None,
    ) -> Deck:
        """Open the deck of a home. It's ready when this returns.

        Raises:
            HomeInUse: another deck has this home open.
            LogUnavailable: the home or its store can't be used.
            NewerLog: a newer release wrote the store.
        """
        # Importing SQLite takes a while, and a deck over another log doesn't need it.
        from quarterdeck.log.sqlite import SqliteLog

        folder, lock = _lock_home(Path(home))
        try:
            # First of all: processes that a crashed deck left running still write files.
            await asyncio.to_thread(end_leftovers_of_home, home_id(folder))
            log = await SqliteLog.open(Home(folder).store)
            try:
                deck = await cls.over(log, folder, settings=settings, environment=environment, clock=clock)
            except BaseException:
                await log.close()
                raise
        except BaseException:
            lock.close()
            raise
        deck._lock = lock
        return deck

    @classmethod
    async def over(
        cls,
        log: Log,
        home: Path,
        *,
        settings: Settings | None = None,
        environment: Mapping[str, str] | EnvironmentSource | None = None,
        clock: Clock | None = None,
    ) -> Deck:
        """Open a deck over a log that is open already. The caller makes sure that no other deck uses the log."""
        variables = os.environ.copy() if environment is None else environment
        source = FixedEnvironment(variables) if isinstance(variables, Mapping) else variables
        settings = settings or settings_from(await source.current())
        feed = await Feed.over(log, settings.tail)
        deck = cls(home, log, feed, await log.sessions(), settings, clock or Clock(), source)
        await deck._repair()
        deck._schedule("reaper", settings.reaper_every)
        deck._schedule("retention", settings.retention_every)
        return deck

    async def __aenter__(self) -> Deck:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, reason: str = "shutdown") -> None:
        """Suspend all active sessions and end all agents, within `shutdown_within` seconds.

        Concurrent calls wait for the same end: a program that exits when the first of two calls returns must not leave
        agents behind.
        """
        if self._closing is None:
            self.is_closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close(reason))
        await asyncio.shield(self._closing)

    async def _close(self, reason: str) -> None:
        self._supervisor.close()
        for timer in self._timers.values():
            timer.cancel()
        for job in self._jobs:
            job.cancel()
        await self.changes.close()
        await self.environments.usual.close()
        for row in list(self._catalogue.rows()):
            if row.status == "active":
                # If the log can't be read, the next start repairs this session. The others are suspended all the same.
                with contextlib.suppress(QuarterdeckError):
                    await self._load(row.session_id)
        try:
            await asyncio.wait_for(self._supervisor.suspend(self._sessions, reason), self.settings.shutdown_within)
        except TimeoutError:
            await self._supervisor.kill_all()
        await self._log.close()
        self.feed.close()
        if self._lock is not None:
            self._lock.close()

    async def _repair(self) -> None:
        """Suspend the sessions that an earlier deck left active."""
        active_ids = [row.session_id for row in self._catalogue.rows() if row.status == "active"]
        sessions = [await self._load(session_id) for session_id in active_ids]
        for session in sessions:
            # If its turn was open, its row may not know its last gate.
            self.services.gate_numbers.skip_to(session.writer.last_gate_number)
        await self._supervisor.repair(sessions)
        self._supervisor.evict_sessions()

    def check_open(self) -> None:
        """Raise if the deck is closing.

        Raises:
            DeckClosed: it is.
        """
        if self.is_closed:
            raise DeckClosed

    async def check(self) -> None:
        """Check that the log can be read and written, by trying both.

        Raises:
            QuarterdeckError: it can't.
        """
        self.check_open()
        await self._log.probe()
        for session in self._sessions:
            # A refused command is over. Facts that are still pending aren't.
            if session.writer.error is not None and not session.writer.is_durable:
                raise session.writer.error

    # --- sessions

    async def create(
        self,
        agent: str,
        prompt: str | None = None,
        *,
        cwd: str = ".",
        images: Sequence[Image] = (),
        model: str = "",
        name: str = "",
        mode: str = "",
        env: Mapping[str, str] | None = None,
        record: bool = False,
        continues: str = "",
        arguments: Sequence[str] = (),
        client_id: str = "",
    ) -> SessionHandle:
        """Create a session. With a prompt, its agent starts at once.

        `env` is the agent's whole environment, and is never logged or returned. `arguments` are passed to the agent's
        command line; they are stored in the log. With `record`, raw signals are recorded to a trace.

        Raises:
            InvalidInput: a parameter can't be used.
            UnknownAgent: there is no such agent.
            NoSuchFolder: `cwd` doesn't exist.
            NoSuchSession: the session that this one continues doesn't exist.
            CannotDo: the agent doesn't support the mode or images.
        """
        self.check_open()
        validation.check_client_id(client_id)
        env = validation.check_environment(env)
        if continues:
            self._catalogue.view(continues)
        command = cmd.Create(
            agent=agent,
            prompt=prompt,
            cwd=validation.resolve_folder(cwd, self.settings.workspace),
            images=validation.check_images(images, self.settings),
            model=model,
            name=name,
            mode=mode,
            continues=continues,
            arguments=validation.check_arguments(arguments),
            env=env,
            record=record,
            client_id=client_id,
        )
        return await self._create(command)

    async def _create(self, command: cmd.Create) -> SessionHandle:
        session_id = _new_session_id(command.client_id)
        session = await self._load(session_id) if self.is_known(session_id) else self.add_session(session_id)
        # The environment and the recording can't be in the log, so they are set before the agent may start.
        environments, recordings = self.environments, self.services.recordings
        had_environment, was_recorded = session_id in environments, session_id in recordings
        if command.env is not None:
            environments.add(session_id, command.env)
        if command.record:
            recordings.add(session_id)
        environment_fingerprint = ""
        if command.client_id and command.env is not None:
            environment_fingerprint = self._environment_fingerprint.of(command.env)
        try:
            await lifecycle.create(session, command, environment_fingerprint)
        except BaseException as error:
            was_created = bool(session.view.index)
            if not was_created:
                self._sessions.discard(session_id)
            # If only the caller was cancelled, the creation continues. If it was refused, undo what was set above, but not
            # what a session had before that was created with the same key.
            if not was_created or isinstance(error, QuarterdeckError):
                if not had_environment:
                    environments.forget(session_id)
                if not was_recorded:
                    recordings.discard(session_id)
            raise
        return SessionHandle(self, session_id)

    def session(self, session_id: str) -> SessionHandle:
        """Return a handle of an existing session.

        Raises:
            NoSuchSession: there is none with this id.
        """
        self._catalogue.view(session_id)
        return SessionHandle(self, session_id)

    async def resume_interrupted(self) -> list[str]:
        """Resume every suspended session that was interrupted and can be resumed. Return their ids."""
        candidates = [
            row.session_id for row in self._catalogue.rows() if row.status == "suspended" and row.supports_resume
        ]
        resumed: list[str] = []
        for session_id in candidates:
            if _was_interrupted(self._catalogue.view(session_id).state):
                # One that can't be resumed after all doesn't keep the others from being resumed.
                with contextlib.suppress(QuarterdeckError):
                    await self.session(session_id).resume()
                    resumed.append(session_id)
        return resumed

    async def delete(self, session_id: str) -> None:
        """Delete a session, its log, its trace and its snapshots.

        Raises:
            NoSuchSession: there is none with this id.
            NotAllowed: the session is active.
        """
        self.check_open()
        session = await self._load(session_id)
        cmd.check(session.state, cmd.Delete())
        await session.launcher.stop()
        await self._delete_log(session)
        self.services.recordings.delete(session_id)
        await asyncio.to_thread(shutil.rmtree, Home(self.home).results / session_id, ignore_errors=True)
        await self.changes.forget(session_id, session.state.profile.cwd)

    async def _delete_log(self, session: Session) -> None:
        while True:
            while not session.writer.is_durable:
                await session.writer.flush()
            # A command that came first is carried out first, and may have made the session active again.
            cmd.check(session.state, cmd.Delete())
            fence, at = session.writer.fence, self.clock.wall()
            last = Event(session.id, session.view.index + 1, at, "user", ev.SessionDeleted())
            try:
                await self._log.delete(session.id, fence, last, self._on_deleted)
                return
            except StaleFence:
                if session.writer.is_durable and session.writer.fence == fence:
                    raise  # Another deck owns the session. Otherwise an event was appended meanwhile: try again.

    def _on_deleted(self, receipt: Receipt) -> None:
        # The log calls this before it acknowledges later appends, so nothing is published before the deletion.
        session_id = receipt.events[0].session_id
        self._sessions.discard(session_id)
        self.environments.forget(session_id)
        self._catalogue.remove(session_id)
        self.services.recordings.discard(session_id)
        self.feed.publish(receipt.events)

    # --- lists

    def list(self, filters: Filter | None = None, *, limit: int = LIST_PAGE, cursor: str = "") -> Page:
        """Return one page of the list, newest first."""
        validation.check_limit(limit)
        validation.check_text("cursor", cursor, validation.CURSOR_LIMIT)
        validation.check_field_types(filters or Filter())
        return self._catalogue.page(filters or Filter(), self.clock.wall(), limit, cursor)

    def badge(self) -> Badge:
        """Return how many sessions there are and how many need a person."""
        return self._catalogue.badge(self.clock.wall())

    def attention(self) -> list[Summary]:
        """Return the sessions that need a person, the most urgent first."""
        return self._catalogue.needing_attention(self.clock.wall())

    def waiting(self) -> tuple[str, ...]:
        """Return the ids of the sessions that wait for an agent slot."""
        return self.services.slots.waiting

    def subscribe(self, since: str = START, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """Yield all events of all sessions after a cursor, then new ones as they come."""
        validation.check_cursor(since)
        validation.check_event_types(types)
        return self.feed.follow_all(since, types)

    @property
    def watchers(self) -> list[Callable[[Sequence[Event]], None]]:
        """Functions that are called with all published events."""
        return self.feed.watchers

    def view(self, session_id: str) -> View:
        """Return a session's view as it is now.

        Raises:
            NoSuchSession: there is none with this id.
        """
        return self._catalogue.view(session_id)

    def stored(self, session_id: str) -> StoredSession:
        """Return what the log held when the session last left memory.

        Raises:
            NoSuchSession: there is none with this id.
        """
        return self._catalogue.stored(session_id)

    def rows(self) -> Iterator[CatalogueRow]:
        """Yield the catalogue rows of all sessions."""
        return self._catalogue.rows()

    def has(self, session_id: str) -> bool:
        """Return whether there is a session with this id."""
        return session_id in self._catalogue

    def is_known(self, session_id: str) -> bool:
        """Return whether there is a session with this id, or will be once its first event is durable."""
        return session_id in self._sessions or session_id in self._catalogue

    def session_ids(self) -> list[str]:
        """Return all session ids, newest first."""
        return self._catalogue.ids()

    # --- sessions in memory

    async def load_session(self, session_id: str) -> Session:
        """Return the session in memory, loading it if necessary.

        Raises:
            NoSuchSession: there is none with this id.
            DeckClosed: the deck is closing.
        """
        self.check_open()
        session = await self._load(session_id)
        # A session that was loaded after closing began would never be suspended.
        self.check_open()
        return session

    def loaded_sessions(self) -> Iterator[Session]:
        """Yield the sessions in memory: a process, a command or a reader uses them, or did so a moment ago."""
        return iter(self._sessions)

    def add_session(self, session_id: str) -> Session:
        """Add a new, empty session to memory."""
        return self._sessions.add(Session(self.services, session_id, View(), NEW))

    async def _load(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        stored = self._catalogue.stored(session_id)
        restored = await restore_session(self._log, stored)
        # Another caller may have loaded it while we read. There must be only one writer.
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        self._catalogue.on_loaded(session_id)
        session = self._sessions.add(
            Session(self.services, session_id, restored.view, stored.fence, restored.last_gate_number)
        )
        if restored.refolded is not None:
            session.record(restored.refolded)
        return session

    async def wait_until_shown(self, event: Event) -> None:
        """Wait until the view has an event. A reader of the log can be a moment ahead of it."""
        session = self._sessions.get(event.session_id)
        if session is not None and session.writer.durable_view.index < event.index:
            # This event is durable. If the log refuses later ones, that doesn't concern the caller.
            with contextlib.suppress(QuarterdeckError):
                await session.writer.flush()

    # --- regular jobs

    def _schedule(self, name: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, self._start_job, name, seconds)

    def _start_job(self, name: str, seconds: float) -> None:
        job = asyncio.get_running_loop().create_task(self.reap() if name == "reaper" else self.retain())
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        self._schedule(name, seconds)

    async def reap(self) -> None:
        """Stop processes that were idle for `idle_timeout`."""
        await self._supervisor.reap()

    async def retain(self) -> None:
        """Delete expired sessions and unused snapshots, as seed 002 wants it daily.

        After the clock jumped, ages may be wrong, so nothing is deleted until the next day.
        """
        now = self.clock.wall()
        has_jumped, self._has_clock_jumped = self._has_clock_jumped, False
        if has_jumped:
            return
        for session_id in self._catalogue.expired_ids(now):
            # One that is in use again, or was deleted meanwhile, is left for another day.
            with contextlib.suppress(QuarterdeckError):
                await self.delete(session_id)
        await self.changes.prune_all()

    def _on_clock_jump(self, jump: Jump) -> None:
        self._has_clock_jumped = True
        self._supervisor.on_clock_jump(jump)


# --- helpers


def home_id(home: Path) -> str:
    """Return the mark of this home's processes. It's the same for every deck that opens the home."""
    return hashlib.sha256(str(home).encode(errors="surrogateescape")).hexdigest()[:12]


def _new_session_id(client_id: str) -> str:
    # A key always gives the same session id, so repeating a creation finds the session.
    return hashlib.sha256(f"create {client_id}".encode()).hexdigest()[:16] if client_id else uuid4().hex[:16]


def _lock_home(home: Path) -> tuple[Path, IO[str]]:
    """Create the home if it's missing, and lock it. The system releases the lock when the process ends, however it ends."""
    home = home.expanduser().resolve()
    hint = "Use a home that you may write to."
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LogUnavailable(f"{home} can't be created: {error.strerror}", hint) from None
    try:
        lock = open(Home(home).lock, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise LogUnavailable(f"{home} can't be written: {error.strerror}", hint) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise HomeInUse(home) from None
    return home, lock


def _was_interrupted(state: State) -> bool:
    return state.phase.value in ("paused", "stopped") or any(item.receipt == "queued" for item in state.queue)
