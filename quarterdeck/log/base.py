"""Define the log's port: what a log stores, and what every adapter offers.

An append is atomic. Its events, the session's catalogue row and the session's snapshot become durable together or not at
all, and `append` returns only then. The caller folds events to states; the log stores what it gets. Rows and snapshots are
therefore caches: they can be deleted and computed again from the events.

A *fence* protects a session from two writers. Each append returns a new fence, and the next append must present it. An
append with an older fence fails with `StaleFence`, so a process that lost a session to another owner can't write to it.
A *cursor* orders the events of all sessions: a later event has a greater cursor. Fences and cursors are opaque texts.

Deltas (pieces of a growing text) are events like any other while they are new. When the event that restates the whole text
is durable, the log may drop the deltas. Their indexes are then missing, but are never used again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from typing import Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event

Fence: TypeAlias = str
Cursor: TypeAlias = str

#: Fence of a session that doesn't exist yet.
NEW: Fence = ""
#: Cursor before the first event.
START: Cursor = ""
#: How many events one read returns unless the caller asks for another number.
PAGE = 1000


# --- what a log stores


class CatalogueRow(Struct, frozen=True, kw_only=True, gc=False):
    """One session in the catalogue: what the session list and the daily jobs need, without folding any events."""

    session_id: str
    agent: str
    status: str
    created_at: int
    last_active_at: int
    agent_version: str = ""
    cwd: str = ""
    repo: str = ""
    name: str = ""
    end_reason: str | None = None
    supports_resume: bool = False
    resume_data: str | None = None
    pinned: bool = False
    #: Highest gate number (7 for `g7`) used in this session so far. Gate numbers must never be reused.
    last_gate_number: int = 0


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """One atomic append. The first append of a session needs a row and a snapshot, later ones only if they changed."""

    session_id: str
    events: tuple[Event, ...]
    fence: Fence
    row: CatalogueRow | None = None
    #: The encoded state after the last of these events.
    snapshot: bytes | None = None


class StoredSession(Struct, frozen=True, gc=False):
    """A session as the log stores it."""

    row: CatalogueRow
    last_index: int
    #: The encoded state after event `snapshot_index`. Events after that must be folded on top of it.
    snapshot: bytes
    snapshot_index: int
    fence: Fence


class Receipt(Struct, frozen=True, gc=False):
    """The result of an append: the fence for the next one, and the events with their cursors."""

    fence: Fence
    events: tuple[Event, ...]


# --- errors


class StaleFence(QuarterdeckError):
    """Another owner wrote to the session since this fence was issued. Nothing was written."""

    code = "stale_fence"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} was written by another owner", "Read the session again before writing to it."
        )


class NoSuchSession(QuarterdeckError):
    """The log has no session with this id."""

    code = "no_such_session"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"no session {session_id}", "List the sessions with `GET /sessions`; add `archived=true` for archived ones."
        )


class LogUnavailable(QuarterdeckError):
    """The store can't be read or written now: full, locked, read-only or closed. Nothing was acknowledged."""

    code = "log_unavailable"

    def __init__(
        self, reason: str, hint: str = "Free disk space or fix the permissions. No acknowledged event is lost."
    ) -> None:
        super().__init__(f"the log is unavailable: {reason}", hint)


class NewerLog(QuarterdeckError):
    """The store was written by a newer release. It wasn't changed."""

    code = "newer_log"

    def __init__(self, version: int, newest_known: int) -> None:
        super().__init__(
            f"the store has version {version}, this release supports versions up to {newest_known}",
            "Install the newer release again, or open a backup made by this one.",
        )


# --- the port


class Appender(Protocol):
    """Anything that makes events durable: a log, or the pipe through which the deck logs for an agent process."""

    async def append(self, append: Append) -> Receipt:
        """Store one append. It is durable when this returns.

        A caller that is cancelled while it waits doesn't undo the append.

        Raises:
            StaleFence: another owner wrote to the session.
            NoSuchSession: the session was deleted.
            LogUnavailable: the store can't be written now. Nothing was stored.
        """
        ...


class Log(Appender, Protocol):
    """What an adapter offers. Everything is called from one event loop, and nothing blocks that loop.

    After `close`, and while the store can't be used, every method raises `LogUnavailable`.
    """

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        """Return at most `limit` events of a session with an index above `since`, in order.

        Raises:
            NoSuchSession: the log has no session with this id.
        """
        ...

    async def read_all(
        self, since: Cursor = START, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        """Return at most `limit` events of all sessions with a cursor above `since`, in the order of their cursors."""
        ...

    async def sessions(self) -> list[StoredSession]:
        """Return the whole catalogue with all snapshots."""
        ...

    async def session(self, session_id: str) -> StoredSession:
        """Return one session of the catalogue.

        Raises:
            NoSuchSession: the log has no session with this id.
        """
        ...

    async def delete(
        self, session_id: str, fence: Fence, event: Event, on_durable: Callable[[Receipt], None] | None = None
    ) -> Receipt:
        """Delete a session and its events. Only `event`, the last one, stays readable through `read_all`.

        `on_durable` is called as soon as the deletion is durable, and before any later append is acknowledged. Publish
        the deletion from there: a caller that awaits this method may be resumed after callers of later appends. The fence
        in the receipt is `NEW`, because a session with this id may be created again.

        Raises:
            NoSuchSession: the log has no session with this id.
            StaleFence: another owner wrote to the session.
        """
        ...

    async def last_cursor(self) -> Cursor:
        """Return the cursor of the newest event, or `START` if there is none."""
        ...

    async def probe(self) -> None:
        """Commit a harmless change, as durable as an append, and read it back.

        Raises:
            LogUnavailable: an append would fail now.
        """
        ...

    async def close(self) -> None:
        """Commit what was appended and release the store."""
        ...


async def read_pages(
    log: Log, session_id: str, since: int = 0, types: Collection[str] | None = None
) -> AsyncGenerator[list[Event]]:
    """Yield the events of a session after `since`, page by page, until the log has no more.

    Raises:
        NoSuchSession: the log has no session with this id.
        LogUnavailable: the events can't be read.
    """
    while events := await log.read(session_id, since, PAGE, types):
        yield events
        since = events[-1].index
