"""Take repository snapshots around each turn, and report what sessions changed.

A session gets its first snapshot before its agent starts for the first time, then one before each turn and one at its end.
Nothing is polled or watched in between. A start, or the text of a turn, waits up to `PATIENCE_S` for its snapshot. An agent
that the user started elsewhere doesn't wait for us: its snapshot is taken while its turn begins. All git work runs in
threads, one job at a time per repository.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.deck.git.diff import ChangedFile, Diff, Scope, count_changes
from quarterdeck.deck.git.repository import find_repository
from quarterdeck.deck.git.run_git import Git
from quarterdeck.deck.git.snapshots import Snapshot, SnapshotRepository, list_roots
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.home import Home
from quarterdeck.kernel.profile import Changes
from quarterdeck.kernel.state import State
from quarterdeck.log.base import CatalogueRow

if TYPE_CHECKING:
    from quarterdeck.deck.clock import Clock
    from quarterdeck.deck.session import Session

T = TypeVar("T")
Work: TypeAlias = Coroutine[Any, Any, None]
log = logging.getLogger("quarterdeck.changes")

#: How long a start or a text waits for a snapshot. A slower snapshot is finished while the agent works.
PATIENCE_S = 5.0
FILES_LIMIT = 2000
_SHARED_LIMIT = 20
#: Names of a session's snapshots: before its first start, before its last turn, after its last turn.
START, TURN, END = "start", "turn", "end"
_TURN_ENDS = frozenset({ev.AgentEnd, ev.AgentAbort})


class NoRepository(QuarterdeckError):
    """The session's folder isn't in a git repository."""

    code = "no_repository"

    def __init__(self, cwd: str) -> None:
        super().__init__(f"{cwd} isn't in a git repository", "Run `git init` there: changes are tracked with git.")


class NoSnapshot(QuarterdeckError):
    """No snapshot exists to compare the working tree with."""

    code = "no_snapshot"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} has no snapshot of its repository",
            "Wait for the next turn, which takes one. If `track_changes` is on, see the server's log for the reason.",
        )


class SessionRows(Protocol):
    """The catalogue, as far as the tracker needs it."""

    def rows(self) -> Iterable[CatalogueRow]:
        """Return the rows of all sessions."""
        ...


class _TrackedSession(Struct):
    """What the tracker remembers about a session while the deck is open."""

    root: str
    has_start: bool = False
    #: The snapshot for the start was just taken, so the first turn doesn't need another.
    is_fresh: bool = False


class ChangeTracker:
    """Tracks the repositories of all sessions of one deck."""

    def __init__(self, home: Path, clock: Clock, catalogue: SessionRows, *, is_enabled: bool) -> None:
        self._home = home
        self._clock = clock
        self._catalogue = catalogue
        self._is_enabled = is_enabled
        self._git = Git()
        self._repositories: dict[str, tuple[SnapshotRepository, asyncio.Lock]] = {}
        self._sessions: dict[str, _TrackedSession] = {}
        self._jobs: set[asyncio.Task[object]] = set()
        self._threads = ThreadPoolExecutor(2, "qd-changes")
        self._is_closed = False

    async def close(self) -> None:
        """Kill running git commands and wait for their jobs. No more events are recorded."""
        self._is_closed = True
        self._git.close()
        if self._jobs:
            await asyncio.wait(self._jobs)
        self._threads.shutdown()

    def has_start_snapshot(self, session_id: str) -> bool:
        """Return whether the session has a first snapshot, as far as this deck has looked."""
        session = self._sessions.get(session_id)
        return session is not None and session.has_start

    # --- when snapshots are taken

    async def before_start(self, session: Session) -> None:
        """Take the first snapshot before the agent's process exists."""
        tracked = self._track(session)
        if tracked is not None and not tracked.has_start:
            await self._wait_a_while(session, self._take_start(session.id, tracked))

    async def before_turn(self, session: Session) -> None:
        """Take a snapshot before the text of a turn is sent."""
        tracked = self._track(session)
        if tracked is None:
            return
        if tracked.is_fresh:
            tracked.is_fresh = False
        else:
            await self._wait_a_while(session, self._take_turn(session.id, tracked))

    def on_durable(self, session: Session, events: Sequence[Event]) -> None:
        """Take a snapshot in the background if these events end a turn, or begin one that the deck didn't start."""
        if not self._is_enabled:
            return
        begins = False
        for event in events:
            kind = type(event.body)
            if kind in _TURN_ENDS and not event.body.agent_path:
                self._run_in_background(session, self._record_changes(session))
                return
            begins = begins or (kind is ev.AgentStart and not event.body.agent_path)
        if begins and session.connection is None:
            self._run_in_background(session, self._take_observed_turn(session))

    def _run_in_background(self, session: Session, work: Work) -> None:
        # The session counts the work as its own, so it stays in memory until the work is done.
        session.run_in_background(self._log_errors(session, asyncio.ensure_future(work)))

    # --- how snapshots are taken

    def _track(self, session: Session) -> _TrackedSession | None:
        if not self._is_enabled or self._is_closed:
            return None
        if session.id not in self._sessions:
            root = _find_root(session.state.profile.cwd)
            if root is None:
                return None
            self._sessions[session.id] = _TrackedSession(root)
        return self._sessions[session.id]

    async def _take_start(self, session_id: str, tracked: _TrackedSession) -> None:
        snapshots = await self._in_thread(tracked.root, lambda repository: repository.load(session_id))
        if START not in snapshots:
            await self._in_thread(tracked.root, lambda repository: self._take(repository, session_id, (START, TURN)))
            tracked.is_fresh = True
        tracked.has_start = True

    async def _take_turn(self, session_id: str, tracked: _TrackedSession) -> None:
        def take(repository: SnapshotRepository) -> None:
            snapshots = repository.load(session_id)
            self._take(repository, session_id, (TURN,) if START in snapshots else (START, TURN))
            if END in snapshots:
                repository.drop(session_id, END)
            tracked.has_start = True

        await self._in_thread(tracked.root, take)

    async def _take_observed_turn(self, session: Session) -> None:
        tracked = self._track(session)
        if tracked is not None:
            await self._take_turn(session.id, tracked)

    async def _record_changes(self, session: Session) -> None:
        """Take the snapshot at the end of a turn, and record what changed since the session began."""
        tracked = self._track(session)
        if tracked is None:
            return
        files = await self._in_thread(tracked.root, lambda repository: self._take_end(repository, session.id))
        if files is None:
            return
        changes = count_changes(files)
        if changes != session.state.profile.changes and not self._is_closed and not session.is_closing:
            session.record(ev.ChangesUpdated(files=changes.files, added=changes.added, removed=changes.removed))

    def _take(self, repository: SnapshotRepository, session_id: str, names: tuple[str, ...]) -> Snapshot:
        return repository.save(session_id, names, repository.snapshot(), self._clock.wall())

    def _take_end(self, repository: SnapshotRepository, session_id: str) -> list[ChangedFile] | None:
        start = repository.load(session_id).get(START)
        if start is None:
            return None
        return repository.compare(start.id, self._take(repository, session_id, (END,)).id)

    # --- report

    async def diff(self, session_id: str, state: State, scope: Scope) -> Diff:
        """Return what changed since the session, or its last turn, began.

        Raises:
            NoRepository: the session's folder isn't in a git repository.
            NoSnapshot: there is nothing to compare with.
            GitMissing: git isn't installed.
            GitFailed: a git command failed.
        """
        cwd = state.profile.cwd
        root = _find_root(cwd)
        if root is None:
            raise NoRepository(cwd)
        snapshots = await self._in_thread(root, lambda repository: repository.load(session_id))
        base = snapshots.get(START if scope == "session" else TURN)
        if base is None:
            if state.run.index or state.process.index:
                raise NoSnapshot(session_id)
            # The agent never started, so the session can't have changed anything.
            return _empty_diff(scope, self._clock.wall())
        is_live = state.turn.is_open or bool(state.background) or END not in snapshots
        end = None if is_live else snapshots[END]
        files, patch, is_complete = await self._in_thread(root, lambda repository: _compare(repository, base, end))
        return Diff(
            scope=scope,
            base=base.id,
            since=base.at,
            live=is_live,
            shared_with=self._sharing_sessions(session_id, root, base.at, end),
            total=count_changes(files),
            files=tuple(files[:FILES_LIMIT]),
            patch=patch,
            truncated=not is_complete or len(files) > FILES_LIMIT,
        )

    def _sharing_sessions(self, session_id: str, root: str, since: int, end: Snapshot | None) -> tuple[str, ...]:
        """Return sessions in the same repository that were active since the base and existed before the end."""
        until = self._clock.wall() if end is None else end.at
        rows = [row for row in self._catalogue.rows() if row.repo == root and row.last_active_at >= since]
        ids = [row.session_id for row in rows if row.session_id != session_id and row.created_at <= until]
        return tuple(ids[:_SHARED_LIMIT])

    # --- clean up

    async def forget(self, session_id: str, cwd: str) -> None:
        """Delete the snapshots of a session that was deleted."""
        self._sessions.pop(session_id, None)
        root = _find_root(cwd)
        if root is not None and self._folder(root).exists():
            await self._prune(root)

    async def prune_all(self) -> None:
        """Delete the snapshots of all sessions that no longer exist, and collect garbage."""
        for root in await asyncio.to_thread(list_roots, Home(self._home).changes):
            await self._prune(root, collect_garbage=True)

    async def _prune(self, root: str, *, collect_garbage: bool = False) -> None:
        session_ids = frozenset(row.session_id for row in self._catalogue.rows())
        try:
            await self._in_thread(
                root, lambda repository: repository.prune(session_ids, collect_garbage=collect_garbage)
            )
        except (QuarterdeckError, OSError) as error:
            log.warning("snapshots can't be cleaned up", extra={"code": _error_code(error)})

    # --- threads

    def _folder(self, root: str) -> Path:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        return Home(self._home).changes / f"{name}.git"

    async def _in_thread(self, root: str, work: Callable[[SnapshotRepository], T]) -> T:
        # The job runs to its end even if the caller is cancelled: the next job must not start while git still runs.
        job = asyncio.get_running_loop().create_task(self._run_alone(root, work))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return await asyncio.shield(job)

    async def _run_alone(self, root: str, work: Callable[[SnapshotRepository], T]) -> T:
        if root not in self._repositories:
            repository = SnapshotRepository(self._git, self._folder(root), root, self._home)
            self._repositories[root] = repository, asyncio.Lock()
        repository, lock = self._repositories[root]
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, repository)

    async def _wait_a_while(self, session: Session, work: Work) -> None:
        job = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({job}, timeout=PATIENCE_S)
        if not done:
            log.warning("a snapshot is slow; starting without it", extra={"session": session.id})
        session.run_in_background(self._log_errors(session, job))

    async def _log_errors(self, session: Session, job: asyncio.Future[None]) -> None:
        """Wait for the job. A failed snapshot must not keep the agent from working."""
        try:
            await job
        except (QuarterdeckError, OSError) as error:
            log.warning("changes aren't known", extra={"session": session.id, "code": _error_code(error)})


def _error_code(error: Exception) -> str:
    # Messages of errors contain file names, which don't belong in the server's log.
    return error.code if isinstance(error, QuarterdeckError) else type(error).__name__


def _find_root(cwd: str) -> str | None:
    repository = find_repository(cwd) if cwd else None
    return None if repository is None else repository.root


def _compare(
    repository: SnapshotRepository, base: Snapshot, end: Snapshot | None
) -> tuple[list[ChangedFile], str, bool]:
    target = repository.snapshot() if end is None else end.id
    files = repository.compare(base.id, target)
    patch, is_complete = repository.patch(base.id, target) if files else ("", True)
    return files, patch, is_complete


def _empty_diff(scope: Scope, now: int) -> Diff:
    return Diff(
        scope=scope,
        base="",
        since=now,
        live=False,
        shared_with=(),
        total=Changes(),
        files=(),
        patch="",
        truncated=False,
    )
