"""All commands of a session as methods, shared by the library's `SessionHandle` and the client's `RemoteSession`.

This module imports neither asyncio nor the deck: one-shot commands of `qd` use it, and must start quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from quarterdeck.events import Image, Json
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Decided, Done, Dropped, Receipt, Status, Steered


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
