"""Hold the state that all readers of one Claude Code session share: who it is, its prompts, how its turn began.

Claude Code tells about itself through several sources at once: stream-json on stdout, the control protocol, hooks, the
session file, telemetry. Whichever source reports something first wins, so everything that must be recorded once is
remembered here or in the parts that hold this session (`calls.py`, `approvals.py`, `subagents.py`, `turns.py`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Image
from quarterdeck.harness.base import BaseTranslator, Object, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.kernel.view import View

PromptSource: TypeAlias = Literal["user", "agent"]

#: How long a prompt of a session that hit its usage limit waits for a sign that the agent works on it.
HELD_S = 1.0
#: Where texts are sent over stdin, a result follows its Stop hook at once. One that hasn't come by then never will.
OWED_S = 1.0
#: How many texts that were read from stdin are remembered, to recognise the UserPromptSubmit hook that follows.
_READ_LIMIT = 16

#: What can be done with a session in the user's terminal, by answering its hooks.
OBSERVED_CAPABILITIES = ("approvals", "questions", "dialogs", "resume")
#: What can be done over stdin.
STDIN_CAPABILITIES = (*OBSERVED_CAPABILITIES, "steer", "interrupt", "images", "switch_model", "modes", "compact")


class ClaudeSession:
    """Identity and shared flags of one session."""

    def __init__(self, translator: BaseTranslator) -> None:
        self._translator = translator
        self.tracker = translator.tracker
        self.session_id = ""
        self.model = ""
        #: The permission mode on our scale, and in Claude Code's own word.
        self.mode = ""
        self.native_mode = ""
        self.billing: Literal["metered", "plan", "unknown"] = "unknown"
        self._id_count = 0
        self.reset()

    def reset(self) -> None:
        """Forget what belongs to one process. Model, mode and billing outlive it."""
        self.version = ""
        #: stream-json is read: it reports turns, calls and texts, and other sources only add to it.
        self.has_stream = False
        #: A hook has been received.
        self.has_hooks = False
        #: Texts can be sent over stdin.
        self.is_steerable = False
        #: The process exited. Signals that arrive later are leftovers.
        self.has_exited = False
        #: Standard input was closed, which asks the agent to exit.
        self.input_closed = False
        #: What the session file says: idle, busy or waiting. Empty if there is no file.
        self.file_status = ""
        #: Results that will still be printed for turns that are closed already.
        self.results_owed = 0
        self.results_owed_since = 0.0
        #: A command without a turn (/clear, a blocked prompt) is done, and its result is still to come.
        self.command_result_due = False
        self._reported: tuple[object, ...] = ()
        self.reset_turn()

    def reset_turn(self) -> None:
        """Forget what belongs to one turn."""
        self.prompt_id = ""
        #: `system/init` was printed for this turn.
        self.has_init = False
        #: An interrupt was confirmed, so an error result isn't a failure.
        self.interrupted = False
        #: A request to the model was reported and the reply hasn't started.
        self.request_is_open = False
        #: A request was made in this turn before the open one.
        self.has_requested = False
        #: The call that a PreToolUse hook deferred, if any.
        self.deferred_call_id: str = ""
        #: The last message that a MessageDisplay hook showed.
        self.displayed_message_id: str = ""

    def restore(self, view: View) -> None:
        profile = view.state.profile
        self.session_id, self.model, self.mode = profile.native_session_id, profile.model, profile.mode
        self._id_count = view.index

    @property
    def now(self) -> float:
        return self._translator.now

    @property
    def turn_is_open(self) -> bool:
        return bool(self.tracker.turn_id)

    @property
    def is_dormant(self) -> bool:
        """Whether the agent is not known to be ready: it never reported itself, or its session ended."""
        return not self.tracker.is_ready or self.tracker.has_exited

    def set_timer(self, name: str, seconds: float) -> None:
        self._translator.set_timer(name, seconds)

    def clear_timer(self, name: str) -> None:
        self._translator.clear_timer(name)

    def has_timer(self, name: str) -> bool:
        return name in self._translator.timers

    def new_id(self, prefix: str) -> str:
        """Return an id for something that Claude Code gave none."""
        self._id_count += 1
        return f"{prefix}-{self._id_count}"

    def report_ready(self, session_id: str = "", model: str = "", version: str = "") -> None:
        """Record `agent_ready`, again only when there is something new to say."""
        self.session_id = session_id or self.session_id
        self.version = version or self.version
        self.set_model(model)
        report = (self.session_id, bool(self.model), self.version, self.is_steerable)
        if report == self._reported and not self.is_dormant:
            return
        self._reported = report
        self.tracker.report_ready(
            native_session_id=self.session_id,
            model=self.model,
            version=self.version,
            capabilities=STDIN_CAPABILITIES if self.is_steerable else OBSERVED_CAPABILITIES,
            resumable=True if self.session_id else None,
        )

    def set_model(self, model: str) -> None:
        """Record the model that answers, if it changed."""
        if not model or model == self.model:
            return
        if self.model:
            self.tracker.emit(ev.ModelSwitched(to=model, from_=self.model))
        self.model = model

    def set_mode(self, native_mode: str) -> None:
        """Record the permission mode, if it changed. Unknown modes are ignored."""
        mode = tables.MODES.get(native_mode)
        if mode is None:
            return
        self.native_mode = native_mode
        if mode != self.mode:
            self.mode = mode
            self.tracker.emit(ev.SettingChanged(mode=mode, auto_approve=mode in tables.AUTO_MODES))

    def set_title(self, title: str) -> None:
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    def adopts(self, session_id: str, event: str, hook: Object) -> bool:
        """Return whether a hook of another session makes that session ours: the first hook, /clear and /resume do."""
        rebinds = event == "SessionStart" and (self.tracker.has_exited or text_of(hook, "source") == "clear")
        if self.session_id and not rebinds:
            return False
        self.session_id = session_id
        return True


# ----------------------------------------------------------------------------------------------------------------------
# Prompts
# ----------------------------------------------------------------------------------------------------------------------


class SentText(Struct):
    """A text that we sent over stdin and that the agent hasn't read yet."""

    text: str
    #: What was recorded of it: nothing yet, that it is queued, or that it is a prompt.
    recorded_as: Literal["", "queued", "prompt"]
    images: tuple[Image, ...] = ()


