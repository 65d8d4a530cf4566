"""What all sources of one Codex session share: whose session it is, what was told already, and who decides."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

from quarterdeck import events as ev
from quarterdeck.events import Block, Json, TokenUsage
from quarterdeck.harness.base import BaseTranslator, Object, int_of, object_of
from quarterdeck.harness.tracker import AgentPath
from quarterdeck.kernel.view import View

#: Which stream of the agent itself is read: `codex app-server`, `codex exec --json`, or none.
Lead: TypeAlias = Literal["", "app", "exec"]
#: (input, cached, cache write, output), as Codex counts them: cached and written tokens are part of the input.
Counts: TypeAlias = tuple[int, int, int, int]
NOTHING: Counts = (0, 0, 0, 0)

#: How each source names them.
_COUNT_NAMES = (
    ("inputTokens", "cachedInputTokens", "cacheWriteInputTokens", "outputTokens"),
    ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens"),
    ("input_token_count", "cached_token_count", "cache_write_token_count", "output_token_count"),
)

#: For this long after an interrupt nothing but a prompt makes the agent active (seed 003).
SUPPRESSION_S = 0.5
#: Telemetry is sent once a second, so the last records of a turn may come so long after its end.
LATE_S = 1.2
#: How much is remembered to recognise what another source tells again.
_REMEMBERED = 512

#: Deadlines that mean nothing once the turn is over.
_TURN_TIMERS = ("idle", "unseen", "quiet", "watchdog", "give_up", "question")

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def remember(memory: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Keeps the newest entries only: a session may go on for weeks."""
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]


def counts_in(found: Object) -> Counts:
    """Token counts under the names of any source; nothing where they are named otherwise."""
    for names in _COUNT_NAMES:
        whole, cached, written, output = names
        if whole in found or output in found:
            return int_of(found, whole), int_of(found, cached), int_of(found, written), int_of(found, output)
    return NOTHING


def exclusive(counts: Counts) -> TokenUsage:
    """The four buckets, none inside another."""
    whole, cached, written, output = counts
    return TokenUsage(
        input=max(whole - cached - written, 0), output=output, cache_read=cached, cache_write=max(written, 0)
    )


def difference(now: Counts, before: Counts) -> Counts | None:
    """What a running sum grew by; None when it went back, which means that another sum began."""
    grown = (now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3])
    return None if min(grown) < 0 else grown


