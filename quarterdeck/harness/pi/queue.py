"""Texts that wait in pi: steering, read after the calls that run now, and follow-ups, read at the end of the run.

`queue_update` is the truth: it repeats both lists whole. A text that is gone from them was either delivered, then it
comes as the user's message next, or cleared. Texts have no ids in pi, so each gets the id of the command that sent it
and keeps it while the lists change around it.
"""

from __future__ import annotations

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Image
from quarterdeck.harness.base import BaseTranslator, Object
from quarterdeck.harness.pi.content import lists_of
from quarterdeck.kernel.view import View

_KINDS = ("steering", "followUp")


class Queued(Struct, gc=False):
    """One text that waits, or that we sent and that will."""

    ref: str
    text: str
    kind: str


class Queues(BaseTranslator):
    """The two lists, and where each text of them came from."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[Queued] = []
        #: Gone from the lists; what becomes of them is not known yet.
        self.leaving: list[Queued] = []
        #: Sent, and not seen in the lists yet.
        self.offered: list[Queued] = []
        #: Prompts of ours by id, until their messages come.
        self.prompts: dict[str, str] = {}
        self._names = 0

    def restore_queue(self, view: View) -> None:
        """What the view says is waiting is waiting."""
        self._names = view.index
        self.queued = [
            Queued(item.id, item.text, "steering" if item.kind == "steer" else "followUp")
            for item in view.state.queue
            if item.receipt == "queued"
        ]

    def offer(self, ref: str, text: str, kind: str) -> None:
        """We sent a text for the queue."""
        self.offered.append(Queued(ref or self._name(), text, kind))

    def queue_update(self, found: Object) -> None:
        """Both lists, whole."""
        left = self.queued
        self.queued = []
        for kind, texts in lists_of(found, *_KINDS):
            kept = _kept(left, texts, kind)
            self.queued.extend(one or self._arrived(text, kind) for one, text in zip(kept, texts, strict=True))
        self.leaving.extend(left)

    def _arrived(self, text: str, kind: str) -> Queued:
        """A text that is new in the lists."""
        one = _taken(self.offered, text, kind) or Queued(self._name(), text, kind)
        self.prompts.pop(one.ref, None)
        self.tracker.ensure_ready()
        if kind == "steering":
            self.tracker.emit(ev.SteeringReceived(ref=one.ref, text=text))
        else:
            self.tracker.emit(ev.PromptQueued(text=text, message_id=one.ref))
        return one

    def deliver(self, text: str, images: tuple[Image, ...]) -> bool:
        """The user's message that comes now was waiting: tells it under its own id. Else False."""
        one = _taken(self.leaving, text) or _taken(self.queued, text)
        if one is None and self.leaving:
            # pi may rewrite a text (templates, images): what left the lists first is what comes
            one = self.leaving.pop(0)
        if one is None:
            return False
        if one.kind == "steering":
            self.tracker.start_turn()
            self.tracker.emit(ev.SteeringApplied(refs=(one.ref,), count=1, turn_id=self.tracker.turn_id))
        else:
            self.tracker.record_prompt(text, one.ref, images=images)
        return True

    def drop_leaving(self) -> None:
        """Nobody will read these any more."""
        for one in self.leaving:
            self.tracker.emit(ev.PromptDropped(text=one.text, message_id=one.ref))
        self.leaving.clear()

    def clear_queue(self) -> None:
        """Everything that waited belongs to a session that is left."""
        self.leaving.extend(self.queued)
        self.queued = []
        self.offered.clear()
        self.drop_leaving()

    def _name(self) -> str:
        self._names += 1
        return f"queued-{self._names}"


def _kept(items: list[Queued], texts: list[str], kind: str) -> list[Queued | None]:
    """The items that these texts are, taken out; None for a text that is new. A list grows at its end and loses its
    beginning: so of two that say the same, the later one is the one that stays."""
    if len(texts) >= sum(one.kind == kind for one in items):
        return [_taken(items, text, kind) for text in texts]
    return [_taken(items, text, kind, last=True) for text in reversed(texts)][::-1]


def _taken(items: list[Queued], text: str, kind: str = "", last: bool = False) -> Queued | None:
    """The first of these with this text, or the last, taken out."""
    for place in range(len(items) - 1, -1, -1) if last else range(len(items)):
        if items[place].text == text and kind in ("", items[place].kind):
            return items.pop(place)
    return None
