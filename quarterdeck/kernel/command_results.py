"""What a command is answered with. The same key gets the same answer again, so answers go into the log and come back."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Disposition: TypeAlias = Literal["started", "queued", "steered", "answered", "resumed"]


class Done(Struct, frozen=True):
    """It is done."""


class Receipt(Struct, frozen=True):
    """A text was taken: `disposition` says what becomes of it, `message_id` is its name from here on."""

    message_id: str
    disposition: Disposition
    accepted: bool = True
    #: When it will be read, in words.
    reason: str = ""


class Steered(Struct, frozen=True):
    """A text for the running turn; `prompted` when nothing ran."""

    ref: str
    status: Literal["queued", "prompted"]


class Dropped(Struct, frozen=True):
    """Texts that the agent will not read; they are given back."""

    dropped: tuple[str, ...] = ()


class Decided(Struct, frozen=True):
    """A gate is decided; `rule` is the text of the rule that "always" wrote."""

    gate_id: str
    rule: str = ""


class Status(Struct, frozen=True, rename={"session_id": "sessionId"}):
    """002's answer to resume and cancel."""

    session_id: str
    status: Literal["active", "cancelled", "archived"]


Answer: TypeAlias = Done | Receipt | Steered | Dropped | Decided | Status