class _HeldPrompt(Struct):
    """A prompt that isn't recorded yet."""

    text: str
    message_id: str
    source: PromptSource
    images: tuple[Image, ...]


class Prompts:
    """Texts that were sent or typed, and the turns that they start."""

    def __init__(self, session: ClaudeSession) -> None:
        self.session = session
        self.tracker = session.tracker
        #: The last turn failed because of a usage limit, so the next prompt will probably fail at once.
        self.is_limited = False
        self.reset()

    def reset(self) -> None:
        #: Texts sent over stdin that the agent hasn't read, by message id.
        self.sent: dict[str, SentText] = {}
        self._recently_read: list[str] = []
        self._held: _HeldPrompt | None = None
        #: UserPromptSubmit hooks are received, so they show when queued texts are read.
        self.submits_seen = False

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    # --- the start of turns

    def ensure_turn(self) -> None:
        """Start a turn unless one is open."""
        if self.session.turn_is_open:
            return
        if self.session.is_dormant:
            self.session.report_ready()
        self._start_turn()

    def _start_turn(self) -> None:
        """Reset the turn's state and start the turn. Other texts that were sent are queued until the agent reads them."""
        self.session.reset_turn()
        self.tracker.stop_requested = False
        if self.session.file_status == "idle":
            # The session file described the time before this turn.
            self.session.clear_timer("settled")
        self.tracker.start_turn()
        for message_id, sent in self.sent.items():
            if not sent.recorded_as:
                self._queue(message_id, sent)

    def note_work(self, firm: bool = True) -> None:
        """Start a turn because the main agent is seen at work. The text that was sent first is its prompt.

        With `firm=False` the sign isn't proof of work: a prompt that is held because of a usage limit stays held.
        """
        if self._held is not None:
            if not firm:
                return
            self.release_held()
        if firm:
            self.is_limited = False
        if self.session.turn_is_open:
            return
        first = next(iter(self.sent), None)
        if first is not None:
            self.mark_read(first)
        self.ensure_turn()

    # --- texts that we send

    def send(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> None:
        """Record a text that we sent. An agent that isn't ready, or is busy, reads it later."""
        sent = self.sent[message_id] = SentText(text, "", images)
        if self.session.turn_is_open:
            self._queue(message_id, sent)
            return
        if self.session.now - self.session.results_owed_since > OWED_S:
            self.session.results_owed = 0
        if not self.session.is_dormant and len(self.sent) == 1:
            sent.recorded_as = "prompt"
            self._take(text, message_id, images=images)

    def _queue(self, message_id: str, sent: SentText) -> None:
        sent.recorded_as = "queued"
        self.tracker.emit(ev.SteeringReceived(ref=message_id, text=sent.text, status="queued", images=sent.images))

    def mark_read(self, message_id: str) -> None:
        """Record that the agent reads a text that we sent: into the open turn, or as the start of one."""
        sent = self.sent.pop(message_id)
        self._recently_read = [*self._recently_read[-_READ_LIMIT + 1 :], sent.text.strip()]
        if sent.recorded_as == "prompt":
            self.note_work(firm=False)
        elif self.session.turn_is_open:
            self.tracker.emit(ev.SteeringApplied(refs=(message_id,), count=1, turn_id=self.tracker.turn_id))
        else:
            self._take(sent.text, message_id, images=sent.images)

    def mark_queued_read(self) -> None:
        """Record that the agent reads all queued texts."""
        for message_id in [message_id for message_id, sent in self.sent.items() if sent.recorded_as == "queued"]:
            self.mark_read(message_id)

    def sent_prompt_id(self) -> str | None:
        """Return the id of the text that is recorded as the turn's prompt and not read yet."""
        return next((message_id for message_id, sent in self.sent.items() if sent.recorded_as == "prompt"), None)

    def forget_sent_prompts(self) -> None:
        """Forget texts that were recorded as prompts of a turn that is over."""
        self.sent = {message_id: sent for message_id, sent in self.sent.items() if sent.recorded_as != "prompt"}

    def drop(self, message_id: str) -> None:
        """Record that the agent will never read a text that we sent."""
        sent = self.sent.pop(message_id)
        self.tracker.emit(ev.PromptDropped(text=sent.text, message_id=message_id))

    # --- prompts

    def submit(self, text: str, prompt_id: str) -> None:
        """Record a submitted prompt: one that we sent, or one that a person typed in the terminal."""
        plain = text.strip()
        self.submits_seen = True
        message_id = next((name for name, sent in self.sent.items() if sent.text.strip() == plain), None)
        if message_id is not None:
            self.mark_read(message_id)
            self._recently_read.pop()
        elif plain in self._recently_read:
            self._recently_read.remove(plain)
            self.note_work(firm=False)
        else:
            self._take_typed(text, prompt_id)
        self.session.prompt_id = prompt_id or self.session.prompt_id

    def _take_typed(self, text: str, prompt_id: str) -> None:
        """Record a prompt that we didn't send."""
        source: PromptSource = "agent" if text.startswith(tables.AGENT_PROMPTS) else "user"
        is_new = prompt_id and prompt_id != self.session.prompt_id
        message_id = prompt_id if is_new else self.session.new_id("prompt")
        shown = _summary_of(text) if source == "agent" else text
        if self.session.turn_is_open:
            self.tracker.record_prompt(shown, message_id, source)
        else:
            self._take(shown, message_id, source)

    def _take(self, text: str, message_id: str, source: PromptSource = "user", images: tuple[Image, ...] = ()) -> None:
        """Start a turn with a prompt. After a usage limit the prompt is held until more is known."""
        self.release_held()
        if self.is_limited:
            self._held = _HeldPrompt(text, message_id, source, images)
            self.session.set_timer("held", HELD_S)
        else:
            self._record(text, message_id, source, images)

    def _record(self, text: str, message_id: str, source: PromptSource, images: tuple[Image, ...]) -> None:
        if self.session.is_dormant:
            self.session.report_ready()
        self.tracker.record_prompt(text, message_id, source, images)
        self._start_turn()

    def release_held(self) -> None:
        """Record the prompt that is held, if any."""
        held = self._held
        if held is not None:
            self._held = None
            self.session.clear_timer("held")
            self._record(held.text, held.message_id, held.source, held.images)

    def reject(self, text: str, reason: str) -> None:
        """Record a prompt that a hook blocked. The model never saw it."""
        self.tracker.emit(ev.PromptRejected(reason=reason or "blocked by a hook", text=text))


def _summary_of(text: str) -> str:
    """Return the summary line of a notification, or the whole text if it has none."""
    _, opened, rest = text.partition("<summary>")
    summary, closed, _ = rest.partition("</summary>")
    return summary.strip() if opened and closed and summary.strip() else text