class Desk(BaseTranslator):
    """The shared half of the translator. The sources' readers hold it and write through its tracker.

    What every session or signal needs names the base that it builds on: `super()` costs more than most of these methods.
    """

    def __init__(self) -> None:
        BaseTranslator.__init__(self)
        self.lead: Lead = ""
        self.own = ""
        self.model = ""
        #: the settings; another model may answer than the one that is set
        self.mode: str = ""
        self.set_model = self._thinking = ""
        self.hooks_seen = False
        #: whether hooks tell every request to the model: then they lead, and telemetry adds
        self.hooks_lead = False
        #: whether a request to the model is under way, whoever told it first
        self.in_request = False
        #: sessions that said they are over
        self.over: dict[str, None] = {}
        #: sub-agents by the id of their thread
        self.children: dict[str, AgentPath] = {}
        self._ended_calls: dict[str, None] = {}
        self._told_prompts: dict[str, int] = {}
        self._seen_prompts: dict[tuple[str, str], int] = {}
        self._told_texts: dict[str, None] = {}
        self._told_notices: dict[str, None] = {}
        self._usages = 0
        #: until then only a prompt begins a turn: what else comes is still of the turn that ended
        self.suppressed_until = 0.0
        #: when a hook or notify last told something: a record that was made before is not news
        self.told_at = 0.0

    def restore(self, view: View) -> None:
        super().restore(view)
        profile = view.state.profile
        self.own = profile.native_session_id
        self.model = self.set_model = profile.model
        self.mode, self._thinking = profile.mode, profile.thinking or ""
        self._usages = view.index
        for task in view.state.background:
            if task.kind == "subagent":
                self.children[task.id] = (task.id,)

    def on_exit(self, code: int | None, signal: str | None) -> None:
        BaseTranslator.on_exit(self, code, signal)
        self.told_at = self.now
        self.suppressed_until = self.now + LATE_S

    def is_server(self) -> bool:
        return self.lead == "app"

    def follow(self, lead: Lead) -> None:
        """A stream of the agent itself is here: the guesses of weaker sources are off."""
        if self.lead != lead:
            self.lead = lead
            self.timers.clear()
            self.tracker.set_signal("live")

    # --- whose session

    def bind(self, thread_id: str, model: str = "", version: str = "", capabilities: tuple[str, ...] = ()) -> None:
        """The session is this thread's. Said once for each thread, and again when it comes back to life."""
        tracker = self.tracker
        if thread_id == self.own and tracker.is_ready and not tracker.has_exited:
            if model and model != self.set_model:
                self.note_settings(model=model)
            return
        self.over.pop(thread_id, None)
        self.own, self.model = thread_id, model or self.model
        self.set_model = self.model
        tracker.report_ready(thread_id, model, version, capabilities, resumable=True)

    def path_of(self, thread_id: str) -> AgentPath | None:
        """Where events of this thread belong; None for a stranger's (a title being made, another client's thread)."""
        return () if thread_id == self.own else self.children.get(thread_id)

    def note_settings(self, mode: str | None = None, thinking: str = "", model: str = "") -> None:
        """Settings, told when they are other ones than before."""
        mode = mode if mode and mode != self.mode else None
        effort = thinking if thinking and thinking != self._thinking else None
        name = model if model and model != self.set_model else None
        if mode or effort or name:
            self.mode, self._thinking = mode or self.mode, effort or self._thinking
            self.model = self.set_model = name or self.set_model
            self.tracker.emit(ev.SettingChanged(mode=mode, thinking=effort, model=name))

    # --- nothing twice

    def start_call(self, call_id: str, name: str, args: Json = None, path: AgentPath = ()) -> None:
        """A call runs, unless another source told its end already."""
        if call_id not in self._ended_calls:
            self.tracker.start_call(call_id, name, args, path)

    def end_call(self, call_id: str, name: str, ok: bool = True, result: Json = None, path: AgentPath = ()) -> None:
        """A call ended; told once."""
        if call_id in self._ended_calls:
            return
        remember(self._ended_calls, call_id, None)
        self.tracker.end_call(call_id, ok, result, name, path)

    def block_call(self, call_id: str, name: str, reason: str) -> None:
        """A call was kept from running; told once."""
        if call_id not in self._ended_calls:
            remember(self._ended_calls, call_id, None)
            self.tracker.block_call(call_id, reason, name)

    def add_call(self, call_id: str, name: str, args: Json, ok: bool, result: Json) -> None:
        """A call that nobody saw running: told when it is over. It moves nothing, but what it asked is answered."""
        if call_id and call_id not in self._ended_calls and call_id not in self.tracker.calls:
            remember(self._ended_calls, call_id, None)
            self.tracker.close_call_approvals(call_id)
            turn = self.tracker.turn_id or None
            self.tracker.emit(ev.ToolCall(name=name, call_id=call_id, args=args, turn_id=turn))
            self.tracker.emit(ev.ToolExecutionEnd(name=name, call_id=call_id, ok=ok, result=result, turn_id=turn))

    def is_new_prompt(self, source: str, text: str) -> bool:
        """Whether this source is the first to tell this prompt: its n-th is new if fewer than n were told."""
        seen = self._seen_prompts.get((source, text), 0) + 1
        remember(self._seen_prompts, (source, text), seen)
        if seen <= self._told_prompts.get(text, 0):
            return False
        remember(self._told_prompts, text, seen)
        return True

    def last_text(self, turn_id: str, text: str) -> None:
        """The last words of a turn, from a source that gives no other ones."""
        name = f"{turn_id}:last"
        if text and name not in self._told_texts:
            remember(self._told_texts, name, None)
            self.tracker.finish_message(name, (Block(text=text),))

    def notice_once(self, text: str, level: Literal["info", "warning", "error"] = "warning") -> None:
        """A line for people; Codex repeats its warnings on several ways."""
        if text and text not in self._told_notices:
            remember(self._told_notices, text, None)
            self.tracker.add_notice(text, level, "codex")

    def count(self, counts: Counts, path: AgentPath = (), billing: Literal["plan", "unknown"] = "unknown") -> None:
        """Tokens of one more message."""
        if counts != NOTHING:
            self._usages += 1
            name = f"{self.own}:{self._usages}"
            self.tracker.record_usage(exclusive(counts), name, self.model, billing, path)

    # --- the end of a turn, seen by hooks or notify before telemetry brings the last records of it

    def turn_over(self, suppress_s: float = LATE_S) -> None:
        """The turn is over for sure; what is still on its way does not begin another one."""
        for name in [name for name in self.timers if name in _TURN_TIMERS] if self.timers else ():
            del self.timers[name]
        self.tracker.set_signal("live")
        self.told_at = self.now
        self.suppressed_until = self.now + suppress_s

    def read_proc(self, data: Json) -> bool:
        known = BaseTranslator.read_proc(self, data)
        found = object_of(data)
        if found.get("event") == "start":
            self.restarted(found)
        return known

    def restarted(self, data: Object) -> None:
        """A new process: it will say whose session it serves."""
        self.own, self.lead = "", ""
        self.in_request = self.hooks_lead = False
        self.children.clear()
        self.timers.clear()
        self.suppressed_until = self.told_at = 0.0
