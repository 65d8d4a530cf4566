"""Define the results of commands. The log stores them, so a repeated command gets the same result again."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Disposition: TypeAlias = Literal["started", "queued", "steered", "answered", "resumed"]


class Done(Struct, frozen=True):
    """The command was carried out."""


class Receipt(Struct, frozen=True):
    """A text was accepted."""

    message_id: str
    #: What happens with the text.
    disposition: Disposition
    accepted: bool = True
    #: When the agent will read the text, for people.
    reason: str = ""


class Steered(Struct, frozen=True):
    """A text for the running turn was accepted. `prompted` means that no turn was running, so the text began one."""

    ref: str
    status: Literal["queued", "prompted"]


class Dropped(Struct, frozen=True):
    """Texts that were removed from the queue before the agent read them."""

    dropped: tuple[str, ...] = ()


class Decided(Struct, frozen=True):
    """A gate was closed. `rule` is the text of the rule that `always` created."""

    gate_id: str
    rule: str = ""


class Status(Struct, frozen=True, rename={"session_id": "sessionId"}):
    """The session's new status, in the shape that seed 002 defines for resume and cancel."""

    session_id: str
    status: Literal["active", "cancelled", "archived"]


CommandResult: TypeAlias = Done | Receipt | Steered | Dropped | Decided | Status
