"""When snapshots are taken, and what is told of them. Nothing is looked at between: no polling, no watcher of files.

The first is taken before a session's agent starts for the first time, one before each turn, one at its end. The text of a
turn waits for its snapshot, a while. An agent of somebody else's does not wait for us: there it is taken beside its first
step. All of it is off the loop, one at a time for each repository.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.deck.git.diff import ChangedFile, Diff, Scope, counted
from quarterdeck.deck.git.repository import repo_of
from quarterdeck.deck.git.run_git import Git
from quarterdeck.deck.git.snapshots import Mark, Shadow, roots_in
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event
from quarterdeck.home import Home
from quarterdeck.kernel.profile import Changes
from quarterdeck.kernel.state import State
from quarterdeck.log.base import CatalogueRow

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session

T = TypeVar("T")
Work: TypeAlias = Coroutine[Any, Any, None]
log = logging.getLogger("quarterdeck.changes")

#: How long a start and a text wait for a snapshot. One that takes longer is finished beside the work.
PATIENCE_S = 5.0
FILES_LIMIT = 2000
_OTHERS_LIMIT = 20
START, TURN, END = "start", "turn", "end"
_ENDS = frozenset({ev.AgentEnd, ev.AgentAbort})


class NoRepository(QuarterdeckError):
    """The session's folder belongs to no git repository."""

    code = "no_repository"

    def __init__(self, cwd: str) -> None:
        super().__init__(f"{cwd} is in no git repository", "Changes are known in git repositories only: `git init`.")


class NoSnapshot(QuarterdeckError):
    """Nobody knows what it was like before."""

    code = "no_snapshot"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} has no snapshot of its repository",
            "The next turn takes one, unless `track_changes` is off; the server's log says why there is none.",
        )


class _Known(Struct):
    """Of a session, while the deck is open."""

    root: str
    has_start: bool = False
    #: A snapshot was taken for the start, and nothing was done since.
    is_fresh: bool = False


