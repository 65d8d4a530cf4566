"""Sessions of agents that somebody else started: found by the agent's own name for them, opened when they are new.

What such an agent tells is evidence that it lives: a session that was suspended at our restart is active again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from quarterdeck import events as ev
from quarterdeck.deck.git.repository import repo_of
from quarterdeck.deck.session import Session
from quarterdeck.kernel.view import View

if TYPE_CHECKING:
    from quarterdeck.deck.deck import Deck


class ObservedSessions:
    """The sessions that are known by an agent's own names."""

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        self._known: dict[tuple[str, str], str] = {}

    async def session(self, agent: str, native: str, cwd: str) -> Session:
        """The session of this conversation, in use and active. One that was put away stays so, and a new one is opened."""
        self._deck.check_open()
        while name := self._name_of(agent, native):
            session = await self._deck.in_use(name)
            if not session.knows_rules:
                await session.learn_rules()
                continue  # it may have been put away, or let go, meanwhile
            if session.state.lifecycle.value == "suspended":
                session.note(ev.SessionResumed(by="evidence"))
            if session.state.lifecycle.value == "active":
                return session
            if self._name_of(agent, native) == name:
                break  # nobody opened another one while we looked
        return self._opened(agent, native, cwd)

    def at_hand(self, agent: str, native: str) -> Session | None:
        """The same without waiting for anything: None unless it is in memory, active, and knows its rules."""
        session = self._deck.at_hand(self._name_of(agent, native))
        is_ready = session is not None and session.state.lifecycle.value == "active" and session.knows_rules
        return session if is_ready else None

    def relate(self, agent: str, one: str, other: str) -> str:
        """Two conversations spoke with each other, so the one that nobody knows is a sub-agent of the other. Gives the one
        that is known; '' when neither is."""
        for known, new in ((one, other), (other, one)):
            name = self._name_of(agent, known)
            if name:
                if not self._name_of(agent, new):
                    self._known[agent, new] = name
                return known
        return ""

    def _name_of(self, agent: str, native: str) -> str:
        """Whoever has a process for this conversation, else whoever had it last."""
        owner = self._deck.services.owners.get(native, "")
        if owner and self._deck.view(owner).state.profile.agent == agent:
            return owner
        name = self._known.get((agent, native), "")
        if name and self._deck.is_known(name):
            return name
        name = self._listed(agent, native)
        if name:
            self._known[agent, native] = name
        return name

    def _listed(self, agent: str, native: str) -> str:
        """From the list of all sessions: looked through once for each conversation."""
        found = [
            (row.created_at, row.session_id)
            for row in self._deck.rows()
            if row.resume_data == native and row.agent == agent and row.status in ("active", "suspended")
        ]
        return max(found)[1] if found else ""

    def _opened(self, agent: str, native: str, cwd: str) -> Session:
        """Written, not awaited: the agent waits for our answer, and what it said is a fact."""
        name = uuid4().hex[:16]
        self._known[agent, native] = name
        session = self._deck.add(Session(self._deck.services, name, View(), ""))
        repo = repo_of(cwd) if cwd else None
        session.note(ev.SessionOpened(agent=agent, cwd=cwd, repo=repo, owner="terminal"))
        return session
