"""Track the messages that a user sent and the agent hasn't read: queued prompts and steering, in order."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import Image


class Waiting(Struct, frozen=True, gc=False):
    """One queued message."""

    id: str
    text: str
    kind: Literal["prompt", "steer"]
    #: Delivery status: queued, sending, delivered, failed or unknown.
    receipt: str
    since: int
    images: tuple[Image, ...] = ()
    #: How often a user sent it again.
    retries: int = 0
    #: Start a new conversation with this message.
    new_task: bool = False


Queue = tuple[Waiting, ...]


def added(queue: Queue, item: Waiting) -> Queue:
    """Append a message. A message with the same id is replaced and moves to the end."""
    return (*without(queue, (item.id,)), item)


def without(queue: Queue, ids: Collection[str]) -> Queue:
    """Remove the messages with these ids."""
    return tuple(item for item in queue if item.id not in ids)


def edited(queue: Queue, item_id: str, text: str) -> Queue:
    """Change a message's text. Its id and position stay the same."""
    return tuple(replace(item, text=text) if item.id == item_id else item for item in queue)


def receipted(queue: Queue, item_id: str, receipt: str) -> Queue:
    """Set a message's delivery status."""
    return tuple(_with_receipt(item, receipt) if item.id == item_id else item for item in queue)


def _with_receipt(item: Waiting, receipt: str) -> Waiting:
    is_retry = receipt == "queued" and item.receipt in ("failed", "unknown")
    return replace(item, receipt=receipt, retries=item.retries + is_retry)


def matching(queue: Queue, item_id: str, text: str) -> Waiting | None:
    """Find the message that the agent received: by id, or, if it names none, the first prompt with the same text."""
    for item in queue:
        if item.id == item_id or (not item_id and item.text == text and item.kind == "prompt"):
            return item
    return None


def taken(queue: Queue, item_id: str, text: str) -> Queue:
    """Remove the message that the agent received."""
    item = matching(queue, item_id, text)
    return queue if item is None else without(queue, (item.id,))


def steering_count(queue: Queue) -> int:
    """Return how many steering messages are queued."""
    return sum(item.kind == "steer" for item in queue)
