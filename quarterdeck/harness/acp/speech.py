"""What the agent says. Chunks of one kind in a row are one text, also where the agent gives its messages no ids."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.harness.acp.content import text_of_block
from quarterdeck.harness.acp.outcome import End
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.acp.prompts import Prompts
from quarterdeck.harness.base import Object, object_of, text_of

Kind: TypeAlias = Literal["text", "thinking"]


class Run(Struct, frozen=True):
    """Chunks of one kind and one native message, in a row."""

    kind: Kind
    native: str
    message_id: str
    block: int
    in_turn: bool


class Speech(Prompts):
    """Texts and thoughts."""

    def __init__(self, profile: Profile) -> None:
        Prompts.__init__(self, profile)
        self.run: Run | None = None
        self.called = False
        self._blocks: dict[str, int] = {}
        self._last_text = ""

    def read_message(self, update: Object) -> None:
        text = text_of_block(object_of(update, "content"))
        echo = self.profile.mode_echo
        if echo and text.startswith(echo):
            self.mode_is(text.removeprefix(echo).strip())
        else:
            self._say("text", text_of(update, "messageId"), text)

    def read_thought(self, update: Object) -> None:
        self._say("thinking", text_of(update, "messageId"), text_of_block(object_of(update, "content")))

    def read_echo(self, update: Object) -> None:
        """Outside of a replay it is only what we sent ourselves."""

    def mode_is(self, native: str) -> None:
        """The agent works in this mode now."""
        raise NotImplementedError

    def _say(self, kind: Kind, native: str, text: str) -> None:
        run = self.run
        if run is None or run.kind != kind or run.native != native or run.in_turn != bool(self.tracker.turn_id):
            run = self._begun(kind, native)
        if run is None or not text:
            return
        if not run.in_turn:
            self.tracker.add_text_outside_turn(run.message_id, run.block, text)
        elif kind == "thinking":
            self.tracker.add_thinking(run.message_id, run.block, text)
        else:
            self.tracker.add_text(run.message_id, run.block, text)
            self.spoke = self.spoke or not text.isspace()

    def _begun(self, kind: Kind, native: str) -> Run | None:
        """A new run; None for what is said to nobody: the rest of a replay, thoughts outside of a turn."""
        self.break_run()
        in_turn = self.live()
        if not in_turn and (self.loaded or kind == "thinking"):
            return None
        if in_turn:
            self.agent_speaks()
            self._take_joined(native)
        if kind == "text":
            self._last_text, self.called = native, False
        message_id = native or self.new_id("message")
        block = self._blocks.get(message_id, 0)
        self._blocks[message_id] = block + 1
        self.run = Run(kind, native, message_id, block, in_turn)
        return self.run

    def _take_joined(self, native: str) -> None:
        """An agent that answers all prompts at the very end: a text after a text, with no call between, answers the next."""
        waiting = self.waiting_prompt() if self.profile.second_prompt == "joins" else None
        if waiting is not None and native and self._last_text not in ("", native) and not self.called:
            self._take(waiting)

    def agent_speaks(self) -> None:
        """The model answers again."""

    def break_run(self) -> None:
        """Something else follows: the text so far is whole."""
        run, self.run = self.run, None
        if run is not None:
            self.tracker.finish_message(run.message_id)

    def turn_begins(self) -> None:
        Prompts.turn_begins(self)
        self.break_run()
        self.called = False
        self._last_text = ""
        self._blocks.clear()

    def turn_ends(self, end: End) -> None:
        Prompts.turn_ends(self, end)
        self.break_run()

    def forget_connection(self) -> None:
        Prompts.forget_connection(self)
        self.run = None
