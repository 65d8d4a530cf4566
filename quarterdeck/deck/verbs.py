"""The commands of a session as methods, once for all who have one: in this process, or on the other side of a wire.

Whoever has a session says how a command reaches it (`_obey`); what each is called, takes and answers stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from quarterdeck.events import Image, Json
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Answer, Decided, Done, Dropped, Receipt, Status, Steered

A = TypeVar("A", bound=Answer)


class Mark(Struct, frozen=True, kw_only=True):
    """Fields left out stay as they are; snoozed_until 0 wakes."""

    pinned: bool | None = None
    snoozed_until: int | None = None
    read_index: int | None = None


class Verbs:
    """Every command takes a `client_id`: the same one again is answered again and done once."""

    async def _obey(self, command: cmd.Command, client_id: str, kind: type[A]) -> A:
        """Has the command done, and gives its answer, which is of this kind."""
        raise NotImplementedError

    async def _mark(self, wanted: Mark, client_id: str) -> Done:
        """Has this noted of the session."""
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
        """A message: a prompt, an answer, steering or a queued text, as the state has it; the receipt says which."""
        command = cmd.Prompt(text=text, images=tuple(images), resume=resume, supersede=supersede, new_task=new_task)
        return await self._obey(command, client_id, Receipt)

    async def steer(self, text: str, *, ref: str = "", client_id: str = "") -> Steered:
        """For the running turn."""
        return await self._obey(cmd.Steer(text=text, ref=ref), client_id, Steered)

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
        return await self._mark(Mark(pinned=pinned, snoozed_until=snoozed_until, read_index=read_index), client_id)

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
