"""Hold the state that all parts of one pi translator share, and the texts that wait in pi's queues."""

from __future__ import annotations

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Image
from quarterdeck.harness.base import BaseTranslator, Object
from quarterdeck.harness.pi.content import texts_of
from quarterdeck.kernel.view import View


class PiSession:
    """State of one session that more than one part needs."""

    def __init__(self, translator: BaseTranslator) -> None:
        self._translator = translator
        self.tracker = translator.tracker
        #: pi's own id for the session.
        self.session_id = ""
        self.model = ""
        self.thinking = ""
        #: Size of the model's context window in tokens; 0 if unknown.
        self.context_limit = 0
        #: Nothing happened yet, so the history may still be read back. It is recorded once.
        self.may_restore = True
        #: Prompts that we sent, by command id, until pi repeats them as the user's message.
        self.prompts: dict[str, str] = {}
        #: Id of the prompt that pi accepted last, until its message arrives.
        self.accepted_id = ""

    @property
    def now(self) -> float:
        return self._translator.now

    def set_timer(self, name: str, seconds: float) -> None:
        self._translator.set_timer(name, seconds)

    def set_timer_at(self, name: str, time: float) -> None:
        self._translator.timers[name] = time

    def clear_timer(self, name: str) -> None:
        self._translator.clear_timer(name)

    def has_timer(self, name: str) -> bool:
        return name in self._translator.timers


# ----------------------------------------------------------------------------------------------------------------------
# Queues
# ----------------------------------------------------------------------------------------------------------------------

#: pi's two lists. Steering is read after the calls that run now, a follow-up at the end of the run.
_LISTS = ("steering", "followUp")


class QueuedText(Struct):
    """A text that waits in pi, or that we sent and that will wait there."""

    message_id: str
    text: str
    list_name: str


class Queues:
    """The texts that wait in pi's two lists.

    `queue_update` is authoritative: it repeats both lists whole. A text that is missing from them was either delivered,
    then it arrives as the user's message next, or cleared. Texts have no ids in pi, so each gets the id of the command
    that sent it and keeps it while the lists change around it.
    """

    def __init__(self, session: PiSession) -> None:
        self.session = session
        self.tracker = session.tracker
        self.waiting: list[QueuedText] = []
        #: Texts that left the lists. The next messages show whether they were delivered or cleared.
        self.leaving: list[QueuedText] = []
        #: Texts that we sent and that aren't in the lists yet.
        self._offered: list[QueuedText] = []
        self._last_id = 0

    def restore(self, view: View) -> None:
        self._last_id = view.index
        self.waiting = [
            QueuedText(item.id, item.text, "steering" if item.kind == "steer" else "followUp")
            for item in view.state.queue
            if item.receipt == "queued"
        ]

    def offer(self, message_id: str, text: str, list_name: str) -> None:
        """Remember a text that we sent for one of the lists."""
        self._offered.append(QueuedText(message_id or self._new_id(), text, list_name))

    def withdraw_offer(self, message_id: str) -> None:
        """Forget a text that pi refused, or took as a prompt instead of queueing it."""
        self._offered = [item for item in self._offered if item.message_id != message_id]

    def is_waiting(self, message_id: str) -> bool:
        return any(item.message_id == message_id for item in self.waiting)

    def read_update(self, message: Object) -> None:
        """Apply a `queue_update`."""
        remaining = self.waiting
        self.waiting = []
        for list_name in _LISTS:
            texts = texts_of(message, list_name)
            matches = _match(remaining, texts, list_name)
            for item, text in zip(matches, texts, strict=True):
                self.waiting.append(item or self._record_arrival(text, list_name))
        self.leaving.extend(remaining)

    def _record_arrival(self, text: str, list_name: str) -> QueuedText:
        """Record a text that is new in the lists."""
        item = _take(self._offered, text, list_name) or QueuedText(self._new_id(), text, list_name)
        self.session.prompts.pop(item.message_id, None)
        self.tracker.ensure_ready()
        if list_name == "steering":
            self.tracker.emit(ev.SteeringReceived(ref=item.message_id, text=text))
        else:
            self.tracker.emit(ev.PromptQueued(text=text, message_id=item.message_id))
        return item

    def deliver(self, text: str, images: tuple[Image, ...]) -> bool:
        """Record the delivery of a waiting text that arrives as the user's message. Return False if none waited."""
        item = _take(self.leaving, text) or _take(self.waiting, text)
        if item is None and self.leaving:
            # pi may rewrite a text (templates, images). The text that left the lists first is the one that arrives.
            item = self.leaving.pop(0)
        if item is None:
            return False
        if item.list_name == "steering":
            self.tracker.start_turn()
            self.tracker.emit(ev.SteeringApplied(refs=(item.message_id,), count=1, turn_id=self.tracker.turn_id))
        else:
            self.tracker.record_prompt(text, item.message_id, images=images)
        return True

    def drop_leaving(self) -> None:
        """Record that the texts that left the lists were cleared: the agent won't read them."""
        for item in self.leaving:
            self.tracker.emit(ev.PromptDropped(text=item.text, message_id=item.message_id))
        self.leaving.clear()

    def clear(self) -> None:
        """Drop everything that waits: pi switched to another session."""
        self.leaving.extend(self.waiting)
        self.waiting = []
        self._offered.clear()
        self.drop_leaving()

    def _new_id(self) -> str:
        self._last_id += 1
        return f"queued-{self._last_id}"


def _match(items: list[QueuedText], texts: list[str], list_name: str) -> list[QueuedText | None]:
    """Remove and return the item of each text; None for a text that is new.

    A list grows at its end and shrinks at its beginning. So if it shrank, the later of two equal texts is the one that
    remains.
    """
    if len(texts) >= sum(item.list_name == list_name for item in items):
        return [_take(items, text, list_name) for text in texts]
    return [_take(items, text, list_name, from_end=True) for text in reversed(texts)][::-1]


def _take(items: list[QueuedText], text: str, list_name: str = "", from_end: bool = False) -> QueuedText | None:
    """Remove and return the first item with this text, or the last one."""
    indexes = range(len(items) - 1, -1, -1) if from_end else range(len(items))
    for index in indexes:
        if items[index].text == text and list_name in ("", items[index].list_name):
            return items.pop(index)
    return None
