"""Find the session of an agent that the user started elsewhere, or open a new one.

Such an agent names its own conversation in every hook. A report is evidence that the agent is alive: a session that was
suspended when the deck restarted becomes active again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from quarterdeck import events as ev
from quarterdeck.deck.git.repository import find_repository
from quarterdeck.deck.session import Session

if TYPE_CHECKING:
    from quarterdeck.deck.deck import Deck


class ObservedSessions:
    """Sessions by the conversation ids of their agents."""

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        #: (agent, native session id) → session id
        self._known: dict[tuple[str, str], str] = {}

    async def session(self, agent: str, native_id: str, cwd: str) -> Session:
        """Return the active session of a conversation, loaded into memory. If it was archived, open a new one.

        Raises:
            DeckClosed: the deck is closing.
        """
        self._deck.check_open()
        while session_id := self._find(agent, native_id):
            session = await self._deck.load_session(session_id)
            if not session.knows_rules:
                await session.load_rules()
                continue  # It may have been archived or evicted while we waited.
            if session.state.lifecycle.value == "suspended":
                session.record(ev.SessionResumed(by="evidence"))
            if session.state.lifecycle.value == "active":
                return session
            if self._find(agent, native_id) == session_id:
                break  # No other request opened a new session while we waited.
        return self._open(agent, native_id, cwd)

    def relate(self, agent: str, native_id: str, other_id: str) -> str:
        """Connect two conversations that exchanged messages: an unknown one is a sub-agent of the known one.

        Return the known one, or '' if neither is known.
        """
        for known, new in ((native_id, other_id), (other_id, native_id)):
            session_id = self._find(agent, known)
            if session_id:
                if not self._find(agent, new):
                    self._known[agent, new] = session_id
                return known
        return ""

    def _find(self, agent: str, native_id: str) -> str:
        """Return the session that has a process for this conversation, else the last one that had it, else ''."""
        owner = self._deck.services.conversations.owner_of(native_id)
        if owner and self._deck.view(owner).state.profile.agent == agent:
            return owner
        session_id = self._known.get((agent, native_id), "")
        if session_id and self._deck.is_known(session_id):
            return session_id
        session_id = self._search_catalogue(agent, native_id)
        if session_id:
            self._known[agent, native_id] = session_id
        return session_id

    def _search_catalogue(self, agent: str, native_id: str) -> str:
        matches = [
            (row.created_at, row.session_id)
            for row in self._deck.rows()
            if row.resume_data == native_id and row.agent == agent and row.status in ("active", "suspended")
        ]
        return max(matches)[1] if matches else ""

    def _open(self, agent: str, native_id: str, cwd: str) -> Session:
        # Don't wait for the commit: the agent waits for our answer, and its report is a fact in any case.
        session_id = uuid4().hex[:16]
        self._known[agent, native_id] = session_id
        session = self._deck.add_session(session_id)
        repository = find_repository(cwd) if cwd else None
        session.record(ev.SessionOpened(agent=agent, cwd=cwd, repo=repository, owner="terminal"))
        return session
