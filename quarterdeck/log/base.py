"""The port of the log. Nothing above it knows whether events lie in a file or in a fleet.

One append is one atomic unit: its events, the changed row of the catalogue and the changed small view become durable
together or not at all, and `append` answers only then. The caller folds; the log stores what it is handed, so that the
catalogue and the views are caches that can be thrown away and made again.

A *fence* is what the log gave back for the last append of a session. It is opaque. An append with an old fence is
refused: whoever lost a session to another owner cannot write into it any more. A *cursor* orders all sessions; it is
opaque too, and a later event has a later one.

Deltas are events like any other while they are new. Once the event that restates their whole is durable the log may
drop them: an index is then missing, never given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event

Fence: TypeAlias = str
Cursor: TypeAlias = str

#: The fence of a session that does not exist yet.
NEW: Fence = ""
#: The cursor before everything.
START: Cursor = ""

PAGE = 1000


class Row(Struct, frozen=True, kw_only=True, gc=False):
    """002's row: what the list and the daily jobs need, without folding anything."""

    id: str
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
    #: The highest number of a gate (`g7`) that was ever opened in this session. Numbers must not come again.
    last_gate: int = 0


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """One atomic unit. Row and view only when they changed; the first append of a session must bring both."""

    session_id: str
    events: tuple[Event, ...]
    fence: Fence
    row: Row | None = None
    view: bytes | None = None


class Stored(Struct, frozen=True, gc=False):
    """A session as the log holds it: its row, its last small view, and the index up to which that view was folded."""

    row: Row
    last_index: int
    view: bytes
    view_index: int
    fence: Fence


class Receipt(Struct, frozen=True, gc=False):
    """What an append gave: the next fence, and the events with their cursors."""

    fence: Fence
    events: tuple[Event, ...]


class StaleFence(QuarterdeckError):
    """Somebody else wrote, or owns the session now. Nothing was written."""

    code = "stale_fence"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} was written by another owner", "Read the session again before writing to it."
        )


class NoSuchSession(QuarterdeckError):
    """The log holds no session of this id."""

    code = "no_such_session"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id}", "`GET /sessions` lists them, archived ones with `archived=true`.")


class LogUnavailable(QuarterdeckError):
    """The store cannot be written or read now: full, locked, read-only, closed. Nothing was acknowledged."""

    code = "log_unavailable"

    def __init__(
        self, what: str, hint: str = "Free the disk or fix its permissions; nothing acknowledged is lost."
    ) -> None:
        super().__init__(f"the log cannot be used: {what}", hint)


class NewerLog(QuarterdeckError):
    """The store was written by a newer release. It was not touched."""

    code = "newer_log"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the store has version {found}, this release knows up to {known}",
            "Install the newer release again, or open a backup made by this one.",
        )


#: Called on the loop with what an append gave, or with the error that it met.
Told: TypeAlias = Callable[[Receipt | None, BaseException | None], None]


def unheard(_: Receipt) -> None:
    """For whoever needs to know nothing at once."""


class Log(Protocol):
    """What an adapter offers. All of it is safe to call from one event loop; nothing blocks the loop for longer
    than a small commit of a quick disk takes."""

    async def append(self, append: Append) -> Receipt:
        """Durable when it returns. Appends of one loop pass may share one commit.

        StaleFence; NoSuchSession when there was one and it was deleted.
        """
        ...

    def submit(self, append: Append, told: Told) -> None:
        """The same for whoever need not wait: `told` is called, later and once, when it is durable or was refused."""
        ...

    async def read(
        self, session_id: str, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        """Events with an index above `since`, in order, at most `limit`."""
        ...

    async def read_all(
        self, since: Cursor = START, limit: int = PAGE, types: Collection[str] | None = None
    ) -> list[Event]:
        """The same over all sessions, in the order of their cursors."""
        ...

    async def sessions(self) -> list[Stored]:
        """The whole catalogue with the small views."""
        ...

    async def session(self, session_id: str) -> Stored:
        """One of them; NoSuchSession."""
        ...

    async def delete(
        self, session_id: str, fence: Fence, event: Event, told: Callable[[Receipt], None] = unheard
    ) -> Receipt:
        """The session and everything of it is gone, but for this last word, which readers of all sessions still get.

        `told` is called once it is durable, before anybody hears of an append that came after it: who waits for this to
        return may hear of it later, and must not publish it then. NoSuchSession, StaleFence. The fence of the receipt is
        NEW: a session of this id may be opened again.
        """
        ...

    async def last_cursor(self) -> Cursor:
        """The cursor of the newest event."""
        ...

    async def probe(self) -> None:
        """Commits something harmless, as durable as an append, and reads it back. Raises what an append would."""
        ...

    async def close(self) -> None:
        """What was acknowledged stays; nothing more can be appended."""
        ...
