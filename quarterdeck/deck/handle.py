"""What a program holds of a session: its commands, its views, its events. The session itself may come and go."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from typing import TYPE_CHECKING, cast

from quarterdeck.deck import keeping, validation, wishes
from quarterdeck.deck.git.diff import Diff, Scope
from quarterdeck.deck.verbs import A, Mark, Verbs
from quarterdeck.events import Event
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done, Dropped
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.routing import is_busy
from quarterdeck.kernel.summary import Details, Summary, details, summary
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, Why, fold_all, why
from quarterdeck.log.base import PAGE
from quarterdeck.policy import Rule

if TYPE_CHECKING:
    from quarterdeck.deck.deck import Deck


class SessionHandle(Verbs):
    """One session. Every command takes a `client_id`: the same one again is answered again and done once."""

    def __init__(self, deck: Deck, session_id: str) -> None:
        self._deck = deck
        self.id = session_id

    # --- what it is

    @property
    def view(self) -> View:
        """Its state as it is now; NoSuchSession when it was deleted."""
        return self._deck.view(self.id)

    @property
    def summary(self) -> Summary:
        return summary(self.view)

    @property
    def details(self) -> Details:
        return details(self.view)

    @property
    def queue(self) -> Queue:
        """The texts that the agent has not read yet."""
        return self.view.state.queue

    def why(self) -> tuple[Why, ...]:
        """The evidence for every state."""
        return why(self.view)

    async def whole_view(self) -> View:
        """The view with its whole conversation, which a session at rest reads from the log."""
        session = await self._deck.in_use(self.id)
        await session.load()
        return session.writer.durable_view

    async def timeline(self, limit: int = 200, before: int | None = None) -> list[Entry]:
        """What was said and done, the newest entries last."""
        validation.limit(limit)
        if before is not None:
            validation.index("before", before)
        return window((await self.whole_view()).timeline, limit, before)

    async def view_at(self, index: int) -> View:
        """As it was after this event, folded from the log."""
        validation.index("index", index)
        view = View()
        while view.index < index:
            events = [
                one for one in await self._deck.services.log.read(self.id, view.index, PAGE) if one.index <= index
            ]
            if not events:
                break
            view = fold_all(events, view)
        return view

    async def events(self, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None) -> list[Event]:
        """Events that are in the log now."""
        validation.limit(limit)
        validation.index("since", since)
        validation.types(types)
        return await self._deck.services.log.read(self.id, since, limit, types)

    async def changes(self, scope: Scope = "session") -> Diff:
        """What changed in its repository since it began, or since its last turn did. NoRepository, NoSnapshot."""
        return await self._deck.changes.diff(self.id, self.view.state, scope)

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """All events after an index, then whatever comes. Nothing is missed, however slowly it is read."""
        validation.index("since", since)
        validation.types(types)
        return self._deck.feed.follow(self.id, since, types)

    async def until(self, holds: Callable[[View], object]) -> View:
        """Waits until this is so of the view, which is asked after each event."""
        events = self.subscribe(self.view.index)
        try:
            while not holds(self.view):
                await self._deck.shows(await anext(events))
        finally:
            await events.aclose()
        return self.view

    async def settled(self) -> View:
        """Waits until nothing is under way (no turn, no text on its way, nothing starting), or something is asked."""
        return await self.until(_is_settled)

    @property
    def is_settled(self) -> bool:
        return _is_settled(self.view)

    # --- texts

    async def edit_queued(self, item_id: str, text: str, *, client_id: str = "") -> Done:
        return await keeping.edit(await self._deck.in_use(self.id), keeping.Edit(item_id, text), client_id)

    async def drop_queued(self, item_id: str = "", *, client_id: str = "") -> Dropped:
        """Takes one text back, or all of them."""
        return await keeping.drop(await self._deck.in_use(self.id), keeping.Drop(item_id), client_id)

    async def resend(self, item_id: str, *, client_id: str = "") -> Done:
        """Sends a text again that failed, or whose outcome nobody knows."""
        return await keeping.resend(await self._deck.in_use(self.id), keeping.Resend(item_id), client_id)

    # --- the session

    async def delete(self) -> None:
        """Removes it and its log."""
        await self._deck.delete(self.id)

    async def _mark(self, wanted: Mark, client_id: str) -> Done:
        return await keeping.mark(await self._deck.in_use(self.id), wanted, client_id)

    async def rules(self) -> tuple[Rule, ...]:
        """What was allowed, or forbidden, for this session alone."""
        session = await self._deck.in_use(self.id)
        await session.load()
        return session.rules

    async def remove_rule(self, rule_id: str, *, client_id: str = "") -> Done:
        """Takes such a rule back; NoSuchRule."""
        return await keeping.unrule(await self._deck.in_use(self.id), keeping.Unrule(rule_id), client_id)

    async def _obey(self, command: cmd.Command, client_id: str, kind: type[A]) -> A:
        session = await self._deck.in_use(self.id)
        return cast(A, await wishes.obey(session, command, client_id))


def _is_settled(view: View) -> bool:
    return not is_busy(view.state) or bool(view.state.gates.open)
