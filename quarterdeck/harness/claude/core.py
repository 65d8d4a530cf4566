"""What all sources share: who the session is, which turn is open, which texts were sent and which were read.

A turn is closed by whoever knows best. Where stream-json is read that is the `result` line, because a Stop hook only asks
whether the agent may stop. Where hooks are all there is, Stop closes it; and since no hook tells an interrupt, the next
prompt with another prompt_id shows that the turn before it is over.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import Body, FailureKind, Image, Json
from quarterdeck.harness.base import BookTranslator, Object, Signal, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.kernel.view import View

#: How long a prompt of a session that hit its usage limit waits for a sign that it is worked on.
HELD_S = 1.0
#: The session file follows within a tenth of a second; a hook that says more comes before that.
FILE_LAG_S = 0.3
#: Hooks do not tell interrupts: after this long without one, "thinking" is only what we knew last.
SILENCE_S = 60.0
_READ_KEPT = 16
#: Where texts are sent over stdin, a result follows its Stop hook at once: one that has not come by then never will.
OWED_S = 1.0

#: What can be done in a session in the user's terminal, by answering its hooks.
OBSERVED = ("approvals", "questions", "dialogs", "resume")
#: What can be done besides over stdin.
CAPABILITIES = (*OBSERVED, "steer", "interrupt", "images", "switch_model", "modes", "compact")


class Sent(Struct):
    """A text that we sent and the agent has not read yet: told as a prompt, told as queued, or not told at all."""

    text: str
    told: Literal["", "queued", "prompt"]
    images: tuple[Image, ...] = ()


class Held(Struct):
    """A prompt that is not told yet."""

    text: str
    ref: str
    source: Literal["user", "agent"]
    images: tuple[Image, ...]


class Core(BookTranslator):
    """The session, its turn and its prompts.

    What every session or signal needs names the base that it builds on: `super()` costs more than most of these methods.
    """

    __slots__ = (
        "asked_before",
        "billing",
        "closing",
        "command_due",
        "count",
        "deferred",
        "displayed",
        "gone",
        "held",
        "hooked",
        "inited",
        "interrupted",
        "limited",
        "mode",
        "mode_word",
        "model",
        "owed",
        "owed_at",
        "prompt_id",
        "read",
        "requested",
        "said",
        "sent",
        "session_id",
        "status",
        "steerable",
        "stream",
        "submits_told",
        "version",
    )

    def __init__(self) -> None:
        BookTranslator.__init__(self)
        self.count = 0
        self.session_id = ""
        self.model = ""
        self.mode = ""
        #: the agent's own word for the mode
        self.mode_word = ""
        self.billing: Literal["metered", "plan", "unknown"] = "unknown"
        self.limited = False
        self.new_process()

    def new_process(self) -> None:
        """Nothing is known of a process that has just begun."""
        self.version = ""
        #: what the session file says: idle, busy or waiting; empty where there is none
        self.status = ""
        self.said: tuple[object, ...] = ()
        self.stream = self.hooked = self.submits_told = self.gone = self.steerable = False
        self.sent: dict[str, Sent] = {}
        self.read: list[str] = []
        self.closing = False
        #: results that will still come for turns that are closed
        self.owed = 0
        self.owed_at = 0.0
        #: a command without a turn (/clear, a prompt that was refused) is done, and its result is still to come
        self.command_due = False
        self.held: Held | None = None
        self.new_turn()

    def new_turn(self) -> None:
        """Nothing is known of a turn that has just begun."""
        self.prompt_id = ""
        self.inited = self.interrupted = self.requested = self.asked_before = False
        self.deferred: str = ""
        self.displayed: str = ""

    def feed(self, signal: Signal, now: float) -> list[Body]:
        if self.book.signal_now == "stale":
            self.book.signal("live")
        return BookTranslator.feed(self, signal, now)

    def restore(self, view: View) -> None:
        super().restore(view)
        profile = view.state.profile
        self.session_id, self.model, self.mode = profile.native_session_id, profile.model, profile.mode
        self.count = view.index

    def read_proc(self, data: Json) -> bool:
        event = object_of(data).get("event")
        if event == "start":
            self.new_process()
            self.session_id = ""
        elif event == "stdin_closed":
            self.closing = True
        return BookTranslator.read_proc(self, data)

    def named(self, kind: str) -> str:
        """A name for something that Claude Code left without one."""
        self.count += 1
        return f"{kind}-{self.count}"

    # --- who it is

    def ready(self, session_id: str = "", model: str = "", version: str = "") -> None:
        """The agent answers. Said again when there is something new to say."""
        self.session_id = session_id or self.session_id
        self.version = version or self.version
        self.told_model(model)
        said = (self.session_id, bool(self.model), self.version, self.steerable)
        if said == self.said and self.book.ready_seen and not self.book.exited:
            return
        self.said = said
        self.book.ready(
            native_session_id=self.session_id,
            model=self.model,
            version=self.version,
            capabilities=CAPABILITIES if self.steerable else OBSERVED,
            resumable=True if self.session_id else None,
        )

    def told_model(self, model: str) -> None:
        """The model that answers; another one than before was switched to."""
        if not model or model == self.model:
            return
        if self.model:
            self.book.write(ev.ModelSwitched(to=model, from_=self.model))
        self.model = model

    def told_mode(self, mode: str) -> None:
        """The permission mode, on our scale."""
        mapped = tables.MODES.get(mode)
        if mapped is None:
            return
        self.mode_word = mode
        if mapped != self.mode:
            self.mode = mapped
            self.book.write(ev.SettingChanged(mode=mapped, auto_approve=mapped in tables.AUTO_MODES))

    def binds(self, session_id: str, event: str, found: Object) -> bool:
        """Whether a hook of another session than ours makes that ours: the first one does, and /clear and /resume do."""
        rebinds = event == "SessionStart" and (self.book.exited or text_of(found, "source") == "clear")
        if self.session_id and not rebinds:
            return False
        self.session_id = session_id
        return True

    # --- the turn

    def begin(self) -> None:
        """A turn is open from here on."""
        if self.book.turn:
            return
        if not self.book.ready_seen or self.book.exited:
            self.ready()
        self.begun()

    def begun(self) -> None:
        """The first moment of a turn: what else was sent waits until it is read."""
        self.new_turn()
        self.book.stop_asked = False
        if self.status == "idle":
            self.clear_timer("settled")  # what the file said before the turn says nothing of it
        if not self.book.turn:
            self.book.begin()
        for ref, sent in self.sent.items() if self.sent else ():
            if not sent.told:
                self.queues(ref, sent)

    def working(self, firm: bool = True) -> None:
        """The main agent is seen at work: a turn is open, and what was sent first is being read."""
        if self.held is not None:
            if not firm:
                return
            self.release()
        if firm:
            self.limited = False
        if self.book.turn:
            return
        waiting = next(iter(self.sent), None)
        if waiting is not None:
            self.reads(waiting)
        self.begin()

    def finish(self, outcome: Literal["completed", "failed"] = "completed") -> None:
        """The turn is over by itself. Claude Code waits for its calls, so none of them can still run."""
        self.close_work(ok=True)
        self.book.end(outcome)

    def fail(self, kind: FailureKind, message: str = "", resets_at: int | None = None) -> None:
        """The turn cannot go on."""
        self.release()
        self.close_work(ok=False)
        self.limited = kind == "usage_limit"
        self.book.fail(kind, message, resets_at)

    def stop(self, reason: str = "interrupted") -> None:
        """The turn was ended from outside."""
        self.close_work()
        self.book.abort(reason)

    def pause(self) -> None:
        """A call was deferred: the turn waits outside of any process, and goes on when the session is resumed."""
        for call_id in [name for name, call in self.book.calls.items() if not call.path]:
            del self.book.calls[call_id]
        self.close_work()
        self.book.interrupted()

    def close_work(self, ok: bool | None = None) -> None:
        """What a turn cannot leave behind. `ok` says how calls ended of which nothing was heard; None leaves them."""
        if self.sent:
            self.sent = {ref: sent for ref, sent in self.sent.items() if sent.told != "prompt"}
        if ok is not None and self.book.calls:
            for call_id in [name for name, call in self.book.calls.items() if call.running and not call.path]:
                self.book.end_call(call_id, ok)

    def compacts(self, trigger: str) -> None:
        """The conversation is being shortened."""
        if not self.book.turn:
            self.ready()
            self.new_turn()
        self.book.compact_start("manual" if trigger == "manual" else "auto" if trigger == "auto" else None)

    def goes_on(self) -> None:
        """A hook kept the agent from stopping, so the turn that we closed at its Stop is not over."""
        if self.book.turn:
            return
        prompt_id = self.prompt_id
        self.owed = max(0, self.owed - 1)
        self.begin()
        self.prompt_id = prompt_id

    def past_turn(self) -> None:
        """Another turn begins while one is open: that one is over, though nobody said so."""
        if self.stream:
            # in text mode the results of all turns are printed together, when the last one is over
            self.ends_before_its_result()
        else:
            self.stop()

    def ends_before_its_result(self) -> None:
        """The turn is over, and its result is still to come: that one will end nothing."""
        self.owed += 1
        self.owed_at = self.now
        self.finish()

    # --- prompts

    def sends(self, text: str, ref: str, images: tuple[Image, ...] = ()) -> None:
        """We sent a text. An agent that is not there yet, or is busy, reads it later."""
        sent = self.sent[ref] = Sent(text, "", images)
        if self.book.turn:
            self.queues(ref, sent)
            return
        if self.now - self.owed_at > OWED_S:
            self.owed = 0
        if self.book.ready_seen and not self.book.exited and len(self.sent) == 1:
            sent.told = "prompt"
            self.takes(text, ref, images=images)

    def queues(self, ref: str, sent: Sent) -> None:
        """A text waits for the running turn."""
        sent.told = "queued"
        self.book.write(ev.SteeringReceived(ref=ref, text=sent.text, status="queued", images=sent.images))

    def reads(self, ref: str) -> None:
        """A text that we sent is read now: into the open turn, or as the beginning of one."""
        sent = self.sent.pop(ref)
        self.read = [*self.read[-_READ_KEPT + 1 :], sent.text.strip()]
        if sent.told == "prompt":
            self.working(firm=False)
        elif self.book.turn:
            self.book.write(ev.SteeringApplied(refs=(ref,), count=1, turn_id=self.book.turn))
        else:
            self.takes(sent.text, ref, images=sent.images)

    def takes(
        self, text: str, ref: str, source: Literal["user", "agent"] = "user", images: tuple[Image, ...] = ()
    ) -> None:
        """A prompt begins a turn. One that will meet the same limit again is held back until more is known."""
        if self.held is not None:
            self.release()
        if self.limited:
            self.held = Held(text, ref, source, images)
            self.set_timer("held", HELD_S)
        else:
            self.tells(text, ref, source, images)

    def tells(self, text: str, ref: str, source: Literal["user", "agent"], images: tuple[Image, ...]) -> None:
        if not self.book.ready_seen or self.book.exited:
            self.ready()
        self.book.prompt(text, ref, source, images)
        self.begun()

    def release(self) -> None:
        """What was held back is told."""
        held = self.held
        if held is not None:
            self.held = None
            self.clear_timer("held")
            self.tells(held.text, held.ref, held.source, held.images)

    def on_held(self) -> None:
        self.release()

    def submitted(self, text: str, prompt_id: str) -> None:
        """A prompt was submitted, from wherever: one that we sent, or one that a person typed."""
        plain = text.strip()
        self.submits_told = True
        if self.is_other_turn(prompt_id):
            self.past_turn()
        ref = next((ref for ref, sent in self.sent.items() if sent.text.strip() == plain), None) if self.sent else None
        if ref is not None:
            self.reads(ref)
            self.read.pop()
        elif plain in self.read:
            self.read.remove(plain)
            self.working(firm=False)
        else:
            self.typed(text, prompt_id)
        self.prompt_id = prompt_id or self.prompt_id

    def is_other_turn(self, prompt_id: str) -> bool:
        """Whether a prompt belongs to another turn than the open one: one id serves one turn, steering included."""
        return bool(self.book.turn and prompt_id and self.prompt_id and prompt_id != self.prompt_id)

    def typed(self, text: str, prompt_id: str) -> None:
        """A prompt that we did not send."""
        source: Literal["user", "agent"] = "agent" if text.startswith(tables.AGENT_PROMPTS) else "user"
        ref = prompt_id if prompt_id and prompt_id != self.prompt_id else self.named("prompt")
        shown = summary_in(text) if source == "agent" else text
        if self.book.turn:
            self.book.prompt(shown, ref, source)
        else:
            self.takes(shown, ref, source)

    # --- how good the evidence is

    def watch_silence(self) -> None:
        """With hooks alone, a turn that says nothing for long may have been interrupted.

        Where there is a file, silence means nothing; but a hook may be newer than the file: look again later.
        """
        book, timers = self.book, self.timers
        if self.status:
            if "settled" in timers:
                self.set_timer("settled", FILE_LAG_S)
        elif book.turn and not (self.stream or book.gates or book.compacting or (book.calls and book.runs_calls())):
            timers["silence"] = self.now + SILENCE_S
        elif timers:
            self.clear_timer("silence")

    def may_be_interrupted(self) -> None:
        """The call that asked does not run: either the turn was interrupted, or the terminal's own dialog is left."""
        if self.book.turn and not (self.stream or self.status):
            self.set_timer("silence", SILENCE_S)

    def on_silence(self) -> None:
        self.book.signal("stale", "no hook for a while, and hooks do not tell interrupts")


def summary_in(text: str) -> str:
    """What a notification says in one line, if it has such a line."""
    _, opened, rest = text.partition("<summary>")
    summary, closed, _ = rest.partition("</summary>")
    return summary.strip() if opened and closed and summary.strip() else text
