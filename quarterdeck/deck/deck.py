"""The whole deck in one process: sessions, their agents, their log. `quarterdeck.open(home)` gives one.

It owns its home alone. Opening it ends what an earlier deck left running, suspends the sessions that it left active, and
is then ready; closing it suspends all sessions and ends their agents.
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
from quarterdeck.deck import recovery, validation
from quarterdeck.deck.catalogue import Catalogue
from quarterdeck.deck.clock import Clock, Jump
from quarterdeck.deck.counters import DeckCounters
from quarterdeck.deck.creation import Creation, created
from quarterdeck.deck.environment import Environments, Fixed, Given, Surroundings
from quarterdeck.deck.git.tracker import ChangeTracker
from quarterdeck.deck.handle import SessionHandle
from quarterdeck.deck.recording import trace_file, trace_of
from quarterdeck.deck.restore import woken
from quarterdeck.deck.rules import RuleStore
from quarterdeck.deck.seal import Seal
from quarterdeck.deck.session import DeckServices, Session
from quarterdeck.deck.supervisor import Supervisor
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, Image, Json
from quarterdeck.harness import registry
from quarterdeck.home import Home
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.session_list import PAGE as LIST_PAGE
from quarterdeck.kernel.session_list import Badge, Filter, Page
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import Summary
from quarterdeck.kernel.view import View
from quarterdeck.log.base import START, CatalogueRow, Log, LogUnavailable, Receipt, StaleFence, StoredSession
from quarterdeck.log.rows import encode_snapshot
from quarterdeck.log.tail import Feed
from quarterdeck.process.tree import end_leftovers_of_home

_TIDY_AFTER_S = 1.0


class HomeInUse(QuarterdeckError):
    """Another deck has this home open."""

    code = "home_in_use"

    def __init__(self, home: Path) -> None:
        super().__init__(f"another deck uses {home}", "Stop it (`qd down`), or open another home.")


class DeckClosed(QuarterdeckError):
    """The deck is closed, or closing."""

    code = "deck_closed"

    def __init__(self) -> None:
        super().__init__("the deck is closing", "Open it again.")


class Deck:
    """Open one with `await Deck.open(home)`, or `async with quarterdeck.open(home) as deck`."""

    def __init__(
        self,
        home: Path,
        log: Log,
        feed: Feed,
        stored: Sequence[StoredSession],
        settings: Settings,
        clock: Clock,
        environment: Surroundings,
    ) -> None:
        self.home = home
        self.settings = settings
        self.clock = clock
        self.feed = feed
        self.counters = DeckCounters()
        #: Called with all that was published; for whoever must see everything at once and needs no cursor.
        self.watchers: list[Callable[[Sequence[Event]], None]] = []
        self._log = log
        self._lock: IO[str] | None = None
        self.environments = Environments(environment)
        self._seal = Seal(Home(home).seal)
        self._recorded: set[str] = set()
        self._supervisor = Supervisor(settings.running_limit)
        self._catalogue = Catalogue(stored, self._live_view)
        self._last_gate = self._catalogue.last_gate
        self.changes = ChangeTracker(home, settings.track_changes, clock.wall, self._catalogue.rows)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._has_jumped = False
        self.is_closed = False
        self._closing: asyncio.Task[None] | None = None
        self.services = self._supervisor.services = DeckServices(
            log=log,
            clock=clock,
            settings=settings,
            slots=self._supervisor.slots,
            rules=RuleStore(home / "rules.toml"),
            home_id=home_id(home),
            publish=self._publish,
            harness_of=registry.harness,
            environment_of=self._environment_of,
            next_gate=self._next_gate,
            listed=self._catalogue.listed,
            at_rest=self._at_rest,
            rules_changed=self._supervisor.judge_all,
            trace=self._trace,
            owners={},
            counters=self.counters,
            changes=self.changes,
        )
        clock.on_jump = self._jumped

    # --- open, close

    @classmethod
    async def open(
        cls,
        home: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        environment: Mapping[str, str] | Surroundings | None = None,
        clock: Clock | None = None,
    ) -> Deck:
        """Ready when it returns. HomeInUse, LogUnavailable, NewerLog."""
        from quarterdeck.log.sqlite import SqliteLog

        place, lock = _taken(Path(home))
        try:
            await asyncio.to_thread(end_leftovers_of_home, home_id(place))
            log = await SqliteLog.open(Home(place).store)
            try:
                deck = await cls.over(log, place, settings=settings, environment=environment, clock=clock)
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
        environment: Mapping[str, str] | Surroundings | None = None,
        clock: Clock | None = None,
    ) -> Deck:
        """A deck over a log that is open already; the caller answers for nobody else using it."""
        given = os.environ.copy() if environment is None else environment
        usual = Fixed(given) if isinstance(given, Mapping) else given
        chosen = settings or settings_from(await usual.current())
        feed = await Feed.over(log, chosen.tail)
        deck = cls(home, log, feed, await log.sessions(), chosen, clock or Clock(), usual)
        await deck._repair()
        deck._every("reaper", chosen.reaper_every)
        deck._every("retention", chosen.retention_every)
        return deck

    async def __aenter__(self) -> Deck:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, reason: str = "shutdown") -> None:
        """Every active session is suspended and every agent ended, within ten seconds. Whoever asks again meanwhile waits
        for the same end: a process that leaves when the first of two calls returns must not leave agents behind."""
        if self._closing is None:
            self.is_closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close(reason))
        await asyncio.shield(self._closing)

    async def _close(self, reason: str) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for job in self._jobs:
            job.cancel()
        await self.changes.close()
        await self.environments.usual.close()
        active = [row.session_id for row in self._catalogue.rows() if row.status == "active"]
        sessions = [one for name in active if (one := await self._still_there(name)) is not None]
        sessions += [one for name, one in self._supervisor.sessions.items() if name not in active]
        try:
            await asyncio.wait_for(self._supervisor.suspend(sessions, reason), self.settings.shutdown_within)
        except TimeoutError:
            await self._supervisor.kill_all()
        await self._log.close()
        self.feed.close()
        if self._lock is not None:
            self._lock.close()

    async def _still_there(self, name: str) -> Session | None:
        """None when the log cannot even be read: the next start repairs that session, and the others are closed."""
        try:
            return await self._session(name)
        except QuarterdeckError:
            return None

    async def _repair(self) -> None:
        left = [await self._session(row.session_id) for row in self._catalogue.rows() if row.status == "active"]
        # whose turns were open when they were left: their rows may not know their last gates
        self._last_gate = max(self._last_gate, 0, *(one.writer.last_gate_number for one in left))
        await recovery.repair(left)
        self._tidy()

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
        """A new session; with a prompt it starts at once. `env` is the agent's whole environment, and is never told.
        `arguments` are flags of the agent's own; they are in the log."""
        self.check_open()
        validation.client_id(client_id)
        chosen = validation.environment(env)
        if continues:
            self._catalogue.view(continues)
        wanted = Creation(
            agent=agent,
            prompt=prompt,
            cwd=validation.folder(cwd, self.settings.workspace),
            images=validation.images(images, self.settings),
            model=model,
            name=name,
            mode=mode,
            continues=continues,
            arguments=validation.arguments(arguments),
            own_environment=chosen is not None,
        )
        session_id = _id_for(client_id)
        session = self._supervisor.sessions.get(session_id)
        if session is None and session_id in self._catalogue:
            session = await self._session(session_id)
        if session is None:
            session = self._supervisor.add(Session(self.services, session_id, View(), ""))
        had_own, was_recorded = session_id in self.environments, session_id in self._recorded
        if chosen is not None:
            self.environments.add(session_id, chosen)
        if record:
            self._recorded.add(session_id)
        try:
            await created(session, wanted, client_id, self._unkept(chosen, record) if client_id else None)
        except BaseException as error:
            if not session.view.index:
                self._supervisor.sessions.pop(session_id, None)
            # one that its caller gave up is done to its end; one that was refused has changed nothing, also of the session
            # that the key means already
            if not session.view.index or isinstance(error, QuarterdeckError):
                self._take_back(session_id, had_own, was_recorded)
            raise
        return SessionHandle(self, session_id)

    def _unkept(self, env: Mapping[str, str] | None, record: bool) -> Json:
        """What makes it another creation and stands nowhere in the log."""
        return None if env is None and not record else [None if env is None else self._seal.of(env), record]

    def _take_back(self, session_id: str, had_own: bool, was_recorded: bool) -> None:
        """What a creation that was refused would have had."""
        if not had_own:
            self.environments.forget(session_id)
        if not was_recorded:
            self._recorded.discard(session_id)

    def session(self, session_id: str) -> SessionHandle:
        """One that exists; NoSuchSession."""
        self._catalogue.view(session_id)
        return SessionHandle(self, session_id)

    def list(self, wanted: Filter | None = None, *, limit: int = LIST_PAGE, cursor: str = "") -> Page:
        """One page of the list, newest first."""
        validation.limit(limit)
        validation.text("cursor", cursor, validation.CURSOR_LIMIT)
        validation.fits(wanted or Filter())
        in_use = self._in_use()
        return self._catalogue.page(wanted or Filter(), in_use, self.clock.wall(), limit, cursor)

    def badge(self) -> Badge:
        """How many sessions there are, and how many want a person."""
        return self._catalogue.badge(self._in_use(), self.clock.wall())

    def attention(self) -> list[Summary]:
        """The sessions that want a person, the most urgent first."""
        return self._catalogue.needing(self._in_use(), self.clock.wall())

    def waiting(self) -> tuple[str, ...]:
        """The sessions that wait for a free place."""
        return self._supervisor.slots.waiting

    async def resume_interrupted(self) -> list[str]:
        """Resumes every suspended session that was in the middle of something and that can be resumed."""
        chosen = [row.session_id for row in self._catalogue.rows() if row.status == "suspended" and row.supports_resume]
        interrupted = [name for name in chosen if _was_interrupted(self._catalogue.view(name).state)]
        return [name for name in interrupted if await self._was_resumed(name)]

    async def _was_resumed(self, name: str) -> bool:
        """One that cannot be resumed after all does not keep the others."""
        try:
            await self.session(name).resume()
        except QuarterdeckError:
            return False
        return True

    def subscribe(self, since: str = START, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """All events of all sessions after a cursor, and whatever comes."""
        validation.cursor(since)
        validation.types(types)
        return self.feed.follow_all(since, types)

    async def check(self) -> None:
        """Raises unless the log can be read and written; it is tried, with a commit."""
        self.check_open()
        await self._log.probe()
        for session in self._supervisor.sessions.values():
            # a wish that was refused is over; facts that still wait are not
            if session.writer.error is not None and not session.writer.is_durable:
                raise session.writer.error

    async def delete(self, session_id: str) -> None:
        """Removes a session and its log. Only one at rest can be removed."""
        self.check_open()
        session = await self._session(session_id)
        cmd.check(session.state, cmd.Delete())
        await session.launcher.stop()
        await self._delete(session)
        trace_file(self.home, session_id).unlink(missing_ok=True)
        await asyncio.to_thread(shutil.rmtree, Home(self.home).results / session_id, ignore_errors=True)
        await self.changes.forget(session_id, session.state.profile.cwd)

    async def _delete(self, session: Session) -> None:
        """Once nothing of it is on its way to the log. Whoever comes before it is gone is done first, and may wake it."""
        while True:
            while not session.writer.is_durable:
                await session.writer.flush()
            cmd.check(session.state, cmd.Delete())
            fence, at = session.writer.fence, self.clock.wall()
            last = Event(session.id, session.view.index + 1, at, "user", ev.SessionDeleted())
            try:
                await self._log.delete(session.id, fence, last, self._deleted)
                return
            except StaleFence:
                if session.writer.is_durable and session.writer.fence == fence:
                    raise  # it is not ours any more

    def _deleted(self, receipt: Receipt) -> None:
        """At once: what becomes durable after it is not to be published before it."""
        session_id = receipt.events[0].session_id
        self._supervisor.sessions.pop(session_id, None)
        self.environments.forget(session_id)
        self._catalogue.removed(session_id)
        self._recorded.discard(session_id)
        self._publish(receipt.events)

    # --- for handles

    async def in_use(self, session_id: str) -> Session:
        """The live session of this id."""
        self.check_open()
        session = await self._session(session_id)
        self.check_open()  # nobody closes a session that came after the closing began
        return session

    def at_hand(self, session_id: str) -> Session | None:
        """The live session of this id, if it is in memory."""
        return None if self.is_closed else self._supervisor.sessions.get(session_id)

    def view(self, session_id: str) -> View:
        """Its state as it is now."""
        return self._catalogue.view(session_id)

    def sessions_in_use(self) -> Iterator[Session]:
        """Those that are in memory: a process, a command or a reader needs them, or did a moment ago."""
        return iter(self._supervisor.sessions.values())

    def stored(self, session_id: str) -> StoredSession:
        """What the log held of a session when it was last at rest; NoSuchSession."""
        return self._catalogue.stored(session_id)

    def rows(self) -> Iterator[CatalogueRow]:
        """The catalogue as it is."""
        return self._catalogue.rows()

    def add(self, session: Session) -> Session:
        """One more that is in use."""
        return self._supervisor.add(session)

    def has(self, session_id: str) -> bool:
        """Whether there is one of this id."""
        return session_id in self._catalogue

    def is_known(self, session_id: str) -> bool:
        """Whether there is one, or will be as soon as its first event is durable."""
        return session_id in self._supervisor.sessions or session_id in self._catalogue

    def session_ids(self) -> list[str]:
        """All of them, newest first."""
        return self._catalogue.ids()

    async def shows(self, event: Event) -> None:
        """A reader of the log can be a moment ahead of the view; returns when the view has this event, too."""
        live = self._supervisor.sessions.get(event.session_id)
        if live is not None and live.writer.durable_view.index < event.index:
            with contextlib.suppress(QuarterdeckError):  # this one is durable, whatever becomes of those behind it
                await live.writer.flush()

    async def _session(self, session_id: str) -> Session:
        """From the log, unless it is in use already."""
        live = self._supervisor.sessions.get(session_id)
        if live is not None:
            return live
        stored = self._catalogue.stored(session_id)
        found = await woken(self._log, stored)
        live = self._supervisor.sessions.get(session_id)
        if live is not None:
            return live
        self._catalogue.wakes(session_id)
        session = self._supervisor.add(Session(self.services, session_id, found.view, stored.fence, found.last_gate))
        if found.refolded is not None:
            session.note(found.refolded)
        return session

    def _live_view(self, session_id: str) -> View | None:
        """What is durable: nothing else is told to anybody."""
        live = self._supervisor.sessions.get(session_id)
        return live.writer.durable_view if live is not None and live.writer.durable_view.index else None

    def _in_use(self) -> list[str]:
        return [name for name, session in self._supervisor.sessions.items() if session.writer.durable_view.index]

    def _at_rest(self) -> None:
        """Something ended; soon afterwards whoever has nothing to do is put back."""
        if "tidy" not in self._timers and not self.is_closed:
            loop = asyncio.get_running_loop()
            self._timers["tidy"] = loop.call_later(_TIDY_AFTER_S, self._tidy)

    def _tidy(self) -> None:
        self._timers.pop("tidy", None)
        for name, session in list(self._supervisor.sessions.items()):
            if session.is_idle and session.view.index:
                view, record = session.view, session.writer
                row, state = record.row_for(view.state), encode_snapshot(view.state)
                del self._supervisor.sessions[name]
                self._catalogue.rests(StoredSession(row, view.index, state, view.index, record.fence))

    # --- what a session asks of the deck

    def _publish(self, events: Sequence[Event]) -> None:
        self.feed.publish(events)
        for watch in self.watchers:
            watch(events)

    async def _environment_of(self, session_id: str) -> Given:
        first = await self._log.read(session_id, 0, 1)
        had_own = bool(first) and isinstance(first[0].body, ev.SessionOpened) and first[0].body.own_environment
        return await self.environments.of(session_id, had_own=had_own)

    def _next_gate(self) -> int:
        self._last_gate += 1
        return self._last_gate

    def _trace(self, session_id: str) -> Callable[..., None] | None:
        is_recorded = session_id in self._recorded or trace_file(self.home, session_id).exists()
        return trace_of(self.home, session_id) if is_recorded else None

    # --- jobs

    def _every(self, name: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, self._begin_job, name, seconds)

    def _begin_job(self, name: str, seconds: float) -> None:
        job = asyncio.get_running_loop().create_task(self.reap() if name == "reaper" else self.retain())
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        self._every(name, seconds)

    async def reap(self) -> None:
        """Ends processes that nobody used for half an hour."""
        await self._supervisor.reap()

    async def retain(self) -> None:
        """002's daily clean-up. After a jump of the clock it waits for another day: ages may be wrong."""
        now = self.clock.wall()
        jumped, self._has_jumped = self._has_jumped, False
        if jumped:
            return
        for name in self._catalogue.expired(now):
            try:
                await self.delete(name)
            except QuarterdeckError:
                continue  # it is in use again, or gone; another day
        await self.changes.tidy()

    def _jumped(self, jump: Jump) -> None:
        self._has_jumped = True
        self._supervisor.jumped(jump)

    def check_open(self) -> None:
        """Raises DeckClosed once it is closing."""
        if self.is_closed:
            raise DeckClosed


def home_id(home: Path) -> str:
    """What marks the processes of this home; the same for every deck that opens it."""
    return hashlib.sha256(str(home).encode(errors="surrogateescape")).hexdigest()[:12]


def _id_for(client_id: str) -> str:
    """A caller's key always means the same session, so that creating it twice creates one."""
    return hashlib.sha256(f"create {client_id}".encode()).hexdigest()[:16] if client_id else uuid4().hex[:16]


def _taken(home: Path) -> tuple[Path, IO[str]]:
    """The home, made if need be, and its lock, which goes with the process that holds it, however that ends."""
    home = home.expanduser().resolve()
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LogUnavailable(f"{home} cannot be made: {error.strerror}", "Choose a home that you may write.") from None
    try:
        lock = open(Home(home).lock, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise LogUnavailable(
            f"{home} cannot be written: {error.strerror}", "Choose a home that you may write."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise HomeInUse(home) from None
    return home, lock


def _was_interrupted(state: State) -> bool:
    return state.phase.value in ("paused", "stopped") or any(item.receipt == "queued" for item in state.queue)
