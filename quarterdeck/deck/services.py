"""Collect the objects that a session needs of its deck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from quarterdeck.config import Settings
from quarterdeck.deck.catalogue import Catalogue
from quarterdeck.deck.clock import Clock
from quarterdeck.deck.counters import DeckCounters
from quarterdeck.deck.environment import Environments
from quarterdeck.deck.git.tracker import ChangeTracker
from quarterdeck.deck.recording import Recordings
from quarterdeck.deck.rules import RuleStore
from quarterdeck.deck.slots import Slots
from quarterdeck.errors import QuarterdeckError
from quarterdeck.kernel.view import View
from quarterdeck.log.base import Log
from quarterdeck.log.tail import Feed

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session
    from quarterdeck.deck.supervisor import Supervisor


class DeckServices(Struct, frozen=True):
    """What all sessions of a deck share."""

    #: Marks the processes of this home, so that the next deck finds those that a crash left behind.
    home_id: str
    log: Log
    clock: Clock
    settings: Settings
    feed: Feed
    catalogue: Catalogue
    supervisor: Supervisor
    slots: Slots
    rules: RuleStore
    environments: Environments
    recordings: Recordings
    changes: ChangeTracker
    counters: DeckCounters
    conversations: ConversationOwners
    gate_numbers: GateNumbers


class LiveSessions:
    """The sessions in memory, by id."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        """Yield all of them. The caller may add and remove sessions meanwhile."""
        return iter(list(self._sessions.values()))

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def __getitem__(self, session_id: str) -> Session:
        return self._sessions[session_id]

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def add(self, session: Session) -> Session:
        self._sessions[session.id] = session
        return session

    def discard(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def durable_view(self, session_id: str) -> View | None:
        """Return the durable view of a session in memory, or None. Nothing else may be shown to clients."""
        session = self._sessions.get(session_id)
        return session.writer.durable_view if session is not None and session.writer.durable_view.index else None

    def durable_ids(self) -> list[str]:
        """Return the ids of the sessions that have at least one durable event."""
        return [session.id for session in self._sessions.values() if session.writer.durable_view.index]


class GateNumbers:
    """Numbers for gates, which are unique in a deck and never reused."""

    def __init__(self, last: int) -> None:
        #: Highest number used so far.
        self.last = last

    def next(self) -> int:
        """Return a number that no gate of any session ever had."""
        self.last += 1
        return self.last

    def skip_to(self, number: int) -> None:
        """Skip all numbers up to this one."""
        self.last = max(self.last, number)


class ConversationOwners:
    """Which session has a process for which conversation of an agent.

    Two processes in one conversation would each lose what the other writes, so only one session may own it.
    """

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def owner_of(self, native_session_id: str) -> str:
        """Return the id of the session that has a process for this conversation, or ''."""
        return self._owners.get(native_session_id, "")

    def claim(self, native_session_id: str, session_id: str) -> None:
        """Make a session the owner of a conversation.

        Raises:
            OwnedElsewhere: another session owns it.
        """
        if native_session_id and self._owners.setdefault(native_session_id, session_id) != session_id:
            raise OwnedElsewhere(native_session_id, self._owners[native_session_id])

    def release(self, session_id: str) -> None:
        """Free all conversations of a session."""
        for native_session_id in [native for native, owner in self._owners.items() if owner == session_id]:
            del self._owners[native_session_id]


class OwnedElsewhere(QuarterdeckError):
    """Another session has a process for the same conversation of the agent."""

    code = "owned_elsewhere"

    def __init__(self, native_session_id: str, owner: str) -> None:
        super().__init__(
            f"conversation {native_session_id} is open in session {owner}", f"Use session {owner}, or end it first."
        )