class ChangeTracker:
    """Of one deck."""

    def __init__(
        self, home: Path, is_on: bool, wall: Callable[[], int], rows: Callable[[], Iterable[CatalogueRow]]
    ) -> None:
        self._home = home
        self._is_on = is_on
        self._wall = wall
        self._rows = rows
        self._git = Git()
        self._shadows: dict[str, tuple[Shadow, asyncio.Lock]] = {}
        self._sessions: dict[str, _Known] = {}
        self._jobs: set[asyncio.Task[object]] = set()
        self._threads = ThreadPoolExecutor(2, "qd-changes")
        self._is_closed = False

    async def close(self) -> None:
        """Ends what is under way; nothing is told any more."""
        self._is_closed = True
        self._git.close()
        if self._jobs:
            await asyncio.wait(self._jobs)
        self._threads.shutdown()

    # --- the right moments

    async def before_start(self, session: Session) -> None:
        """Before the process of an agent exists."""
        known = self._known(session)
        if known is not None and not known.has_start:
            await self._patiently(session, self._begun(session.id, known))

    async def before_turn(self, session: Session) -> None:
        """Before the text of a turn is sent."""
        known = self._known(session)
        if known is None:
            return
        if known.is_fresh:
            known.is_fresh = False
        else:
            await self._patiently(session, self._marked(session.id, known))

    def published(self, session: Session, events: Sequence[Event]) -> None:
        """These became durable; a turn may have ended with them, or begun without us."""
        if not self._is_on:
            return
        begins = False
        for event in events:
            kind = type(event.body)
            if kind in _ENDS and not event.body.agent_path:
                self._later(session, self._ended(session))
                return
            begins = begins or (kind is ev.AgentStart and not event.body.agent_path)
        if begins and session.connection is None:
            self._later(session, self._seen(session))

    def _later(self, session: Session, work: Work) -> None:
        """The session stays in memory until it is done."""
        session.later(self._quietly(session, asyncio.ensure_future(work)))

    # --- what is done then

    def _known(self, session: Session) -> _Known | None:
        if not self._is_on or self._is_closed:
            return None
        if session.id not in self._sessions:
            root = _root(session.state.profile.cwd)
            if root is None:
                return None
            self._sessions[session.id] = _Known(root)
        return self._sessions[session.id]

    async def _begun(self, session_id: str, known: _Known) -> None:
        kept = await self._in_thread(known.root, lambda shadow: shadow.kept(session_id))
        if START not in kept:
            await self._in_thread(known.root, lambda shadow: self._take(shadow, session_id, (START, TURN)))
            known.is_fresh = True
        known.has_start = True

    async def _marked(self, session_id: str, known: _Known) -> None:
        await self._in_thread(known.root, lambda shadow: self._take_turn(shadow, session_id, known))

    async def _seen(self, session: Session) -> None:
        known = self._known(session)
        if known is not None:
            await self._marked(session.id, known)

    async def _ended(self, session: Session) -> None:
        known = self._known(session)
        if known is None:
            return
        files = await self._in_thread(known.root, lambda shadow: self._take_end(shadow, session.id))
        if files is None:
            return
        found = counted(files)
        if found != session.state.profile.changes and not self._is_closed and not session.is_closing:
            session.note(ev.ChangesUpdated(files=found.files, added=found.added, removed=found.removed))

    def _take(self, shadow: Shadow, session_id: str, names: tuple[str, ...]) -> Mark:
        return shadow.keep(session_id, names, shadow.snapshot(), self._wall())

    def _take_turn(self, shadow: Shadow, session_id: str, known: _Known) -> None:
        kept = shadow.kept(session_id)
        names = (TURN,) if START in kept else (START, TURN)
        self._take(shadow, session_id, names)
        if END in kept:
            shadow.drop(session_id, END)
        known.has_start = True

    def _take_end(self, shadow: Shadow, session_id: str) -> list[ChangedFile] | None:
        start = shadow.kept(session_id).get(START)
        if start is None:
            return None
        return shadow.compared(start.id, self._take(shadow, session_id, (END,)).id)

    # --- what is told

    async def diff(self, session_id: str, state: State, scope: Scope) -> Diff:
        """What changed since the session, or its last turn, began. NoRepository, NoSnapshot, GitMissing, GitFailed."""
        cwd = state.profile.cwd
        root = _root(cwd)
        if root is None:
            raise NoRepository(cwd)
        kept = await self._in_thread(root, lambda shadow: shadow.kept(session_id))
        base = kept.get(START if scope == "session" else TURN)
        if base is None:
            if state.run.index or state.process.index:
                raise NoSnapshot(session_id)
            return _nothing(scope, self._wall())
        is_live = state.turn.is_open or bool(state.background) or END not in kept
        end = None if is_live else kept[END]
        files, patch, is_whole = await self._in_thread(root, lambda shadow: _compared(shadow, base, end))
        is_whole = is_whole and len(files) <= FILES_LIMIT
        return Diff(
            scope=scope,
            base=base.id,
            since=base.at,
            live=is_live,
            shared_with=self._others(session_id, root, base.at, end),
            total=counted(files),
            files=tuple(files[:FILES_LIMIT]),
            patch=patch,
            truncated=not is_whole,
        )

    def _others(self, session_id: str, root: str, since: int, end: Mark | None) -> tuple[str, ...]:
        """Those that may have had a hand in it: there, active since the base, and there before the end."""
        until = self._wall() if end is None else end.at
        near = (row for row in self._rows() if row.repo == root and row.last_active_at >= since)
        return tuple(row.session_id for row in near if row.session_id != session_id and row.created_at <= until)[
            :_OTHERS_LIMIT
        ]

    # --- order

    async def forget(self, session_id: str, cwd: str) -> None:
        """The session was deleted."""
        self._sessions.pop(session_id, None)
        root = _root(cwd)
        if root is not None and self._place(root).exists():
            await self._tidied(root)

    async def tidy(self) -> None:
        """Snapshots of sessions that are gone, and repositories that nobody works in any more, go; the others shrink."""
        for root in await asyncio.to_thread(roots_in, Home(self._home).changes):
            await self._tidied(root, thorough=True)

    async def _tidied(self, root: str, *, thorough: bool = False) -> None:
        names = frozenset(row.session_id for row in self._rows())
        try:
            await self._in_thread(root, lambda shadow: shadow.tidy(names, thorough))
        except (QuarterdeckError, OSError) as error:
            log.warning("snapshots cannot be tidied", extra={"code": _code(error)})

    # --- off the loop

    def _place(self, root: str) -> Path:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        return Home(self._home).changes / f"{name}.git"

    async def _in_thread(self, root: str, work: Callable[[Shadow], T]) -> T:
        """To its end, also when nobody waits for it any more: nobody else may begin before."""
        job = asyncio.get_running_loop().create_task(self._alone(root, work))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return await asyncio.shield(job)

    async def _alone(self, root: str, work: Callable[[Shadow], T]) -> T:
        if root not in self._shadows:
            self._shadows[root] = Shadow(self._git, self._place(root), root, self._home), asyncio.Lock()
        shadow, lock = self._shadows[root]
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, shadow)

    async def _patiently(self, session: Session, work: Work) -> None:
        job = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({job}, timeout=PATIENCE_S)
        if not done:
            log.warning("a snapshot takes long; the work begins without it", extra={"session": session.id})
        session.later(self._quietly(session, job))

    async def _quietly(self, session: Session, job: asyncio.Future[None]) -> None:
        """What cannot be told is not told; the work goes on."""
        try:
            await job
        except (QuarterdeckError, OSError) as error:
            log.warning("changes are not known", extra={"session": session.id, "code": _code(error)})


def _code(error: Exception) -> str:
    """Not its words: they have names of files."""
    return error.code if isinstance(error, QuarterdeckError) else type(error).__name__


def _root(cwd: str) -> str | None:
    found = repo_of(cwd) if cwd else None
    return None if found is None else found.root


def _compared(shadow: Shadow, base: Mark, end: Mark | None) -> tuple[list[ChangedFile], str, bool]:
    target = shadow.snapshot() if end is None else end.id
    files = shadow.compared(base.id, target)
    patch, is_whole = shadow.patch(base.id, target) if files else ("", True)
    return files, patch, is_whole


def _nothing(scope: Scope, now: int) -> Diff:
    """Of a session whose agent never started."""
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
