"""What a program holds of a session: its commands, its views, its events. The session itself may come and go."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from quarterdeck.deck import inputs, keeping, wishes
from quarterdeck.deck.answers import Answer, Decided, Done, Dropped, Receipt, Status, Steered
from quarterdeck.events import Event, Image, Json
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.summary import Details, Summary, details, summary
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, Why, fold_all, why
from quarterdeck.log.base import PAGE

if TYPE_CHECKING:
    from quarterdeck.deck.deck import Deck

_A = TypeVar("_A", bound=Answer)


class SessionHandle:
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
        return session.record.durable

    async def timeline(self, limit: int = 200, before: int | None = None) -> list[Entry]:
        """What was said and done, the newest entries last."""
        inputs.limit(limit)
        return window((await self.whole_view()).timeline, limit, before)

    async def view_at(self, index: int) -> View:
        """As it was after this event, folded from the log."""
        view = View()
        while view.index < index:
            events = [one for one in await self._deck.house.log.read(self.id, view.index, PAGE) if one.index <= index]
            if not events:
                break
            view = fold_all(events, view)
        return view

    async def events(self, since: int = 0, limit: int = PAGE, types: Collection[str] | None = None) -> list[Event]:
        """Events that are in the log now."""
        inputs.limit(limit)
        return await self._deck.house.log.read(self.id, since, limit, types)

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """All events after an index, then whatever comes. Nothing is missed, however slowly it is read."""
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

    async def prompt(
        self,
        text: str,
        *,
        images: Sequence[Image] = (),
        resume: bool = True,
        supersede: bool = False,
        new_task: bool = False,
        client_id: str = "",
    ) -> Receipt:
        """A message: a prompt, an answer, steering or a queued text, as the state has it; the receipt says which."""
        command = cmd.Prompt(text=text, images=tuple(images), resume=resume, supersede=supersede, new_task=new_task)
        return await self._obey(command, client_id, Receipt)

    async def steer(self, text: str, *, ref: str = "", client_id: str = "") -> Steered:
        """For the running turn."""
        return await self._obey(cmd.Steer(text=text, ref=ref), client_id, Steered)

    async def edit_queued(self, item_id: str, text: str, *, client_id: str = "") -> Done:
        return await keeping.edit(await self._deck.in_use(self.id), keeping.Edit(item_id, text), client_id)

    async def drop_queued(self, item_id: str = "", *, client_id: str = "") -> Dropped:
        """Takes one text back, or all of them."""
        return await keeping.drop(await self._deck.in_use(self.id), keeping.Drop(item_id), client_id)

    async def resend(self, item_id: str, *, client_id: str = "") -> Done:
        """Sends a text again that failed, or whose outcome nobody knows."""
        return await keeping.resend(await self._deck.in_use(self.id), keeping.Resend(item_id), client_id)

    # --- the turn

    async def abort(
        self,
        *,
        kill_tools: Literal["killable", "all", "none"] = "killable",
        clear_queue: bool = False,
        reason: str | None = None,
        client_id: str = "",
    ) -> Dropped:
        """Ends the turn; the texts that were dropped with it come back."""
        command = cmd.Abort(kill_tools=kill_tools, clear_queue=clear_queue, reason=reason)
        return await self._obey(command, client_id, Dropped)

    async def approve(
        self,
        gate_id: str,
        *,
        always: Literal["session", "repo", "user"] | None = None,
        auto_resume: bool = True,
        client_id: str = "",
    ) -> Decided:
        """Yes to an approval, once or from now on."""
        return await self._obey(
            cmd.Approve(gate_id=gate_id, always=always, auto_resume=auto_resume), client_id, Decided
        )

    async def reject(
        self, gate_id: str, *, reason: str = "", auto_resume: bool = False, client_id: str = ""
    ) -> Decided:
        """No to an approval."""
        return await self._obey(cmd.Reject(gate_id=gate_id, reason=reason, auto_resume=auto_resume), client_id, Decided)

    async def respond(self, gate_id: str, answer: Json, *, client_id: str = "") -> Decided:
        """The answer to a question or a dialog."""
        return await self._obey(cmd.Respond(gate_id=gate_id, answer=answer), client_id, Decided)

    async def retry(self, *, client_id: str = "") -> Done:
        """Tries a failed turn again."""
        return await self._obey(cmd.Retry(), client_id, Done)

    async def resume(self, *, client_id: str = "") -> Status:
        """Wakes a suspended session, or goes on in one that is paused, stopped or completed."""
        return await self._obey(cmd.Resume(), client_id, Status)

    # --- the session

    async def cancel(self, *, client_id: str = "") -> Status:
        """Ends it and puts it away."""
        return await self._obey(cmd.Cancel(), client_id, Status)

    async def archive(self, *, client_id: str = "") -> Status:
        """Puts it away."""
        return await self._obey(cmd.Archive(), client_id, Status)

    async def delete(self) -> None:
        """Removes it and its log."""
        await self._deck.delete(self.id)

    async def rename(self, name: str, *, client_id: str = "") -> Done:
        return await self._obey(cmd.Rename(name=name), client_id, Done)

    async def mark(
        self,
        *,
        pinned: bool | None = None,
        snoozed_until: int | None = None,
        read_index: int | None = None,
        client_id: str = "",
    ) -> Done:
        """Pins, snoozes, or says up to where a person has read."""
        wanted = keeping.Mark(pinned=pinned, snoozed_until=snoozed_until, read_index=read_index)
        return await keeping.mark(await self._deck.in_use(self.id), wanted, client_id)

    async def switch_model(self, model: str, *, client_id: str = "") -> Done:
        return await self._obey(cmd.SwitchModel(model=model), client_id, Done)

    async def switch_mode(self, mode: str, *, client_id: str = "") -> Done:
        return await self._obey(cmd.SwitchMode(mode=mode), client_id, Done)

    async def bash(self, command: str, *, client_id: str = "") -> Done:
        """A shell command of the user's own, where the agent can run one."""
        return await self._obey(cmd.Bash(command=command), client_id, Done)

    async def compact(self, *, client_id: str = "") -> Done:
        """Shortens the conversation."""
        return await self._obey(cmd.Compact(), client_id, Done)

    async def _obey(self, command: cmd.Command, client_id: str, kind: type[_A]) -> _A:
        session = await self._deck.in_use(self.id)
        return cast(_A, await wishes.obey(session, command, client_id))


def _is_settled(view: View) -> bool:
    state = view.state
    is_busy = state.turn.is_open or state.beneath.value in ("creating", "streaming")
    return not is_busy or bool(state.gates.open)
