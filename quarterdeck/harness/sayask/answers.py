"""What we send to a say/ask agent: a button or a text for whatever it asks now, a prompt, a cancel.

Three ways to say it are known: Kilo's messages, its versioned ones, and the calls of Cline 1's own interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, text_of
from quarterdeck.harness.lines import object_in
from quarterdeck.harness.sayask.turns import Turns


class Answers(Turns):
    """Commands of ours."""

    def new_task(self) -> None:
        """What follows belongs to another task."""
        self.requested = self.halted = self.cancelling = self.offered = False
        self.failed = None

    def read_stdin(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return isinstance(data, str)
        found = cast(Object, data)
        name = text_of(found, "type") or text_of(found, "call").rpartition(".")[2]
        reader = _COMMANDS.get(name)
        if reader is not None:
            reader(self, found)
        return reader is not None

    def ask_response(self, found: Object) -> None:
        """A button, a text, or a yes and a no for each of several files: one yes lets the call run."""
        how, text = text_of(found, "askResponse", "responseType"), text_of(found, "text")
        each = object_in(text) if how == "objectResponse" else None
        yes = how == "yesButtonClicked" or (each is not None and True in each.values())
        self._answered(yes, how != "messageResponse", text, found)

    def respond_to_approval(self, found: Object) -> None:
        self._answered(found.get("approved") is True, True, text_of(found, "text"), found)

    def approval(self, found: Object) -> None:
        self._answered(True, True, text_of(found, "content"), found)

    def rejection(self, found: Object) -> None:
        self._answered(False, True, text_of(found, "content"), found)

    def user_input(self, found: Object) -> None:
        self._answered(False, False, text_of(found, "content", "text"), found)

    def _answered(self, yes: bool, button: bool, text: str, found: Object) -> None:
        """A button or a text of a person, for whatever is asked now."""
        approval, question = self.open_gate("approval"), self.open_gate("question")
        call = self.tracker.gates[approval].call_id if approval else ""
        if approval and yes:
            self.allow(call, "user")
        elif approval:
            self.refuse(call, "user", text)
        elif question:
            self.sent.append(text)
            self.tracker.answer_question(question, text or ("yes" if yes else "no"), by="user")
        elif text and not button:
            self.prompted(text, text_of(found, "id", "message_id"))
            self.sent.append(text)

    def cancel_task(self, found: Object) -> None:
        """Only what comes back shows that it was cancelled; until then the turn goes on."""
        del found
        self.cancelling = bool(self.tracker.turn_id)

    def show_task(self, found: Object) -> None:
        """Another task is opened: its past follows."""
        del found
        self.new_task()


#: What we send, by its type or by the name of the call.
_COMMANDS: dict[str, Callable[[Answers, Object], None]] = {
    "askResponse": Answers.ask_response,
    "respondToApproval": Answers.respond_to_approval,
    "cancelTask": Answers.cancel_task,
    "newTask": Answers.user_input,
    "user_input": Answers.user_input,
    "response": Answers.user_input,
    "approval": Answers.approval,
    "rejection": Answers.rejection,
    "abort": Answers.cancel_task,
    "showTaskWithId": Answers.show_task,
}
