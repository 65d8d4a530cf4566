"""The texts that a person sent and the agent has not read yet: queued prompts and steering, in order, with receipts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import Image


class Waiting(Struct, frozen=True, gc=False):
    """One text that waits. `receipt` says how far it got: queued, sending, delivered, failed, unknown.

    `retries` counts how often a person had it sent again; `new_task` begins a conversation of its own.
    """

    id: str
    text: str
    kind: Literal["prompt", "steer"]
    receipt: str
    since: int
    images: tuple[Image, ...] = ()
    retries: int = 0
    new_task: bool = False


Queue = tuple[Waiting, ...]


def added(queue: Queue, item: Waiting) -> Queue:
    """With this text at the end; the same id again is the same text again."""
    return (*without(queue, (item.id,)), item)


def without(queue: Queue, ids: Collection[str]) -> Queue:
    """Without these texts."""
    return tuple(item for item in queue if item.id not in ids)


def edited(queue: Queue, item_id: str, text: str) -> Queue:
    """With another text under the same id, in the same place."""
    return tuple(replace(item, text=text) if item.id == item_id else item for item in queue)


def receipted(queue: Queue, item_id: str, receipt: str) -> Queue:
    """With what is known of the delivery."""
    return tuple(_receipted(item, receipt) if item.id == item_id else item for item in queue)


def _receipted(item: Waiting, receipt: str) -> Waiting:
    again = receipt == "queued" and item.receipt in ("failed", "unknown")
    return replace(item, receipt=receipt, retries=item.retries + again)


def meant(queue: Queue, item_id: str, text: str) -> Waiting | None:
    """The text that the agent means: by its id, or the first prompt of the same text when it gives none."""
    for item in queue:
        if item.id == item_id or (not item_id and item.text == text and item.kind == "prompt"):
            return item
    return None


def taken(queue: Queue, item_id: str, text: str) -> Queue:
    """Without the text that the agent took."""
    item = meant(queue, item_id, text)
    return queue if item is None else without(queue, (item.id,))


def steering(queue: Queue) -> int:
    """How many texts wait in the steering queue."""
    return sum(item.kind == "steer" for item in queue)
