"""`SessionHandle`: a session of a deck in this process, for programs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from typing import TYPE_CHECKING, Any

from quarterdeck.deck import validation
from quarterdeck.deck.commands import run_command
from quarterdeck.deck.git.diff import Diff, Scope
from quarterdeck.deck.session_commands import SessionCommands
from quarterdeck.events import Event
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.routing import is_busy
from quarterdeck.kernel.summary import Details, Summary, details, summary
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, Why, fold_all, why
from quarterdeck.log.base import PAGE, read_pages
from quarterdeck.policy import Rule

if TYPE_CHECKING:
    from quarterdeck.deck.deck import Deck


class SessionHandle(SessionCommands):
    """A session of a deck in this process. The handle stays valid while the session is loaded and evicted."""

    def __init__(self, deck: Deck, session_id: str) -> None:
        self._deck = deck
        self.id = session_id

    async def run(self, command: cmd.Command) -> Any:
        """Run a command and return its result, which is of the command's `result_type`.

        Raises:
            NoSuchSession: the session was deleted.
            QuarterdeckError: the command was refused.
        """
        return await run_command(await self._deck.load_session(self.id), command)

    async def delete(self) -> None:
        """Delete the session and its log.

        Raises:
            NotAllowed: the session is active. Archive it first.
        """
        await self._deck.delete(self.id)

    # --- state

    @property
    def view(self) -> View:
        """The session's state as it is now.

        Raises:
            NoSuchSession: the session was deleted.
        """
        return self._deck.view(self.id)

    @property
    def summary(self) -> Summary:
        """The session as the list shows it."""
        return summary(self.view)

    @property
    def details(self) -> Details:
        """What a client shows of an open session, besides the summary."""
        return details(self.view)

    @property
    def queue(self) -> Queue:
        """Texts that the agent hasn't read."""
        return self.view.state.queue

    def why(self) -> tuple[Why, ...]:
        """Return the evidence for every part of the state."""
        return why(self.view)

    async def whole_view(self) -> View:
        """Return the view with the whole timeline, reading it from the log if necessary."""
        session = await self._deck.load_session(self.id)
        await session.load()
        return session.writer.durable_view

    async def timeline(self, limit: int = 200, before: int | None = None) -> list[Entry]:
        """Return timeline entries, the newest last."""
        validation.check_limit(limit)
        if before is not None:
            validation.check_index("before", before)
        return window((await self.whole_view()).timeline, limit, before)

    async def view_at(self, index: int) -> View:
        """Return the view as it was after an event, folded from the log."""
        validation.check_index("index", index)
        view = View()
        async for page in read_pages(self._deck.services.log, self.id):
            view = fold_all([event for event in page if event.index <= index], view)
            if view.index >= index:
                break
        return view

    async def changes(self, scope: Scope = "session") -> Diff:
        """Return what changed in the repository since the session, or its last turn, began.

        Raises:
            NoRepository: the session's folder isn't in a git repository.
            NoSnapshot: there is nothing to compare with.
        """
        return await self._deck.changes.diff(self.id, self.view.state, scope)

    # --- events

    async def events(self, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None) -> list[Event]:
        """Return events after an index that are in the log now."""
        validation.check_limit(limit)
        validation.check_index("since", since)
        validation.check_event_types(types)
        return await self._deck.services.log.read(self.id, since, limit, types)

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """Yield all events after an index, then new ones as they come. A slow reader misses nothing."""
        validation.check_index("since", since)
        validation.check_event_types(types)
        return self._deck.feed.follow(self.id, since, types)

    async def until(self, condition: Callable[[View], object]) -> View:
        """Wait until a condition holds for the view. It's evaluated after each event."""
        events = self.subscribe(self.view.index)
        try:
            while not condition(self.view):
                await self._deck.wait_until_shown(await anext(events))
        finally:
            await events.aclose()
        return self.view

    async def settled(self) -> View:
        """Wait until no turn is open and none is starting, or a gate is open."""
        return await self.until(_is_settled)

    @property
    def is_settled(self) -> bool:
        """Whether no turn is open and none is starting, or a gate is open."""
        return _is_settled(self.view)

    # --- rules

    async def rules(self) -> tuple[Rule, ...]:
        """Return the rules that were created for this session only."""
        session = await self._deck.load_session(self.id)
        await session.load()
        return session.rules

    async def remove_rule(self, rule_id: str, *, client_id: str = "") -> Done:
        """Remove one of the session's own rules.

        Raises:
            NoSuchRule: the session has no rule with this id.
        """
        return await self.run(cmd.RemoveRule(rule_id=rule_id, client_id=client_id))


def _is_settled(view: View) -> bool:
    return not is_busy(view.state) or bool(view.state.gates.open)
