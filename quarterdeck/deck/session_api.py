"""The methods of a session for programs: the commands, shared by library and client, and the library's `SessionHandle`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from quarterdeck.deck import validation
from quarterdeck.deck.commands import run_command
from quarterdeck.deck.git.diff import Diff, Scope
from quarterdeck.events import Event, Image, Json
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Decided, Done, Dropped, Receipt, Status, Steered
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.routing import is_busy
from quarterdeck.kernel.summary import Details, Summary, details, summary
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, Why, fold_all, why
from quarterdeck.log.base import PAGE, read_pages
from quarterdeck.policy import Rule

if TYPE_CHECKING:
    from quarterdeck.deck.deck import Deck


class SessionCommands:
    """All commands of a session as methods. A subclass says how a command reaches the session.

    Every method takes a `client_id`: a command that is repeated with the same one is carried out once and gets the same
    result. Every method raises a `QuarterdeckError` if the command is refused.
    """

    async def run(self, command: cmd.Command) -> Any:
        """Run a command and return its result, which is of the command's `result_type`."""
        raise NotImplementedError

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
        """Send a message. The receipt says what became of it: a prompt, an answer, steering or a queued text.

        `supersede` closes open gates first, `new_task` starts over, `resume` wakes a suspended session.
        """
        return await self.run(
            cmd.Prompt(
                text=text,
                images=tuple(images),
                resume=resume,
                supersede=supersede,
                new_task=new_task,
                client_id=client_id,
            )
        )

    async def steer(self, text: str, *, ref: str = "", client_id: str = "") -> Steered:
        """Send a text into the running turn."""
        return await self.run(cmd.Steer(text=text, ref=ref, client_id=client_id))

    async def edit_queued(self, item_id: str, text: str, *, client_id: str = "") -> Done:
        """Replace a queued text."""
        return await self.run(cmd.EditQueued(item_id=item_id, text=text, client_id=client_id))

    async def drop_queued(self, item_id: str = "", *, client_id: str = "") -> Dropped:
        """Remove a queued text, or all of them."""
        return await self.run(cmd.DropQueued(item_id=item_id, client_id=client_id))

    async def resend(self, item_id: str, *, client_id: str = "") -> Done:
        """Send a text again that failed, or of which it's unknown whether the agent read it."""
        return await self.run(cmd.Resend(item_id=item_id, client_id=client_id))

    # --- the turn

    async def abort(
        self,
        *,
        kill_tools: Literal["killable", "all", "none"] = "killable",
        clear_queue: bool = False,
        reason: str | None = None,
        client_id: str = "",
    ) -> Dropped:
        """End the turn. Return the queued texts that were dropped with it."""
        return await self.run(
            cmd.Abort(kill_tools=kill_tools, clear_queue=clear_queue, reason=reason, client_id=client_id)
        )

    async def approve(
        self,
        gate_id: str,
        *,
        always: Literal["session", "repo", "user"] | None = None,
        auto_resume: bool = True,
        client_id: str = "",
    ) -> Decided:
        """Approve a tool call, once or with a rule for later calls."""
        return await self.run(cmd.Approve(gate_id=gate_id, always=always, auto_resume=auto_resume, client_id=client_id))

    async def reject(
        self, gate_id: str, *, reason: str = "", auto_resume: bool = False, client_id: str = ""
    ) -> Decided:
        """Reject a tool call. The turn ends unless `auto_resume` is set."""
        return await self.run(cmd.Reject(gate_id=gate_id, reason=reason, auto_resume=auto_resume, client_id=client_id))

    async def respond(self, gate_id: str, answer: Json, *, client_id: str = "") -> Decided:
        """Answer a question or a dialog."""
        return await self.run(cmd.Respond(gate_id=gate_id, answer=answer, client_id=client_id))

    async def retry(self, *, client_id: str = "") -> Done:
        """Try a failed turn again."""
        return await self.run(cmd.Retry(client_id=client_id))

    async def resume(self, *, client_id: str = "") -> Status:
        """Wake a suspended session, or continue one that is paused, stopped or completed."""
        return await self.run(cmd.Resume(client_id=client_id))

    async def bash(self, command: str, *, client_id: str = "") -> Done:
        """Run a shell command of the user's own, if the agent supports it."""
        return await self.run(cmd.Bash(command=command, client_id=client_id))

    async def compact(self, *, client_id: str = "") -> Done:
        """Shorten the conversation."""
        return await self.run(cmd.Compact(client_id=client_id))

    # --- the session

    async def cancel(self, *, client_id: str = "") -> Status:
        """End the session and archive it as cancelled."""
        return await self.run(cmd.Cancel(client_id=client_id))

    async def archive(self, *, client_id: str = "") -> Status:
        """End the session and archive it."""
        return await self.run(cmd.Archive(client_id=client_id))

    async def rename(self, name: str, *, client_id: str = "") -> Done:
        """Give the session another name."""
        return await self.run(cmd.Rename(name=name, client_id=client_id))

    async def mark(
        self,
        *,
        pinned: bool | None = None,
        snoozed_until: int | None = None,
        read_index: int | None = None,
        client_id: str = "",
    ) -> Done:
        """Pin or snooze the session, or set how far a person has read."""
        return await self.run(
            cmd.Mark(pinned=pinned, snoozed_until=snoozed_until, read_index=read_index, client_id=client_id)
        )

    async def switch_model(self, model: str, *, client_id: str = "") -> Done:
        """Use another model from the next turn on."""
        return await self.run(cmd.SwitchModel(model=model, client_id=client_id))

    async def switch_mode(self, mode: str, *, client_id: str = "") -> Done:
        """Use another mode: plan, ask, edits, auto or bypass."""
        return await self.run(cmd.SwitchMode(mode=mode, client_id=client_id))


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
