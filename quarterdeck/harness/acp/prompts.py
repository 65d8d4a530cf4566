"""Prompts, and the turns that they are. A turn is open while a prompt of ours is not answered, and at no other time."""

from __future__ import annotations

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Image, TokenUsage
from quarterdeck.harness.acp.connection import Connection, Id, Sent
from quarterdeck.harness.acp.content import prompt_images, prompt_text
from quarterdeck.harness.acp.outcome import ABORTED, End, Outcome, cost_of, error_text, outcome_of, spent
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.base import Object, int_of, object_of, text_of
from quarterdeck.kernel.view import View

NO_TEXT = "The agent ended its turn without a text"


class Prompt(Struct):
    """A prompt that is not answered yet. `taken` once the agent serves it; `cancelled` once we asked it to stop."""

    key: Id = None
    message_id: str = ""
    text: str = ""
    images: tuple[Image, ...] = ()
    cancelled: bool = False
    taken: bool = False


class Prompts(Connection):
    """Which prompt is served, which wait, and how they end."""

    def __init__(self, profile: Profile) -> None:
        Connection.__init__(self, profile)
        self.prompts: list[Prompt] = []
        self.model = ""
        self.spoke = False
        self.side_turn = False
        self.loaded = False
        self.gone = False
        self.cost = self.cost_told = 0.0
        self._made = 0

    def new_id(self, what: str) -> str:
        """An id for what the agent gives none; not one that an earlier process of this session had."""
        self._made += 1
        return f"{what}-{self._made}"

    def restore(self, view: View) -> None:
        super().restore(view)
        self._made = view.index
        self.stdin_seen = True
        if self.tracker.turn_id:
            self.prompts = [Prompt(taken=True)]

    # --- what we send

    def sent_prompt(self, params: Object, key: Id) -> bool:
        session = text_of(params, "sessionId")
        if self.gone or not self.serves(session):
            return False
        message_id = text_of(params, "messageId") or text_of(object_of(params, "_meta"), "messageId")
        prompt = Prompt(key, message_id or self.new_id("prompt"), prompt_text(params), prompt_images(params))
        self.prompts.append(prompt)
        self.loaded = False
        if self.history is not None:
            # what follows may still be history: the prompt is told when that is through
            if self.history.answered and (self.history.marked or self.profile.replay == "before"):
                self.finish_loading()
        elif len(self.prompts) == 1:
            self._take(prompt)
        else:
            self._queue(prompt)
        return True

    def serves(self, session: str) -> bool:
        """Whether a prompt for this session is ours to tell; the first session that is prompted is ours."""
        if not self.session:
            self.session = session
        return session == self.session

    def sent_cancel(self, params: Object, _key: Id) -> bool:
        """Whatever the agent answers to what it was doing, it was stopped."""
        mine = self.is_mine(params)
        for prompt in self.prompts if mine else ():
            prompt.cancelled = True
        return mine

    def sent_cancel_request(self, params: Object, _key: Id) -> bool:
        """One request is not wanted any more."""
        for prompt in self.prompts:
            if prompt.key is not None and prompt.key == params.get("requestId"):
                prompt.cancelled = True
        return True

    # --- beginning

    def _take(self, prompt: Prompt) -> None:
        """The agent serves this prompt from here on."""
        prompt.taken = True
        self.side_turn = False
        if not self.tracker.turn_id:
            self.turn_begins()
        self.tracker.record_prompt(prompt.text, prompt.message_id, images=prompt.images)
        if not self.tracker.turn_id or not (self.tracker.gates or self.tracker.has_running_calls()):
            self.tracker.start_request()

    def _queue(self, prompt: Prompt) -> None:
        self.tracker.emit(ev.PromptQueued(text=prompt.text, message_id=prompt.message_id, images=prompt.images))
        if self.profile.second_prompt == "cancels":
            self.prompts[0].cancelled = True

    def is_cancelled(self) -> bool:
        """Whether we asked the agent to stop what it does now."""
        for prompt in self.prompts:
            if prompt.cancelled:
                return True
        return False

    def _prompt_of(self, key: Id) -> Prompt | None:
        """The prompt that was sent under this id."""
        for prompt in self.prompts:
            if prompt.key == key:
                return prompt
        return None

    def waiting_prompt(self) -> Prompt | None:
        """The next prompt that is not served yet."""
        for prompt in self.prompts:
            if not prompt.taken:
                return prompt
        return None

    def live(self) -> bool:
        """Whether what the agent says now belongs to a turn; an answer that is under way opens the turn of its prompt.

        Outside of a prompt nothing does: no answer would ever end such a turn. Only where what we send is not recorded
        is the agent's word alone a turn.
        """
        if self.tracker.turn_id:
            return True
        waiting = self.waiting_prompt()
        if waiting is not None:
            self._take(waiting)
        elif not self.stdin_seen and not self.gone:
            self.prompts.append(Prompt(taken=True))
            self.turn_begins()
            self.tracker.start_request()
        return bool(self.tracker.turn_id)

    def turn_begins(self) -> None:
        """What belonged to the last turn is forgotten."""
        self.spoke = False

    # --- ending

    def answered_prompt(self, sent: Sent, result: Object, error: Object | None) -> None:
        prompt = self._prompt_of(sent.key)
        if prompt is None:
            return
        self.finish_loading()
        if not prompt.taken and error is not None:
            self.prompts.remove(prompt)
            reason = error_text(error)
            self.tracker.emit(ev.PromptRejected(reason=reason, text=prompt.text, message_id=prompt.message_id))
        else:
            self._end(prompt, result, error)

    def stray(self, result: Object, error: Object | None) -> None:
        """An answer whose request we did not see, as after a restart: a stop reason can only be a prompt's."""
        prompt = self._prompt_of(None)
        if prompt is not None and ("stopReason" in result or (error is not None and not self.stdin_seen)):
            self._end(prompt, result, error)
        else:
            super().stray(result, error)

    def _end(self, prompt: Prompt, result: Object, error: Object | None) -> None:
        if not prompt.taken:
            self._take(prompt)
        self.prompts.remove(prompt)
        self._spend(prompt, result)
        outcome = ABORTED if prompt.cancelled else outcome_of(result, error)
        waiting = self.waiting_prompt()
        if self.prompts and any(one.taken for one in self.prompts):
            # another prompt was served in the same turn; the turn ends with that one's answer
            self.tracker.add_notice(outcome.message, "error")
        elif waiting is not None and self.profile.second_prompt == "joins" and outcome.end == "completed":
            self._take(waiting)
        else:
            self._close(outcome)
            if waiting is not None and not waiting.cancelled:
                self._take(waiting)

    def _close(self, outcome: Outcome) -> None:
        self.turn_ends(outcome.end)
        if outcome.end == "aborted":
            self.tracker.abort_turn("cancelled")
        elif outcome.end == "failed":
            self.tracker.fail_turn(outcome.kind, outcome.message)
        else:
            self.tracker.add_notice("" if self.spoke else NO_TEXT)
            self.tracker.end_turn()

    def turn_ends(self, end: End) -> None:
        """What is still open in the turn is over."""

    # --- an earlier conversation

    def finish_loading(self) -> None:
        """The replay is through: it is told as history, and what waited for that goes on."""
        history, self.history = self.history, None
        if self.timers:
            self.clear_timer("replay")
        if history is None or self.tracker.turn_id:
            return
        self.tracker.record_history(history.finished, history.messages())
        waiting = self.waiting_prompt()
        if waiting is not None:
            self._take(waiting)

    def on_replay(self) -> None:
        self.finish_loading()

    # --- cost

    def read_usage(self, update: Object) -> None:
        """How full the context is, and what the session cost so far. 0 is what OpenCode says after a failure."""
        used, size = int_of(update, "used"), int_of(update, "size")
        if used > 0:
            self.tracker.emit(ev.ContextUsage(tokens=used, limit=size if size > 0 else None))
        self.cost = max(self.cost, cost_of(update))

    def _spend(self, prompt: Prompt, result: Object) -> None:
        cost, self.cost_told = self.cost - self.cost_told, self.cost
        for place, one in enumerate(spent(result)):
            tokens = one.tokens
            if cost > 0 and not place:
                tokens = TokenUsage(
                    input=tokens.input,
                    output=tokens.output,
                    cache_read=tokens.cache_read,
                    cache_write=tokens.cache_write,
                    cost_usd=cost,
                )
            name = f"{prompt.message_id}:{one.model}" if one.model else prompt.message_id
            self.tracker.record_usage(tokens, name or self.new_id("prompt"), one.model or self.model)

    def forget_connection(self) -> None:
        super().forget_connection()
        self.prompts.clear()
        self.loaded = self.side_turn = False
        self.cost = self.cost_told = 0.0
